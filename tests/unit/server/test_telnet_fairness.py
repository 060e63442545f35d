"""Whatever one connection sends, the others get their turn: no flood is gone through without a pause."""

import signal
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import trio
from trio.testing import memory_stream_pair

from tests.running import Client, Running, running
from tests.unit.doors.test_telnet import BAD, GOOD, OPTIONS, RULES, VERSION, T, session, tell
from tsd.doors.clients import Clients
from tsd.doors.listener import MOST_BYTES
from tsd.doors.quotas import BURST_S
from tsd.doors.visitor import Visitor
from tsd.ingest.disk import Disk
from tsd.ingest.journal import GROUP_BYTES
from tsd.ingest.putlines import SLOW_LINES
from tsd.settings import Mode

BLOCK_BYTES = 128 << 10  # half of the most that is read at once
MOST_LINES = 2500  # between two looks: trio may give two turns to one task before another
UNBOUNDED = RULES._replace(reply_buffer=1 << 30)  # it waits for nobody to read
DEADLINE_S = 60
FLOOD = 50_000


@pytest.fixture
async def daemon(tmp_path: Path) -> AsyncIterator[Running]:
    async with running(tmp_path) as daemon:
        yield daemon


@pytest.fixture
def deadline() -> Iterator[None]:
    """End a test that would take hours; between two turns nothing else can."""

    def give_up(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(DEADLINE_S)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.slow
@pytest.mark.parametrize("mode", [Mode.READ_WRITE, Mode.READ_ONLY])
@pytest.mark.parametrize(
    "line",
    [
        b"\n",
        b"nonsense\n",
        b"sync\n",
        b"version\n",
        b"put\n",
        BAD,
        GOOD + BAD,
        GOOD + b"\n",
        b"put m %d x a=b\n" % T,
        b"put m %d 1 a=$\n" % T,
        b"rollup\n",
        OPTIONS + BAD,
    ],
)
async def test_a_flood_is_taken_a_few_lines_at_a_time(daemon: Running, line: bytes, mode: Mode) -> None:
    """Of 256 KiB of blank lines once all were answered before anybody else was."""
    ours, _ = memory_stream_pair()
    rules = UNBOUNDED._replace(mode=mode)
    talk, tally, _ = session(ours, daemon.daemon.intake, rules)
    flood = line * (BLOCK_BYTES // len(line))
    steps: list[int] = []
    over = False

    def handled() -> int:
        return tally.commands + daemon.daemon.ledger.received

    async def watch() -> None:
        before = 0  # the flood may be over when this task has its first turn
        while True:
            steps.append(handled() - before)
            before = handled()
            if over:
                break
            await trio.lowlevel.checkpoint()

    async def receive() -> bytes:
        return b""

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        await talk.run(flood, receive)
        over = True
    assert handled() >= flood.count(b"\n")
    assert max(steps) <= MOST_LINES


async def test_many_connections_of_one_client_share_one_turn(daemon: Running) -> None:
    """Of 20 connections with refused lines each once had a turn as long as a small client's in every pass."""
    clients = Clients()
    flood = BAD * 2000
    handled = daemon.daemon.ledger
    steps: list[int] = []
    left = 20

    async def receive() -> bytes:
        return b""

    async def send(port: int) -> None:
        nonlocal left
        ours, _ = memory_stream_pair()
        visitor = Visitor("10.0.0.1", port, clients.of("10.0.0.1"), clients=clients)
        talk, _, _ = session(ours, daemon.daemon.intake, UNBOUNDED, visitor)
        await talk.run(flood, receive)
        left -= 1

    async def watch() -> None:
        before = 0
        while left:
            steps.append(handled.received - before)
            before = handled.received
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        for port in range(left):
            nursery.start_soon(send, port)
    assert handled.received == 20 * 2000
    assert sorted(steps)[len(steps) * 9 // 10] <= 3 * SLOW_LINES


async def test_a_line_of_endless_subnegotiations_is_looked_at_once(daemon: Running, deadline: None) -> None:
    """Each of them was once looked for its end up to the end of the line: 10 s for 512 KiB."""
    line = b"\xff\xfa" * 400_000
    told = await tell(daemon, [line + b"\nversion\n"], UNBOUNDED._replace(max_line=len(line)))
    assert told.replies.startswith("unknown command: ÿúÿú".encode())
    assert told.replies.endswith(b"help'.\n" + VERSION)


async def test_a_subnegotiation_without_its_end_is_a_word(daemon: Running) -> None:
    told = await tell(daemon, [OPTIONS + b"\xff\xfaversion\n" + OPTIONS + b"\xff\xf4version\n"])
    assert told.replies == "unknown command: ÿúversion.  Try `help'.\n".encode() + VERSION


@pytest.mark.slow
async def test_another_connection_is_answered_before_the_floods_last_line(daemon: Running) -> None:
    async with daemon.client() as flooding, daemon.client() as other, trio.open_nursery() as nursery:
        await other.ask(GOOD)
        received: list[int] = []

        async def flood() -> None:
            await flooding.send(b"put\n" * FLOOD + b"sync\n")

        async def drain() -> None:
            end = b"synced 0\n"  # which may come in two pieces
            tail = b""
            while tail != end:
                tail = (tail + await flooding.stream.receive_some())[-len(end) :]

        nursery.start_soon(flood)
        nursery.start_soon(drain)
        while not received or received[-1] < FLOOD:
            await other.ask(b"")
            refused = daemon.daemon.ledger.refused.total()
            received.append(refused)
    in_between = [now for now in received if 0 < now < FLOOD]
    assert len(in_between) > 3


async def test_who_sends_a_hundred_times_its_quota_stands_before_nobodys_sync(tmp_path: Path) -> None:
    """Counted in lines: once it is over its quota, none of its own is taken before another's are confirmed."""
    async with (
        running(tmp_path, {"tsd.quota.lines_per_second": "1"}) as daemon,
        await trio.open_tcp_stream("127.0.0.1", daemon.port, local_address="127.0.0.2") as stream,
        daemon.client() as other,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(Client(stream).send, GOOD * 100 * BURST_S)
        with trio.fail_after(DEADLINE_S):
            while not daemon.daemon.clients.at("127.0.0.2").pausing:
                await trio.lowlevel.checkpoint()
        taken = daemon.daemon.ledger.received
        assert BURST_S < taken <= BURST_S + MOST_BYTES // len(GOOD)
        for number in range(1, 5):
            assert await other.ask(GOOD) == b"synced %d\n" % number
            assert daemon.daemon.ledger.received == taken + number


@pytest.mark.parametrize("senders", [1, 8])
async def test_who_sends_much_waits_for_the_disk_before_others_do(daemon: Running, senders: int) -> None:
    """All that one client had sent stood before each line of the others: half a second, at 350 MB/s."""
    much = (16 << 20) // senders
    may_sync = threading.Event()

    class Held(Disk):
        def sync(self, fd: int) -> None:
            may_sync.wait(DEADLINE_S)
            super().sync(fd)

    journal, ledger = daemon.daemon.journal, daemon.daemon.ledger
    journal.disk = Held()
    lines = GOOD * (much // len(GOOD))
    async with AsyncExitStack() as clients, daemon.client() as other, trio.open_nursery() as nursery:
        for _ in range(senders):
            flooding = await clients.enter_async_context(daemon.client())
            nursery.start_soon(flooding.send, lines)
        try:
            while journal.pending <= 2 * GROUP_BYTES:
                await trio.lowlevel.checkpoint()
            await other.send(GOOD + b"version\n")
            await other.read_until(b"\n")
            assert daemon.daemon.gate.is_open
            assert journal.pending <= 2 * GROUP_BYTES + MOST_BYTES + len(GOOD)
        finally:
            may_sync.set()
        assert (await other.ask(b"")).endswith(b"synced 1\n")
        while ledger.received < senders * len(lines) // len(GOOD) + 1:
            await trio.lowlevel.checkpoint()
