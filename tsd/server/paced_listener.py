"""Accept connections of agents together.

To wake the event loop for each connection takes more CPU time than to read its few lines. So while connections keep
coming, and no client queried lately, they wait in the kernel for a moment, and are then served together.

A client that connects again within a second, such as a script that sends one point after the other, would wait each
time. So for a minute after such a client no connection waits. Clients behind one proxy have one address, and count as
such a client, too.
"""

import math
from collections.abc import Callable
from contextlib import suppress

import trio

from tsd.server.shared_waits import INTERVAL_S, STEADY

MOST = 32  # connections of a group: after a larger one the next connection does not wait, as a wait would save little
AGAIN_S = 1  # a client that connects again within this time is in a hurry
HURRY_S = 60  # connections do not wait for so long after a client in a hurry


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
        self._begun_s = -math.inf  # when the first connection of the last group was accepted
        self._count = 0  # connections of this group
        self._is_steady = False  # this group followed the one before closely
        self._addresses: set[str] = set()  # of clients that connected since `_since_s`
        self._since_s = -math.inf
        self._hurried_s = -math.inf  # when a client in a hurry last connected

    async def accept(self) -> trio.SocketStream:
        """Accept a connection."""
        if self.has_waiting():
            self._count += 1
            return await self._accept()
        if self._is_steady and self._count <= MOST and self._may_wait():
            await trio.sleep(INTERVAL_S)
        stream = await self._accept()
        now_s = trio.current_time()
        self._is_steady = now_s - self._begun_s < STEADY * INTERVAL_S
        self._begun_s, self._count = now_s, 1
        return stream

    async def _accept(self) -> trio.SocketStream:
        """Accept a connection, and note whether its client is in a hurry."""
        stream = await self._listener.accept()
        now_s = trio.current_time()
        if now_s - self._since_s > AGAIN_S:
            self._addresses.clear()
            self._since_s = now_s
        with suppress(OSError):  # it is gone
            name = stream.socket.getpeername()
            address = name[0] if isinstance(name, tuple) else ""  # of a local socket
            if address in self._addresses:
                self._hurried_s = now_s
            self._addresses.add(address)
        return stream

    def _may_wait(self) -> bool:
        return trio.current_time() - self._hurried_s > HURRY_S and self._may_rest()

    async def aclose(self) -> None:
        """Close the listener."""
        await self._listener.aclose()
