"""Who is let in, for how long, and how connections end, whichever side ends them."""

import resource
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from tests.running import Client, Running, running
from tsd.doors.clients import Clients
from tsd.doors.descriptors import RESERVE
from tsd.doors.listener import PARTING_S, Limits, Listener, Protocol, Receive
from tsd.doors.visitor import Visitor

T = 1_500_000_000
CROWD = 1000
DESCRIPTORS = 2 * CROWD + RESERVE + 200  # both ends of every connection, and what else is open
NO_LIMITS = Limits(connections=0, silence_s=0, no_delay=True, keep_alive=True)
OPEN = "connectionmgr.connections type=open"


class Doors:
    """A Listener that serves."""

    def __init__(self, listener: Listener, port: int) -> None:
        self.listener = listener
        self._port = port

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        async with await trio.open_tcp_stream("127.0.0.1", self._port) as stream:
            yield Client(stream)


@asynccontextmanager
async def doors(telnet: Protocol, limits: Limits = NO_LIMITS) -> AsyncIterator[Doors]:
    """A port with `telnet` behind it; HTTP is told so."""

    async def http(stream: trio.abc.Stream, first: bytes, receive: Receive, visitor: Visitor) -> None:
        await stream.send_all(b"http: " + first)

    listener = Listener(telnet, http, limits, Clients())
    ports = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(listener.serve, ports)
        yield Doors(listener, ports[0].socket.getsockname()[1])
        listener.drain()
        await listener.ended.wait()


async def echo(stream: trio.abc.Stream, first: bytes, receive: Receive, visitor: Visitor) -> None:
    data = first
    while data:
        await stream.send_all(data)
        data = await receive()


async def stats_once(daemon: Running, name: str, value: int) -> dict[str, int]:
    """The stats, once one of them has a value."""
    async with daemon.client() as client:
        with trio.fail_after(30):
            while (stats := await client.stats())[name] != value:
                pass
    return stats


@pytest.fixture
def descriptors() -> Iterator[None]:
    """Leave to open as many files as a crowd takes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < DESCRIPTORS:
        pytest.skip(f"this user may open {hard} files, and {DESCRIPTORS} are wanted")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, DESCRIPTORS), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("first", [b"put", b"get", b" GET", b"\r", b"\n", b"1", b"[", b"@", b"\0", b"\xff", b"\xc3"])
async def test_a_first_byte_that_is_no_capital_is_telnet(first: bytes) -> None:
    async with doors(echo) as port, port.client() as client:
        await client.send(first)
        assert await client.read_bytes(len(first)) == first


@pytest.mark.parametrize("first", [b"A", b"Z", b"GET /", b"PUT"])
async def test_a_capital_is_http(first: bytes) -> None:
    async with doors(echo) as port, port.client() as client:
        await client.send(first)
        assert await client.read_to_end() == b"http: " + first


async def test_one_connection_too_many_is_closed_at_once_and_counted(tmp_path: Path) -> None:
    async with running(tmp_path, {"tsd.core.connections.limit": "2"}) as daemon, daemon.client() as first:
        async with daemon.client() as second:
            await first.ask(b"")
            await second.ask(b"")
            for _ in range(3):
                async with daemon.client() as third:
                    assert await third.read_to_end() == b""
        while (stats := await first.stats())[OPEN] != 1:
            pass
        assert stats["connectionmgr.connections type=rejected"] == 3
        assert stats["connectionmgr.connections type=total"] == 5
        assert await daemon.tell(b"put m %d 1 a=b\n" % T) == b"synced 1\n"


async def test_a_thousand_connections_at_once(tmp_path: Path, descriptors: None) -> None:
    async with running(tmp_path, {"tsd.journal.sync_interval": "100"}) as daemon, AsyncExitStack() as open_ones:
        crowd = [await open_ones.enter_async_context(daemon.client()) for _ in range(CROWD)]
        answers: list[bytes] = []

        async def say(number: int, client: Client) -> None:
            answers.append(await client.ask(b"put m %d 1 a=b\n" % (T + number)))

        async with trio.open_nursery() as nursery:
            for number, client in enumerate(crowd):
                nursery.start_soon(say, number, client)
        assert answers == [b"synced 1\n"] * CROWD
        stats = await crowd[0].stats()
        assert (stats[OPEN], stats["ledger.received"]) == (CROWD, CROWD)


async def test_who_is_silent_for_too_long_is_hung_up_on(autojump_clock: MockClock) -> None:
    async with doors(echo, NO_LIMITS._replace(silence_s=60)) as port:
        async with port.client() as mute, port.client() as silent, port.client() as talker:
            await silent.send(b"said once")
            for _ in range(10):
                await talker.send(b"x")
                assert await talker.read_bytes(1) == b"x"
                await trio.sleep(50)
            assert await mute.read_to_end() == b""
            assert await silent.read_to_end() == b"said once"
            assert port.listener.statistics()[:5] == (1, 3, 0, 0, 2)
        assert port.listener.statistics().silent == 2


async def test_the_daemon_hangs_up_on_who_is_silent_as_it_is_configured(tmp_path: Path) -> None:
    async with running(tmp_path, {"tsd.core.socket.timeout": "1"}) as daemon:
        async with daemon.client() as client:
            assert await client.ask(b"put m %d 1 a=b\n" % T) == b"synced 1\n"
            await client.send(b"put m %d 1 a" % T)
            assert await client.read_to_end() == b""
        stats = await stats_once(daemon, OPEN, 1)
        assert stats["connectionmgr.exceptions type=timeout"] == 1
        assert (stats["ledger.received"], stats["telnet.cut-lines"]) == (1, 1)


async def test_so_is_who_sends_commands_and_reads_no_answer(tmp_path: Path) -> None:
    """It held its connection for ever: what it sent was not read any more, and so was no silence."""
    given = {"tsd.core.socket.timeout": "1", "tsd.ingest.reply_buffer": "4096"}
    async with running(tmp_path, given) as daemon, daemon.client() as mute, trio.open_nursery() as nursery:

        async def ask_on_and_on() -> None:
            with suppress(trio.BrokenResourceError):
                while True:
                    await mute.send(b"version\n" * 1000)

        nursery.start_soon(ask_on_and_on)
        stats = await stats_once(daemon, "connectionmgr.exceptions type=timeout", 1)
        assert (stats[OPEN], stats["connectionmgr.exceptions type=unknown"]) == (1, 0)


async def test_nobody_is_to_blame_for_silence_while_we_do_not_read(autojump_clock: MockClock) -> None:
    """A held gate once cost clients with a timeout their connection, and what they had sent behind it."""
    gate = trio.Event()

    async def slow(stream: trio.abc.Stream, first: bytes, receive: Receive, visitor: Visitor) -> None:
        await gate.wait()
        await stream.send_all(first + await receive())

    async with doors(slow, NO_LIMITS._replace(silence_s=60)) as port, port.client() as client:
        await client.send(b"a")
        await trio.sleep(1000)
        await client.send(b"b")
        gate.set()
        assert await client.read_bytes(2) == b"ab"


async def test_an_error_of_ours_ends_one_connection_and_is_counted(capsys: pytest.CaptureFixture[str]) -> None:
    async def faulty(stream: trio.abc.Stream, first: bytes, receive: Receive, visitor: Visitor) -> None:
        if first == b"fault":
            raise ZeroDivisionError("as the test wants")
        await echo(stream, first, receive, visitor)

    async with doors(faulty) as port, port.client() as other:
        async with port.client() as client:
            await client.send(b"fault")
            assert await client.read_to_end() == b""
        await other.send(b"x")
        assert await other.read_bytes(1) == b"x"
        statistics = port.listener.statistics()
        assert (statistics.open, statistics.failed) == (1, 1)
    assert "ZeroDivisionError: as the test wants" in capsys.readouterr().out


async def test_so_does_one_before_it_is_let_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would have ended the daemon."""
    async with doors(echo) as port, port.client() as other:
        await other.send(b"x")
        assert await other.read_bytes(1) == b"x"
        monkeypatch.setattr("tsd.doors.listener.visitor_of", None)
        async with port.client() as client:
            assert await client.read_to_end() == b""
        await other.send(b"x")
        assert await other.read_bytes(1) == b"x"
        assert port.listener.statistics().failed == 1


