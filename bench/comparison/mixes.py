"""What is sent: lines of put, made once for all systems and kept in files, one for each connection.

A mix is cut into pieces. The first ones warm a system up: they bring names and are measured by no one. All series are
named, and all values chosen, as `bench.lines` does it; the same arguments give the same bytes.
"""

import math
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from bench.lines import METRICS_A_HOST, ROUND_S, series_text

HOUR_S = 3600
WORDS = 7  # of a line: put METRIC TIME VALUE host=… dc=… cpu=…
CHURN = 10  # a tenth of the hosts is replaced in every round
LATE = 0.3  # of the lines
LINE = re.compile(rb"put (\S+) (\d+) (\S+) host=(\S+) dc=(\S+) cpu=(\S+)\n")
PATH = rb"\1.\4.\5.\6 \3 \2\n"


class Mix(NamedTuple):
    """A load whose lines are sent as they are read."""

    name: str
    title: str
    series: int  # at a time
    pieces: int  # with those that warm up
    warm: int
    connections: int
    make: Callable[["Mix", int, int], Iterator[bytes]]  # (mix, start_s, connection) → pieces
    span_s: int  # from the first point to the last

    @property
    def measured(self) -> int:
        """Pieces that are not for warming up."""
        return self.pieces - self.warm


class Sums(NamedTuple):
    """Of data points."""

    points: int
    values: float

    def __add__(self, other: object) -> "Sums":
        assert isinstance(other, Sums)
        return Sums(self.points + other.points, self.values + other.values)

    def like(self, other: "Sums") -> bool:
        """Whether they are equal, but for the order in which values were added."""
        return self.points == other.points and math.isclose(self.values, other.values, rel_tol=1e-9)


class Written(NamedTuple):
    """A mix in files."""

    mix: Mix
    start_s: int
    paths: list[Path]  # of each connection
    ends: list[list[int]]  # of each connection, where each piece ends
    sums: list[Sums]  # of each piece

    @property
    def end_s(self) -> int:
        """After the last point."""
        return self.start_s + self.mix.span_s

    def total(self, first: int, stop: int) -> Sums:
        """Of some pieces."""
        return sum(self.sums[first:stop], Sums(0, 0.0))

    def parts(self, first: int, stop: int) -> list[tuple[str, int, int]]:
        """Of each connection, file and bytes of some pieces."""
        cuts = [[0, *ends] for ends in self.ends]
        return [(str(path), cut[first], cut[stop]) for path, cut in zip(self.paths, cuts, strict=True)]


def write(mix: Mix, folder: Path, now_s: int) -> Written:
    """Make the files. The last point is of the hour before `now_s`, or older."""
    start_s = (now_s - mix.span_s) // HOUR_S * HOUR_S - HOUR_S
    folder.mkdir(parents=True, exist_ok=True)
    paths, ends = [], []
    sums = [Sums(0, 0.0)] * mix.pieces
    for connection in range(mix.connections):
        path = folder / f"{mix.name}-{connection}.put"
        ends.append([0])
        with path.open("wb") as file:
            for at, text in enumerate(mix.make(mix, start_s, connection)):
                ends[-1].append(ends[-1][-1] + file.write(text))
                sums[at] += sums_of(text)
        paths.append(path)
        del ends[-1][0]
    return Written(mix, start_s, paths, ends, sums)


def sums_of(text: bytes) -> Sums:
    """Of lines of put.

    >>> sums_of(b"put m 1 2.5 host=a dc=b cpu=0" + bytes([10]))
    Sums(points=1, values=2.5)
    """
    values = [float(word) for word in text.split()[3::WORDS]]
    return Sums(len(values), math.fsum(values))


def as_paths(written: Written, stop: int) -> Written:
    """The same points of the first pieces in carbon's form: PATH VALUE TIME, tags' values being parts of the path."""
    paths, ends = [], []
    for path, whole in zip(written.paths, written.ends, strict=True):
        cut = whole[:stop]
        own = path.with_suffix(".carbon")
        ends.append([0])
        with path.open("rb") as file, own.open("wb") as out:
            for begin, end in zip([0, *cut], cut, strict=False):
                ends[-1].append(ends[-1][-1] + out.write(plain(file.read(end - begin))))
        paths.append(own)
        del ends[-1][0]
    return written._replace(paths=paths, ends=ends)


