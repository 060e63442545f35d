"""A telnet client that sends, asks for `sync`, and behaves badly; it holds every answer against what it should be."""

import random
from collections.abc import Callable
from typing import NamedTuple

import trio

from tests.simulation.account import Account, Sent, Series, Violation
from tests.simulation.chance import BASE, Plan
from tests.simulation.daemon import MAX_LINE, Life
from tests.simulation.pipe import End, connection

METRICS = ("m", "sys.cpu", "sys.cpu.user", "old.name")
TOO_LONG = b"put " + b"x" * (MAX_LINE + 1) + b"\n"
# Lines that are refused, with what is answered.
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
UNKNOWN = b"put: unknown metric: No such name for 'metrics': 'typo'\n"  # but not while the store cannot be asked
PATIENCE_S = 60.0


class _Expected(NamedTuple):
    """An answer that must come, or may, and the lines it makes safe."""

    text: bytes
    acks: tuple[Sent, ...] = ()
    maybe: bool = False
    good: int | None = None  # of `sync`: lines that were accepted for sure


class _Visit:
    """What is known of one connection: what was sent, and which answers are to come."""

    def __init__(self, number: int, life: int) -> None:
        self.number = number
        self.life = life
        self.good = 0
        self.unacked: list[Sent] = []
        self.expected: list[_Expected] = []
        self._received = b""
        self._let_in = 0  # lines that may have been refused, and were not

    def expect(self, text: bytes, *, maybe: bool = False) -> None:
        self.expected.append(_Expected(text, maybe=maybe))

    def expect_sync(self) -> None:
        """All lines so far are to be safe."""
        self.expected.append(_Expected(b"", tuple(self.unacked), good=self.good))
        self.unacked.clear()

    def receive(self, data: bytes, account: Account) -> None:
        """Take answers; raises Violation for one that is not due."""
        self._received += data
        while b"\n" in self._received:
            line, _, self._received = self._received.partition(b"\n")
            self._hear(line + b"\n", account)

    def _hear(self, line: bytes, account: Account) -> None:
        while self.expected and self.expected[0].maybe and self.expected[0].text != line:
            self.expected.pop(0)
            self._let_in += 1
        if not self.expected:
            raise Violation(f"answered {line!r}, and nothing was asked")
        due = self.expected.pop(0)
        text = due.text if due.good is None else b"synced %d\n" % (due.good + self._let_in)
        if line != text:
            raise Violation(f"answered {line!r}, wanted {text!r}")
        for sent in due.acks:
            account.acknowledge(sent)

    @property
    def waits(self) -> bool:
        """Whether an answer must still come."""
        return not all(due.maybe for due in self.expected)