async def test_last_words_reach_a_client_that_goes_on_sending() -> None:
    """To close on bytes that nobody has read makes the kernel take back what the client has not read yet."""

    async def farewell(stream: trio.abc.Stream, first: bytes, receive: Receive, visitor: Visitor) -> None:
        await stream.send_all(b"farewell\n" * 1000)

    async with doors(farewell) as port, port.client() as client, trio.open_nursery() as nursery:
        nursery.start_soon(client.send, b"x" * 10_000_000)
        assert await client.read_to_end() == b"farewell\n" * 1000


async def test_who_never_stops_sending_is_cut_off_in_the_end(autojump_clock: MockClock) -> None:
    async def farewell(stream: trio.abc.Stream, first: bytes, receive: Receive, visitor: Visitor) -> None:
        await stream.send_all(b"farewell\n")

    async with doors(farewell) as port, port.client() as client:
        await client.send(b"x")
        assert await client.read_to_end() == b"farewell\n"
        await trio.sleep(PARTING_S + 1)
        assert port.listener.statistics().open == 0
        with suppress(trio.BrokenResourceError):  # the kernel finds out with the first bytes, and says so afterwards
            while await client.stream.receive_some() == b"":
                await client.send(b"x")


async def test_what_came_before_a_reset_is_stored(tmp_path: Path) -> None:
    async with running(tmp_path) as daemon:
        client = Client(await trio.open_tcp_stream("127.0.0.1", daemon.port))
        await client.ask(b"put m %d 1 a=b\n" % T)
        await client.send(b"put m %d 2 a=b\nput m %d 3 a=b\nput m %d" % (T + 1, T + 2, T + 3))
        client.reset()
        stats = await stats_once(daemon, OPEN, 1)
        assert stats["ledger.received"] == 3
        assert stats["connectionmgr.exceptions type=reset"] == 1
        assert stats["telnet.cut-lines"] == 1
        assert await daemon.tell(b"put m %d 4 a=b\n" % (T + 3)) == b"synced 1\n"


async def test_what_was_sent_counts_although_nobody_listens_to_the_errors(tmp_path: Path) -> None:
    """The reply to the first line finds the client gone; the lines behind it wait in the kernel meanwhile."""
    async with running(tmp_path) as daemon:
        client = Client(await trio.open_tcp_stream("127.0.0.1", daemon.port))
        await client.ask(b"put m %d 1 a=b\n" % T)
        daemon.daemon.gate.hold("the test")
        await client.ask(b"")  # from here on nothing is read
        lines = b"".join(b"put m %d 1 a=%d\n" % (T, n) for n in range(1000))  # each waits for its UID
        await client.send_whole(b"put m\nversion\n" * 1000 + lines)
        client.reset()
        daemon.daemon.gate.release("the test")
        stats = await stats_once(daemon, OPEN, 1)
        assert stats["ledger.refused reason=illegal_arguments"] == 1000
        assert stats["ledger.received"] == 1 + 1000 + 1000
        assert stats["connectionmgr.exceptions type=reset"] == 1
