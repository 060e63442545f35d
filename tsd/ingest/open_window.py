"""The open window: the points that are accepted and not yet sealed into a window. The hot path.

The compiled parser is `_parser.pyx`, the pure one `tsd.ingest.parser`. The compiled loop parses only lines of the usual
form; `parse_put` parses every other line, and then the loop continues. Both give the results of `tsd.codec.putline`.
"""

import sys
from bisect import bisect_right
from collections.abc import Callable, Sequence

import numpy as np

from tsd.codec.points import NO_COLUMNS, POINT_BYTES, Columns, columns_of, joined_columns
from tsd.codec.putline import NameRules
from tsd.codec.text import LEGAL
from tsd.errors import BadLine, bare
from tsd.ingest.open_hours import hours_of, may_have
from tsd.ingest.parser import PureParser
from tsd.ingest.put_lines import SLOW_BYTES, SLOW_LINES, Absorbed, Refusals, Reject, is_put, read_put
from tsd.ingest.series import HAS_LOOP, SeriesTable, Texts, Validator
from tsd.tables.reading import ScanRange
from tsd.tables.writing import KeyComposer, SeriesText, SummaryBatch

if HAS_LOOP:
    from tsd.ingest import _parser

MAX_PARTS = 64  # of points that were read and not yet taken


class CompiledParser:
    """Points in order of arrival, parsed in C."""

    def __init__(self, table: SeriesTable, texts: "_parser.Texts", rules: NameRules) -> None:
        self._table = table
        self._rules = rules
        self._points = _parser.ParsedPoints(texts, _parser.Rules(LEGAL + rules.extra, rules.max_tags))
        self.slow_lines = 0  # lines that the loop could not parse

    def has_metric(self, metric: bytes) -> bool:
        """Return whether there are points of a metric."""
        return self._table.has_metric(metric, np.frombuffer(self._points.numbers(), np.int32))

    def absorb(self, block: bytes, refusals: Refusals, composer: KeyComposer | None, room: int) -> Absorbed:
        """Absorb a block, see `OpenWindow.absorb`."""
        before = len(self._points)
        unknown: dict[SeriesText, None] | None = None if refusals else {}  # a refusal is looked up line by line
        composer = None if refusals else composer
        limit = len(self._table) + room
        try:
            end = self._points.read(block, 0, unknown, composer, room)
            if end < len(block):
                absorbed = self._absorb_slowly(block, end, before, unknown, refusals, composer, limit)
            else:
                absorbed = Absorbed(len(self._points) - before, block, [], list(unknown or ()), b"")
        except BaseException:
            self._points.cut(before)
            raise
        finally:
            self._table.take_inserted()
        if absorbed.unknown:
            self._points.cut(before)
            return Absorbed(0, b"", [], absorbed.unknown, b"")
        return absorbed

    def absorb_packets(self, block: bytes, bounds: Sequence[int], first: int) -> tuple[int, int]:
        """Absorb packets of plain lines, see `OpenWindow.absorb_packets`."""
        before = len(self._points)
        try:
            end = self._points.read(block, bounds[first], None, None, 0)
        except BaseException:
            self._points.cut(before)
            raise
        stop = bisect_right(bounds, end) - 1
        if bounds[stop] < end:  # the next packet was read in part
            self._points.cut(before + block.count(b"\n", bounds[first], bounds[stop]))
        return stop, len(self._points) - before

    def _absorb_slowly(
        self,
        block: bytes,
        at: int,
        before: int,
        plain_unknown: dict[SeriesText, None] | None,
        refusals: Refusals,
        composer: KeyComposer | None,
        limit: int,
    ) -> Absorbed:
        """Absorb the rest of a block from `at` on, where a line needs `parse_put`. The series table may grow to `limit`
        series."""
        rejects: list[Reject] = []
        kept: list[bytes] = []
        unknown = {} if plain_unknown is None else plain_unknown
        slow = slow_bytes = journal_only = start = 0
        while is_put(block[at : at + 4]) and (end := block.find(b"\n", at)) >= 0:
            # The line's number in its block; lines of unknown series do not count.
            number = len(self._points) - before + len(rejects) + journal_only
            if max(number, slow) >= SLOW_LINES or slow_bytes >= SLOW_BYTES:
                break
            slow += 1
            slow_bytes += end - at
            try:
                point = read_put(block[at:end], self._table, self._rules, refusals)
            except BadLine as error:
                rejects.append(Reject(number, bare(error)))
                kept.append(block[start:at])
                start = end + 1
            else:
                if isinstance(point, SeriesText):
                    unknown[point] = None
                elif point is None:
                    journal_only += 1
                else:
                    self._points.append(*point)
            room = 0 if unknown else limit - len(self._table)
            at = self._points.read(block, end + 1, plain_unknown, composer, room)
        kept.append(block[start:at])
        self.slow_lines += slow
        accepted = len(self._points) - before + journal_only
        return Absorbed(accepted, b"".join(kept), rejects, list(unknown), block[at:], journal_only)

    def has_points(self) -> bool:
        """Return whether there are points."""
        return len(self._points) > 0

    def take(self) -> Columns:
        """Remove and return all points."""
        taken = self._points.take()
        return NO_COLUMNS if taken is None else columns_of(taken)


