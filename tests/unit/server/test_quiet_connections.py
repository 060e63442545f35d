"""Quiet connections are read together, and no client that waits for something notices."""

import math
import struct
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from tests.running import Running, running
from tests.unit.api.http_requests import http_request
from tests.unit.server.networks import READER, WRITER, changed, client_at, client_disconnects
from tests.unit.server.telnet_parts import BAD, GOOD, T, session
from tsd.server.peer import local_peer
from tsd.server.quiet_connections import QuietConnections, SendRate

REST_S = 3.0


class Lines:
    """A connection that sends lines. `read` has what was read, and when."""

    def __init__(self) -> None:
        self.read: list[tuple[float, bytes]] = []
        self.is_quiet = True
        self.peer = local_peer()
        self.accepted = self.position = 0
        self.max_line = 1024

    def count_quiet(self, size: int) -> None:
        pass

    def take_quiet(self, data: bytes) -> bytes:
        self.read.append((trio.current_time(), data))
        assert data != b"wrong\n"
        self.is_quiet = data != b"loud\n"
        return data.partition(b"?")[2]


@asynccontextmanager
async def streams(count: int) -> AsyncIterator[list[tuple[trio.SocketStream, trio.SocketStream]]]:
    """Both ends of connections."""
    async with AsyncExitStack() as stack:
        pairs = [trio.socket.socketpair() for _ in range(count)]
        yield [
            (await stack.enter_async_context(trio.SocketStream(one)), await stack.enter_async_context(other))
            for one, other in ((one, trio.SocketStream(other)) for one, other in pairs)
        ]


async def test_input_that_keeps_coming_is_read_together(autojump_clock: MockClock) -> None:
    passes: list[float] = []
    quiet, one, other = QuietConnections(REST_S, lambda: passes.append(trio.current_time())), Lines(), Lines()
    async with streams(2) as ((our, their), (ours, theirs)), trio.open_nursery() as nursery:
        nursery.start_soon(quiet.run)
        nursery.start_soon(quiet.add, ours, one)
        nursery.start_soon(quiet.add, our, other)
        began_s = trio.current_time()
        for _ in range(30):
            for stream in (their, theirs):
                await stream.send_all(b"line\n")
                await trio.sleep(1)
        await trio.sleep(100)
        found = one.read + other.read
        assert b"".join(data for _, data in found) == b"line\n" * 60
        times_s = sorted({at - began_s for at, _ in found})
        assert len(times_s) == len(passes) < 30
        assert times_s[0] == pytest.approx(0, abs=0.1)
        assert times_s[-1] <= 59 + REST_S
        nursery.cancel_scope.cancel()
    assert len(quiet) == 0


async def test_seldom_input_is_read_at_once(autojump_clock: MockClock) -> None:
    quiet, lines = QuietConnections(REST_S), Lines()
    async with streams(1) as [(ours, theirs)], trio.open_nursery() as nursery:
        nursery.start_soon(quiet.run)
        nursery.start_soon(quiet.add, ours, lines)
        for _ in range(10):
            await trio.sleep(10 * REST_S)
            sent_s = trio.current_time()
            await theirs.send_all(b"line\n")
            await trio.sleep(0.1)
            read_s, data = lines.read[-1]
            assert data == b"line\n"
            assert read_s == pytest.approx(sent_s, abs=0.01)
        nursery.cancel_scope.cancel()


async def test_what_has_arrived_is_read_on_request_and_at_the_end(autojump_clock: MockClock) -> None:
    quiet, lines = QuietConnections(math.inf), Lines()
    async with streams(1) as [(ours, theirs)], trio.open_nursery() as nursery:
        nursery.start_soon(quiet.run)
        nursery.start_soon(quiet.add, ours, lines)
        for text in (b"1", b"2", b"3"):  # the second one starts an endless rest
            await trio.sleep(1)
            await theirs.send_all(text)
        await trio.sleep(1)
        assert [data for _, data in lines.read] == [b"1", b"2"]
        await quiet.read_now()
        assert lines.read[-1][1] == b"3"
        await theirs.send_all(b"4")
        await trio.sleep(1)
        assert lines.read[-1][1] == b"3"
        await theirs.send_eof()
        await trio.sleep(0.1)
        assert lines.read[-1][1] == b"4"
        assert len(quiet) == 0
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("sent", "found"), [(b"a?b", b"b"), (b"loud\n", None), (b"", b""), (b"wrong\n", AssertionError)]
)
async def test_what_needs_a_task_leaves(sent: bytes, found: object, autojump_clock: MockClock) -> None:
    quiet, results = QuietConnections(REST_S), list[object]()
    async with streams(2) as ((ours, theirs), (other, _)), trio.open_nursery() as nursery:

        async def wait() -> None:
            try:
                results.append(await quiet.add(ours, Lines()))
            except AssertionError:
                results.append(AssertionError)

        nursery.start_soon(quiet.run)
        nursery.start_soon(wait)
        nursery.start_soon(quiet.add, other, Lines())
        await trio.sleep(1)
        await (theirs.send_all(sent) if sent else theirs.send_eof())
        await trio.sleep(1)
        assert results == [found]
        assert len(quiet) == 1
        nursery.cancel_scope.cancel()


