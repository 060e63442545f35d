"""Clients that send numbered lines over telnet or HTTP, and keep account of what a daemon said of them.

They do as agents do: what was not acknowledged when a connection ended is sent again over the next one, or given up.
"""

import random
import re
import struct
from collections import Counter
from contextlib import suppress

import numpy as np
import trio
from numpy.typing import NDArray

from tsd.errors import TsdError
from tsd.torture.lines import Lines

HOST = "127.0.0.1"
SYNCED = b"synced "
BAD_SHARE = 0.05  # of telnet blocks that hold a line that must be refused
AGAIN_S = 0.05  # before what was put off is sent again
_HEAD = re.compile(rb"HTTP/1\.1 (\d+) .*?\r\n\r\n", re.DOTALL)
_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)


class Unexpected(TsdError):
    """An answer that no daemon should give, or none within a time in which any should."""


class Sender:
    """A telnet client with one connection at a time."""

    def __init__(self, lines: Lines, *, seed: int, block: int = 40, ahead: int = 400) -> None:
        """Sends up to `block` lines at once and asks for `sync` now and then. While `ahead` lines are not confirmed it
        waits."""
        self.lines = lines
        self.sent = 0  # different lines: the first so many
        self.repeated = 0  # lines sent again
        self.bad = 0  # lines that must be refused, beside those
        self.refused: Counter[str] = Counter()
        self.put_off: Counter[str] = Counter()  # requests that were told to come again
        self._block = block
        self._ahead = ahead
        self._per_s: float | None = None
        self._paced_from = 0, 0.0  # the first line that is paced, and when it was sent
        self._chance = random.Random(seed)  # noqa: S311 - to be repeated
        self._starts: list[int] = []  # the first line of each connection
        self._confirmed: list[int] = []  # how many of each are on disk: so was said
        self._next = 0
        self._moved = trio.Event()
        self._finishing = False
        self._over = trio.Event()

    def acknowledged(self) -> NDArray[np.bool_]:
        """Which of the lines sent are on disk: so was said."""
        found = np.zeros(self.sent, np.bool_)
        for start, count in zip(self._starts, self._confirmed, strict=True):
            found[start : start + count] = True
        return found

    @property
    def confirmed_count(self) -> int:
        """How many they are."""
        return sum(self._confirmed)

    @property
    def unconfirmed(self) -> int:
        """Lines of this connection of which nothing is known."""
        return self._next - self._starts[-1] - self._confirmed[-1]

    async def more_confirmed(self, count: int = 1) -> None:
        """Return once so many more lines are confirmed than now."""
        wanted = self.confirmed_count + count
        while self.confirmed_count < wanted:
            await self._moved.wait()

    def pace(self, per_s: float | None) -> None:
        """Send so many lines in a second from now on."""
        self._per_s = per_s
        self._paced_from = self._next, trio.current_time()

    def finish(self) -> None:
        """Let `run` return once everything that it sent is confirmed."""
        self._finishing = True

    async def run(self, port: int) -> None:
        """Send and read, after `begin`, until the daemon ends the connection or `finish` was called."""
        try:
            stream = await trio.open_tcp_stream(HOST, port)
        except OSError:
            pass
        else:
            with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                async with stream:
                    await self._converse(stream)
        self._over.set()

    async def stay(self) -> None:
        """Return once `run` has, after `finish`. Raises Unexpected where the daemon ended the connection before."""
        await self._over.wait()
        if not self._finishing:
            raise Unexpected(f"{self.lines.place}: a client that did nothing wrong lost its connection")

    def begin(self, per_s: float | None = None) -> None:
        """A new connection follows: what the last one left open is sent again, or given up."""
        start = self.sent
        if self._starts and self._chance.random() < 0.5:
            start = self._starts[-1] + self._confirmed[-1]
        self.repeated += self.sent - start
        self._starts.append(start)
        self._confirmed.append(0)
        self._next = start
        self._finishing = False
        self._over = trio.Event()
        self.pace(per_s)

    def _take(self) -> tuple[int, int]:
        """The next lines to be sent: from, and to before."""
        start, self._next = self._next, self._next + self._chance.randint(1, self._block)
        self.sent = max(self.sent, self._next)
        return start, self._next

    def _confirm(self, count: int) -> None:
        """So many of this connection are on disk."""
        self._confirmed[-1] = count
        if self.unconfirmed < 0:
            raise Unexpected(f"{self.lines.place}: {-self.unconfirmed} lines more were confirmed than sent")
        self._moved.set()
        self._moved = trio.Event()

    async def _converse(self, stream: trio.SocketStream) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._read, stream, nursery.cancel_scope)
            with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                await self._send(stream)
            if not self._finishing:
                await trio.sleep_forever()  # what came before the end is read still
            nursery.cancel_scope.cancel()

    async def _send(self, stream: trio.SocketStream) -> None:
        while not self._finishing:
            await self._keep_pace()
            while self.unconfirmed >= self._ahead:
                await self._moved.wait()
            text = self.lines.text(*self._take())
            if self._chance.random() < BAD_SHARE:
                text += self._bad_line()
            if self._chance.random() < 0.5 or self.unconfirmed >= self._ahead:
                text += b"sync\n"
            cut = self._chance.randrange(len(text))  # a block of the daemon's may end anywhere
            for part in (text[:cut], text[cut:]):
                await stream.send_all(part)
        await stream.send_all(b"sync\n")
        while self.unconfirmed:
            await self._moved.wait()

    async def _keep_pace(self) -> None:
        if self._per_s:
            first, at = self._paced_from
            await trio.sleep_until(at + (self._next - first) / self._per_s)

    def _bad_line(self) -> bytes:
        self.bad += 1
        return b"put %s.bad %s\n" % (self.lines.place.encode(), self._chance.choice(BAD_RESTS))

    async def _read(self, stream: trio.SocketStream, scope: trio.CancelScope) -> None:
        tail = b""
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            while data := await stream.receive_some():
                *replies, tail = (tail + data).split(b"\n")
                for reply in replies:
                    self._hear(reply)
        scope.cancel()

    def _hear(self, reply: bytes) -> None:
        if reply.startswith(SYNCED):
            self._confirm(int(reply.removeprefix(SYNCED)))
        elif reply.startswith(b"put: "):
            self.refused[reply.decode("latin-1").split(": ")[1]] += 1
        else:
            raise Unexpected(f"{self.lines.place}: got {reply[:200]!r}")


