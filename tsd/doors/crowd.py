"""Many connections that send a little now and then, read by one task.

To wake a task of trio's for each packet costs many times what its few lines cost. So connections that have sent nothing
but a few good put lines at a time stand together under one epoll: a task reads from those that have something, and
takes in what they sent together. Where that will not do, each packet is handed to its connection's own `take`, and what
that leaves, and whatever wants time, the connection's own task goes on with, outside the crowd.
"""

import math
import os
import select
from collections.abc import Callable
from typing import NamedTuple, Protocol

import outcome
import trio

from tsd.ingest.intake import Taken

READ_BYTES = 8 << 10  # of one packet: who sends more at once is no small sender
PASS_READS = 100  # packets, before others get their turn: one or two milliseconds
REST_S = 0.01  # between passes where many send: what comes meanwhile is gone through together


class Member(Protocol):
    """A connection that stands in the crowd."""

    @property
    def may_be_read(self) -> bool:
        """Whether it may be read from without any wait."""

    def may_share(self, data: bytes) -> bool:
        """Whether what came is whole lines, which may be taken in with others'."""

    def shared(self, data: bytes, position: int, now_s: float) -> None:
        """What came, put lines alone, was taken in with others', up to that position of the journal."""

    def take(self, data: bytes) -> bytes:
        """Take in what came; what is left of it for the connection's own task, nothing where it stays in the crowd."""


class Packet(NamedTuple):
    """What came from one of them."""

    fd: int
    member: Member
    data: bytes


class _Place(NamedTuple):
    member: Member
    task: trio.lowlevel.Task


class _Word(NamedTuple):
    """What a connection's task is told when it is wanted."""

    data: bytes | None


class Crowd:
    """Those who stand in it, by descriptor."""

    def __init__(self, take_plain: Callable[[bytes], Taken | None]) -> None:
        """`take_plain` takes in good put lines of many; None: it took none of them."""
        self._epoll = select.epoll()
        self._places: dict[int, _Place] = {}
        self._take_plain = take_plain

    def __len__(self) -> int:
        return len(self._places)

    async def stand(self, stream: trio.SocketStream, member: Member) -> bytes | None:
        """Stay in the crowd until the connection's own task is wanted: what came that `member` has left, empty at the
        end of the connection; None where something came that may not be read as it comes. Raises
        BrokenResourceError, and what `member` raises."""
        fd = stream.socket.fileno()
        self._epoll.register(fd, select.EPOLLIN)
        self._places[fd] = _Place(member, trio.lowlevel.current_task())

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
        packets: list[Packet] = []
        for fd, _ in ready:
            member = self._places[fd].member
            try:
                if not member.may_be_read:
                    self._call(fd, None)
                    continue
                data = os.read(fd, READ_BYTES)
                shared = len(ready) > 1 and member.may_share(data)
            except BlockingIOError:  # the kernel has thrown away what came: it was damaged on its way
                continue
            except OSError as error:
                broken = trio.BrokenResourceError(f"the connection broke: {error.strerror}")
                broken.__cause__ = error
                self._end(fd, broken)
            except Exception as error:  # noqa: BLE001 (this is the connections' boundary)
                self._end(fd, error)
            else:
                packet = Packet(fd, member, data)
                if shared:
                    packets.append(packet)
                else:
                    self._hand_over(packet)
        self._take_in(packets)

    def _take_in(self, packets: list[Packet]) -> None:
        """Take packets in together, or in halves, until what wants to be taken alone is alone."""
        if len(packets) < 2:
            for packet in packets:
                self._hand_over(packet)
            return
        try:
            taken = self._take_plain(b"".join([packet.data for packet in packets]))
        except Exception:  # noqa: BLE001 (whose fault it is shows when it is alone; to take lines twice does no harm)
            taken = None
        if taken is None:
            half = len(packets) // 2
            self._take_in(packets[:half])
            self._take_in(packets[half:])
            return
        now_s = trio.current_time()
        for packet in packets:
            packet.member.shared(packet.data, taken.position, now_s)

    def _hand_over(self, packet: Packet) -> None:
        """Have a connection take its own packet, and call its task where something is left of it, or it has ended."""
        fd, member, data = packet
        try:
            left = member.take(data) if data else b""
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
