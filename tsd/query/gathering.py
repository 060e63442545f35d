"""Pages of a sub query's rows → the points of its series. Nothing is kept of a page but what the answer needs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import numpy as np

from tsd.codec.annotation import Annotation
from tsd.codec.rowkey import Layout
from tsd.query.decode import decode
from tsd.query.downsample import Collector, Downsampler
from tsd.query.limits import Allowance, check_fetched
from tsd.query.model import Query
from tsd.query.plan import Plan
from tsd.query.points import Int64, Points
from tsd.query.ranges import ScanRange
from tsd.query.recording import Recording
from tsd.query.remembered import Hour
from tsd.query.selecting import UNWANTED, Selection
from tsd.store import Cell, Row
from tsd.store.cells import CellPage

SMALL_PAGE = 64  # cells: decoded at once, as a thread costs as much
SMALL = 5_000  # points that are worked on at once, without a thread
POINT_BYTES = 40  # of a point that is kept: twice its arrays, which are joined in the end
SERIES_BYTES = 500  # of a series beside its points: its tags and arrays
MOST_WARNINGS = 100


@dataclass
class Tally:
    """What was read."""

    rows_read: int = 0
    rows_wanted: int = 0
    points: int = 0
    size: int = 0  # bytes of the wanted rows' cells
    duplicates: int = 0
    warnings: list[str] = field(default_factory=list)


class Gathered(NamedTuple):
    """What was read for one sub query; series by their numbers."""

    series: Sequence[Points]  # downsampled if that was asked for
    counts: Sequence[int]  # how many points were read of each
    notes: Mapping[int, Sequence[Annotation]]
    tally: Tally
    rows: list[Row]  # all that was read, without values, where it is to be deleted
    table: str = "raw"  # where it came from, as the echo of a query names it
    scan: ScanRange | None = None  # what was read for it, where that is not the plan's range


class Gathering:
    """What has been read for one sub query. Pages come in order: rows of one series in order of time."""

    def __init__(
        self,
        query: Query,
        plan: Plan,
        selection: Selection,
        layout: Layout,
        allowance: Allowance,
    ) -> None:
        spec = plan.sub.downsample
        self._sink = (
            Downsampler(spec, query.start_ms, query.end_ms, plan.scan, corrected=query.corrected)
            if spec
            else Collector()
        )
        self._with_notes = not query.no_annotations
        self._keeps_rows = query.delete
        self._selection = selection
        self._layout = layout
        self._allowance = allowance
        self._counts: Int64 = np.zeros(0, np.int64)
        self.tally = Tally()
        self.recording: Recording | None = None  # of the hours that are read now
        self._numbered: tuple[tuple[bytes, ...], Int64] = (), np.empty(0, np.int64)
        self._notes: dict[int, list[Annotation]] = {}
        self._rows: list[Row] = []

    async def take(self, page: CellPage) -> None:
        """Take in the next page. Raises BadQuery where a limit is passed, StoreError."""
        start, threads = self._layout.pairs_start, self._allowance.threads
        with threads.noted():
            pairs = {key[start:] for key in page.keys}
        await self._selection.meet(pairs)
        if len(page.keys) <= SMALL_PAGE:
            with threads.noted():
                self._work(page)
        else:
            await threads.run(partial(self._work, page))
        self.check()

    @property
    def size(self) -> int:
        """How many points are kept, or will be in the end: a fill makes many out of few."""
        return self._sink.size(len(self._selection.wanted))

    def check(self) -> None:
        """Hold what is kept; raises BadQuery where a limit is passed."""
        check_fetched(self._allowance.bounds, size=self.tally.size, points=self.tally.points)
        self._allowance.hold(len(self._selection.wanted) * SERIES_BYTES + self.size * POINT_BYTES)

    async def recall(self, hour: Hour) -> None:
        """Take in an hour that is remembered as if it were read. Raises BadQuery, StoreError as `take` does."""
        assert isinstance(self._sink, Downsampler)
        numbers = await self._numbers(hour.pairs)
        with self._allowance.threads.noted():
            wanted = numbers != UNWANTED
            series, points = numbers[wanted], hour.points[wanted]
            self._sink.feed_rows(series, hour.unpacked().picked(wanted))
            self._grow(len(self._selection.wanted))
            np.add.at(self._counts, series, points)
            tally = self.tally
            tally.rows_read += len(numbers)
            tally.rows_wanted += len(series)
            tally.points += int(points.sum())
            tally.size += int(hour.sizes[wanted].sum())
            self.check()

    async def _numbers(self, pairs: tuple[bytes, ...]) -> Int64:
        """The number of each series; of one hour they are mostly the same as of the one before."""
        if self._numbered[0] is not pairs:
            await self._selection.meet(pairs)
            numbers = map(self._selection.numbers.__getitem__, pairs)
            self._numbered = pairs, np.fromiter(numbers, np.int64, len(pairs))
        return self._numbered[1]

    def _work(self, page: CellPage) -> None:
        numbers = self._selection.numbers
        decoded = decode(page, numbers.__getitem__, base_at=self._layout.metric_end, with_notes=self._with_notes)
        batch = decoded.batch
        buckets = self._sink.feed(batch)
        if self.recording is not None and buckets is not None:
            self.recording.take(page, decoded, buckets)
        self._grow(len(self._selection.wanted))
        np.add.at(self._counts, batch.series, np.diff(batch.starts))
        tally = self.tally
        tally.rows_read += len(set(page.keys))
        tally.rows_wanted += decoded.rows
        tally.points += len(batch.times)
        tally.size += decoded.size
        tally.duplicates += decoded.duplicates
        tally.warnings += decoded.warnings[: MOST_WARNINGS - len(tally.warnings)]
        for series, note in decoded.notes:
            self._notes.setdefault(series, []).append(note)
        if self._keeps_rows:
            self._rows += self._wanted_rows(page)

    def _grow(self, series: int) -> None:
        missing = series - len(self._counts)
        if missing > 0:
            self._counts = np.append(self._counts, np.zeros(max(missing, len(self._counts)), np.int64))

    def _wanted_rows(self, page: CellPage) -> list[Row]:
        """The rows of a page that the query reads: which cells they have, and since when."""
        start = self._layout.pairs_start
        rows: dict[bytes, list[Cell]] = {}
        for at, key in enumerate(page.keys):
            if self._selection.numbers[key[start:]] != UNWANTED:
                rows.setdefault(key, []).append(page.cell(at)._replace(value=b""))
        return [Row(key, cells) for key, cells in rows.items()]

    def finish(self) -> Gathered:
        """What came together."""
        count = len(self._selection.wanted)
        self._grow(count)
        return Gathered(self._sink.finish(count), self._counts[:count].tolist(), self._notes, self.tally, self._rows)
