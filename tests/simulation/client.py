"""A telnet client that sends, calls `sync` and misbehaves. It checks every reply."""

import random
from collections.abc import Callable
from typing import NamedTuple

import trio

from tests.simulation.daemon import MAX_LINE, SimulatedDaemon
from tests.simulation.plan import BASE, Plan
from tests.simulation.sent_points import Sent, SentPoints, Series, Violation
from tests.simulation.streams import StreamEnd, stream_pair

METRICS = ("m", "sys.cpu", "sys.cpu.user", "old.name")
TOO_LONG = b"put " + b"x" * (MAX_LINE + 1) + b"\n"
# Refused lines and their replies.
BAD = (
    (b"put m 17\n", b"put: illegal argument: not enough arguments (need least 4, got 2)\n"),
    (b"put m 1356998400 x a=b\n", b"put: invalid value: Invalid character 'x' in x\n"),
    (b"put m 0 1 a=b\n", b"put: illegal argument: invalid timestamp: 0\n"),
    (b"put m 1356998400 1 a=b a=c\n", b"put: illegal argument: duplicate tag: a=c, tags={a=b}\n"),
    (b"put m: 1356998400 1 a=b\n", b'put: illegal argument: Invalid metric name ("m:"): illegal character: :\n'),
    (b"nonsense\n", b"unknown command: nonsense.  Try `help'.\n"),
    (TOO_LONG, b"put: illegal argument: line too long: more than 1024 bytes\n"),
    (b"version\n", b"version\n"),
    (b"dropcaches\n", b"Caches dropped.\n"),
)
UNKNOWN = b"put: unknown metric: No such name for 'metrics': 'typo'\n"  # not if the store cannot be read
PATIENCE_S = 60.0


class _Expected(NamedTuple):
    """A required or possible reply, and the lines that it acknowledges."""

    text: bytes
    acks: tuple[Sent, ...] = ()
    maybe: bool = False
    good: int | None = None  # of `sync`: lines that are certainly accepted


class _Connection:
    """One connection: the lines sent and the replies expected."""

    def __init__(self, number: int, daemon: int) -> None:
        self.number = number
        self.daemon = daemon
        self.good = 0
        self.unacked: list[Sent] = []
        self.expected: list[_Expected] = []
        self._received = b""
        self._let_in = 0  # lines that the daemon might refuse, and accepted

    def expect(self, text: bytes, *, maybe: bool = False) -> None:
        self.expected.append(_Expected(text, maybe=maybe))

    def expect_sync(self) -> None:
        """Expect the acknowledgement of all lines sent so far."""
        self.expected.append(_Expected(b"", tuple(self.unacked), good=self.good))
        self.unacked.clear()

    def receive(self, data: bytes, sent_points: SentPoints) -> None:
        """Check replies. Raise Violation for an unexpected one."""
        self._received += data
        while b"\n" in self._received:
            line, _, self._received = self._received.partition(b"\n")
            self._check_reply(line + b"\n", sent_points)

    def _check_reply(self, line: bytes, sent_points: SentPoints) -> None:
        while self.expected and self.expected[0].maybe and self.expected[0].text != line:
            self.expected.pop(0)
            self._let_in += 1
        if not self.expected:
            raise Violation(f"replied {line!r}, but no reply was due")
        due = self.expected.pop(0)
        text = due.text if due.good is None else b"synced %d\n" % (due.good + self._let_in)
        if line != text:
            raise Violation(f"replied {line!r}, wanted {text!r}")
        for sent in due.acks:
            sent_points.acknowledge(sent)

    @property
    def waits(self) -> bool:
        """Whether a required reply is missing."""
        return not all(due.maybe for due in self.expected)


