"""The lines of the loads, generated once for all systems into one file per connection.

A mix consists of pieces. The first ones create names to warm up a system and are not measured. `bench.lines` chooses
names and values; the same arguments give the same bytes.
"""

import math
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from bench.lines import METRICS_A_HOST, ROUND_S, series_text

HOUR_S = 3600
WORDS = 7  # per line: put METRIC TIME VALUE host=… dc=… cpu=…
CHURN = 10  # a tenth of the hosts is replaced in every round
LATE = 0.3  # fraction of the lines
LINE = re.compile(rb"put (\S+) (\d+) (\S+) host=(\S+) dc=(\S+) cpu=(\S+)\n")
PATH = rb"\1.\4.\5.\6 \3 \2\n"


class Mix(NamedTuple):
    """The lines of a load."""

    name: str
    title: str
    series: int  # at the same time
    pieces: int  # including those for warming up
    warm: int
    connections: int
    make: Callable[["Mix", int, int], Iterator[bytes]]  # (mix, start_s, connection) → pieces
    span_s: int  # from the first point to the last

    @property
    def measured(self) -> int:
        """Number of measured pieces."""
        return self.pieces - self.warm


class Sums(NamedTuple):
    """Number and sum of data points."""

    points: int
    values: float

    def __add__(self, other: object) -> "Sums":
        assert isinstance(other, Sums)
        return Sums(self.points + other.points, self.values + other.values)

    def like(self, other: "Sums") -> bool:
        """Whether they are equal apart from the order of additions."""
        return self.points == other.points and math.isclose(self.values, other.values, rel_tol=1e-9)


class Written(NamedTuple):
    """A mix in files."""

    mix: Mix
    start_s: int
    paths: list[Path]  # by connection
    ends: list[list[int]]  # by connection: the end of each piece
    sums: list[Sums]  # by piece

    @property
    def end_s(self) -> int:
        """Time after the last point."""
        return self.start_s + self.mix.span_s

    def total(self, first: int, stop: int) -> Sums:
        """Return the sums of some pieces."""
        return sum(self.sums[first:stop], Sums(0, 0.0))

    def parts(self, first: int, stop: int) -> list[tuple[str, int, int]]:
        """Return file and byte range of some pieces for each connection."""
        cuts = [[0, *ends] for ends in self.ends]
        return [(str(path), cut[first], cut[stop]) for path, cut in zip(self.paths, cuts, strict=True)]


def write(mix: Mix, folder: Path, now_s: int) -> Written:
    """Write the files. The last point is in the hour before `now_s`, or older."""
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
    """Return the sums of put lines.

    >>> sums_of(b"put m 1 2.5 host=a dc=b cpu=0" + bytes([10]))
    Sums(points=1, values=2.5)
    """
    values = [float(word) for word in text.split()[3::WORDS]]
    return Sums(len(values), math.fsum(values))


def as_paths(written: Written, stop: int) -> Written:
    """Write the points of the first pieces in carbon's format PATH VALUE TIME, with tag values as parts of the path."""
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
    """Convert put lines to carbon's format."""
    return LINE.sub(PATH, text)


# ---- kinds of mixes


class _Values:
    """Random walks with two decimals, counters and small integers."""

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
    """Return a line of the series with this number."""
    metric, tags = series_text(number)
    return b"put %s %d %s %s\n" % (metric.encode(), time_s, value, tags.encode())


def steady(mix: Mix, start_s: int, connection: int, stride: int = 1) -> Iterator[bytes]:
    """Every series has a point every ten seconds."""
    values = _Values(connection)
    mine = []
    for number in range(connection, mix.series, mix.connections):
        metric, tags = series_text(number * stride)
        mine.append((number, b"put %s " % metric.encode(), b" %s\n" % tags.encode()))
    for at in range(mix.pieces):
        time = b"%d " % (start_s + at * ROUND_S)
        yield b"".join([head + time + values.next(number) + tail for number, head, tail in mine])


def one_metric(mix: Mix, start_s: int, connection: int) -> Iterator[bytes]:
    """Likewise with one metric and a series per host; a piece is an hour."""
    rounds = steady(mix._replace(pieces=mix.pieces * HOUR_S // ROUND_S), start_s, connection, METRICS_A_HOST)
    for _ in range(mix.pieces):
        yield b"".join(next(rounds) for _ in range(HOUR_S // ROUND_S))


def churn(mix: Mix, start_s: int, connection: int) -> Iterator[bytes]:
    """A tenth of the hosts is replaced by new ones in every round, as in container clusters."""
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
    """Three of ten lines come late, by up to the whole range; the lines of a round are unordered."""
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
    """Consecutive lines are of different series, and consecutive points of a series in different hours."""
    values = _Values(connection)
    for at in range(mix.pieces):
        numbers = range(connection, mix.series, mix.connections)
        yield b"".join([line(n, start_s + at * HOUR_S + n % 360 * ROUND_S, values.next(n)) for n in numbers])


def growing(steps: tuple[int, ...]) -> Callable[[Mix, int, int], Iterator[bytes]]:
    """A point of each series: each piece brings the total to the next step."""

    def make(mix: Mix, start_s: int, connection: int) -> Iterator[bytes]:
        values = _Values(connection)
        for begin, end in zip((0, *steps), steps, strict=False):
            yield b"".join(
                [line(n, start_s, values.next(n)) for n in range(begin, end) if n % mix.connections == connection]
            )

    return make
