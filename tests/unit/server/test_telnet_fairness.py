"""Fairness between connections: no input of one connection delays others for long."""

import signal
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import trio
from trio.testing import memory_stream_pair

from tests.running import Client, Running, running
from tests.unit.server.test_telnet import BAD, DEFAULT_OPTIONS, GOOD, OPTIONS, VERSION, T, run_session, session
from tsd.config.settings import Mode
from tsd.ingest.journal.disk import Disk
from tsd.server.clients import Clients
from tsd.server.peer import Peer

BLOCK_BYTES = 128 << 10  # half of the largest read
MOST_LINES = 2500  # between two checks: trio may run one task twice before another
UNBOUNDED = DEFAULT_OPTIONS._replace(reply_buffer=1 << 30)  # never waits for a reader
DEADLINE_S = 60
FLOOD = 50_000


@pytest.fixture
async def daemon(tmp_path: Path) -> AsyncIterator[Running]:
    async with running(tmp_path) as daemon:
        yield daemon


@pytest.fixture
def deadline() -> Iterator[None]:
    """End a test that would take hours, also if the event loop is blocked."""

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
async def test_flood_is_processed_in_small_steps(daemon: Running, line: bytes, mode: Mode) -> None:
    """256 KiB of blank lines must not be answered in one step."""
    ours, _ = memory_stream_pair()
    options = UNBOUNDED._replace(mode=mode)
    talk, stats, _ = session(ours, daemon.daemon.ingest.intake, options)
    flood = line * (BLOCK_BYTES // len(line))
    steps: list[int] = []
    over = False

    def handled() -> int:
        return stats.commands + daemon.daemon.ingest.ledger.received

    async def watch() -> None:
        before = 0  # the flood may end before this task first runs
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


async def test_connections_of_one_client_share_a_turn(daemon: Running) -> None:
    """20 connections of one client must not get 20 turns in each pass."""
    alone = await lines_per_pass(daemon, 1)
    assert await lines_per_pass(daemon, 20) <= 3 * alone


async def lines_per_pass(daemon: Running, connections: int) -> int:
    """Flood from several connections of one client. Return how many of its lines a pass handles, at the 90th
    percentile."""
    clients = Clients()
    flood = BAD * 2000
    handled = daemon.daemon.ingest.ledger
    begun = handled.received
    steps: list[int] = []
    left = connections

    async def receive() -> bytes:
        return b""

    async def send(port: int) -> None:
        nonlocal left
        ours, _ = memory_stream_pair()
        peer = Peer("10.0.0.1", port, clients.of("10.0.0.1"), clients=clients)
        talk, _, _ = session(ours, daemon.daemon.ingest.intake, UNBOUNDED, peer)
        await talk.run(flood, receive)
        left -= 1

    async def watch() -> None:
        before = begun
        while left:
            steps.append(handled.received - before)
            before = handled.received
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        for port in range(connections):
            nursery.start_soon(send, port)
    assert handled.received - begun == connections * 2000
    return sorted(steps)[len(steps) * 9 // 10]


async def test_many_subnegotiations_are_parsed_in_linear_time(daemon: Running, deadline: None) -> None:
    """A search for the end of each subnegotiation takes quadratic time: 10 s for 512 KiB."""
    line = b"\xff\xfa" * 400_000
    result = await run_session(daemon, [line + b"\nversion\n"], UNBOUNDED._replace(max_line=len(line)))
    assert result.replies.startswith("unknown command: ÿúÿú".encode())
    assert result.replies.endswith(b"help'.\n" + VERSION)


async def test_incomplete_subnegotiation_is_a_command(daemon: Running) -> None:
    result = await run_session(daemon, [OPTIONS + b"\xff\xfaversion\n" + OPTIONS + b"\xff\xf4version\n"])
    assert result.replies == "unknown command: ÿúversion.  Try `help'.\n".encode() + VERSION


@pytest.mark.slow
async def test_flood_does_not_delay_other_connections(daemon: Running) -> None:
    async with daemon.client() as flooding, daemon.client() as other, trio.open_nursery() as nursery:
        await other.send_lines(GOOD)
        received: list[int] = []

        async def flood() -> None:
            await flooding.send(b"put\n" * FLOOD + b"sync\n")

        async def drain() -> None:
            end = b"synced 0\n"  # may arrive in two packets
            tail = b""
            while tail != end:
                tail = (tail + await flooding.stream.receive_some())[-len(end) :]

        nursery.start_soon(flood)
        nursery.start_soon(drain)
        while not received or received[-1] < FLOOD:
            await other.send_lines(b"")
            refused = daemon.daemon.ingest.ledger.refused.total()
            received.append(refused)
    in_between = [now for now in received if 0 < now < FLOOD]
    assert len(in_between) > 3


async def test_client_over_quota_delays_no_other_sync(tmp_path: Path) -> None:
    """Counted in lines: once over quota, no line of the client is processed before another client's is confirmed."""
    async with (
        running(tmp_path, {"tsd.quota.lines_per_second": "1"}) as daemon,
        await trio.open_tcp_stream("127.0.0.1", daemon.port, local_address="127.0.0.2") as stream,
        daemon.client() as other,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(Client(stream).send, GOOD * 1000)
        with trio.fail_after(DEADLINE_S):
            while not daemon.daemon.access.clients.at("127.0.0.2").connections_throttled:
                await trio.lowlevel.checkpoint()
        taken = daemon.daemon.ingest.ledger.received
        assert taken > 1  # more than a second's worth: agents send in bursts
        for number in range(1, 5):
            assert await other.send_lines(GOOD) == b"synced %d\n" % number
            assert daemon.daemon.ingest.ledger.received == taken + number


@pytest.mark.parametrize("senders", [1, 8])
async def test_large_sender_waits_for_disk_before_others(daemon: Running, senders: int) -> None:
    """One client's queued data must not delay each line of the others."""
    may_sync = threading.Event()

    class Held(Disk):
        def sync(self, fd: int) -> None:
            may_sync.wait(DEADLINE_S)
            super().sync(fd)

    journal, ledger = daemon.daemon.ingest.journal, daemon.daemon.ingest.ledger
    journal.disk = Held()
    much = 4 * journal.group_bytes // senders
    lines = GOOD * (much // len(GOOD))
    async with AsyncExitStack() as clients, daemon.client() as other, trio.open_nursery() as nursery:
        for _ in range(senders):
            flooding = await clients.enter_async_context(daemon.client())
            nursery.start_soon(flooding.send, lines)
        try:
            while journal.pending <= 2 * journal.group_bytes:
                await trio.lowlevel.checkpoint()
            await other.send(GOOD + b"version\n")
            await other.read_until(b"\n")
            assert daemon.daemon.ingest.backpressure.is_open
            assert journal.pending < 3 * journal.group_bytes
        finally:
            may_sync.set()
        assert (await other.send_lines(b"")).endswith(b"synced 1\n")
        while ledger.received < senders * len(lines) // len(GOOD) + 1:
            await trio.lowlevel.checkpoint()