class OpenWindow:
    """Points that are accepted and not yet sealed, and rollups and histograms. `points` counts the lines of both,
    including those that only the journal has."""

    def __init__(self, table: SeriesTable, rules: NameRules) -> None:
        self.table = table
        self.points = 0
        self.complete = True  # whether all points are in memory: none is only in the journal
        self._rules = rules
        self._summaries: SummaryBatch | None = None
        self._dropped = 0  # lines among `points`
        self._peeked: list[Columns] = []  # points that were removed from the parser
        self._hours: list[range] = []  # of the first of these, see `hours_of`
        texts = table.texts
        self.validator = Validator(rules, compiled=not isinstance(texts, Texts))
        self._parser = (
            PureParser(table, texts, rules) if isinstance(texts, Texts) else CompiledParser(table, texts, rules)
        )

    def new_window(self) -> "OpenWindow":
        """Return an empty window on the same series table, for a window that is read again."""
        return OpenWindow(self.table, self._rules)

    @property
    def size(self) -> int:
        """Bytes of memory."""
        return (self.points - self._dropped) * POINT_BYTES + (self._summaries.size if self._summaries else 0)

    @property
    def slow_lines(self) -> int:
        """Lines that were parsed one by one."""
        return self._parser.slow_lines

    def has_metric(self, metric: bytes) -> bool:
        """Return whether there may be points of a metric. It is always true if some points are only in the journal."""
        if not self.complete or self.has_summaries(metric) or self._parser.has_metric(metric):
            return True
        return any(self.table.has_metric(metric, columns.series) for columns in self._peeked)

    def absorb(
        self, block: bytes, refusals: Refusals, composer: KeyComposer | None = None, room: int = sys.maxsize
    ) -> Absorbed:
        """Absorb the put lines at the start of `block` (whole lines). With a `composer` and no refusals, insert up to
        `room` unknown series whose names are all cached.

        Either every line is accepted or rejected, or nothing is absorbed and `unknown` has the series to insert first.
        After SLOW_LINES lines or SLOW_BYTES bytes that need the slow path, the next such line and all after it are left
        in `rest`.
        """
        parser = self._parser
        if isinstance(parser, CompiledParser):
            absorbed = parser.absorb(block, refusals, composer, room)
        else:
            absorbed = parser.absorb(block, refusals)
        self.points += absorbed.accepted
        self.complete &= not absorbed.journal_only
        return absorbed

    def absorb_packets(self, block: bytes, bounds: Sequence[int], first: int) -> tuple[int, int]:
        """Absorb the packets of `block` from number `first` up to the first one that is not only plain put lines of
        known series. Packet n is `block[bounds[n] : bounds[n + 1]]`. Return that packet's number, and the number of
        absorbed lines."""
        stop, accepted = self._parser.absorb_packets(block, bounds, first)
        self.points += accepted
        return stop, accepted

    def batch(self, new_batch: Callable[[], SummaryBatch]) -> SummaryBatch:
        """Return the batch of rollups and histograms, a new one if there is none."""
        if self._summaries is None:
            self._summaries = new_batch()
        return self._summaries

    def take(self) -> Columns:
        """Remove and return all points, in order of arrival."""
        parts = self.peek()
        self.points, self.complete, self._dropped, self._peeked, self._hours = 0, True, 0, [], []
        return joined_columns(parts)

    def drop(self) -> Columns:
        """Remove and return all points, and remove all rollups and histograms. `points` still counts their lines, which
        only the journal has now."""
        parts = self.peek()
        self.complete, self._dropped, self._summaries = False, self.points, None
        self._peeked, self._hours = [], []
        return joined_columns(parts)

    def peek(self, span: ScanRange | None = None) -> list[Columns]:
        """Return all points in parts, in order of arrival, and keep them; with a `span` without parts that have no
        points of its hours. Unless `complete`, some are missing."""
        if self._parser.has_points():
            self._peeked.append(self._parser.take())
            if len(self._peeked) > MAX_PARTS:
                self._peeked, self._hours = [joined_columns(self._peeked)], []
        if span is None or not self._peeked:
            return list(self._peeked)
        if len(self._hours) < len(self._peeked):
            self._hours += map(hours_of, self._peeked[len(self._hours) :])
        return [part for part, hours in zip(self._peeked, self._hours, strict=True) if may_have(hours, span)]

    def has_summaries(self, metric: bytes) -> bool:
        """Return whether there are rollups or histograms of a metric."""
        return self._summaries is not None and metric in self._summaries.metrics

    def take_summaries(self) -> SummaryBatch | None:
        """Remove and return the rollups and histograms. `points` counts their lines until `take`."""
        taken, self._summaries = self._summaries, None
        return taken
