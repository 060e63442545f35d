"""The pure parser of put lines, in Python and numpy. `tsd.ingest.open_window` has the compiled one.

It needs only a few C-level operations per line: it splits lines and words, looks up series texts and time words in
dictionaries, and parses numbers as columns. If that fails, a block is parsed line by line, and `parse_put` parses the
lines that fail again.
"""

from collections.abc import Sequence
from operator import getitem

import numpy as np

from tsd.codec.points import Columns, joined_columns, number_columns
from tsd.codec.putline import LAST_BASE_MS, Instant, NameRules, instant, parse_time, parse_value
from tsd.errors import BadLine, bare
from tsd.ingest.put_lines import SLOW_BYTES, SLOW_LINES, Absorbed, Point, Refusals, Reject, bits_of, is_put, read_put
from tsd.ingest.series import SeriesTable, Texts
from tsd.tables.writing import SeriesText

FEW = 24  # fewer lines are faster one by one
_CACHED = 50_000  # time words, value words


class PureParser:
    """Points in order of arrival."""

    def __init__(self, table: SeriesTable, texts: Texts, rules: NameRules) -> None:
        self._table = table
        self._texts = texts
        self._rules = rules
        self._times = _Times()
        self._values: dict[bytes, tuple[int, int]] = {}
        self._whole: list[Columns] = []
        self._single: tuple[list[int], list[int], list[int], list[int]] = ([], [], [], [])
        self.slow_lines = 0  # lines that were parsed one by one

    def has_metric(self, metric: bytes) -> bool:
        """Return whether there are points of a metric."""
        has_metric = self._table.has_metric
        return has_metric(metric, np.array(self._single[0], np.int32)) or any(
            has_metric(metric, part.series) for part in reversed(self._whole)
        )

    def absorb(self, block: bytes, refusals: Refusals) -> Absorbed:
        """Absorb a block, see `OpenWindow.absorb`. If it needs the slow path, absorb only the lines of one step."""
        lines = block.split(b"\n")
        lines.pop()
        if len(lines) > FEW and not refusals:
            absorbed = self._absorb_columns(block, lines)
            if absorbed is not None:
                return absorbed
        puts, rest = _leading_puts(block, lines)
        if rest and len(puts) > FEW and not refusals:  # most often a `sync` after a batch
            absorbed = self._absorb_columns(block[: len(block) - len(rest)], puts)
            if absorbed is not None:
                return absorbed if absorbed.unknown else absorbed._replace(rest=rest)
        few = _slow_step(puts)
        if few < len(puts):
            puts = puts[:few]
            rest = block[sum(map(len, puts)) + few :]
        absorbed = self._absorb_lines(block[: len(block) - len(rest)], puts, refusals)
        return absorbed if absorbed.unknown else absorbed._replace(rest=rest)

    def absorb_packets(self, block: bytes, bounds: Sequence[int], first: int) -> tuple[int, int]:
        """Absorb packets of plain lines, see `OpenWindow.absorb_packets`."""
        last = len(bounds) - 1
        if lines := self._absorb_plain(block[bounds[first] :]):
            return last, lines
        total = 0
        for number in range(first, last):
            lines = self._absorb_plain(block[bounds[number] : bounds[number + 1]])
            if not lines:
                return number, total
            total += lines
        return last, total

    def _absorb_plain(self, block: bytes) -> int:
        """Absorb a block if all its lines are plain and of known series. Return the number of absorbed lines."""
        absorbed = self._absorb_columns(block, block.split(b"\n")[:-1])
        return 0 if absorbed is None or absorbed.unknown else absorbed.accepted

    def _absorb_columns(self, block: bytes, lines: list[bytes]) -> Absorbed | None:
        """Absorb a whole block at once. Return None, and absorb nothing, if a line is not plain."""
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
            unknown = {SeriesText(m, t): None for m, t in texts if t not in by_metric.get(m, known)}
            return Absorbed(0, b"", [], list(unknown), b"")
        self._flush_singles()
        self._whole.append(Columns(series, instants, *numbers))
        return Absorbed(len(lines), block, [], [], b"")

    def _absorb_lines(self, block: bytes, lines: list[bytes], refusals: Refusals) -> Absorbed:
        """Absorb lines one by one."""
        self.slow_lines += len(lines)
        rejects: list[Reject] = []
        unknown: dict[SeriesText, None] = {}
        kept: list[bytes] = []
        points: list[Point] = []
        for at, line in enumerate(lines):
            try:
                point = self._read(line, refusals)
            except BadLine as error:
                rejects.append(Reject(at, bare(error)))
                continue
            if isinstance(point, SeriesText):
                unknown[point] = None
            else:
                kept.append(line)
                if point is not None:
                    points.append(point)
        if unknown:
            return Absorbed(0, b"", [], list(unknown), b"")
        if points:
            for column, added in zip(self._single, zip(*points, strict=True), strict=True):
                column.extend(added)
        whole = block if not rejects else b"".join([line + b"\n" for line in kept])
        return Absorbed(len(kept), whole, rejects, [], b"", len(kept) - len(points))

    def _read(self, line: bytes, refusals: Refusals) -> Point | SeriesText | None:
        """Read a line as `read_put` does."""
        try:
            _, metric, time, value, tags = line.split(b" ", 4)
            number = self._texts.by_metric[metric][tags]
            when = self._times[time]
            flags, bits = self._values.get(value) or self._value(value)
        except (ValueError, KeyError, BadLine):
            return read_put(line, self._table, self._rules, refusals)
        return number, when, flags, bits

    def _value(self, word: bytes) -> tuple[int, int]:
        """Return flags and bits of a value word, and cache them. Raise BadLine."""
        if not word:
            raise ValueError
        flags, value = parse_value(word, b"", 0)
        if len(self._values) >= _CACHED:
            self._values.clear()
        self._values[word] = flags, bits_of(flags, value)
        return self._values[word]

    def _flush_singles(self) -> None:
        """Move points that were parsed one by one to columns, before later columns are added."""
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

    def has_points(self) -> bool:
        """Return whether there are points."""
        return bool(self._whole or self._single[0])

    def take(self) -> Columns:
        """Remove and return all points."""
        self._flush_singles()
        whole, self._whole = self._whole, []
        return joined_columns(whole)


class _Times(dict[bytes, Instant]):
    """Time words → instants, cached."""

    def __missing__(self, word: bytes) -> Instant:
        time = parse_time(word)
        if time > LAST_BASE_MS:
            raise ValueError(word)  # `parse_put` raises the error to report, which shows the whole point
        if len(self) >= _CACHED:
            self.clear()
        self[word] = instant(time)
        return self[word]


def _leading_puts(block: bytes, lines: list[bytes]) -> tuple[list[bytes], bytes]:
    """Return the put lines at the start of a block, and the bytes after them."""
    at = 0
    for count, line in enumerate(lines):
        if not is_put(line):
            return lines[:count], block[at:]
        at += len(line) + 1
    return lines, b""


def _slow_step(lines: Sequence[bytes]) -> int:
    """Return how many of `lines` are parsed one by one between checkpoints: at least one of them."""
    size = 0
    for count, line in enumerate(lines[:SLOW_LINES]):
        if size >= SLOW_BYTES:
            return count
        size += len(line) + 1
    return min(len(lines), SLOW_LINES)
