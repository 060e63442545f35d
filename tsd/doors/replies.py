"""What a connection is still to be told, in order, and with two bounds: its own, and one for all connections together.

Replies wait in memory while their client does not read. Past a bound, refused lines are no longer answered one by one
but summed up in one line, which is sent once the client reads again; a command's own answer waits for room instead, and
its client with it. Nobody else does: whoever has read all that it was told is answered, however much the others leave
unread. A client that has hung up is told nothing, and what it had sent still counts.
"""

import math
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import trio

from tsd.errors import BadLine

PIECE_BYTES = 16 << 10  # sent at once: what a client takes of it is told apart no finer
PIECE_COST = 200  # bytes of memory that a piece takes beside its text


class Unread(Exception):
    """A client that sends commands has read none of its answers for too long."""


class Budget:
    """Memory for the replies of all connections together, in bytes."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0


class _Piece(NamedTuple):
    """Replies that may be sent as soon as the journal has been synced up to `position`."""

    position: int  # 0: at once
    text: bytearray

    @property
    def cost(self) -> int:
        return len(self.text) + PIECE_COST


class Replies:
    """One connection's answers on their way out. `patience_s` bounds how long a command waits on a client that reads
    nothing."""

    def __init__(
        self, limit: int, budget: Budget, synced: Callable[[int], Awaitable[None]], patience_s: float = math.inf
    ) -> None:
        self._limit = limit
        self._budget = budget
        self._synced = synced
        self._patience_s = patience_s
        self._pieces: deque[_Piece] = deque()
        self._size = 0  # of all pieces, the one on its way included
        self._unread_since = math.inf  # when the client stopped taking what is sent
        self._unsaid: Counter[str] = Counter()
        self._more = trio.Event()
        self._room = trio.Event()
        self._closed = trio.Event()
        self._deaf = False

    @property
    def deaf(self) -> bool:
        """Whether the client has hung up: nobody hears what is said."""
        return self._deaf

    @property
    def _full(self) -> bool:
        return self._size > self._limit or (self._size > 0 and self._budget.used > self._budget.limit)

    def refused(self, command: bytes, error: BadLine) -> bool:
        """Answer a refused line; False where it will only be summed up."""
        if self._full:
            self._unsaid[error.reason] += 1
            return False
        self._put(command + b": " + str(error).encode() + b"\n")
        return True

    async def say(self, text: bytes) -> None:
        """Answer a command. Raises Unread."""
        await self._wait_for_room()
        self._put(text)

    async def say_when_synced(self, position: int, text: bytes) -> None:
        """Answer once the journal has been synced up to `position`; later answers wait behind this one. Raises
        Unread."""
        await self._wait_for_room()
        self._put(text, position)

    async def _wait_for_room(self) -> None:
        while self._full:
            self._room = trio.Event()
            with trio.move_on_after(self._patience_s):
                await self._room.wait()
            if trio.current_time() - self._unread_since >= self._patience_s:
                raise Unread

    def _put(self, text: bytes, position: int = 0) -> None:
        if self._deaf:
            return
        if self._unsaid:  # of lines that came before
            self._append(self._sum_up())
        self._append(text, position)

    def _append(self, text: bytes, position: int = 0) -> None:
        last = self._pieces[-1] if self._pieces else None
        if last is None or position > last.position or len(last.text) >= PIECE_BYTES:
            last = _Piece(position, bytearray())
            self._pieces.append(last)
            self._resize(PIECE_COST)
        last.text.extend(text)
        self._resize(len(text))
        self._more.set()

    def _resize(self, added: int) -> None:
        self._size += added
        self._budget.used += added

    def close(self) -> None:
        """No more will come: `pump` returns when everything is sent."""
        self._closed.set()
        self._more.set()

    def drop(self) -> None:
        """Forget what is not sent: nobody is there to be told."""
        self._deaf = True
        self._pieces.clear()
        self._unsaid.clear()
        self._resize(-self._size)
        self._room.set()

    async def pump(self, stream: trio.abc.SendStream) -> None:
        """Send what there is to send. Raises BrokenResourceError where the client has hung up, but not before `close`:
        what it had sent by then is still to be read."""
        try:
            await self._send(stream)
        except trio.BrokenResourceError:
            self.drop()
            await self._closed.wait()
            raise
        finally:
            self.drop()

    async def _send(self, stream: trio.abc.SendStream) -> None:
        while True:
            await self._more.wait()
            self._more = trio.Event()
            while self._pieces:
                if self._pieces[0].position:
                    await self._synced(self._pieces[0].position)
                piece = self._pieces.popleft()  # only now: an answer to the same position still joins it
                self._unread_since = trio.current_time()
                await stream.send_all(piece.text)
                self._unread_since = math.inf
                self._resize(-piece.cost)
                self._room.set()
                if self._unsaid and not self._full:
                    self._append(self._sum_up())
            if self._closed.is_set():
                return

    def _sum_up(self) -> bytes:
        """One line for the refused lines that were not answered one by one."""
        reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(self._unsaid.items()))
        lines = self._unsaid.total()
        self._unsaid.clear()
        return f"put: {lines} more lines were refused while this connection did not read: {reasons}\n".encode()
