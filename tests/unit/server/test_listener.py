"""Accepting and ending connections."""

import resource
import socket
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from tests.running import Client, Running, running
from tsd.auth.authenticator import Authenticator
from tsd.config.settings import AccessSettings
from tsd.server.clients import Clients
from tsd.server.listener import (
    RESERVED_DESCRIPTORS,
    AccessControl,
    Handler,
    Listener,
    ListenerLimits,
    Receive,
    receive_when_readable,
)
from tsd.server.peer import Peer

T = 1_500_000_000
CONNECTIONS = 1000
DESCRIPTORS = 2 * CONNECTIONS + RESERVED_DESCRIPTORS + 200  # both ends of every connection, and other files
NO_LIMITS = ListenerLimits(connections=0, idle_timeout_s=0)
OPEN = "connectionmgr.connections type=open"


class RunningListener:
    """A running listener."""

    def __init__(self, listener: Listener, port: int) -> None:
        self.listener = listener
        self.number = port

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        async with await trio.open_tcp_stream("127.0.0.1", self.number) as stream:
            yield Client(stream)


@asynccontextmanager
async def listening(telnet: Handler, limits: ListenerLimits = NO_LIMITS) -> AsyncIterator[RunningListener]:
    """A port that serves `telnet`; HTTP is not expected."""

    async def http(stream: trio.abc.Stream, first: bytes, receive: Receive, peer: Peer) -> None:
        await stream.send_all(b"http: " + first)

    listener = Listener(telnet, http, limits, AccessControl(Clients(), Authenticator(AccessSettings(), lambda: 0)))
    ports = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(listener.serve, ports)
        yield RunningListener(listener, ports[0].socket.getsockname()[1])
        listener.drain()
        await listener.closed.wait()


async def echo(stream: trio.abc.Stream, first: bytes, receive: Receive, peer: Peer) -> None:
    data = first
    while data:
        await stream.send_all(data)
        data = await receive()


async def stats_once(daemon: Running, name: str, value: int) -> dict[str, int]:
    """Return the statistics when one of them has a value."""
    async with daemon.client() as client:
        with trio.fail_after(30):
            while (stats := await client.stats())[name] != value:
                pass
    return stats


