"""Batches of packets: the Python loop, the compiled loop and the line buffer agree."""

import errno
import os
import socket
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from tests.peers.needs import need_compiled_loops
from tsd.ingest.accepted import Backpressure
from tsd.ingest.lines import LineBuffer
from tsd.server.clients import Client, Quotas
from tsd.server.multiplexer import (
    READ_BYTES,
    SMALL_PACKET_BYTES,
    Multiplexer,
    PacketBatch,
    Slot,
    buffer_size,
    read_batch_python,
)
from tsd.server.packet_batches import HAS_LOOP, Packet, PacketBatches, credit_batch_python, is_batchable
from tsd.server.peer import Peer

if HAS_LOOP:
    from tsd.server._multiplexer import credit_batch, read_batch

    LOOPS = [(read_batch_python, credit_batch_python), (read_batch, credit_batch)]
else:
    LOOPS = [(read_batch_python, credit_batch_python)]

MAX_LINE = 40
LINE = b"put m 1700000000 1 a=b\n"
both = pytest.mark.parametrize(("read", "pay"), LOOPS, ids=["plain", "compiled"][: len(LOOPS)])


class FakeConnection:
    """A connection for the loops."""

    def __init__(self, quotas: Quotas | None = None, *, uses_fast_path: bool = True) -> None:
        client = Client("10.0.0.1", quotas) if quotas is not None else Client("10.0.0.1")
        self.peer = Peer("10.0.0.1", 1, client)
        self.accepted = self.position = 0
        self.max_line = MAX_LINE
        self.uses_fast_path = uses_fast_path
        self.is_readable = True

        self.taken: list[bytes] = []
        self.read = 0

    def count_read(self, size: int) -> None:
        self.read += size

    def take(self, data: bytes) -> bytes:
        self.taken.append(data)
        return data


@contextmanager
def connected(connections: Sequence[FakeConnection]) -> Iterator[tuple[dict[int, Slot], list[socket.socket]]]:
    """Yield slots by descriptor, and the other ends."""
    with ExitStack() as stack:
        slots, ends = {}, []
        for connection in connections:
            ours, theirs = (stack.enter_context(one) for one in socket.socketpair())
            ours.setblocking(False)
            slots[ours.fileno()] = Slot(connection, None)  # type: ignore[arg-type] # no task is woken here
            ends.append(theirs)
        yield slots, ends


def batch_of(
    read: Callable[..., Any], packets: Sequence[bytes | None], connections: Sequence[FakeConnection]
) -> tuple[PacketBatch, list[int]]:
    """Return what a loop reads if each connection sends its packet; None: nothing."""
    with connected(connections) as (slots, ends):
        for end, packet in zip(ends, packets, strict=True):
            if packet == b"":
                end.shutdown(socket.SHUT_WR)
            elif packet is not None:
                end.sendall(packet)
        fds = list(slots)
        found = PacketBatch(*read([(fd, 1) for fd in fds], slots, bytearray(buffer_size(len(fds)))))
    return found, fds


PACKETS = st.lists(
    st.one_of(
        st.none(),
        st.lists(st.sampled_from([LINE, LINE, b"put ", b"\n", b"\r\n", b"version\n", b"x" * 30]), max_size=9)
        .map(b"".join),
        st.integers(SMALL_PACKET_BYTES - 40, SMALL_PACKET_BYTES + 40).map(lambda size: (LINE * 400)[:size]),
        st.binary(max_size=60),
    ),
    max_size=6,
)  # fmt: skip


@given(PACKETS)
def test_each_packet_is_batched_or_not(packets: list[bytes | None]) -> None:
    for read, _ in LOOPS:
        found, fds = batch_of(read, packets, [FakeConnection() for _ in packets])
        sent = dict(zip(fds, packets, strict=True))
        shared = [data for data in packets if data and is_batchable(data, MAX_LINE, SMALL_PACKET_BYTES)]
        assert found.block == b"".join(shared)
        assert [sent[share[0]] for share in found.packets] == shared
        assert [(size, lines) for _, _, size, lines in found.packets] == [(len(d), d.count(b"\n")) for d in shared]
        unbatched = [
            (fd, data)
            for fd, data in sent.items()
            if data is not None and not is_batchable(data, MAX_LINE, SMALL_PACKET_BYTES)
        ]
        assert found.unbatched == unbatched
        assert (found.failed, found.deferred) == ([], [])


