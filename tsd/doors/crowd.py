"""Many connections that send a little now and then, read by one task.

To wake a task of trio's for each packet costs many times what its few lines cost. So connections that have sent nothing
but a few good put lines at a time stand together under one epoll: a task reads from those that have something, and
takes in what they sent together. Where that will not do, each packet is handed to its connection's own `take`, and what
that leaves, and whatever wants time, the connection's own task goes on with, outside the crowd.
"""

import math
import os
import select
from collections.abc import Callable, Sequence
from typing import NamedTuple

import outcome
import trio

from tsd.doors.gather import READ_BYTES, Gathered, Member, Place, Share, credit, gather, may_share, room_for
from tsd.ingest.intake import Gate, Taken

PASS_READS = 250  # packets, before others get their turn: two or three milliseconds
REST_S = 0.02  # between passes where many send: what comes meanwhile is gone through together


class _Word(NamedTuple):
    """What a connection's task is told when it is wanted."""

    data: bytes | None


class Crowd:
    """Those who stand in it, by descriptor."""

    def __init__(
        self,
        take_plain: Callable[[bytes], Taken | None],
        gate: Gate,
        now_ms: Callable[[], int],
        on_shared: Callable[[int], None],
    ) -> None:
        """`take_plain` takes in good put lines of many; None: it took none of them. `on_shared` is told how many it
        took."""
        self._epoll = select.epoll()
        self._places: dict[int, Place] = {}
        self._take_plain = take_plain
        self._gate = gate
        self._now_ms = now_ms
        self._on_shared = on_shared
        self._room = bytearray(room_for(PASS_READS))

    def __len__(self) -> int:
        return len(self._places)

    async def stand(self, stream: trio.SocketStream, member: Member) -> bytes | None:
        """Stay in the crowd until the connection's own task is wanted: what came that `member` has left, empty at the
        end of the connection; None where something came that may not be read as it comes. Raises
        BrokenResourceError, and what `member` raises."""
        fd = stream.socket.fileno()
        self._places[fd] = Place(member, trio.lowlevel.current_task())  # first: whoever is polled has a place
        self._epoll.register(fd, select.EPOLLIN)

        def leave(_: object) -> trio.lowlevel.Abort:
            self._leave(fd)
            return trio.lowlevel.Abort.SUCCEEDED

        word: _Word = await trio.lowlevel.wait_task_rescheduled(leave)
        return word.data

    def _leave(self, fd: int) -> trio.lowlevel.Task:
        self._epoll.unregister(fd)
        return self._places.pop(fd).task

    async def run(self) -> None:
        """Read for ever."""
        passed_s = -math.inf
        while True:
            await trio.lowlevel.wait_readable(self._epoll.fileno())
            await trio.sleep_until(passed_s + REST_S)
            while len(ready := self._epoll.poll(0, PASS_READS)) == PASS_READS:
                self._go_through(ready)
                await trio.lowlevel.checkpoint()
            self._go_through(ready)
            passed_s = trio.current_time()

    def _go_through(self, ready: list[tuple[int, int]]) -> None:
        """Read once from each that has something, and take it in."""
        if not self._gate.is_open:
            for fd, _ in ready:
                self._call(fd, None)
            return
        found = Gathered(*gather(ready, self._places, self._room))
        parts = [found.block, *(self._read(fd, found) for fd in found.uneasy)]
        for fd, number in found.failed:
            broken = trio.BrokenResourceError(f"the connection broke: {os.strerror(number)}")
            broken.__cause__ = OSError(number, os.strerror(number))
            self._end(fd, broken)
        for fd, data in found.others:
            self._hand_over(fd, data)
        self._take_in(found.shares, b"".join(parts))

    def _read(self, fd: int, found: Gathered) -> bytes:
        """Look whether one may be read from, and do so: what it shares."""
        place = self._places[fd]
        try:
            if not place.member.may_be_read:
                self._call(fd, None)
                return b""
            data = os.read(fd, READ_BYTES)
        except BlockingIOError:  # the kernel has thrown away what came: it was damaged on its way
            return b""
        except OSError as error:
            found.failed.append((fd, error.errno or 0))
        except Exception as error:  # noqa: BLE001 (this is the connections' boundary)
            self._end(fd, error)
        else:
            if may_share(data, place.longest):
                found.shares.append(Share(fd, place, len(data), data.count(b"\n")))
                return data
            found.others.append((fd, data))
        return b""

    def _take_in(self, shares: Sequence[Share], block: bytes) -> None:
        """Take packets in together, or in halves, until what wants to be taken alone is alone."""
        if len(shares) < 2:
            for fd, *_ in shares:
                self._hand_over(fd, block)
            return
        try:
            taken = self._take_plain(block)
        except Exception:  # noqa: BLE001 (whose fault it is shows when it is alone; to take lines twice does no harm)
            taken = None
        if taken is None:
            half = len(shares) // 2
            cut = sum([size for _, _, size, _ in shares[:half]])
            self._take_in(shares[:half], block[:cut])
            self._take_in(shares[half:], block[cut:])
            return
        self._on_shared(credit(shares, taken.position, trio.current_time(), self._now_ms()))

    def _hand_over(self, fd: int, data: bytes) -> None:
        """Have a connection take its own packet, and call its task where something is left of it, or it has ended."""
        place = self._places[fd]
        try:
            left = place.member.take(data) if data else b""
            place.easy = place.member.at_ease
        except Exception as error:  # noqa: BLE001 (this is the connections' boundary)
            self._end(fd, error)
        else:
            if left or not data:
                self._call(fd, left)

    def _call(self, fd: int, data: bytes | None) -> None:
        """Have a connection's task go on."""
        trio.lowlevel.reschedule(self._leave(fd), outcome.Value(_Word(data)))

    def _end(self, fd: int, error: Exception) -> None:
        """What goes wrong ends one connection: its task hears of it."""
        trio.lowlevel.reschedule(self._leave(fd), outcome.Error(error))
