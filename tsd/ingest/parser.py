"""A block of put lines → points, in plain Python and numpy; `tsd.ingest.looped` does the same in C.

Never more than a few operations in C for each line: lines and words are split, series texts and time words looked up in
dictionaries, numbers read by the column. A block with anything unusual in it is gone through line by line, and a line
that fails there is judged by `parse_put`.
"""

from collections.abc import Sequence
from operator import getitem

import numpy as np

from tsd.codec.columns import Columns, number_columns
from tsd.codec.putline import NameRules, parse_value
from tsd.codec.times import LAST_BASE_MS, Instant, instant, parse_time
from tsd.errors import BadLine, bare
from tsd.ingest.putlines import SLOW_LINES, Absorbed, Point, Reject, Verdicts, bits_of, is_put, read_put
from tsd.ingest.series import SeriesTable, SeriesText, Texts

FEW = 24  # fewer lines are faster one by one
_REMEMBERED = 50_000  # time words, value words


class PlainRows:
    """Points in order of arrival."""

    def __init__(self, table: SeriesTable, texts: Texts, rules: NameRules) -> None:
        self._table = table
        self._texts = texts
        self._rules = rules
        self._times = _Times()
        self._values: dict[bytes, tuple[int, int]] = {}
        self._whole: list[Columns] = []
        self._single: tuple[list[int], list[int], list[int], list[int]] = ([], [], [], [])
        self.judged = 0  # lines that were taken one by one

    def holds(self, metric: bytes) -> bool:
        """Whether there are points of a metric."""
        any_of = self._table.any_of
        return any_of(metric, np.array(self._single[0], np.int32)) or any(
            any_of(metric, part.series) for part in reversed(self._whole)
        )

    def absorb(self, block: bytes, verdicts: Verdicts) -> Absorbed:
        """See `OpenRows.absorb`. Of a block that cannot go the fast way only the first SLOW_LINES are dealt with."""
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

    def absorb_plain(self, block: bytes) -> int | None:
        """See `OpenRows.absorb_plain`."""
        absorbed = self._absorb_columns(block, block.split(b"\n")[:-1])
        return None if absorbed is None or absorbed.strangers else absorbed.accepted

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
        by_metric = self._texts.by_metric
        try:
            series = np.fromiter(map(getitem, map(by_metric.__getitem__, metrics), tags), np.int32, len(lines))
        except KeyError:
            known: dict[bytes, int] = {}
            texts = zip(metrics, tags, strict=True)
            strangers = {SeriesText(m, t): None for m, t in texts if t not in by_metric.get(m, known)}
            return Absorbed(0, b"", [], list(strangers), b"")
        self._settle_singles()
        self._whole.append(Columns(series, instants, *numbers))
        return Absorbed(len(lines), block, [], [], b"")

    def _absorb_lines(self, block: bytes, lines: list[bytes], verdicts: Verdicts) -> Absorbed:
        """Line by line."""
        self.judged += len(lines)
        rejects: list[Reject] = []
        strangers: dict[SeriesText, None] = {}
        kept: list[bytes] = []
        points: list[Point] = []
        for at, line in enumerate(lines):
            try:
                point = self._read(line, verdicts)
            except BadLine as error:
                rejects.append(Reject(at, bare(error)))
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
        whole = block if not rejects else b"".join([line + b"\n" for line in kept])
        return Absorbed(len(kept), whole, rejects, [], b"", len(kept) - len(points))

    def _read(self, line: bytes, verdicts: Verdicts) -> Point | SeriesText | None:
        """As `read_put` does."""
        try:
            _, metric, time, value, tags = line.split(b" ", 4)
            number = self._texts.by_metric[metric][tags]
            when = self._times[time]
            flags, bits = self._values.get(value) or self._value(value)
        except (ValueError, KeyError, BadLine):
            return read_put(line, self._table, self._rules, verdicts)
        return number, when, flags, bits

    def _value(self, word: bytes) -> tuple[int, int]:
        """Flags and bits of a value word, remembered; raises BadLine."""
        if not word:
            raise ValueError
        flags, value = parse_value(word, b"", 0)
        if len(self._values) >= _REMEMBERED:
            self._values.clear()
        self._values[word] = flags, bits_of(flags, value)
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
        """All points; none are left."""
        self._settle_singles()
        whole, self._whole = self._whole, []
        return _concatenate(whole)


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


def _concatenate(parts: Sequence[Columns]) -> Columns:
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


def _leading_puts(block: bytes, lines: list[bytes]) -> tuple[list[bytes], bytes]:
    """The put lines a block starts with, and its bytes from the next line on."""
    at = 0
    for count, line in enumerate(lines):
        if not is_put(line):
            return lines[:count], block[at:]
        at += len(line) + 1
    return lines, b""
