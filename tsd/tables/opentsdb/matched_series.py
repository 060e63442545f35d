"""The series that a request matches, read again without a search for them: without a wait, or with one get."""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import NamedTuple
from weakref import ReferenceType, ref

import numpy as np

from tsd.codec.opentsdb.rowkey import BASE_BYTES
from tsd.codec.points import Batch, starts_of
from tsd.errors import StoreError
from tsd.store import ColumnPart, PackedRows, StepLimit
from tsd.tables.open_rows import DecodedPage
from tsd.tables.opentsdb.column_pages import ColumnPage
from tsd.tables.reading import EncodedPage, PointPage, ScanRange, SeriesSet, SeriesSpan

FEW_KEYS = 64  # that are compared one by one
FEW_POINTS = 1000  # that are kept decoded
KEPT_READS = 4  # spans: a query reads hours before, with and after open points apart
NO_ROWS = PointPage(
    Batch(np.empty(0, np.int32), np.zeros(1, np.int64), np.empty(0, np.int64), np.empty(0, np.int64),
          np.empty(0, np.bool_)),
    0, 0, (), (), 0, None,
)  # fmt: skip
NO_PAGE = DecodedPage(NO_ROWS)


class PageOfOne:
    """Packed rows of one series, which has the number 0: EncodedPage. Fewer steps than for other rows."""

    def __init__(
        self,
        packed: PackedRows,
        pairs_start: int,
        page_of: Callable[[], ColumnPage],
        keep: Callable[[PackedRows, PointPage], None],
    ) -> None:
        """`page_of` makes a page that decodes other cells, too. `keep` is called with the decoded rows."""
        self._packed = packed
        self._pairs_start = pairs_start
        self._page_of = page_of
        self._keep = keep
        self.cells = len(packed.keys)

    def series(self) -> Sequence[bytes]:
        """Return nothing: the series is numbered."""
        return ()

    def decode(self) -> PointPage:
        """Return the points. Raise StoreError."""
        packed, keys, stop = self._packed, self._packed.keys, self._pairs_start
        found = None
        if len(keys) == 1 or len(set(keys)) == len(keys):
            bases_s = [int.from_bytes(key[stop - BASE_BYTES : stop], "big") for key in keys]
            found = packed.decode(np.array(bases_s, np.int64))
        if found is None:
            return self._page_of().decode()
        batch = Batch(np.zeros(len(keys), np.int32), starts_of(found.counts), found.times, found.bits, found.floats)
        page = PointPage(batch, len(keys), int(packed.sizes().sum()), (), (), 0, None)
        if len(found.times) <= FEW_POINTS:
            self._keep(packed, page)
        return page


class RowReads(NamedTuple):
    """How stored rows are read."""

    parts: Callable[[ScanRange, StepLimit], list[ColumnPart] | None]  # those of a span; None if they are too many
    kept: Callable[[list[ColumnPart]], object | None]  # see `ColumnBlocks.kept_read`
    again: Callable[[object, StepLimit], list[ColumnPart] | None]  # see `ColumnBlocks.read_again`