async def test_reset_connection_raises(autojump_clock: MockClock) -> None:
    quiet = QuietConnections(REST_S)
    listener = (await trio.open_tcp_listeners(0, host="127.0.0.1"))[0]
    theirs = await trio.open_tcp_stream("127.0.0.1", listener.socket.getsockname()[1])
    theirs.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_LINGER, struct.pack("ii", 1, 0))
    async with listener, await listener.accept() as ours, trio.open_nursery() as nursery:
        nursery.start_soon(quiet.run)
        await trio.aclose_forcefully(theirs)
        with pytest.raises(trio.BrokenResourceError):
            await quiet.add(ours, Lines())
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("size", "every_s", "is_low"),
    [(1000, 1, True), (40_000, 2, True), (140_000, 10, False), (10_000, 0.1, False), (1000, 60, True)],
)
async def test_low_rate_is_few_bytes_sent_evenly(
    size: int, every_s: float, is_low: bool, autojump_clock: MockClock
) -> None:
    rate = SendRate()
    for _ in range(300):
        await trio.sleep(every_s)
        rate.count(size)
    assert rate.is_low == is_low
    rate.restart()
    assert not rate.is_low


@pytest.mark.parametrize(
    ("sent", "is_quiet", "is_quiet_later"),
    [
        (GOOD, True, True),
        (b"version\n", False, True),  # as tcollector does every minute
        (b"sync\n", False, False),
        (BAD, False, True),
        (GOOD[:-3], False, True),
    ],
)
async def test_only_connections_that_send_valid_lines_are_quiet(
    sent: bytes, is_quiet: bool, is_quiet_later: bool, daemon: Running, autojump_clock: MockClock
) -> None:
    found: list[bool] = []
    ours, _theirs = trio.testing.memory_stream_pair()
    pieces = iter([GOOD * 2] * 30 + [sent] + [GOOD * 2] * 30)

    async def receive() -> bytes:
        found.append(talk.is_quiet)
        await trio.sleep(1)
        return next(pieces, b"")

    talk, _, _ = session(ours, daemon.daemon.ingest.intake)
    await talk.run(GOOD, receive)
    assert (found[0], found[30], found[31], found[-1]) == (False, True, is_quiet, is_quiet_later)