@pytest.fixture
def descriptors() -> Iterator[None]:
    """Allow as many open files as the test needs."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < DESCRIPTORS:
        pytest.skip(f"this user may open {hard} files, and {DESCRIPTORS} are wanted")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, DESCRIPTORS), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("first", [b"put", b"get", b" GET", b"\r", b"\n", b"1", b"[", b"@", b"\0", b"\xff", b"\xc3"])
async def test_other_first_byte_is_telnet(first: bytes) -> None:
    async with listening(echo) as port, port.client() as client:
        await client.send(first)
        assert await client.read_bytes(len(first)) == first


@pytest.mark.parametrize("first", [b"A", b"Z", b"GET /", b"PUT"])
async def test_capital_first_byte_is_http(first: bytes) -> None:
    async with listening(echo) as port, port.client() as client:
        await client.send(first)
        assert await client.read_to_end() == b"http: " + first


async def test_connection_over_the_limit_is_closed_and_counted(tmp_path: Path) -> None:
    async with running(tmp_path, {"tsd.core.connections.limit": "2"}) as daemon, daemon.client() as first:
        async with daemon.client() as second:
            await first.send_lines(b"")
            await second.send_lines(b"")
            for _ in range(3):
                async with daemon.client() as third:
                    assert await third.read_to_end() == b""
        while (stats := await first.stats())[OPEN] != 1:
            pass
        assert stats["connectionmgr.connections type=rejected"] == 3
        assert stats["connectionmgr.connections type=total"] == 5
        assert await daemon.send_lines(b"put m %d 1 a=b\n" % T) == b"synced 1\n"


@pytest.mark.slow
async def test_thousand_connections(tmp_path: Path, descriptors: None) -> None:
    async with running(tmp_path, {"tsd.journal.sync_interval": "100"}) as daemon, AsyncExitStack() as open_ones:
        multiplexer = [await open_ones.enter_async_context(daemon.client()) for _ in range(CONNECTIONS)]
        answers: list[bytes] = []

        async def send(number: int, client: Client) -> None:
            answers.append(await client.send_lines(b"put m %d 1 a=b\n" % (T + number)))

        async with trio.open_nursery() as nursery:
            for number, client in enumerate(multiplexer):
                nursery.start_soon(send, number, client)
        assert answers == [b"synced 1\n"] * CONNECTIONS
        stats = await multiplexer[0].stats()
        assert (stats[OPEN], stats["ledger.received"]) == (CONNECTIONS, CONNECTIONS)


async def test_silent_connection_is_closed(autojump_clock: MockClock) -> None:
    async with listening(echo, NO_LIMITS._replace(idle_timeout_s=60)) as port:
        async with port.client() as mute, port.client() as silent, port.client() as talker:
            await silent.send(b"said once")
            for _ in range(10):
                await talker.send(b"x")
                assert await talker.read_bytes(1) == b"x"
                await trio.sleep(50)
            assert await mute.read_to_end() == b""
            assert await silent.read_to_end() == b"said once"
            assert port.listener.statistics()[:5] == (1, 3, 0, 0, 2)
        assert port.listener.statistics().timed_out == 2


@pytest.mark.slow
async def test_socket_timeout_disconnects_silent_clients(tmp_path: Path) -> None:
    async with running(tmp_path, {"tsd.core.socket.timeout": "1"}) as daemon:
        async with daemon.client() as client:
            assert await client.send_lines(b"put m %d 1 a=b\n" % T) == b"synced 1\n"
            await client.send(b"put m %d 1 a" % T)
            assert await client.read_to_end() == b""
        stats = await stats_once(daemon, OPEN, 1)
        assert stats["connectionmgr.exceptions type=timeout"] == 1
        assert (stats["ledger.received"], stats["telnet.truncated-lines"]) == (1, 1)


@pytest.mark.slow
async def test_client_that_reads_no_replies_is_disconnected(tmp_path: Path) -> None:
    """Its unread input must not count as activity."""
    given = {"tsd.core.socket.timeout": "1"}
    async with running(tmp_path, given) as daemon, daemon.client() as mute, trio.open_nursery() as nursery:

        async def keep_requesting() -> None:
            with suppress(trio.BrokenResourceError):
                while True:
                    await mute.send(b"version\n" * 1000)

        nursery.start_soon(keep_requesting)
        stats = await stats_once(daemon, "connectionmgr.exceptions type=timeout", 1)
        assert (stats[OPEN], stats["connectionmgr.exceptions type=unknown"]) == (1, 0)


async def test_connections_that_are_not_accepted_yet_are_served_at_a_stop(autojump_clock: MockClock) -> None:
    served: list[bytes] = []

    async def stop(stream: trio.abc.Stream, first: bytes, receive: Receive, peer: Peer) -> None:
        if not served:
            port.listener.drain()
            autojump_clock.jump(0.5)  # the event loop is busy
        served.append(first)

    async with listening(stop) as port:
        with ExitStack() as stack:
            for number in range(6):
                client = stack.enter_context(socket.create_connection(("127.0.0.1", port.number)))
                client.sendall(b"%d" % number)
            await port.listener.closed.wait()
    assert sorted(served) == [b"%d" % number for number in range(6)]


async def test_throttled_connection_is_not_idle(autojump_clock: MockClock) -> None:
    """Backpressure must not disconnect clients with a timeout and lose what they sent."""
    gate = trio.Event()

    async def slow(stream: trio.abc.Stream, first: bytes, receive: Receive, peer: Peer) -> None:
        await gate.wait()
        await stream.send_all(first + await receive())

    async with listening(slow, NO_LIMITS._replace(idle_timeout_s=60)) as port, port.client() as client:
        await client.send(b"a")
        await trio.sleep(1000)
        await client.send(b"b")
        gate.set()
        assert await client.read_bytes(2) == b"ab"


async def test_internal_error_ends_one_connection_and_counts(capsys: pytest.CaptureFixture[str]) -> None:
    async def faulty(stream: trio.abc.Stream, first: bytes, receive: Receive, peer: Peer) -> None:
        if first == b"fault":
            raise ZeroDivisionError("as the test wants")
        await echo(stream, first, receive, peer)

    async with listening(faulty) as port, port.client() as other:
        async with port.client() as client:
            await client.send(b"fault")
            assert await client.read_to_end() == b""
        await other.send(b"x")
        assert await other.read_bytes(1) == b"x"
        statistics = port.listener.statistics()
        assert (statistics.open, statistics.failed) == (1, 1)
    assert "ZeroDivisionError: as the test wants" in "".join(capsys.readouterr())  # out, or err if none is configured


async def test_internal_error_before_accept_ends_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """It must not end the daemon."""
    async with listening(echo) as port, port.client() as other:
        await other.send(b"x")
        assert await other.read_bytes(1) == b"x"
        monkeypatch.setattr("tsd.server.listener.peer_of", None)
        async with port.client() as client:
            assert await client.read_to_end() == b""
        await other.send(b"x")
        assert await other.read_bytes(1) == b"x"
        assert port.listener.statistics().failed == 1


async def test_last_reply_reaches_client_that_keeps_sending() -> None:
    """Closing a socket with unread input makes the kernel discard responses that are not read yet."""

    async def farewell(stream: trio.abc.Stream, first: bytes, receive: Receive, peer: Peer) -> None:
        await stream.send_all(b"farewell\n" * 1000)

    async with listening(farewell) as port, port.client() as client, trio.open_nursery() as nursery:
        nursery.start_soon(client.send, b"x" * 10_000_000)
        assert await client.read_to_end() == b"farewell\n" * 1000


async def test_endless_sender_is_disconnected_after_linger(autojump_clock: MockClock) -> None:
    async def farewell(stream: trio.abc.Stream, first: bytes, receive: Receive, peer: Peer) -> None:
        await stream.send_all(b"farewell\n")

    async with listening(farewell) as port, port.client() as client:
        await client.send(b"x")
        assert await client.read_to_end() == b"farewell\n"
        await trio.sleep(60)
        assert port.listener.statistics().open == 0
        with suppress(trio.BrokenResourceError):  # the kernel reports the reset after the first bytes
            while await client.stream.receive_some() == b"":
                await client.send(b"x")


async def test_lines_before_a_reset_are_stored(tmp_path: Path) -> None:
    async with running(tmp_path) as daemon:
        client = Client(await trio.open_tcp_stream("127.0.0.1", daemon.port))
        await client.send_lines(b"put m %d 1 a=b\n" % T)
        await client.send(b"put m %d 2 a=b\nput m %d 3 a=b\nput m %d" % (T + 1, T + 2, T + 3))
        client.reset()
        stats = await stats_once(daemon, OPEN, 1)
        assert stats["ledger.received"] == 3
        assert stats["connectionmgr.exceptions type=reset"] == 1
        assert stats["telnet.truncated-lines"] == 1
        assert await daemon.send_lines(b"put m %d 4 a=b\n" % (T + 3)) == b"synced 1\n"


async def test_points_count_if_errors_are_not_read(tmp_path: Path) -> None:
    """The reply to the first line fails; the lines after it wait in the kernel meanwhile."""
    async with running(tmp_path) as daemon:
        client = Client(await trio.open_tcp_stream("127.0.0.1", daemon.port))
        await client.send_lines(b"put m %d 1 a=b\n" % T)
        daemon.daemon.ingest.backpressure.hold("the test")
        await client.send_lines(b"")  # nothing is read after this
        lines = b"".join(b"put m %d 1 a=%d\n" % (T, n) for n in range(1000))  # each waits for its UID
        await client.send_whole(b"put m\nversion\n" * 1000 + lines)
        client.reset()
        daemon.daemon.ingest.backpressure.release("the test")
        stats = await stats_once(daemon, OPEN, 1)
        assert stats["ledger.refused reason=illegal_arguments"] == 1000
        assert stats["ledger.received"] == 1 + 1000 + 1000
        assert stats["connectionmgr.exceptions type=reset"] == 1


async def _connected() -> tuple[trio.SocketStream, trio.SocketStream]:
    [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with listener:
        client = await trio.open_tcp_stream("127.0.0.1", listener.socket.getsockname()[1])
        return client, await listener.accept()


async def test_input_is_read_once_there_is_some() -> None:
    client, server = await _connected()
    async with client, server:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.send_all, b"put a line")
            assert await receive_when_readable(server, memoryview(bytearray(4))) == b"put "
        buffer = memoryview(bytearray(100))
        assert await receive_when_readable(server, buffer) == b"a line"
        await client.send_eof()
        assert await receive_when_readable(server, buffer) == b""


async def test_read_of_a_reset_connection_fails() -> None:
    client, server = await _connected()
    async with server:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await client.aclose()
        with pytest.raises(trio.BrokenResourceError):
            await receive_when_readable(server, memoryview(bytearray(100)))
    with pytest.raises(trio.ClosedResourceError):
        await receive_when_readable(server, memoryview(bytearray(100)))
