"""What a connection is still to be told, in order, and with a bound.

Replies wait in memory while their client does not read. Past the bound, refused lines are no longer answered one by one
but summed up in one line, which is sent once the client reads again; a command's own answer waits for room instead, and
its client with it. Nobody else does. A client that has hung up is told nothing, and what it had sent still counts.
"""

from collections import Counter, deque
from collections.abc import Awaitable, Callable

import trio

from tsd.errors import BadLine


class Replies:
    """One connection's answers on their way out."""

    def __init__(self, limit: int, synced: Callable[[int], Awaitable[None]]) -> None:
        self._limit = limit
        self._synced = synced
        self._queue: deque[bytes | tuple[int, bytes]] = deque()
        self._size = 0
        self._unsaid: Counter[str] = Counter()
        self._more = trio.Event()
        self._room = trio.Event()
        self._closed = trio.Event()
        self._deaf = False

    def refused(self, command: bytes, error: BadLine) -> bool:
        """Answer a refused line; False where it will only be summed up."""
        if self._size > self._limit:
            self._unsaid[error.reason] += 1
            return False
        self._put(command + b": " + str(error).encode() + b"\n")
        return True

    async def say(self, text: bytes) -> None:
        """Answer a command."""
        await self._wait_for_room()
        self._put(text)

    async def say_when_synced(self, position: int, text: bytes) -> None:
        """Answer once the journal has been synced up to `position`; later answers wait behind this one."""
        await self._wait_for_room()
        self._put(text, position)

    async def _wait_for_room(self) -> None:
        while self._size > self._limit:
            self._room = trio.Event()
            await self._room.wait()

    def _put(self, text: bytes, position: int | None = None) -> None:
        if self._deaf:
            return
        if self._unsaid:  # of lines that came before
            self._append(self._sum_up())
        self._append(text, position)

    def _append(self, text: bytes, position: int | None = None) -> None:
        self._queue.append(text if position is None else (position, text))
        self._size += len(text)
        self._more.set()

    def close(self) -> None:
        """No more will come: `pump` returns when everything is sent."""
        self._closed.set()
        self._more.set()

    async def pump(self, stream: trio.abc.SendStream) -> None:
        """Send what there is to send. Raises BrokenResourceError where the client has hung up, but not before `close`:
        what it had sent by then is still to be read."""
        try:
            await self._send(stream)
        except trio.BrokenResourceError:
            self._deaf = True
            self._queue.clear()
            self._size = 0
            self._room.set()
            await self._closed.wait()
            raise

    async def _send(self, stream: trio.abc.SendStream) -> None:
        while True:
            await self._more.wait()
            self._more = trio.Event()
            while self._queue:
                await stream.send_all(await self._next())
                self._room.set()
                if self._unsaid and self._size <= self._limit:
                    self._append(self._sum_up())
            if self._closed.is_set():
                return

    async def _next(self) -> bytes:
        """As many replies as can be sent now, in one piece."""
        parts: list[bytes] = []
        while self._queue:
            head = self._queue[0]
            if isinstance(head, tuple):
                if parts:
                    break
                await self._synced(head[0])
                head = head[1]
            parts.append(head)
            self._queue.popleft()
        text = b"".join(parts)
        self._size -= len(text)
        return text

    def _sum_up(self) -> bytes:
        """One line for the refused lines that were not answered one by one."""
        reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(self._unsaid.items()))
        lines = self._unsaid.total()
        self._unsaid.clear()
        return f"put: {lines} more lines were refused while this connection did not read: {reasons}\n".encode()
