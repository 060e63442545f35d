"""The reply queue of a telnet connection, bounded per connection and for all connections together.

Replies wait in memory while a client does not read. Past a bound, refused lines are summarized in one line, which is
sent when the client reads again; a command waits until there is space. Other connections do not wait: a client that has
read all its replies is always answered. Replies to a disconnected client are dropped, but its lines are still ingested.
"""

import math
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import trio

from tsd.errors import BadLine

CHUNK_BYTES = 16 << 10  # sent at once
CHUNK_OVERHEAD = 200  # bytes of memory that a chunk takes in addition to its text


class SlowConsumer(Exception):
    """A client sends requests and has not read responses for too long."""


class ReplyBudget:
    """Memory for the replies of all connections, in bytes."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0


class _Chunk(NamedTuple):
    """Replies that may be sent when the journal is synced up to `position`."""

    position: int  # 0: at once
    text: bytearray

    @property
    def cost(self) -> int:
        return len(self.text) + CHUNK_OVERHEAD


class ReplyQueue:
    """One connection's replies."""

    def __init__(
        self, limit: int, budget: ReplyBudget, synced: Callable[[int], Awaitable[None]], timeout_s: float = math.inf
    ) -> None:
        """`limit`: bytes. `timeout_s`: how long a command waits for a client that reads nothing."""
        self._limit = limit
        self._budget = budget
        self._synced = synced
        self._timeout_s = timeout_s
        self._chunks: deque[_Chunk] = deque()
        self._size = 0  # of all chunks, with the one that is being sent
        self._unread_since = math.inf  # start of the current send
        self._unsent: Counter[str] = Counter()  # refused lines to summarize, by reason
        self._has_replies = trio.Event()
        self._has_room = trio.Event()
        self._closed = trio.Event()
        self._disconnected = False

    @property
    def disconnected(self) -> bool:
        """Return whether the client has disconnected: replies are dropped."""
        return self._disconnected

    @property
    def has_replies(self) -> bool:
        """Return whether replies wait to be sent."""
        return bool(self._chunks)

    @property
    def _full(self) -> bool:
        return self._size > self._limit or (self._size > 0 and self._budget.used > self._budget.limit)

    def refuse(self, command: bytes, error: BadLine) -> bool:
        """Reply to a refused line. Return False if the reply is left to a summary."""
        if self._full:
            self._unsent[error.reason] += 1
            return False
        self._put(command + b": " + str(error).encode() + b"\n")
        return True

    async def send(self, text: bytes) -> None:
        """Reply to a command. Raise SlowConsumer."""
        await self._wait_until_not_full()
        self._put(text)

    async def send_when_synced(self, position: int, text: bytes) -> None:
        """Reply when the journal is synced up to `position`; later replies wait. Raise SlowConsumer."""
        await self._wait_until_not_full()
        self._put(text, position)

    async def _wait_until_not_full(self) -> None:
        while self._full:
            self._has_room = trio.Event()
            with trio.move_on_after(self._timeout_s):
                await self._has_room.wait()
            if trio.current_time() - self._unread_since >= self._timeout_s:
                raise SlowConsumer

    def _put(self, text: bytes, position: int = 0) -> None:
        if self._disconnected:
            return
        if self._unsent:  # for earlier lines
            self._append(self._summary())
        self._append(text, position)

    def _append(self, text: bytes, position: int = 0) -> None:
        last = self._chunks[-1] if self._chunks else None
        if last is None or position > last.position or len(last.text) >= CHUNK_BYTES:
            last = _Chunk(position, bytearray())
            self._chunks.append(last)
            self._resize(CHUNK_OVERHEAD)
        last.text.extend(text)
        self._resize(len(text))
        self._has_replies.set()

    def _resize(self, added: int) -> None:
        self._size += added
        self._budget.used += added

    def close(self) -> None:
        """Add no more replies: `pump` returns when all are sent."""
        self._closed.set()
        self._has_replies.set()

    def discard(self) -> None:
        """Drop all replies that are not sent: the client has disconnected."""
        self._disconnected = True
        self._chunks.clear()
        self._unsent.clear()
        self._resize(-self._size)
        self._has_room.set()

    async def pump(self, stream: trio.abc.SendStream) -> None:
        """Send replies until `close`. Raise BrokenResourceError if the client has disconnected.

        It is raised only after `close`, because the client's input is still to be processed.
        """
        try:
            await self._send_chunks(stream)
        except trio.BrokenResourceError:
            self.discard()
            await self._closed.wait()
            raise
        finally:
            self.discard()

    async def _send_chunks(self, stream: trio.abc.SendStream) -> None:
        while True:
            await self._has_replies.wait()
            self._has_replies = trio.Event()
            while self._chunks:
                if self._chunks[0].position:
                    await self._synced(self._chunks[0].position)
                chunk = self._chunks.popleft()  # after the wait: more replies may have been appended to it
                self._unread_since = trio.current_time()
                await stream.send_all(chunk.text)
                self._unread_since = math.inf
                self._resize(-chunk.cost)
                self._has_room.set()
                if self._unsent and not self._full:
                    self._append(self._summary())
            if self._closed.is_set():
                return

    def _summary(self) -> bytes:
        """Return one line that summarizes the refused lines without a reply, and reset their counts."""
        reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(self._unsent.items()))
        lines = self._unsent.total()
        self._unsent.clear()
        return f"put: {lines} more lines were refused while this connection did not read: {reasons}\n".encode()
