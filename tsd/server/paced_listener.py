"""Accept connections of agents together.

To wake the event loop for each connection takes more CPU time than to read its few lines. So while connections keep
coming, and none with a query ended lately, they wait in the kernel for a moment, and are then served together.
"""

import math
from collections.abc import Callable

import trio

from tsd.server.shared_waits import INTERVAL_S, STEADY

MOST = 32  # connections of an interval: more keep the event loop awake in any case


class PacedListener(trio.abc.Listener[trio.SocketStream]):
    """A listener that rests between accepts while connections keep coming."""

    def __init__(
        self,
        listener: trio.abc.Listener[trio.SocketStream],
        has_waiting: Callable[[], bool],
        may_rest: Callable[[], bool],
    ) -> None:
        """`has_waiting` returns whether a connection can be accepted at once, `may_rest` whether clients may wait."""
        self._listener = listener
        self.has_waiting = has_waiting
        self._may_rest = may_rest
        self._begun_s = -math.inf  # the first of the connections that were accepted together last
        self._count = 0  # of these
        self._is_steady = False

    async def accept(self) -> trio.SocketStream:
        """Accept a connection."""
        if self.has_waiting():
            self._count += 1
            return await self._listener.accept()
        if self._is_steady and self._count <= MOST and self._may_rest():
            await trio.sleep(INTERVAL_S)
        stream = await self._listener.accept()
        now_s = trio.current_time()
        self._is_steady = now_s - self._begun_s < STEADY * INTERVAL_S
        self._begun_s, self._count = now_s, 1
        return stream

    async def aclose(self) -> None:
        """Close the listener."""
        await self._listener.aclose()
