"""A block of put lines → points in their open rows: the hot path, in plain Python and numpy.

`absorb` does for each line what `tsd.codec.putline` defines, and never more than a few operations in C: lines and words
are split, series texts and time words looked up in dictionaries, numbers read by the column. A block with anything
unusual in it is gone through line by line, and a line that fails there is judged by `parse_put`.
"""

from collections.abc import Mapping, Sequence
from operator import getitem
from typing import NamedTuple

import numpy as np

from tsd.codec.columns import Columns, number_columns
from tsd.codec.putline import NameRules, parse_put, parse_value
from tsd.codec.times import LAST_BASE_MS, Instant, instant, parse_time
from tsd.codec.words import FLOAT
from tsd.errors import BadLine
from tsd.ingest.series import SeriesTable, SeriesText
from tsd.ingest.summary_cells import SummaryCells

POINT_BYTES = 21  # of a point in the columns
FEW = 24  # fewer lines are faster one by one
SLOW_LINES = 1000  # taken one by one at once: each may cost 25 µs, and all other connections wait
_REMEMBERED = 50_000  # time words, value words


class Reject(NamedTuple):
    """A line that was refused."""

    line: int  # in its block, counted from 0
    error: BadLine


class Absorbed(NamedTuple):
    """What became of a block."""

    accepted: int
    kept: bytes  # the accepted lines, whole
    rejects: list[Reject]  # in order
    strangers: list[SeriesText]  # series never seen: nothing was absorbed, enter them and come again
    rest: bytes  # from the first line on that is not a put line, or is one too many for now


# What is known of series that are strangers: why they may not be entered, or, None, that their lines are good and wait
# in the journal alone.
Verdicts = Mapping[SeriesText, BadLine | None]
Point = tuple[int, int, int, int]  # series, instant, flags, bits


class OpenRows:
    """Points that are accepted and not yet written, and the cells of rollups and histograms. `points` counts the lines
    of both, those that only the journal has included."""

    def __init__(self, table: SeriesTable, rules: NameRules) -> None:
        self.table = table
        self.summaries = SummaryCells()
        self.points = 0
        self.complete = True  # whether all of them are here
        self.whole_blocks = 0  # that went the fast way
        self._rules = rules
        self._times = _Times()
        self._values: dict[bytes, tuple[int, int]] = {}
        self._whole: list[Columns] = []
        self._single: tuple[list[int], list[int], list[int], list[int]] = ([], [], [], [])

    def another(self) -> "OpenRows":
        """Empty rows of the same series, for a window that is read again."""
        return OpenRows(self.table, self._rules)

    @property
    def size(self) -> int:
        """Bytes held."""
        return self.points * POINT_BYTES + self.summaries.size

    def holds(self, metric: bytes) -> bool:
        """Whether there are points of a metric, or may be, where they are in the journal alone."""
        if not self.complete or metric in self.summaries.metrics:
            return True
        any_of = self.table.any_of
        return any_of(metric, np.array(self._single[0], np.int32)) or any(
            any_of(metric, part.series) for part in reversed(self._whole)
        )

    def absorb(self, block: bytes, verdicts: Verdicts) -> Absorbed:
        """Take in the put lines that `block` (whole lines) starts with.

        `verdicts` names the series that were strangers and are not entered. Either every line is dealt with, or none is
        and `strangers` says which series are wanted first. Of a block that cannot go the fast way only the first
        SLOW_LINES are dealt with.
        """
        lines = block.split(b"\n")
        lines.pop()
        if len(lines) > FEW and not verdicts:
            absorbed = self._absorb_columns(block, lines)
            if absorbed is not None:
                return absorbed
        puts, rest = _leading_puts(block, lines)
        if rest and len(puts) > FEW and not verdicts:  # most often a `sync` behind a batch
            absorbed = self._absorb_columns(block[: len(block) - len(rest)], puts)
            if absorbed is not None:
                return absorbed if absorbed.strangers else absorbed._replace(rest=rest)
        if len(puts) > SLOW_LINES:
            puts = puts[:SLOW_LINES]
            rest = block[sum(map(len, puts)) + len(puts) :]
        absorbed = self._absorb_lines(block[: len(block) - len(rest)], puts, verdicts)
        return absorbed if absorbed.strangers else absorbed._replace(rest=rest)

    def _absorb_columns(self, block: bytes, lines: list[bytes]) -> Absorbed | None:
        """The whole block at once; None where a line wants a closer look."""
        try:
            commands, metrics, times, values, tags = zip(*[line.split(b" ", 4) for line in lines], strict=True)
            if commands.count(b"put") != len(lines):
                return None
            instants = np.fromiter(map(self._times.__getitem__, times), np.int64, len(lines))
        except (ValueError, BadLine):
            return None
        numbers = number_columns(values)
        if numbers is None or b"" in metrics:
            return None
        by_metric = self.table.by_metric
        try:
            series = np.fromiter(map(getitem, map(by_metric.__getitem__, metrics), tags), np.int32, len(lines))
        except KeyError:
            known: dict[bytes, int] = {}
            texts = zip(metrics, tags, strict=True)
            strangers = {SeriesText(m, t): None for m, t in texts if t not in by_metric.get(m, known)}
            return Absorbed(0, b"", [], list(strangers), b"")
        self._settle_singles()
        self._whole.append(Columns(series, instants, *numbers))
        self.points += len(lines)
        self.whole_blocks += 1
        return Absorbed(len(lines), block, [], [], b"")

    def _absorb_lines(self, block: bytes, lines: list[bytes], verdicts: Verdicts) -> Absorbed:
        """Line by line."""
        rejects: list[Reject] = []
        strangers: dict[SeriesText, None] = {}
        kept: list[bytes] = []
        points: list[Point] = []
        for at, line in enumerate(lines):
            try:
                point = self._read(line, verdicts)
            except BadLine as error:
                rejects.append(Reject(at, error))
                continue
            if isinstance(point, SeriesText):
                strangers[point] = None
            else:
                kept.append(line)
                if point is not None:
                    points.append(point)
        if strangers:
            return Absorbed(0, b"", [], list(strangers), b"")
        if points:
            for column, added in zip(self._single, zip(*points, strict=True), strict=True):
                column.extend(added)
        self.points += len(kept)
        self.complete &= len(points) == len(kept)
        whole = block if not rejects else b"".join([line + b"\n" for line in kept])
        return Absorbed(len(kept), whole, rejects, [], b"")

    def _read(self, line: bytes, verdicts: Verdicts) -> Point | SeriesText | None:
        """A line's point; or its series, where that is a stranger; None where it is left to the journal. Raises
        BadLine."""
        try:
            _, metric, time, value, tags = line.split(b" ", 4)
            number = self.table.by_metric[metric][tags]
            when = self._times[time]
            flags, bits = self._values.get(value) or self._value(value)
        except (ValueError, KeyError, BadLine):
            read = parse_put(line, self._rules)  # raises what is to be answered, or it is a stranger's good line
            text = SeriesText(read.metric, line.split(b" ", 4)[4])
            known = self.table.find(text)
            if known is None:
                return _judged(text, verdicts)
            return known, instant(read.time), read.flags, _bits(read.flags, read.value)
        return number, when, flags, bits

    def _value(self, word: bytes) -> tuple[int, int]:
        """Flags and bits of a value word, remembered; raises BadLine."""
        if not word:
            raise ValueError
        flags, value = parse_value(word, b"", 0)
        if len(self._values) >= _REMEMBERED:
            self._values.clear()
        self._values[word] = flags, _bits(flags, value)
        return self._values[word]

    def _settle_singles(self) -> None:
        """Turn points that came one by one into columns: they came before what is added next."""
        series, instants, flags, bits = self._single
        if series:
            self._whole.append(
                Columns(
                    np.array(series, np.int32),
                    np.array(instants, np.int64),
                    np.array(flags, np.uint8),
                    np.array(bits, np.int64),
                )
            )
            self._single = ([], [], [], [])

    def take(self) -> Columns:
        """All points that are here, in order of arrival; none are left."""
        self._settle_singles()
        whole, self._whole, self.points, self.complete = self._whole, [], 0, True
        return concatenate(whole)

    def take_summaries(self) -> SummaryCells:
        """All cells of rollups and histograms that are here; none are left. Their lines are points until `take`."""
        taken, self.summaries = self.summaries, SummaryCells()
        return taken


