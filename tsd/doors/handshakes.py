"""Handshakes take turns: a crowd that arrives at once must not take the event loop away from those who are in.

What a handshake costs is one calculation, right after the client's first message came: up to a millisecond with a key
of RSA. Each waits until nobody else's is under way and the loop has had `REST` times as long for others.
"""

import time
from collections.abc import Callable

import trio

REST = 3  # of the event loop's time, handshakes take a quarter at most


class Turns:
    """One handshake's calculation at a time; what it costs is told by `clock`, the thread's own CPU time."""

    def __init__(self, clock: Callable[[], float] = time.thread_time) -> None:
        self._clock = clock
        self._lock = trio.StrictFIFOLock()
        self._free_at = -float("inf")  # by trio's clock

    async def wait(self) -> float:
        """Return when it is the caller's turn: the calculation is what it does next, up to its next await. How long it
        has waited, in seconds."""
        asked = trio.current_time()
        async with self._lock:
            await trio.sleep_until(self._free_at)
        self._began = self._clock()
        self._free_at = trio.current_time()
        return self._free_at - asked

    def took(self) -> None:
        """The calculation is over."""
        self._free_at = trio.current_time() + REST * (self._clock() - self._began)


class InTurn(trio.abc.Stream):
    """A connection while its handshake is under way. What came is handed on in turn."""

    def __init__(self, stream: trio.SocketStream, turns: Turns, scope: trio.CancelScope) -> None:
        self._stream = stream
        self._turns = turns
        self._scope = scope
        self._ours = False

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """What came, once it may be worked on. The wait is not the client's fault: its deadline is put off."""
        self._end_turn()
        data = await self._stream.receive_some(max_bytes)
        if data:
            self._scope.deadline += await self._turns.wait()
            self._ours = True
        return bytes(data)

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send what was worked out."""
        self._end_turn()
        await self._stream.send_all(data)

    def _end_turn(self) -> None:
        if self._ours:
            self._ours = False
            self._turns.took()

    async def wait_send_all_might_not_block(self) -> None:
        """As of the connection."""
        await self._stream.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        """As of the connection."""
        await self._stream.aclose()
