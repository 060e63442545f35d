"""Read connections that only send lines together, at intervals.

To wake the event loop takes as much CPU time as to ingest hundreds of lines. So lines of a quiet connection do not wake
it: a timer does, and then one task reads all of these connections. Until then the kernel keeps their lines. What has
arrived is read before an HTTP request is answered, and the end of a connection wakes the loop at once. A connection
that has sent `sync` is never quiet, and one that has sent another command is not for some seconds.

Lines that were read together are ingested as one batch. What cannot be ingested at once continues in the connection's
own task, as in the multiplexer.
"""

import math
import os
import select
from collections.abc import Callable
from typing import Protocol

import trio

from tsd.server.packet_batches import BatchedConnection, BatchedSlot, Packet, PacketBatches, is_batchable
from tsd.server.polled_connections import PolledConnections

WINDOW_S = 10.0  # for which a connection is watched before it may be quiet
LONGEST_WINDOW_S = 160.0  # while it sends much: each measurement wakes its own task
READ_BYTES = 128 << 10  # of one read of a quiet connection: the size of a new socket's buffer
BYTES_PER_S = 24 << 10  # that it sends on average
TURN_BYTES = 64 << 10  # read before other tasks run: a third of a millisecond
STEADY = 1.5  # rests: if input follows other input within this time, the next input waits


class SendRate:
    """Measures whether a connection sends few bytes, and sends them evenly."""

    def __init__(self) -> None:
        self._since_s = trio.current_time()
        self._bytes = 0
        self._window_s = WINDOW_S
        self.is_low = False

    @property
    def left_s(self) -> float:
        """Return the time until the end of the measurement."""
        return max(self._since_s + self._window_s - trio.current_time(), 0)

    def count(self, size: int) -> None:
        """Note that `size` bytes were read together."""
        if size >= READ_BYTES:  # more may have arrived
            self.restart()
        else:
            self.count_parts(size)

    def count_parts(self, size: int) -> None:
        """Note that `size` bytes were read, in small parts."""
        now_s = trio.current_time()
        self._bytes += size
        if now_s - self._since_s >= self._window_s:
            self.is_low = self._bytes <= BYTES_PER_S * (now_s - self._since_s)
            self._window_s = WINDOW_S if self.is_low else min(2 * self._window_s, LONGEST_WINDOW_S)
            self._since_s, self._bytes = now_s, 0

    def restart(self) -> None:
        """Forget the measurement, and start a new one."""
        self._since_s, self._bytes, self._window_s, self.is_low = trio.current_time(), 0, WINDOW_S, False


class QuietConnection(BatchedConnection, Protocol):
    """A connection that can be read here."""

    @property
    def is_quiet(self) -> bool:
        """Return whether the connection may be read here, and now."""

    def count_quiet(self, size: int) -> None:
        """Note that `size` bytes were read together."""

    def take_quiet(self, data: bytes) -> bytes:
        """Process input. Return the rest for the connection's own task; b"" if there is none."""


class _Slot(BatchedSlot):
    __slots__ = ()
    connection: QuietConnection


class QuietConnections(PolledConnections[_Slot]):
    """Quiet connections, by descriptor."""

    def __init__(
        self, rest_s: float, on_read: Callable[[], None] = lambda: None, batches: PacketBatches | None = None
    ) -> None:
        """`rest_s`: how long what has arrived may stay unread. `on_read` is called when all of it was read. Without
        `batches` each connection takes its packets itself."""
        super().__init__()
        self._rest_s = rest_s
        self._batches = batches
        self._ends = select.epoll()  # readable when a connection has ended, even if it has unread input
        self._buffer = memoryview(bytearray(READ_BYTES))
        self._on_read = on_read

    async def add(self, stream: trio.SocketStream, connection: QuietConnection) -> bytes | None:
        """Read a connection here until its own task is needed.

        Return received data that `take_quiet` has not processed, b"" at the end of the connection, or None if it is not
        quiet now. Raise BrokenResourceError, and what `connection` raises.
        """
        return await self._hold(stream.socket.fileno(), _Slot(connection, trio.lowlevel.current_task()))

    def reads(self, stream: trio.SocketStream) -> bool:
        """Return whether a connection is read here."""
        return stream.socket.fileno() in self._slots

    def _register(self, fd: int) -> None:
        super()._register(fd)
        self._ends.register(fd, select.EPOLLRDHUP)

    def _unregister(self, fd: int) -> None:
        super()._unregister(fd)
        self._ends.unregister(fd)

    async def run(self) -> None:
        """Read connections until cancelled. While lines keep coming, only a timer and ends of connections wake it."""
        last_s, rests = -math.inf, False
        while True:
            with trio.move_on_after(self._rest_s if rests else math.inf):
                await trio.lowlevel.wait_readable((self._ends if rests else self._epoll).fileno())
            now_s = trio.current_time()
            found = await self._read_ready()
            rests = found and now_s - last_s < STEADY * self._rest_s
            last_s = now_s if found else -math.inf

    async def read_now(self) -> None:
        """Read what has arrived."""
        if self._slots:
            await self._read_ready()

    async def _read_ready(self) -> bool:
        """Read once from each connection that has input. Return whether there are any."""
        ready = self._epoll.poll(0, max(len(self._slots), 1))
        packets: list[Packet] = []
        parts: list[bytes] = []
        size = 0
        for fd, _ in ready:
            if size >= TURN_BYTES:
                self._ingest(packets, parts)
                await trio.lowlevel.checkpoint()
                packets, parts, size = [], [], 0
            if fd in self._slots:  # its wait was not cancelled meanwhile
                size += self._read(fd, packets, parts)
        self._ingest(packets, parts)
        if ready:
            self._on_read()
        return bool(ready)

    def _read(self, fd: int, packets: list[Packet], parts: list[bytes]) -> int:
        """Read once from a connection. Process what was read, or add it to `packets` and `parts`. Return the number of
        bytes."""
        slot = self._slots[fd]
        connection, data = slot.connection, b""
        try:
            if not connection.is_quiet:
                self._wake(fd, None)
                return 0
            data = bytes(self._buffer[: os.readv(fd, [self._buffer])])
            connection.count_quiet(len(data))
        except BlockingIOError:  # the kernel dropped a damaged packet after it reported it
            return 0
        except OSError as error:
            self._fail_to_read(fd, error)
            return 0
        except Exception as error:  # noqa: BLE001 (the boundary of one connection)
            self._fail(fd, error)
            return 0
        if self._batches is not None and is_batchable(data, slot.max_line, READ_BYTES):
            packets.append(Packet(fd, slot, len(data), data.count(b"\n")))
            parts.append(data)
        else:
            self._take(fd, data)
        return len(data)

    def _ingest(self, packets: list[Packet], parts: list[bytes]) -> None:
        if self._batches is not None and packets:
            self._batches.ingest(packets, b"".join(parts), self._take)

    def _take(self, fd: int, data: bytes) -> None:
        """Process one packet by its connection. Wake the connection's task if it is not quiet any more, for the rest,
        and at the end of input."""
        connection = self._slots[fd].connection
        try:
            rest = connection.take_quiet(data) if data else b""
            is_quiet = connection.is_quiet
        except Exception as error:  # noqa: BLE001 (the boundary of one connection)
            self._fail(fd, error)
        else:
            if rest or not data:
                self._wake(fd, rest)
            elif not is_quiet:
                self._wake(fd, None)