def plain(text: bytes) -> bytes:
    """Lines of put in carbon's form."""
    return LINE.sub(PATH, text)


# ---- kinds of mixes


class _Values:
    """Two-decimal gauges that walk, counters and small integers."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self._counters: dict[int, int] = {}
        self._levels: dict[int, float] = {}

    def next(self, number: int) -> bytes:
        match number % 4:
            case 0 | 1:
                step = self._chance.random() - 0.5
                level = self._levels[number] = abs(self._levels.get(number, number % 97 + 1.5) + step)
                return b"%.2f" % level
            case 2:
                self._counters[number] = self._counters.get(number, 10**6) + self._chance.randrange(5000)
                return b"%d" % self._counters[number]
            case _:
                return b"%d" % self._chance.randrange(200)


def line(number: int, time_s: int, value: bytes) -> bytes:
    """Of the series of this number."""
    metric, tags = series_text(number)
    return b"put %s %d %s %s\n" % (metric.encode(), time_s, value, tags.encode())


def steady(mix: Mix, start_s: int, connection: int, stride: int = 1) -> Iterator[bytes]:
    """Every series once in ten seconds."""
    values = _Values(connection)
    mine = []
    for number in range(connection, mix.series, mix.connections):
        metric, tags = series_text(number * stride)
        mine.append((number, b"put %s " % metric.encode(), b" %s\n" % tags.encode()))
    for at in range(mix.pieces):
        time = b"%d " % (start_s + at * ROUND_S)
        yield b"".join([head + time + values.next(number) + tail for number, head, tail in mine])


def one_metric(mix: Mix, start_s: int, connection: int) -> Iterator[bytes]:
    """The same, of one metric, a series for each host; a piece is an hour."""
    rounds = steady(mix._replace(pieces=mix.pieces * HOUR_S // ROUND_S), start_s, connection, METRICS_A_HOST)
    for _ in range(mix.pieces):
        yield b"".join(next(rounds) for _ in range(HOUR_S // ROUND_S))


def churn(mix: Mix, start_s: int, connection: int) -> Iterator[bytes]:
    """A tenth of the hosts is replaced in every round, each by one that nobody knows, as where containers come and
    go."""
    values = _Values(connection)
    hosts = list(range(connection, mix.series // METRICS_A_HOST, mix.connections))
    unused = mix.series // METRICS_A_HOST + connection
    for at in range(mix.pieces):
        if at >= mix.warm:
            for slot in range(at % CHURN, len(hosts), CHURN):
                hosts[slot], unused = unused, unused + mix.connections
        time_s = start_s + at * ROUND_S
        numbers = [host * METRICS_A_HOST + metric for host in hosts for metric in range(METRICS_A_HOST)]
        yield b"".join([line(number, time_s, values.next(number)) for number in numbers])


def late(mix: Mix, start_s: int, connection: int) -> Iterator[bytes]:
    """Three of ten lines come late, by anything up to the whole of it; those of a round are in no order."""
    chance = random.Random(connection)
    pieces = [text.splitlines(keepends=True) for text in steady(mix, start_s, connection)]
    yield from (b"".join(lines) for lines in pieces[: mix.warm])
    due: list[list[bytes]] = [[] for _ in range(mix.measured)]
    for at, lines in enumerate(pieces[mix.warm :]):
        for text in lines:
            due[chance.randrange(at, mix.measured) if chance.random() < LATE else at].append(text)
    for lines in due:
        chance.shuffle(lines)
        yield b"".join(lines)


def apart(mix: Mix, start_s: int, connection: int) -> Iterator[bytes]:
    """Every line is another series', and a series' next one is of another hour: no two points share a row."""
    values = _Values(connection)
    for at in range(mix.pieces):
        numbers = range(connection, mix.series, mix.connections)
        yield b"".join([line(n, start_s + at * HOUR_S + n % 360 * ROUND_S, values.next(n)) for n in numbers])


def growing(steps: tuple[int, ...]) -> Callable[[Mix, int, int], Iterator[bytes]]:
    """A point of each series: a piece brings all up to so many."""

    def make(mix: Mix, start_s: int, connection: int) -> Iterator[bytes]:
        values = _Values(connection)
        for begin, end in zip((0, *steps), steps, strict=False):
            yield b"".join(
                [line(n, start_s, values.next(n)) for n in range(begin, end) if n % mix.connections == connection]
            )

    return make