async def test_queries_see_lines_of_quiet_connections(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with running(tmp_path) as daemon, daemon.client() as client:
        line = b"".join(b"put quiet %d %%d host=web%03d\n" % (T, number) for number in range(200))  # no small packet
        for value in range(40):
            await client.send_whole(line % ((value,) * 200))
            while not value and daemon.daemon.ingest.ledger.received < 200:  # names are looked up
                await trio.lowlevel.checkpoint()
            await trio.sleep(0.5)
            response = await http_request(daemon, f"/api/query?start={T - 1}&end={T + 1}&m=sum:quiet")
            assert list(response.json[0]["dps"].values()) == [200 * value]


async def test_commands_see_lines_of_quiet_connections(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with running(tmp_path) as daemon, daemon.client() as client:
        lines = b"".join(b"put quiet %d 1 host=web%03d\n" % (T, number) for number in range(200))  # no small packet
        sent = 0
        while sent < 60 * 200 or daemon.daemon.ingest.ledger.received == sent:  # until lines wait to be read
            assert sent < 120 * 200
            await client.send(lines)
            sent += 200
            await trio.sleep(0.5)
        assert await daemon.daemon.flush()
        assert daemon.daemon.ingest.ledger.stored == sent


async def test_connection_with_unread_lines_is_not_idle(tmp_path: Path, autojump_clock: MockClock) -> None:
    given = {"tsd.core.socket.timeout": "1"}
    async with running(tmp_path, given) as daemon, daemon.client() as client:
        lines = b"".join(b"put quiet %d 1 host=web%03d\n" % (T, number) for number in range(200))  # no small packet
        for _ in range(80):
            await client.send(lines)  # all unread ones fit into the socket's buffer
            await trio.sleep(0.5)
        await trio.sleep(10)
        assert daemon.daemon.ingest.ledger.received == 80 * 200


@pytest.mark.parametrize("data", [GOOD, b"version\n", b"put m 1"])
async def test_connection_whose_input_is_handed_to_its_task_is_not_idle(
    data: bytes, tmp_path: Path, mock_clock: MockClock
) -> None:
    """Regression: it could be closed as idle before its task ran."""
    async with running(tmp_path) as daemon:
        peer = local_peer()
        talk, _, _ = session(trio.testing.memory_stream_pair()[0], daemon.daemon.ingest.intake, peer=peer)
        for take in (talk.take, talk.take_quiet):
            peer.idle_since = trio.current_time()
            mock_clock.jump(1)
            take(data)
            assert peer.idle_since == trio.current_time()


async def test_lines_are_read_before_a_change_of_networks_ends_the_connection(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with running(tmp_path) as daemon, client_at(daemon, WRITER) as client:
        lines = b"".join(b"put quiet %d 1 host=web%03d\n" % (T, number) for number in range(200))  # no small packet
        sent = 0
        while sent < 60 * 200 or daemon.daemon.ingest.ledger.received == sent:  # until lines wait to be read
            assert sent < 120 * 200
            await client.send(lines)
            await trio.sleep(0.5)
            sent += 200
        changed(daemon, network_allow=READER)
        assert await client_disconnects(client)
        assert daemon.daemon.ingest.ledger.received == sent


async def test_lines_of_small_agents_are_read_together(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Packets of few lines, and a seldom command, are no reason to read a connection at each of them. What one agent
    sends wrongly, or for the first time, costs no line of the others."""
    async with running(tmp_path) as daemon, AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(daemon.client()) for _ in range(5)]
        ledger = daemon.daemon.ingest.ledger
        for _ in range(2):
            received, waits = ledger.received, 0
            for at in range(240):
                for number, client in enumerate(clients):
                    await client.send(b"put quiet %d %d host=web%d\n" % (T + at, at, number))
                await trio.sleep(0.5)
                waits += ledger.received == received
                received = ledger.received
            assert waits > 120
            for client in clients:
                await client.send(b"version\n")
                await client.read_until(b")\n")
        await clients[0].send(BAD)
        await clients[1].send(b"put quiet %d 1 host=new\n" % T)
        await clients[2].send(b"put quiet %d 1 host=web2\r\n" % T)
        for client in clients:
            await client.send_lines(b"")
        assert ledger.received == 2 * 240 * 5 + 3
        assert await daemon.daemon.flush()
        assert (ledger.stored, sum(ledger.refused.values())) == (2 * 240 * 5 + 2, 1)


@pytest.mark.parametrize(("gather_ms", "most"), [(3000, 40), (60_000, 30)])
async def test_steady_lines_are_read_seldom_and_in_time(
    gather_ms: int, most: int, tmp_path: Path, autojump_clock: MockClock
) -> None:
    given = {"tsd.journal.gather_interval": str(gather_ms)}
    async with running(tmp_path, given) as daemon, daemon.client() as client:
        lines = b"".join(b"put quiet %d 1 host=web%03d\n" % (T, number) for number in range(200))  # no small packet
        received, unread = [0], 0
        for sent in range(1, 241):
            await client.send(lines)
            await trio.sleep(0.5)
            now = daemon.daemon.ingest.ledger.received
            if sent <= 40:  # the connection is not quiet yet
                received, unread = [now], 0
                continue
            if now > received[-1]:
                received.append(now)
            unread = max(unread, sent * 200 - now)
        assert len(received) - 1 <= most  # in 100 seconds
        assert unread <= min(gather_ms, 5000) // 500 * 200
