"""Many connections that send a little now and then, read by one task.

To wake a task of trio's for each packet costs many times what its few lines cost. So connections that have sent nothing
but a few good put lines at a time stand together under one epoll: a task goes through those that have something, and
hands each packet to its connection's own `take`. What that leaves, and whatever wants time, the connection's own task
goes on with, outside the crowd.
"""

import math
import os
import select
from typing import NamedTuple, Protocol

import outcome
import trio

READ_BYTES = 8 << 10  # of one packet: who sends more at once is no small sender
PASS_READS = 100  # packets, before others get their turn: one or two milliseconds
REST_S = 0.01  # between passes where many send: what comes meanwhile is gone through together


class Member(Protocol):
    """A connection that stands in the crowd."""

    @property
    def may_be_read(self) -> bool:
        """Whether it may be read from without any wait."""

    def take(self, data: bytes) -> bytes:
        """Take in what came; what is left of it for the connection's own task, nothing where it stays in the crowd."""


class _Place(NamedTuple):
    member: Member
    task: trio.lowlevel.Task


class _Word(NamedTuple):
    """What a connection's task is told when it is wanted."""

    data: bytes | None


class Crowd:
    """Those who stand in it, by descriptor."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._places: dict[int, _Place] = {}

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
        """Read once from each that has something. What goes wrong ends one connection: its task hears of it."""
        for fd, _ in ready:
            try:
                word = self._read(fd)
            except Exception as error:  # noqa: BLE001 (this is the connections' boundary)
                trio.lowlevel.reschedule(self._leave(fd), outcome.Error(error))
            else:
                if word is not None:
                    trio.lowlevel.reschedule(self._leave(fd), outcome.Value(word))

    def _read(self, fd: int) -> _Word | None:
        """Read once from a connection; None where its task is not wanted."""
        member = self._places[fd].member
        if not member.may_be_read:
            return _Word(None)
        try:
            data = os.read(fd, READ_BYTES)
        except BlockingIOError:  # the kernel has thrown away what came: it was damaged on its way
            return None
        except OSError as error:
            raise trio.BrokenResourceError(f"the connection broke: {error.strerror}") from error
        left = member.take(data) if data else b""
        return _Word(left) if left or not data else None