# What follows the metric of lines that must be refused.
BAD_RESTS = (b"1500000000 1", b"1500000000 1x host=a", b"15000x 1 host=a", b"1500000000 1 host", b"-5 1 host=a")


class HttpSender(Sender):
    """A client of /api/put: the points of a request are confirmed by its 204; with a 503 it comes again."""

    async def _converse(self, stream: trio.SocketStream) -> None:
        tail = b""
        while not self._finishing:
            await self._keep_pace()
            start, stop = self._take()
            body = self.lines.json(start, stop)
            request = b"POST /api/put HTTP/1.1\r\nHost: tsd\r\nContent-Length: %d\r\n\r\n" % len(body) + body
            while self.unconfirmed:
                cut = self._chance.randrange(len(request))
                for part in (request[:cut], request[cut:]):
                    await stream.send_all(part)
                status, tail = await _response(stream, tail)
                if status == 204:
                    self._confirm(stop - self._starts[-1])
                elif status == 503:
                    self.put_off["503"] += 1
                    self.repeated += stop - start
                    await trio.sleep(AGAIN_S)
                else:
                    raise Unexpected(f"{self.lines.place}: /api/put was answered with {status}")


def reset(stream: trio.SocketStream) -> None:
    """Have a stream's end be that of a process which is killed with something unread."""
    stream.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_LINGER, struct.pack("ii", 1, 0))


async def _response(stream: trio.SocketStream, tail: bytes) -> tuple[int, bytes]:
    """Status of the next response, and what came after it. BrokenResourceError where the connection ends first."""
    while True:
        if head := _HEAD.match(tail):
            length = _LENGTH.search(head[0])
            end = head.end() + (int(length[1]) if length else 0)
            if len(tail) >= end:
                return int(head[1]), tail[end:]
        data = await stream.receive_some()
        if not data:
            raise trio.BrokenResourceError
        tail += data


class Cutter(Sender):
    """A telnet client that asks for nothing, and ends each connection in the middle of a line: that line is nobody's,
    even where what came of it would be one."""

    async def _converse(self, stream: trio.SocketStream) -> None:
        for _ in range(self._chance.randint(1, 5)):
            await stream.send_all(self.lines.text(*self._take()))
        whole = self.lines.text(self.sent, self.sent + 1)
        await stream.send_all(whole[: self._chance.randrange(1, len(whole))])
        self._starts[-1] = self.sent  # nothing is sent again: the daemon may still be reading it
        if self._chance.random() < 0.5:
            reset(stream)