class Client:
    """One agent: connections one after the other, with series of its own."""

    def __init__(
        self, number: int, plan: Plan, chance: random.Random, account: Account, life: Callable[[], Life | None]
    ) -> None:
        self._number = number
        self._plan = plan
        self._chance = chance
        self._account = account
        self._life = life
        self._visits = 0
        self._values = number * 1_000_000
        self._times = [
            BASE + chance.choice((0, 1, 7, 3599, 3600, 3601, 7000)) for _ in range(chance.choice((1, 3, 20)))
        ]
        self._metrics = METRICS[:-1] if plan.strict else METRICS  # a renamed one is unknown by its old name
        self._hosts = [f"c{number}x{n}" for n in range(chance.choice((1, 2, 12)))]

    async def run(self) -> None:
        """All rounds."""
        left = self._plan.rounds
        while left > 0:
            left -= await self._visit(left)
            await self._pause()

    async def _pause(self) -> None:
        chance = self._chance
        if chance.random() < 0.7:
            await trio.sleep(chance.choice((0.0, 0.01, 0.1, 0.4)) * self._plan.length_s / self._plan.rounds)

    async def _visit(self, rounds: int) -> int:
        """One connection; how many rounds were sent over it."""
        life = self._life()
        chance = self._chance
        ours, theirs = connection(chance.choice((100, 1 << 16)), chance.choice((10, 1 << 16)))
        if life is None or not life.connect(theirs, random.Random(chance.random())):
            await trio.sleep(0.1)
            return 0
        self._visits += 1
        visit = _Visit(self._number * 1000 + self._visits, life.number)
        done = 0
        try:
            for _ in range(chance.randint(1, rounds)):
                done += 1
                await self._round(ours, visit)
                await self._pause()
            await self._part(ours, visit)
        except* (trio.BrokenResourceError, _Ended):
            ours.hang_up()
        return done

    async def _round(self, ours: End, visit: _Visit) -> None:
        """Send a batch, and mostly have it confirmed."""
        chance = self._chance
        text = b"".join(self._line(visit) for _ in range(chance.randint(1, self._plan.batch)))
        asks = chance.random() < 0.7
        if asks:
            text += b"sync\n"
            visit.expect_sync()
        while text:
            size = len(text) if chance.random() < 0.6 else chance.randint(1, len(text))
            piece, text = text[:size], text[size:]
            await self._send(ours, visit, piece)
        if asks and chance.random() < 0.8:
            await self._listen(ours, visit)

    async def _send(self, ours: End, visit: _Visit, piece: bytes) -> None:
        """Send, and read meanwhile: a client that does not would wait for a daemon that waits for it."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._read, ours, visit)
            try:
                await ours.send_all(piece)
            finally:
                nursery.cancel_scope.cancel()

    async def _read(self, ours: End, visit: _Visit) -> None:
        while True:
            try:
                data = await ours.receive_some(self._chance.choice((5, 1 << 16)))
            except trio.BrokenResourceError:
                return
            if not data:
                return
            visit.receive(data, self._account)

    async def _listen(self, ours: End, visit: _Visit) -> None:
        """Read until every answer is there; or for some time."""
        with trio.move_on_after(PATIENCE_S if self._chance.random() < 0.8 else 0.01):
            while visit.waits:
                data = await ours.receive_some(self._chance.choice((5, 1 << 16)))
                if not data:
                    raise _Ended
                visit.receive(data, self._account)

    async def _part(self, ours: End, visit: _Visit) -> None:
        """Leave, in one of the ways there are."""
        chance = self._chance
        way = chance.random()
        if way < 0.3:  # in the middle of a line; cut so, some would be a line of another series
            await ours.send_all(self._line(_Visit(visit.number, visit.life), counted=False)[: -chance.randint(1, 9)])
        if way < 0.5:
            ours.reset()
        elif way < 0.7:
            ours.hang_up()
        else:
            ours.send_eof()
            with trio.move_on_after(PATIENCE_S):
                while data := await ours.receive_some():
                    visit.receive(data, self._account)
            ours.hang_up()

    def _line(self, visit: _Visit, *, counted: bool = True) -> bytes:
        """A line, mostly a good one."""
        chance = self._chance
        if counted and chance.random() < 0.06:
            line, answer = chance.choice(BAD)
            visit.expect(answer)
            return line
        if counted and self._plan.strict and chance.random() < 0.05:
            visit.expect(UNKNOWN, maybe=True)
            return b"put typo 1356998400 1 host=x\n"
        metric, host = chance.choice(self._metrics), chance.choice(self._hosts)
        tags = (("dc", "a"), ("host", host)) if chance.random() < 0.3 else (("host", host),)
        time_s = chance.choice(self._times)
        in_ms = chance.random() < 0.2
        offset_ms = chance.choice((0, 0, 1, 500)) if in_ms else 0
        self._values += 1
        value: float = self._values + 0.5 if chance.random() < 0.2 else self._values
        words = [f"{key}={tag}" for key, tag in tags]
        if chance.random() < 0.3:
            words.reverse()
        time = time_s * 1000 + offset_ms if in_ms else time_s
        line = f"put {metric} {time} {value} {' '.join(words)}\n".encode()
        if counted:
            series: Series = (metric, tuple(sorted(tags)))
            sent = self._account.send(series, time_s * 1000 + offset_ms, value, visit.number, visit.life)
            visit.unacked.append(sent)
            visit.good += 1
        return line


class _Ended(Exception):
    """The daemon has hung up."""
