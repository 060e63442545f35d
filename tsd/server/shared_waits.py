"""Wake the tasks of many connections together.

To wake the event loop for each of them takes more CPU time than to answer their requests one after the other: between
two wakes the data of the event loop leaves the CPU's caches. So a connection whose client sends points more than a
second apart waits here. While input of such connections keeps coming, a timer wakes the tasks of all that have input.
Otherwise a task is woken at once.
"""

import math
from typing import NamedTuple

import trio

from tsd.server.polled_connections import PolledConnections

INTERVAL_S = 0.1  # as long as `sync` may wait
STEADY = 1.5  # intervals: if input follows other input within this time, the next input waits


class _Slot(NamedTuple):
    task: trio.lowlevel.Task


class SharedWaits(PolledConnections[_Slot]):
    """Connections that wait for input, by descriptor."""

    def __init__(self, interval_s: float) -> None:
        """`interval_s`: how long what has arrived may wait."""
        super().__init__()
        self._interval_s = interval_s

    async def wait_readable(self, stream: trio.SocketStream) -> None:
        """Wait until a connection has input, or has ended."""
        await self._hold(stream.socket.fileno(), _Slot(trio.lowlevel.current_task()))

    async def run(self) -> None:
        """Wake connections until cancelled. While input keeps coming, only a timer wakes this task."""
        last_s, rests = -math.inf, False
        while True:
            if rests:
                await trio.sleep(self._interval_s)
            else:
                await trio.lowlevel.wait_readable(self._epoll.fileno())
            ready = self._epoll.poll(0, max(len(self), 1))
            for fd, _ in ready:
                self._wake(fd, None)
            now_s = trio.current_time()
            rests = bool(ready) and now_s - last_s < STEADY * self._interval_s
            last_s = now_s if ready else -math.inf
