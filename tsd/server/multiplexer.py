"""Read many connections in one task.

Waking a trio task for each packet costs many times more than ingesting its few lines. Connections that recently sent
only small packets of valid put lines therefore share one epoll. One task reads the ready ones and ingests their lines
as one batch. A packet that does not fit the batch goes to its connection's `take`. What `take` does not process, and
what has to wait, continues in the connection's own task, outside the multiplexer.

The loops over packets are compiled if possible: `_multiplexer.pyx`.
"""

import errno
import math
import os
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from operator import itemgetter
from typing import NamedTuple, Protocol

import trio

from tsd.ingest.intake import Backpressure
from tsd.lazy import LazyLogger
from tsd.server.peer import Peer
from tsd.server.polled_connections import PolledConnections

try:
    from tsd.server import _multiplexer
except ImportError:  # installed without a C compiler
    HAS_LOOP = False
else:
    HAS_LOOP = not os.environ.get("TSD_PURE")  # for comparisons

log = LazyLogger(__name__)

READ_BYTES = 8 << 10  # of one read
SMALL_PACKET_BYTES = 4 << 10  # some 60 put lines; larger packets do not share a batch


class MultiplexedConnection(Protocol):
    """A connection that can be read by the multiplexer."""

    peer: Peer
    accepted: int  # data points
    position: int  # of its last line in the journal
    max_line: int  # bytes of a line, without LF

    @property
    def uses_fast_path(self) -> bool:
        """Return whether the connection may be read without a check.

        The result is valid until the next call of `take`, while there is no backpressure and the client has no quotas.
        """

    @property
    def is_readable(self) -> bool:
        """Return whether the connection may be read now, without a wait."""

    def take(self, data: bytes) -> bytes:
        """Process a packet. Return the rest for the connection's own task; b"" if it stays in the multiplexer."""


class Slot:
    """A connection in the multiplexer."""

    __slots__ = ("client", "connection", "fast_path", "max_line", "peer", "task")

    def __init__(self, connection: MultiplexedConnection, task: trio.lowlevel.Task) -> None:
        """The connection has no incomplete line; `task` is its own task, which waits for the multiplexer."""
        self.connection = connection
        self.task = task
        self.peer = connection.peer
        self.client = connection.peer.client  # a connected client is not evicted
        self.max_line = connection.max_line
        self.fast_path = connection.uses_fast_path


class Packet(NamedTuple):
    """One connection's part of a batch."""

    fd: int
    slot: Slot
    size: int  # bytes
    lines: int


PACKET_SIZE = itemgetter(2)


class PacketBatch(NamedTuple):
    """What one pass read."""

    block: bytes  # lines that look like put lines, of all `packets` in order
    packets: list[Packet]
    unbatched: list[tuple[int, bytes]]  # other packets by descriptor; b"" at the end of a connection
    failed: list[tuple[int, int]]  # descriptor and errno of failed reads
    deferred: list[int]  # descriptors to check before they are read


def is_batchable(data: bytes, max_line: int) -> bool:
    """Return whether a packet is small, consists of whole lines within `max_line`, and begins with a put line.

    >>> is_batchable(b"put m 17 1 a=b\\n", 14), is_batchable(b"put m 17 1 a=b\\n", 13), is_batchable(b"put m 17", 14)
    (True, False, False)
    """
    if len(data) >= SMALL_PACKET_BYTES or not data.startswith(b"put ") or not data.endswith(b"\n") or b"\r" in data:
        return False
    return len(data) <= max_line + 1 or max(map(len, data.split(b"\n"))) <= max_line


def buffer_size(packets: int) -> int:
    """Return the size of a buffer for `packets` reads: batched packets are small, only the last read may be larger."""
    return packets * SMALL_PACKET_BYTES + READ_BYTES


def read_batch_python(ready: Sequence[tuple[int, int]], slots: Mapping[int, Slot], _buffer: bytearray) -> PacketBatch:
    """Read once from each ready connection. The compiled loop reads into a buffer of `buffer_size`."""
    found = PacketBatch(b"", [], [], [], [])
    parts: list[bytes] = []
    for fd, _ in ready:
        slot = slots[fd]
        if not slot.fast_path or slot.client.is_limited:
            found.deferred.append(fd)
            continue
        try:
            data = os.read(fd, READ_BYTES)
        except OSError as error:
            if error.errno != errno.EAGAIN:  # the kernel dropped a damaged packet after it reported it
                found.failed.append((fd, error.errno or 0))
            continue
        if is_batchable(data, slot.max_line):
            parts.append(data)
            found.packets.append(Packet(fd, slot, len(data), data.count(b"\n")))
        else:
            found.unbatched.append((fd, data))
    return found._replace(block=b"".join(parts))


def credit_batch_python(packets: Sequence[Packet], position: int, now_s: float, now_ms: int) -> int:
    """Count an accepted batch with each connection and its client. Return the number of lines."""
    total = 0
    for _, slot, size, lines in packets:
        client, connection = slot.client, slot.connection
        client.bytes += size
        client.accepted += lines
        client.last_ms = now_ms
        if client.is_limited:
            client.count_received(lines)
        else:
            client.lines += lines
        connection.accepted += lines
        connection.position = position
        slot.peer.idle_since = now_s
        total += lines
    return total


