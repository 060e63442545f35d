"""Clients that send numbered lines over telnet or HTTP and record which ones a daemon acknowledged.

Like agents, they resend lines over the next connection that were not acknowledged before, or drop them.

Everything about the n-th line of a connection follows from n, which is also its value. So lines need no memory, and a
stored point with a wrong series, time or value is detected. Of every eight points of a series, the last one replaces
the value of the fifth.
"""

import json
import random
import re
import struct
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

import numpy as np
import trio
from numpy.typing import NDArray

from tsd.errors import TsdError

BASE_S = 1_500_000_000
REPLACED, REPLACING = 4, 7  # of eight points of a series: the replaced one, and the one with the same time
LIFE = 40  # points of a series until one with new names replaces it
METRIC_LIVES = 2  # series of one metric in a slot
ODD_MS = 250  # offset from the full second, in every other series

Numbers = NDArray[np.int64]
Values = NDArray[np.float64]


class LineKey(NamedTuple):
    """A line without its value."""

    metric: str
    tags: tuple[tuple[str, str], ...]  # in order of their names
    time: int  # in seconds, or in ms for every other series


class SentSeries(NamedTuple):
    """The names of a series."""

    metric: str
    tags: tuple[tuple[str, str], ...]


class Lines(NamedTuple):
    """The lines of one connection."""

    place: str  # prefix of the metrics' names
    connection: int
    slots: int = 6  # series, one line each in turn
    life: int = LIFE  # points of a series: a multiple of 8, 0 for no end

    def line(self, n: int) -> LineKey:
        """Return the n-th line."""
        turn, slot = divmod(n, self.slots)
        age = turn // self.life if self.life else 0
        tags = ("connection", f"c{self.connection}"), ("host", f"h{slot}.{age}")
        time = BASE_S + turn - (REPLACING - REPLACED) * (turn % 8 == REPLACING)
        return LineKey(f"{self.place}.{slot}.{age // METRIC_LIVES}", tags, time * 1000 + ODD_MS if slot % 2 else time)

    def value(self, n: int) -> int | float:
        """Return the value of the n-th line: n, or n + 0.5 in every third series."""
        return n + 0.5 if n % self.slots % 3 == 2 else n

    def metrics(self, count: int) -> list[str]:
        """Return the metrics of the first `count` lines."""
        ages = ((count - 1) // self.slots // self.life if self.life else 0) + 1 if count else 0
        return [f"{self.place}.{slot}.{at}" for slot in range(self.slots) for at in range(-(-ages // METRIC_LIVES))]

    def numbers(self, series: "SentSeries", times: Numbers, values: Values) -> Numbers:
        """Return the line number of each point of a series; -1 for points of no line."""
        n = np.floor(np.where(np.abs(values) < 1 << 53, values, -1.0)).astype(np.int64)  # larger values are of no line
        turn, slot = n // self.slots, n % self.slots
        said = BASE_S + turn - (REPLACING - REPLACED) * (turn % 8 == REPLACING)
        said = np.where(slot % 2, said * 1000 + ODD_MS, said)
        right = (n >= 0) & (said == times) & (values == np.where(slot % 3 == 2, n + 0.5, n))
        for at in {int(first) for first in np.unique(n[right] // (self.slots * (self.life or 1 << 40)))}:
            first = at * self.slots * self.life
            for one in range(self.slots):
                line = self.line(first + one)
                if (line.metric, line.tags) != series:
                    right &= ~((slot == one) & (turn // (self.life or 1 << 40) == at))
        return np.where(right, n, -1)

    def replaced_by(self, numbers: Numbers) -> Numbers:
        """Return for each line the one that replaces its value, or the line itself."""
        hidden = numbers // self.slots % 8 == REPLACED
        found: Numbers = numbers + hidden * ((REPLACING - REPLACED) * self.slots)
        return found

    def put_line(self, n: int) -> str:
        """Return the n-th line as text."""
        line = self.line(n)
        return f"put {line.metric} {line.time} {self.value(n)} {format_tags(line.tags)}"

    def text(self, start: int, stop: int) -> bytes:
        """Return the lines from `start` to before `stop`."""
        return "".join(f"{self.put_line(n)}\n" for n in range(start, stop)).encode()

    def json(self, start: int, stop: int) -> bytes:
        """Return these lines as a body of /api/put."""
        return json.dumps(list(self._points(start, stop))).encode()

    def _points(self, start: int, stop: int) -> Iterator[dict[str, object]]:
        for n in range(start, stop):
            line = self.line(n)
            yield {"metric": line.metric, "timestamp": line.time, "value": self.value(n), "tags": dict(line.tags)}


def format_tags(tags: tuple[tuple[str, str], ...]) -> str:
    """Format tags as in a line."""
    return " ".join(f"{name}={value}" for name, value in tags)


HOST = "127.0.0.1"
SYNCED = b"synced "
BAD_SHARE = 0.05  # of telnet blocks with a bad line
AGAIN_S = 0.05  # before a deferred request is resent
PACED_S = 0.25  # of paced lines are sent at once, at most: rounds wait for the next ones to be confirmed
_HEAD = re.compile(rb"HTTP/1\.1 (\d+) .*?\r\n\r\n", re.DOTALL)
_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)


class UnexpectedAnswer(TsdError):
    """Raised for a wrong answer of a daemon, or no answer in time."""


class Sender:
    """A telnet client with one connection at a time."""

    def __init__(self, lines: Lines, *, seed: int, block: int = 40, ahead: int = 400) -> None:
        """Send up to `block` lines at once, with a `sync` at random; wait while `ahead` lines are not confirmed."""
        self.lines = lines
        self.sent = 0  # different lines
        self.repeated = 0  # lines resent
        self.bad = 0  # lines that must be refused, not in `sent`
        self.refused: Counter[str] = Counter()
        self.deferred: Counter[str] = Counter()  # requests answered with 503
        self._block = block
        self._ahead = ahead
        self._per_s: float | None = None
        self._paced_from = 0, 0.0  # the first paced line and its time
        self._chance = random.Random(seed)  # noqa: S311 - reproducible
        self._starts: list[int] = []  # the first line of each connection
        self._confirmed: list[int] = []  # how many of each are acknowledged
        self._next = 0
        self._moved = trio.Event()
        self._finishing = False
        self._over = trio.Event()

    def acknowledged(self) -> NDArray[np.bool_]:
        """Return which of the sent lines are acknowledged."""
        found = np.zeros(self.sent, np.bool_)
        for start, count in zip(self._starts, self._confirmed, strict=True):
            found[start : start + count] = True
        return found

    @property
    def confirmed_count(self) -> int:
        """Return the number of acknowledged lines, counting resent ones twice."""
        return sum(self._confirmed)

    @property
    def unconfirmed(self) -> int:
        """Return the number of lines of this connection without acknowledgement."""
        return self._next - self._starts[-1] - self._confirmed[-1]

    async def more_confirmed(self, count: int = 1) -> None:
        """Return once this many more lines are confirmed."""
        wanted = self.confirmed_count + count
        while self.confirmed_count < wanted:
            await self._moved.wait()

    def pace(self, per_s: float | None) -> None:
        """Send this many lines per second from now on."""
        self._per_s = per_s
        self._paced_from = self._next, trio.current_time()

    def finish(self) -> None:
        """Let `run` return once all sent lines are confirmed."""
        self._finishing = True

    async def run(self, port: int) -> None:
        """Send and read, after `begin`, until the daemon closes the connection or `finish` is called."""
        try:
            stream = await trio.open_tcp_stream(HOST, port)
        except OSError:
            pass
        else:
            with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                async with stream:
                    await self._converse(stream)
        self._over.set()

    async def check_connected(self) -> None:
        """Wait until `run` returns. Raise UnexpectedAnswer if the daemon closed the connection before `finish`."""
        await self._over.wait()
        if not self._finishing:
            raise UnexpectedAnswer(f"{self.lines.place}: the connection of a correct client was closed")

    def begin(self, per_s: float | None = None) -> None:
        """Prepare a new connection: resend or drop the unacknowledged lines of the last one."""
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
        """Return the range of the next lines to send."""
        most = min(self._block, max(round(self._per_s * PACED_S), 1)) if self._per_s else self._block
        start, self._next = self._next, self._next + self._chance.randint(1, most)
        self.sent = max(self.sent, self._next)
        return start, self._next

    def _confirm(self, count: int) -> None:
        """Record that this many lines of the connection are acknowledged."""
        self._confirmed[-1] = count
        if self.unconfirmed < 0:
            raise UnexpectedAnswer(f"{self.lines.place}: {-self.unconfirmed} lines more were confirmed than sent")
        self._moved.set()
        self._moved = trio.Event()

    async def _converse(self, stream: trio.SocketStream) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._read, stream, nursery.cancel_scope)
            with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                await self._send(stream)
            if not self._finishing:
                await trio.sleep_forever()  # replies before the end are still read
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
            cut = self._chance.randrange(len(text))  # a block may end anywhere
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
                    self._handle_reply(reply)
        scope.cancel()

    def _handle_reply(self, reply: bytes) -> None:
        if reply.startswith(SYNCED):
            self._confirm(int(reply.removeprefix(SYNCED)))
        elif reply.startswith(b"put: "):
            self.refused[reply.decode("latin-1").split(": ")[1]] += 1
        else:
            raise UnexpectedAnswer(f"{self.lines.place}: got {reply[:200]!r}")


# The rest of bad lines, after their metric.
BAD_RESTS = (b"1500000000 1", b"1500000000 1x host=a", b"15000x 1 host=a", b"1500000000 1 host", b"-5 1 host=a")


class HttpSender(Sender):
    """A client of /api/put: a 204 confirms the points of a request; it is resent after a 503."""

    async def _converse(self, stream: trio.SocketStream) -> None:
        tail = b""
        while not self._finishing:
            await self._keep_pace()
            start, stop = self._take()
            body = self.lines.json(start, stop)
            request = b"POST /api/put HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body
            while self.unconfirmed:
                cut = self._chance.randrange(len(request))
                for part in (request[:cut], request[cut:]):
                    await stream.send_all(part)
                status, tail = await _response(stream, tail)
                if status == 204:
                    self._confirm(stop - self._starts[-1])
                elif status == 503:
                    self.deferred["503"] += 1
                    self.repeated += stop - start
                    await trio.sleep(AGAIN_S)
                else:
                    raise UnexpectedAnswer(f"{self.lines.place}: /api/put was answered with {status}")


def reset(stream: trio.SocketStream) -> None:
    """Make closing a stream send a reset, as a killed process does with unread input."""
    stream.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_LINGER, struct.pack("ii", 1, 0))


async def _response(stream: trio.SocketStream, tail: bytes) -> tuple[int, bytes]:
    """Return the status of the next response and the input after it. Raise BrokenResourceError."""
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


class TruncatingSender(Sender):
    """A telnet client that sends no `sync` and disconnects within a line. The truncated line must not be stored."""

    async def _converse(self, stream: trio.SocketStream) -> None:
        for _ in range(self._chance.randint(1, 5)):
            await stream.send_all(self.lines.text(*self._take()))
        whole = self.lines.text(self.sent, self.sent + 1)
        await stream.send_all(whole[: self._chance.randrange(1, len(whole))])
        self._starts[-1] = self.sent  # nothing is resent: the daemon may still be reading it
        if self._chance.random() < 0.5:
            reset(stream)
