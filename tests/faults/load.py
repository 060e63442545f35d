"""Clients that send numbered put lines and record which of them the daemon acknowledged.

The n-th line of a connection is a function of n, and n is its value. So millions of lines need no memory, and a stored
point that was not sent, or that has another point's name, is detected.
"""

import json
import random
from collections.abc import Iterator
from typing import NamedTuple

import trio

HOST = "127.0.0.1"
BASE = 1_500_000_000
REPLY = b"synced "
PATIENCE_S = 300  # also on a busy machine; only bounds the wait of a failing test


class Line(NamedTuple):
    """The content of a line."""

    metric: str
    tags: tuple[tuple[str, str], ...]  # sorted by name
    time: int  # in seconds, or in ms for every second series


class Lines(NamedTuple):
    """The lines of one connection."""

    connection: int
    slots: int = 6  # series that alternate
    life: int = 40  # points of a series before new names replace it; 0: never

    def line(self, n: int) -> Line:
        """Return the n-th line."""
        turn, slot = divmod(n, self.slots)
        age = turn // self.life if self.life else 0
        tags = ("connection", f"c{self.connection}"), ("host", f"h{slot}.{age}")
        time = BASE + turn
        return Line(f"load.{slot}.{age // 2}", tags, time * 1000 + 250 if slot % 2 else time)

    def text(self, start: int, stop: int) -> bytes:
        """Return the lines from `start` to before `stop`."""
        return "".join(
            f"put {metric} {time} {n} {' '.join(f'{tagk}={tagv}' for tagk, tagv in tags)}\n"
            for n in range(start, stop)
            for metric, tags, time in [self.line(n)]
        ).encode()

    def json(self, start: int, stop: int) -> bytes:
        """Return the same lines as a body of /api/put."""
        lines = ((n, self.line(n)) for n in range(start, stop))
        points = [{"metric": x.metric, "timestamp": x.time, "value": n, "tags": dict(x.tags)} for n, x in lines]
        return json.dumps(points).encode()


class Sender:
    """A client with one connection at a time. Each connection continues after the last line of the previous one."""

    def __init__(
        self, lines: Lines, *, block: int = 40, ahead: int = 400, per_s: float | None = None, seed: int = 0
    ) -> None:
        """Send up to `block` lines at once, sometimes with `sync`. Wait while `ahead` lines are unconfirmed. With
        `per_s`, send at most that many lines per second."""
        self.lines = lines
        self.sent = 0
        self._block = block
        self._ahead = ahead
        self._per_s = per_s
        self._paced_from = 0, 0.0  # first line of the present rate, and its time
        self._random = random.Random(seed)
        self._since = 0  # the first line of this connection
        self._confirmed = [0]  # number per connection
        self._starts = [0]
        self._moved = trio.Event()
        self._finishing = False

    def confirmed(self) -> Iterator[range]:
        """Return the lines acknowledged as being on disk."""
        for start, count in zip(self._starts, self._confirmed, strict=True):
            yield range(start, start + count)

    @property
    def confirmed_count(self) -> int:
        """Number of confirmed lines."""
        return sum(self._confirmed)

    @property
    def unconfirmed(self) -> int:
        """Number of unconfirmed lines of this connection."""
        return self.sent - self._starts[-1] - self._confirmed[-1]

    async def more_confirmed(self, count: int = 1) -> None:
        """Return once this many more lines are confirmed."""
        wanted = self.confirmed_count + count
        with trio.fail_after(PATIENCE_S):
            while self.confirmed_count < wanted:
                await self._moved.wait()

    def pace(self, per_s: float | None) -> None:
        """Send this many lines per second from now on."""
        self._per_s = per_s
        self._paced_from = self.sent, trio.current_time()

    def finish(self) -> None:
        """Let `run` return once everything sent is confirmed."""
        self._finishing = True

    async def run(self, port: int) -> None:
        """Send and read until the daemon closes the connection or `finish` is called."""
        self._starts.append(self.sent)
        self._confirmed.append(0)
        self._finishing = False
        self.pace(self._per_s)
        try:
            async with await trio.open_tcp_stream(HOST, port) as stream, trio.open_nursery() as nursery:
                nursery.start_soon(self._read, stream, nursery.cancel_scope)
                await self._send(stream)
                nursery.cancel_scope.cancel()
        except* (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
            assert not self._finishing

    async def _send(self, stream: trio.SocketStream) -> None:
        while not self._finishing:
            if self._per_s:
                first, at = self._paced_from
                await trio.sleep_until(at + (self.sent - first) / self._per_s)
            while self.unconfirmed >= self._ahead:
                await self._moved.wait()
            stop = self.sent + self._random.randint(1, self._block)
            text = self.lines.text(self.sent, stop)
            self.sent = stop
            if self._random.random() < 0.5 or self.unconfirmed >= self._ahead:
                text += b"sync\n"
            cut = self._random.randrange(len(text))  # the daemon may receive any partial block
            for part in (text[:cut], text[cut:]):
                await stream.send_all(part)
        await stream.send_all(b"sync\n")
        while self.unconfirmed:
            await self._moved.wait()

    async def _read(self, stream: trio.SocketStream, scope: trio.CancelScope) -> None:
        tail = b""
        while data := await stream.receive_some():
            *replies, tail = (tail + data).split(b"\n")
            for reply in replies:
                assert reply.startswith(REPLY), reply
                self._confirmed[-1] = int(reply.removeprefix(REPLY))
                assert self.unconfirmed >= 0
                self._moved.set()
                self._moved = trio.Event()
        assert not self._finishing
        scope.cancel()


class HttpSender(Sender):
    """A client of /api/put: status 204 confirms the points of a request."""

    async def _send(self, stream: trio.SocketStream) -> None:
        while not self._finishing:
            stop = self.sent + self._random.randint(1, self._block)
            body = self.lines.json(self.sent, stop)
            self.sent = stop
            head = b"POST /api/put HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body)
            cut = self._random.randrange(len(body))
            for part in (head + body[:cut], body[cut:]):
                await stream.send_all(part)
            while self.unconfirmed:
                await self._moved.wait()

    async def _read(self, stream: trio.SocketStream, scope: trio.CancelScope) -> None:
        tail = b""
        while data := await stream.receive_some():
            *heads, tail = (tail + data).split(b"\r\n\r\n")
            for head in heads:
                assert head.startswith(b"HTTP/1.1 204 "), head
                self._confirmed[-1] = self.sent - self._starts[-1]
                self._moved.set()
                self._moved = trio.Event()
        assert not self._finishing
        scope.cancel()
