"""Read many connections in one task.

Waking a trio task for each packet costs many times more than ingesting its few lines. Connections that recently sent
only small packets of valid put lines therefore share one epoll. One task reads the ready ones and ingests their lines
as one batch. A packet that does not fit the batch goes to its connection's `take`. What `take` does not process, and
what has to wait, continues in the connection's own task, outside the multiplexer.

A connection that has sent no `sync` leaves when its rate is known, as it may be quiet (`quiet_connections.py`).

The loops over packets are compiled if possible: `_multiplexer.pyx`.
"""

import errno
import math
import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import trio

from tsd.ingest.accepted import Backpressure
from tsd.server.packet_batches import HAS_LOOP, BatchedConnection, BatchedSlot, Packet, PacketBatches, is_batchable
from tsd.server.polled_connections import PolledConnections

if HAS_LOOP:
    from tsd.server import _multiplexer

READ_BYTES = 8 << 10  # of one read
SMALL_PACKET_BYTES = 4 << 10  # some 60 put lines; larger packets do not share a batch


class MultiplexedConnection(BatchedConnection, Protocol):
    """A connection that can be read by the multiplexer."""

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

    def count_read(self, size: int) -> None:
        """Note that `size` bytes were read and ingested here."""


class Slot(BatchedSlot):
    """A connection in the multiplexer, without an incomplete line."""

    __slots__ = ("fast_path",)
    connection: MultiplexedConnection

    def __init__(self, connection: MultiplexedConnection, task: trio.lowlevel.Task) -> None:
        super().__init__(connection, task)
        self.fast_path = connection.uses_fast_path


class PacketBatch(NamedTuple):
    """What one pass read."""

    block: bytes  # lines that look like put lines, of all `packets` in order
    packets: list[Packet]
    unbatched: list[tuple[int, bytes]]  # other packets by descriptor; b"" at the end of a connection
    failed: list[tuple[int, int]]  # descriptor and errno of failed reads
    deferred: list[int]  # descriptors to check before they are read


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
        if is_batchable(data, slot.max_line, SMALL_PACKET_BYTES):
            parts.append(data)
            found.packets.append(Packet(fd, slot, len(data), data.count(b"\n")))
        else:
            found.unbatched.append((fd, data))
    return found._replace(block=b"".join(parts))


read_batch = _multiplexer.read_batch if HAS_LOOP else read_batch_python


MAX_BATCH_PACKETS = 250  # before other tasks run: two or three milliseconds
PASS_INTERVAL_S = 0.02  # between passes: packets that arrive meanwhile form one batch


class Multiplexer(PolledConnections[Slot]):
    """The connections that one task reads, by descriptor."""

    def __init__(
        self,
        batches: PacketBatches,
        backpressure: Backpressure,
    ) -> None:
        super().__init__()
        self._batches = batches
        self._backpressure = backpressure
        self._buffer = bytearray(buffer_size(MAX_BATCH_PACKETS))

    async def add(self, stream: trio.SocketStream, connection: MultiplexedConnection) -> bytes | None:
        """Read a connection here until its own task is needed.

        Return received data that `connection.take` has not processed. Return b"" at the end of the connection, and None
        if there may be data that must not be read yet. Raise BrokenResourceError, and what `connection` raises.
        """
        slot = Slot(connection, trio.lowlevel.current_task())
        try:
            return await self._hold(stream.socket.fileno(), slot)
        finally:
            connection.count_read(slot.bytes)

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
        self._batches.ingest(found.packets, b"".join(parts), self._hand_over)

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
            if is_batchable(data, slot.max_line, SMALL_PACKET_BYTES):
                found.packets.append(Packet(fd, slot, len(data), data.count(b"\n")))
                return data
            found.unbatched.append((fd, data))
        return b""

    def _hand_over(self, fd: int, data: bytes) -> None:
        """Process one packet by its connection. Wake the connection's task for the rest, and at the end of input."""
        slot = self._slots[fd]
        try:
            rest = slot.connection.take(data) if data else b""
            slot.bytes += len(data) - len(rest)
            slot.fast_path = slot.connection.uses_fast_path
        except Exception as error:  # noqa: BLE001 (the boundary of one connection)
            self._fail(fd, error)
        else:
            if rest or not data:
                self._wake(fd, rest)