read_batch = _multiplexer.read_batch if HAS_LOOP else read_batch_python
credit_batch = _multiplexer.credit_batch if HAS_LOOP else credit_batch_python


MAX_BATCH_PACKETS = 250  # before other tasks run: two or three milliseconds
PASS_INTERVAL_S = 0.02  # between passes: packets that arrive meanwhile form one batch


class Multiplexer(PolledConnections[Slot]):
    """The connections that one task reads, by descriptor."""

    def __init__(
        self,
        take_packets: Callable[[bytes, Sequence[int], int], tuple[int, int]],
        backpressure: Backpressure,
        now_ms: Callable[[], int],
        on_accepted: Callable[[int], None],
        *,
        is_plain: Callable[[bytes], bool] | None = None,
    ) -> None:
        """`take_packets` ingests put lines of several connections, see `Intake.take_packets`. `on_accepted` receives
        the number of ingested lines. `is_plain`: connections take other packets themselves, and translate them."""
        super().__init__()
        self._take_packets = take_packets
        self._backpressure = backpressure
        self._now_ms = now_ms
        self._on_accepted = on_accepted
        self._is_plain = is_plain
        self._buffer = bytearray(buffer_size(MAX_BATCH_PACKETS))

    async def add(self, stream: trio.SocketStream, connection: MultiplexedConnection) -> bytes | None:
        """Read a connection here until its own task is needed.

        Return received data that `connection.take` has not processed. Return b"" at the end of the connection, and None
        if there may be data that must not be read yet. Raise BrokenResourceError, and what `connection` raises.
        """
        return await self._hold(stream.socket.fileno(), Slot(connection, trio.lowlevel.current_task()))

    async def run(self) -> None:
        """Read connections until cancelled."""
        last_pass_s = -math.inf
        while True:
            await trio.lowlevel.wait_readable(self._epoll.fileno())
            await trio.sleep_until(last_pass_s + PASS_INTERVAL_S)
            while len(ready := self._epoll.poll(0, MAX_BATCH_PACKETS)) == MAX_BATCH_PACKETS:
                self._process(ready)
                await trio.lowlevel.checkpoint()
            self._process(ready)
            last_pass_s = trio.current_time()

    def _process(self, ready: list[tuple[int, int]]) -> None:
        """Read once from each ready connection, and ingest what was read."""
        if not self._backpressure.is_open:
            for fd, _ in ready:
                self._wake(fd, None)
            return
        found = PacketBatch(*read_batch(ready, self._slots, self._buffer))
        parts = [found.block, *(self._read_deferred(fd, found) for fd in found.deferred)]
        for fd, number in found.failed:
            self._fail_to_read(fd, OSError(number, os.strerror(number)))
        for fd, data in found.unbatched:
            self._hand_over(fd, data)
        self._ingest(found.packets, b"".join(parts))

    def _read_deferred(self, fd: int, found: PacketBatch) -> bytes:
        """Read a connection if it is readable. Return its part of the batch."""
        slot = self._slots[fd]
        try:
            if not slot.connection.is_readable:
                self._wake(fd, None)
                return b""
            data = os.read(fd, READ_BYTES)
        except BlockingIOError:  # the kernel dropped a damaged packet after it reported it
            return b""
        except OSError as error:
            found.failed.append((fd, error.errno or 0))
        except Exception as error:  # noqa: BLE001 (the boundary of one connection)
            self._fail(fd, error)
        else:
            if is_batchable(data, slot.max_line):
                found.packets.append(Packet(fd, slot, len(data), data.count(b"\n")))
                return data
            found.unbatched.append((fd, data))
        return b""

    def _ingest(self, packets: Sequence[Packet], block: bytes) -> None:
        """Ingest a batch. Each packet that needs the slow path is handed over to its connection, and the batch
        continues with the next packet. The only packet of a batch is handed over, too.

        After an unexpected error all packets are handed over: each connection then has its own error, or none. Lines
        may be ingested twice.
        """
        bounds = list(accumulate(map(PACKET_SIZE, packets), initial=0))
        first, batched = 0, self._is_plain is None or self._is_plain(block)
        while first < len(packets):
            stop = first
            if batched and len(packets) - first > 1:
                try:
                    stop, position = self._take_packets(block, bounds, first)
                except Exception:  # the boundary of a batch
                    log.exception("multiplexer.batch_failed", packets=len(packets) - first)
                    batched = False
            if stop > first:
                now_s = trio.current_time()
                self._on_accepted(credit_batch(packets[first:stop], position, now_s, self._now_ms()))
            if stop < len(packets):
                self._hand_over(packets[stop][0], block[bounds[stop] : bounds[stop + 1]])
            first = stop + 1

    def _hand_over(self, fd: int, data: bytes) -> None:
        """Process one packet by its connection. Wake the connection's task for the rest, and at the end of input."""
        slot = self._slots[fd]
        try:
            rest = slot.connection.take(data) if data else b""
            slot.fast_path = slot.connection.uses_fast_path
        except Exception as error:  # noqa: BLE001 (the boundary of one connection)
            self._fail(fd, error)
        else:
            if rest or not data:
                self._wake(fd, rest)