class MatchedStoredSeries:
    """Some series of the data table: MatchedSeries."""

    is_remote = False

    def __init__(
        self,
        series: SeriesSet,
        is_current: Callable[[], bool],
        reads: RowReads,
        page_of: Callable[..., ColumnPage],
        pairs_start: int,
        *,
        by_key: bool,
    ) -> None:
        """`is_current` returns whether no other series can match by now. `reads` finds rows of other series too,
        unless it finds them `by_key`. `page_of` makes a page of them, with or without `annotations`. `pairs_start`:
        where tag pairs begin in row keys."""
        self._series = series
        self._count = len(series.series_pairs)
        self._is_current = is_current
        self._reads = reads
        self._page_of = page_of
        self._pairs_start = pairs_start
        self.by_key = by_key
        self._kept: dict[ScanRange, ReferenceType[object]] = {}  # the last reads that the store keeps, the oldest first
        self._last: tuple[ReferenceType[PackedRows], DecodedPage] | None = None  # few points that were decoded last

    def are_all(self) -> bool:
        """See MatchedSeries."""
        return len(self._series.series_pairs) == self._count and self._is_current()

    def read(self, span: ScanRange, limit: StepLimit, *, annotations: bool) -> EncodedPage[PointPage] | None:
        """See MatchedSeries."""
        if not self.are_all():
            return None
        try:
            parts = self._parts(span, limit)
        except StoreError:  # a damaged block, too: a query that looks for series says which rows cannot be read
            return None
        if not parts:
            return None if parts is None else NO_PAGE
        if self._count == 1 and len(parts) == 1 and (packed := parts[0].packed) is not None:
            if self._last is not None and self._last[0]() is packed:  # the store has kept the rows
                return self._last[1]
            if self._is_own(packed):
                page_of = partial(self._page_of, parts, annotations=annotations)
                return PageOfOne(packed, self._pairs_start, page_of, self._keep)
        page = self._page_of(parts, annotations=annotations)
        if page.cells > limit.cells or page.new_series() or len(self._series.series_pairs) > self._count:
            return None
        return page

    def _parts(self, span: ScanRange, limit: StepLimit) -> list[ColumnPart] | None:
        """Return the rows of a span; without their keys if they were read by one of the last calls."""
        if (known := self._kept.pop(span, None)) is not None and (read := known()) is not None:
            parts = self._reads.again(read, limit)
            if parts is not None:
                self._kept[span] = known
                return parts
        parts = self._reads.parts(span, limit)
        kept = None if parts is None else self._reads.kept(parts)
        if kept is not None:
            self._kept[span] = ref(kept)
            if len(self._kept) > KEPT_READS:
                del self._kept[next(iter(self._kept))]
        return parts

    async def fetch(
        self, spans: Sequence[SeriesSpan], limit: StepLimit, *, annotations: bool
    ) -> EncodedPage[PointPage] | None:
        """See MatchedSeries. There is no such read."""
        raise NotImplementedError

    def _keep(self, packed: PackedRows, page: PointPage) -> None:
        """Keep decoded rows until others are read."""
        for column in page.batch:
            column.flags.writeable = False
        self._last = ref(packed), DecodedPage(page)

    def _is_own(self, packed: PackedRows) -> bool:
        """Return whether all rows are those of the only series."""
        if self.by_key or len(packed.keys) > FEW_KEYS:  # numbering many takes as long as comparing them
            return self.by_key
        start, [pairs] = self._pairs_start, self._series.series_pairs
        return all(key[start:] == pairs for key in packed.keys)


class PairsSpan(NamedTuple):
    """Rows of some series in a span."""

    span: ScanRange
    series_pairs: Sequence[bytes]  # of each series


class MatchedKeyedSeries:
    """Some series of a data table in another process, whose rows are read by their keys: MatchedSeries."""

    by_key = is_remote = True

    def __init__(
        self,
        is_current: Callable[[], bool],
        series_pairs: Sequence[bytes],
        get_rows: Callable[[Sequence[PairsSpan], StepLimit, bool], Awaitable[EncodedPage[PointPage] | None]],
    ) -> None:
        """`is_current` returns whether no other series can match by now. `series_pairs` has those of the series by
        number. `get_rows` returns rows with or without annotations; None if they are over the limit."""
        self._is_current = is_current
        self._series_pairs = series_pairs
        self._get_rows = get_rows

    def are_all(self) -> bool:
        """See MatchedSeries."""
        return self._is_current()

    def read(self, span: ScanRange, limit: StepLimit, *, annotations: bool) -> EncodedPage[PointPage] | None:
        """See MatchedSeries. There is no such read."""
        raise NotImplementedError

    async def fetch(
        self, spans: Sequence[SeriesSpan], limit: StepLimit, *, annotations: bool
    ) -> EncodedPage[PointPage] | None:
        """See MatchedSeries."""
        if not self.are_all():
            return None
        every = self._series_pairs
        wanted = [
            PairsSpan(span, every if numbers is None else [every[number] for number in numbers])
            for span, numbers in spans
        ]
        return await self._get_rows(wanted, limit, annotations)