class _Times(dict[bytes, Instant]):
    """Time words already read."""

    def __missing__(self, word: bytes) -> Instant:
        time = parse_time(word)
        if time > LAST_BASE_MS:
            raise ValueError(word)  # `parse_put` words the refusal: it shows the whole point
        if len(self) >= _REMEMBERED:
            self.clear()
        self[word] = instant(time)
        return self[word]


def concatenate(parts: Sequence[Columns]) -> Columns:
    """Columns one after the other."""
    if not parts:
        return Columns(np.empty(0, np.int32), np.empty(0, np.int64), np.empty(0, np.uint8), np.empty(0, np.int64))
    if len(parts) == 1:
        return parts[0]
    return Columns(
        np.concatenate([part.series for part in parts]),
        np.concatenate([part.instants for part in parts]),
        np.concatenate([part.flags for part in parts]),
        np.concatenate([part.bits for part in parts]),
    )


def _bits(flags: int, value: bytes) -> int:
    return int.from_bytes(value, "big", signed=flags != FLOAT | 3)


def _judged(stranger: SeriesText, verdicts: Verdicts) -> SeriesText | None:
    """A stranger's text while nothing is known of it, None where its lines are left to the journal; or raises why they
    are refused."""
    if stranger not in verdicts:
        return stranger
    if error := verdicts[stranger]:
        raise error from None
    return None


def is_put(line: bytes) -> bool:
    """Whether a line, or a block's first, is a put line."""
    return line.startswith((b"put ", b"put\n")) or line == b"put"


def leading_others(block: bytes) -> tuple[bytes, bytes]:
    """The lines a block starts with that are no put lines, and its bytes from the first put line on."""
    at = 0
    while at < len(block) and not is_put(block[at : at + 4]):
        at = block.index(b"\n", at) + 1
    return block[:at], block[at:]


def _leading_puts(block: bytes, lines: list[bytes]) -> tuple[list[bytes], bytes]:
    """The put lines a block starts with, and its bytes from the next line on."""
    at = 0
    for count, line in enumerate(lines):
        if line != b"put" and not line.startswith(b"put "):
            return lines[:count], block[at:]
        at += len(line) + 1
    return lines, b""
