"""Connections that one task reads for many: their own tasks wait meanwhile."""

import select
from typing import Generic, NamedTuple, Protocol, TypeVar

import outcome
import trio


class PolledSlot(Protocol):
    """A connection that is polled."""

    @property
    def task(self) -> trio.lowlevel.Task:
        """Its own task, which waits."""


S = TypeVar("S", bound=PolledSlot)


class _Wakeup(NamedTuple):
    """The result of a connection's wait."""

    data: bytes | None


class PolledConnections(Generic[S]):
    """Connections by descriptor, with an epoll that tells which of them have input."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._slots: dict[int, S] = {}

    def __len__(self) -> int:
        return len(self._slots)

    async def _hold(self, fd: int, slot: S) -> bytes | None:
        """Poll a connection until `_wake` or `_fail` is called. Return the data, or raise the error, of that call."""
        self._slots[fd] = slot  # first, because a polled descriptor must have a slot
        self._register(fd)

        def abort(_: object) -> trio.lowlevel.Abort:
            self._remove(fd)
            return trio.lowlevel.Abort.SUCCEEDED

        wakeup: _Wakeup = await trio.lowlevel.wait_task_rescheduled(abort)
        return wakeup.data

    def _register(self, fd: int) -> None:
        self._epoll.register(fd, select.EPOLLIN)

    def _unregister(self, fd: int) -> None:
        self._epoll.unregister(fd)

    def _remove(self, fd: int) -> trio.lowlevel.Task:
        self._unregister(fd)
        return self._slots.pop(fd).task

    def _wake(self, fd: int, data: bytes | None) -> None:
        """Remove a connection and resume its task."""
        trio.lowlevel.reschedule(self._remove(fd), outcome.Value(_Wakeup(data)))

    def _fail(self, fd: int, error: Exception) -> None:
        """Remove a connection and raise an error in its task."""
        trio.lowlevel.reschedule(self._remove(fd), outcome.Error(error))

    def _fail_to_read(self, fd: int, error: OSError) -> None:
        """Remove a connection whose read failed, and raise BrokenResourceError in its task, as trio's streams do."""
        broken = trio.BrokenResourceError(f"read failed: {error.strerror}")
        broken.__cause__ = error
        self._fail(fd, broken)