class Client:
    """One agent: consecutive connections with their own series."""

    def __init__(
        self,
        number: int,
        plan: Plan,
        rng: random.Random,
        sent_points: SentPoints,
        daemon: Callable[[], SimulatedDaemon | None],
    ) -> None:
        self._number = number
        self._plan = plan
        self._rng = rng
        self._sent_points = sent_points
        self._daemon = daemon
        self._connections = 0
        self._values = number * 1_000_000
        self._times = [BASE + rng.choice((0, 1, 7, 3599, 3600, 3601, 7000)) for _ in range(rng.choice((1, 3, 20)))]
        self._metrics = METRICS[:-1] if plan.strict else METRICS  # a renamed metric is unknown under its old name
        self._hosts = [f"c{number}x{n}" for n in range(rng.choice((1, 2, 12)))]

    async def run(self) -> None:
        """Run all rounds."""
        left = self._plan.rounds
        while left > 0:
            left -= await self._connect(left)
            await self._pause()

    async def _pause(self) -> None:
        rng = self._rng
        if rng.random() < 0.7:
            await trio.sleep(rng.choice((0.0, 0.01, 0.1, 0.4)) * self._plan.length_s / self._plan.rounds)

    async def _connect(self, rounds: int) -> int:
        """Open one connection. Return how many rounds were sent."""
        daemon = self._daemon()
        rng = self._rng
        stream, remote = stream_pair(rng.choice((100, 1 << 16)), rng.choice((10, 1 << 16)))
        if daemon is None or not daemon.connect(remote, random.Random(rng.random())):
            await trio.sleep(0.1)
            return 0
        self._connections += 1
        connection = _Connection(self._number * 1000 + self._connections, daemon.number)
        done = 0
        try:
            for _ in range(rng.randint(1, rounds)):
                done += 1
                await self._round(stream, connection)
                await self._pause()
            await self._disconnect(stream, connection)
        except* (trio.BrokenResourceError, _Ended):
            stream.close()
        return done

    async def _round(self, stream: StreamEnd, connection: _Connection) -> None:
        """Send a batch, usually followed by `sync`."""
        rng = self._rng
        text = b"".join(self._line(connection) for _ in range(rng.randint(1, self._plan.batch)))
        syncs = rng.random() < 0.7
        if syncs:
            text += b"sync\n"
            connection.expect_sync()
        while text:
            size = len(text) if rng.random() < 0.6 else rng.randint(1, len(text))
            piece, text = text[:size], text[size:]
            await self._send(stream, connection, piece)
        if syncs and rng.random() < 0.8:
            await self._listen(stream, connection)

    async def _send(self, stream: StreamEnd, connection: _Connection, piece: bytes) -> None:
        """Send and read at the same time. Otherwise client and daemon could wait for each other."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._read, stream, connection)
            try:
                await stream.send_all(piece)
            finally:
                nursery.cancel_scope.cancel()

    async def _read(self, stream: StreamEnd, connection: _Connection) -> None:
        while True:
            try:
                data = await stream.receive_some(self._rng.choice((5, 1 << 16)))
            except trio.BrokenResourceError:
                return
            if not data:
                return
            connection.receive(data, self._sent_points)

    async def _listen(self, stream: StreamEnd, connection: _Connection) -> None:
        """Read until every reply arrived, or stop early."""
        with trio.move_on_after(PATIENCE_S if self._rng.random() < 0.8 else 0.01):
            while connection.waits:
                data = await stream.receive_some(self._rng.choice((5, 1 << 16)))
                if not data:
                    raise _Ended
                connection.receive(data, self._sent_points)

    async def _disconnect(self, stream: StreamEnd, connection: _Connection) -> None:
        """Disconnect in a random way."""
        rng = self._rng
        way = rng.random()
        if way < 0.3:  # in the middle of a line; some cuts would leave a line of another series
            await stream.send_all(
                self._line(_Connection(connection.number, connection.daemon), counted=False)[: -rng.randint(1, 9)]
            )
        if way < 0.5:
            stream.reset()
        elif way < 0.7:
            stream.close()
        else:
            stream.send_eof()
            with trio.move_on_after(PATIENCE_S):
                while data := await stream.receive_some():
                    connection.receive(data, self._sent_points)
            stream.close()

    def _line(self, connection: _Connection, *, counted: bool = True) -> bytes:
        """Return a line, usually a valid one."""
        rng = self._rng
        if counted and rng.random() < 0.06:
            line, answer = rng.choice(BAD)
            connection.expect(answer)
            return line
        if counted and self._plan.strict and rng.random() < 0.05:
            connection.expect(UNKNOWN, maybe=True)
            return b"put typo 1356998400 1 host=x\n"
        metric, host = rng.choice(self._metrics), rng.choice(self._hosts)
        tags = (("dc", "a"), ("host", host)) if rng.random() < 0.3 else (("host", host),)
        time_s = rng.choice(self._times)
        in_ms = rng.random() < 0.2
        offset_ms = rng.choice((0, 0, 1, 500)) if in_ms else 0
        self._values += 1
        value: float = self._values + 0.5 if rng.random() < 0.2 else self._values
        words = [f"{key}={tag}" for key, tag in tags]
        if rng.random() < 0.3:
            words.reverse()
        time = time_s * 1000 + offset_ms if in_ms else time_s
        line = f"put {metric} {time} {value} {' '.join(words)}\n".encode()
        if counted:
            series: Series = (metric, tuple(sorted(tags)))
            sent = self._sent_points.send(
                series, time_s * 1000 + offset_ms, value, connection.number, connection.daemon
            )
            connection.unacked.append(sent)
            connection.good += 1
        return line


class _Ended(Exception):
    """The daemon closed the connection."""