@given(st.lists(st.sampled_from([LINE, b"put m", b"\n", b"\r", b"x" * 38, b"put " + b"y" * 36])).map(b"".join))
def test_batchable_packets_are_whole_for_the_line_buffer(data: bytes) -> None:
    whole = len(data) < SMALL_PACKET_BYTES and data.startswith(b"put ") and LineBuffer(MAX_LINE).is_whole(data)
    assert is_batchable(data, MAX_LINE, SMALL_PACKET_BYTES) == whole


@both
def test_batch_reads_within_the_buffer(read: Callable[..., Any], pay: object) -> None:
    large = LINE * 2000
    found, fds = batch_of(read, [large, LINE], [FakeConnection(), FakeConnection()])
    assert found.unbatched == [(fds[0], large[:READ_BYTES])]
    assert found.block == LINE


@both
def test_read_error_is_raised_in_its_task(read: Callable[..., Any], pay: object) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        ours, _ = server.accept()
        with ours:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.close()
            fd = ours.fileno()
            found = PacketBatch(*read([(fd, 1)], {fd: Slot(FakeConnection(), None)}, bytearray(buffer_size(1))))  # type: ignore[arg-type]
    assert found == PacketBatch(b"", [], [], [(fd, errno.ECONNRESET)], [])


@both
def test_deferred_connections_are_not_read(read: Callable[..., Any], pay: object) -> None:
    """An authenticated connection, and one with a quota."""

    async def run() -> None:
        connections = [FakeConnection(uses_fast_path=False), FakeConnection(Quotas(lines_per_s=5)), FakeConnection()]
        with connected(connections) as (slots, ends):
            for end in ends:
                end.sendall(LINE)
            fds = list(slots)
            found = PacketBatch(*read([(fd, 1) for fd in fds], slots, bytearray(buffer_size(3))))
            assert (found.deferred, found.block) == (fds[:2], LINE)
            assert [os.read(fd, 100) for fd in fds[:2]] == [LINE, LINE]

    trio.run(run)


@both
def test_each_packet_is_credited(read: object, pay: Callable[..., int]) -> None:
    async def run() -> None:
        connections = [FakeConnection(), FakeConnection(Quotas(lines_per_s=5))]
        packets = [Packet(at, Slot(one, None), 100 * at + 50, at + 2) for at, one in enumerate(connections)]  # type: ignore[arg-type]
        for _ in range(30):
            assert pay(packets, 77, 5.5, 1_700_000_000_000) == 5
        for at, connection in enumerate(connections):
            client = connection.peer.client
            lines = (at + 2) * 30
            assert (client.lines, client.accepted, client.bytes) == (lines, lines, (100 * at + 50) * 30)
            assert (client.last_ms, connection.peer.idle_since) == (1_700_000_000_000, 5.5)
            assert (connection.accepted, connection.position) == (lines, 77)
        assert connections[0].peer.client.debt_s == 0
        assert connections[1].peer.client.debt_s > 0  # 90 lines, with a burst of 50

    trio.run(run)


async def test_error_of_a_batch_is_logged_although_its_packets_are_accepted(capsys: pytest.CaptureFixture[str]) -> None:
    """Regression: it was not seen."""

    def fail(block: bytes, bounds: Sequence[int], first: int) -> tuple[int, int]:
        raise ZeroDivisionError("as the test wants")

    multiplexer = Multiplexer(PacketBatches(fail, lambda: 0, lambda lines: None), Backpressure())
    connections = [FakeConnection(), FakeConnection()]
    async with AsyncExitStack() as stack, trio.open_nursery() as nursery:
        async with trio.open_nursery() as reading:
            for connection in connections:
                ours, theirs = [
                    await stack.enter_async_context(trio.SocketStream(one)) for one in trio.socket.socketpair()
                ]
                reading.start_soon(multiplexer.add, ours, connection)
                await theirs.send_all(LINE)
            nursery.start_soon(multiplexer.run)
        nursery.cancel_scope.cancel()
    assert [connection.taken for connection in connections] == [[LINE], [LINE]]
    assert [connection.read for connection in connections] == [0, 0]  # their own tasks count it
    assert "ZeroDivisionError: as the test wants" in "".join(capsys.readouterr())  # out, or err if none is configured


def test_compiled_loop_is_built() -> None:
    need_compiled_loops()
    assert len(LOOPS) == 2
