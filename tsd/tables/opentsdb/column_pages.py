"""Pages of a scan by column: packed rows are decoded without their cells.

A page has parts: cells, decoded by `tsd.tables.opentsdb.decode`, packed rows, and rows of a range in memory. Parts are
in order of time.
"""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractContextManager
from itertools import compress, groupby, pairwise
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from tsd.codec.opentsdb.rowkey import BASE_BYTES
from tsd.codec.points import Batch, Bool, Int64, have_same_times, starts_of
from tsd.store import CellPage, ColumnBlocks, ColumnPart, ColumnRows, DecodedRows, PackedRows
from tsd.store.cells import CellSigner
from tsd.tables.opentsdb.decode import NumberedRows, NumberedSeries, number_rows, number_series
from tsd.tables.opentsdb.scan import GET_ROWS
from tsd.tables.reading import BucketPage, HourTable, PageRows, PointPage, SeriesSet, StoredPage, TablePage

Scalar = TypeVar("Scalar", bound=np.generic)

FEW_ROWS = 8  # of each hour of several, on average: fewer have no table
DecodeCells = Callable[[CellPage], PointPage]


async def columns_of_rows(
    blocks: ColumnBlocks, table: str, keys: Sequence[bytes]
) -> AsyncGenerator[list[ColumnPart], None]:
    """Yield the existing rows among `keys`, some at a time. Raise StoreError."""
    for at in range(0, len(keys), GET_ROWS):
        if parts := await blocks.get_columns(table, keys[at : at + GET_ROWS]):
            yield parts


class NumberedPages:
    """Numbers the series of the pages of a query."""

    def __init__(self, series: SeriesSet) -> None:
        self.series = series
        self._series_pairs: list[bytes] = []
        self._numbered = NumberedSeries(np.empty(0, np.int32), [])

    def number(self, series_pairs: list[bytes]) -> NumberedSeries:
        """Return the number of each series. The list of the previous call is not looked up again."""
        if series_pairs is not self._series_pairs or self._numbered.unnumbered:
            self._series_pairs, self._numbered = series_pairs, number_series(series_pairs, self.series)
        return self._numbered


class ColumnPage(StoredPage):
    """Rows as stored: StoredPage."""

    def __init__(
        self,
        parts: Sequence[ColumnPart],
        pairs_start: int,
        pages: NumberedPages,
        decode_cells: DecodeCells,
        naming: Callable[[], AbstractContextManager[None]],
    ) -> None:
        """`pages` has a number for each series of the page when it is decoded. `naming` names the metric in errors."""
        self._parts = parts
        self._pairs_start = pairs_start
        self._pages = pages
        self._series = pages.series
        self._decode_cells = decode_cells
        self._naming = naming
        self._rows: dict[int, NumberedRows] = {}  # packed rows, and cells, by the place of their part
        self._rows_of_ranges: dict[int, NumberedSeries] = {}  # rows of ranges in memory, likewise
        self.cells = sum(len(part.cells.keys) for part in parts if part.cells is not None)
        self.cells += sum(len(part.rows.suffixes()) for part in parts if part.rows is not None)
        self.cells += sum(len(part.packed.keys) for part in parts if part.packed is not None)

    def series(self) -> dict[bytes, None]:
        """Return the distinct series, by their tag pairs, in order of rows: sorting them takes little time then."""
        found: dict[bytes, None] = {}
        for cells, rows, packed in self._parts:
            for one in (cells, packed):
                if one is not None:
                    found.update(dict.fromkeys([key[self._pairs_start :] for key in one.keys]))
            if rows is not None:
                found.update(dict.fromkeys(rows.suffixes()))
        return found

    def new_series(self) -> list[bytes]:
        """Return the series without a number, see NumberingPage."""
        found: list[bytes] = []
        for at, (_, rows, _) in enumerate(self._parts):
            if rows is not None:
                self._rows_of_ranges[at] = self._pages.number(rows.suffixes())
                found += self._rows_of_ranges[at].unnumbered
            else:
                found += self._numbered(at).unnumbered
        return found

    @property
    def held(self) -> int:
        """Stored bytes, see StoredPage."""
        found = 0
        for cells, rows, packed in self._parts:
            if cells is not None:
                found += sum(map(len, cells.columns)) + sum(map(len, cells.values))
            for part in (rows, packed):
                found += 0 if part is None else int(part.sizes().sum())
        return found

    def numbers(self) -> NDArray[np.int32]:
        """Return the numbers of the rows, and of cells: see StoredPage."""
        found = [
            self._numbered(at).numbers if part.rows is None else self._numbers_of(at)
            for at, part in enumerate(self._parts)
        ]
        return _concatenated(found) if found else np.empty(0, np.int32)

    def _numbered(self, at: int) -> NumberedRows:
        """Return the numbers of the packed rows, or of the cells, of a part."""
        rows = self._rows.get(at)
        if rows is None or rows.unnumbered:
            cells, _, packed = self._parts[at]
            stored = cells if packed is None else packed
            assert stored is not None
            rows = self._rows[at] = number_rows(stored.keys, self._pairs_start, self._series)
        return rows

    def _numbers_of(self, at: int) -> NDArray[np.int32]:
        """Return the numbers of the rows of a range, by the place of their part."""
        found, rows = self._rows_of_ranges.get(at), self._parts[at].rows
        if found is None or found.unnumbered:
            assert rows is not None
            found = self._rows_of_ranges[at] = number_series(rows.suffixes(), self._series)
        return found.numbers

    def decode_tables(self) -> TablePage | None:
        """Decode the rows of matching series, see NumberingPage. Raise DamagedBlock."""
        with self._naming():  # it may be called when the scan has ended
            return self._decode_tables()

    def _decode_tables(self) -> TablePage | None:
        hours: list[HourTable] = []
        rows_read = size = held = 0
        if len(self._parts) > 1 and self.cells < FEW_ROWS * len(self._parts):
            return None
        for at, part in enumerate(self._parts):
            found = None
            if part.packed is not None:
                numbered = self._numbered(at)
                if numbered.fresh.all():
                    found = _tables_of_packed(part.packed, numbered)
                else:  # as long as some rows are not compacted
                    page = self._decode_some(at)
                    tables = hour_tables_of(page)
                    if tables is not None:
                        found = TablePage(tables, page.rows_read, page.size, int(part.packed.sizes().sum()))
            elif part.rows is not None:
                found = _tables_of_range(part.rows, self._numbers_of(at))
            if found is None:
                return None
            hours += found.hours
            rows_read += found.rows_read
            size += found.size
            held += found.held
        return TablePage(hours, rows_read, size, held)

    def decode_buckets(self, interval_ms: int, function: int) -> list[BucketPage] | None:
        """Decode and downsample the rows of matching series, see NumberingPage."""
        pages: list[BucketPage] = []
        for at, (_, rows, packed) in enumerate(self._parts):
            page = None
            if packed is not None:
                page = self._buckets_of_packed(at, packed, interval_ms, function)
            elif rows is not None:
                page = self._buckets_of(at, rows, interval_ms, function)
            if page is None:
                return None
            pages.append(page)
        return pages

    def _buckets_of_packed(self, at: int, packed: PackedRows, interval_ms: int, function: int) -> BucketPage | None:
        """Return the buckets of a packed part, given by its place. None if its rows must be decoded."""
        rows = self._numbered(at)
        assert not rows.unnumbered, rows.unnumbered[:3]
        wanted = rows.numbers >= 0
        complete = bool(wanted.all())
        found = (
            packed.downsample(rows.bases_s, None if complete else wanted, interval_ms, function)
            if rows.fresh.all()
            else None
        )
        if found is None:
            return None
        page = self._wanted_rows(packed, rows, wanted, complete=complete)
        return BucketPage(page.numbers, found, len(wanted), int(page.sizes.sum()), page.rows)

    def _buckets_of(self, at: int, rows: ColumnRows, interval_ms: int, function: int) -> BucketPage | None:
        """Return the buckets of a part with rows of one prefix. None if they must be decoded."""
        numbers = self._numbers_of(at)
        wanted = numbers >= 0
        complete = bool(wanted.all())
        base_s = _base_of(rows)
        found = rows.downsample(base_s, None if complete else wanted, interval_ms, function)
        if found is None:
            return None
        series_pairs, sizes, count = rows.suffixes(), rows.sizes(), len(numbers)
        if not complete:
            numbers, sizes, series_pairs = numbers[wanted], sizes[wanted], list(compress(series_pairs, wanted.tolist()))
        bases_s = np.full(len(series_pairs), base_s, np.int64)
        page = ColumnPageRows(series_pairs, 0, sizes, bases_s, (base_s, base_s), complete=complete)
        return BucketPage(numbers, found, count, int(sizes.sum()), page)

    def decode(self) -> PointPage:
        """Decode the rows of matching series. Raise DamagedBlock."""
        with self._naming():
            return self._decode()

    def _decode(self) -> PointPage:
        pages: list[PointPage] = []
        for in_ranges, places in groupby(range(len(self._parts)), key=lambda at: self._parts[at].rows is not None):
            if not in_ranges:
                pages += [self._decode_some(at) for at in places]
            else:
                pages.append(self._decode_rows(list(places)))
        return pages[0] if len(pages) == 1 else _joined(pages)

    def _decode_some(self, at: int) -> PointPage:
        """Decode cells, or packed rows."""
        cells, _, packed = self._parts[at]
        if packed is None:
            assert cells is not None
            return self._decode_cells(cells)
        numbered = self._numbered(at)
        assert not numbered.unnumbered, numbered.unnumbered[:3]
        wanted = numbered.numbers >= 0
        complete = bool(wanted.all())
        found = packed.decode(numbered.bases_s, None if complete else wanted) if numbered.fresh.all() else None
        if found is None:
            return self._decode_cells(packed.unpack())
        page = self._wanted_rows(packed, numbered, wanted, complete=complete)
        batch = Batch(page.numbers, starts_of(found.counts), found.times, found.bits, found.floats)
        return PointPage(batch, len(wanted), int(page.sizes.sum()), (), (), 0, page.rows)

    def _wanted_rows(
        self, packed: PackedRows, rows: NumberedRows, wanted: Bool, *, complete: bool
    ) -> "_PackedPageRows":
        """Return the wanted rows of a part, by default all."""
        keys, sizes, numbers, bases_s = packed.keys, packed.sizes(), rows.numbers, rows.bases_s
        hours_s = int(bases_s[0]), int(bases_s[-1])
        if not complete:
            numbers, bases_s, sizes = numbers[wanted], bases_s[wanted], sizes[wanted]
            keys = list(compress(keys, wanted.tolist()))
        page = ColumnPageRows(keys, self._pairs_start, sizes, bases_s, hours_s, complete=complete)
        return _PackedPageRows(numbers, sizes, page)

    def _decode_rows(self, places: Sequence[int]) -> PointPage:
        """Decode rows of ranges."""
        parts = [part for at in places if (part := self._parts[at].rows) is not None]
        found = [self._wanted(at, part) for at, part in zip(places, parts, strict=True)]
        bases_s = list(map(_base_of, parts))
        points = [part.points for part in found]
        counts = [len(one.offsets) for one in points]
        ends = np.cumsum([0, *counts]).tolist()
        starts = [one.starts[1:] + end for one, end in zip(points, ends, strict=False)]
        times = np.concatenate([one.offsets for one in points])
        times += np.repeat(np.array(bases_s, np.int64) * 1000, counts)
        batch = Batch(
            np.concatenate([part.numbers for part in found]),
            np.concatenate([np.zeros(1, np.int64), *starts]),
            times,
            _concatenated([one.bits for one in points]),
            _concatenated([one.floats for one in points]),
        )
        rows_read = sum(part.rows_read for part in found)
        sizes = np.concatenate([part.sizes for part in found])
        bases = np.repeat(np.array(bases_s, np.int64), [len(part.series_pairs) for part in found])
        series_pairs = [one for part in found for one in part.series_pairs]
        complete = len(series_pairs) == rows_read
        rows = ColumnPageRows(series_pairs, 0, sizes, bases, (bases_s[0], bases_s[-1]), complete=complete)
        return PointPage(batch, rows_read, int(sizes.sum()), (), (), 0, rows)

    def _wanted(self, at: int, rows: ColumnRows) -> "_WantedRows":
        """Decode the rows of one range that are wanted."""
        suffixes, every = rows.suffixes(), self._numbers_of(at)
        wanted = every >= 0
        numbers = every[wanted]
        series_pairs = suffixes if len(numbers) == len(suffixes) else list(compress(suffixes, wanted.tolist()))
        return _WantedRows(rows.decode(wanted), numbers, series_pairs, rows.sizes()[wanted], len(suffixes))


def _concatenated(arrays: list[NDArray[Scalar]]) -> NDArray[Scalar]:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def _base_of(rows: ColumnRows) -> int:
    """Return the hour of the rows of a range."""
    return int.from_bytes(rows.prefix[-BASE_BYTES:], "big")


def _tables_of_range(rows: ColumnRows, numbers: NDArray[np.int32]) -> TablePage | None:
    """Decode rows of a range; None if they have no common times."""
    sizes, wanted = rows.sizes(), numbers >= 0
    held, hours = int(sizes.sum()), list[HourTable]()
    is_all = bool(wanted.all())
    size = held if is_all else int(sizes[wanted].sum())
    if wanted.any():
        points = rows.decode_alike(None if is_all else wanted)
        if points is None:
            return None
        hours.append(HourTable(_base_of(rows), numbers if is_all else numbers[wanted], *points))
    return TablePage(hours, len(numbers), size, held)


def _hours_of(bases_s: Int64) -> list[int]:
    """Return the index of the first row of each hour, and the number of rows; nothing if few rows have one hour."""
    bounds = [0, *(np.flatnonzero(bases_s[1:] != bases_s[:-1]) + 1).tolist(), len(bases_s)]
    return [] if len(bounds) > 2 and len(bases_s) < FEW_ROWS * (len(bounds) - 1) else bounds


def hour_tables_of(page: PointPage) -> list[HourTable] | None:
    """Return decoded rows hour by hour; None if they are few in each, or if they have no such form."""
    batch, rows = page.batch, page.rows
    if rows is None or page.duplicates or page.annotations or page.warnings:
        return None
    bases_s = rows.bases_s
    bounds = _hours_of(bases_s) if len(bases_s) else [0]
    if not bounds:
        return None
    hours: list[HourTable] = []
    for first, stop in pairwise(bounds):
        part = batch.between(first, stop)
        if not len(part.times) or not have_same_times(part):
            return None
        hours.append(HourTable.of(part, int(bases_s[first])))
    return hours


def _tables_of_packed(packed: PackedRows, rows: NumberedRows) -> TablePage | None:
    """Decode packed rows, each with one cell, hour by hour; None if they are few in each, or if they have no such
    form."""
    bounds = _hours_of(rows.bases_s)
    if not bounds:
        return None
    sizes = packed.sizes()
    hours: list[HourTable] = []
    size = 0
    for first, stop in pairwise(bounds):
        numbers = rows.numbers[first:stop]
        wanted = numbers >= 0 if (numbers < 0).any() else None
        if wanted is not None:
            numbers = numbers[wanted]
        if not len(numbers):
            continue
        points = packed.decode_alike(first, stop, wanted)
        if points is None:
            return None
        size += int((sizes[first:stop] if wanted is None else sizes[first:stop][wanted]).sum())
        hours.append(HourTable(int(rows.bases_s[first]), numbers, *points))
    return TablePage(hours, len(rows.numbers), size, int(sizes.sum()))


class _PackedPageRows(NamedTuple):
    """Packed rows that are wanted."""

    numbers: NDArray[np.int32]  # of their series
    sizes: Int64
    rows: "ColumnPageRows"


class _WantedRows(NamedTuple):
    """Rows of one range."""

    points: DecodedRows
    numbers: NDArray[np.int32]  # of their series
    series_pairs: Sequence[bytes]
    sizes: Int64
    rows_read: int


class ColumnPageRows:
    """Packed rows: PageRows."""

    def __init__(
        self,
        keys: Sequence[bytes],
        pairs_start: int,
        sizes: Int64,
        bases_s: Int64,
        hours_s: tuple[int, int],
        *,
        complete: bool,
    ) -> None:
        """The tag pairs of each of `keys` begin at `pairs_start`. `hours_s`: the first and the last hour, of rows that
        do not match, too."""
        self._keys = keys
        self._start = pairs_start
        self._sizes = sizes
        self.complete = complete
        self.plain: Bool = np.ones(len(keys), np.bool_)
        self.first_s, self.last_s = hours_s
        self.bases_s = bases_s

    def series(self, rows: slice) -> list[bytes]:
        """Return the tag pairs of each row."""
        return [key[self._start :] for key in self._keys[rows]]

    def sizes(self, rows: slice) -> Int64:
        """Return the packed bytes of each row."""
        return self._sizes[rows]

    def names_size(self, rows: slice) -> int:
        """Return the bytes of keys."""
        some = self._keys[rows]
        return sum(map(len, some)) - len(some) * self._start

    def sign(self, rows: slice, signing: CellSigner, newest_ms: int) -> bool:  # noqa: ARG002 - see PageRows
        """Return False: an engine with such rows reports every write."""
        return False


class _JoinedRows:
    """The rows of several pages, one after the other: PageRows."""

    def __init__(self, pages: Sequence[PageRows]) -> None:
        self._pages = pages
        self._bounds = list(pairwise([0, *np.cumsum([len(page.plain) for page in pages]).tolist()]))
        self.complete = all(page.complete for page in pages)
        self.plain: Bool = np.concatenate([page.plain for page in pages])
        self.first_s = pages[0].first_s
        self.last_s = pages[-1].last_s

    @property
    def bases_s(self) -> Int64:
        """Hour of each row."""
        return np.concatenate([page.bases_s for page in self._pages])

    def _slices(self, rows: slice) -> list[tuple[PageRows, slice]]:
        """Return the pages that have some of the rows, and these rows in each."""
        return [
            (page, slice(max(rows.start - first, 0), min(rows.stop, last) - first))
            for page, (first, last) in zip(self._pages, self._bounds, strict=True)
            if rows.start < last and first < rows.stop
        ]

    def series(self, rows: slice) -> list[bytes]:
        """Return the tag pairs of each row."""
        return [pairs for page, some in self._slices(rows) for pairs in page.series(some)]

    def sizes(self, rows: slice) -> Int64:
        """Return the stored bytes of each row."""
        return np.concatenate([np.empty(0, np.int64), *(page.sizes(some) for page, some in self._slices(rows))])

    def names_size(self, rows: slice) -> int:
        """Return the bytes of keys and columns."""
        return sum(page.names_size(some) for page, some in self._slices(rows))

    def sign(self, rows: slice, signing: CellSigner, newest_ms: int) -> bool:
        """See PageRows."""
        return all(page.sign(some, signing, newest_ms) for page, some in self._slices(rows))


def _joined(pages: Sequence[PointPage]) -> PointPage:
    """Return pages as one."""
    batches = [page.batch for page in pages]
    ends = np.cumsum([batch.starts[-1] for batch in batches])
    starts = [batch.starts[1:] + end - batch.starts[-1] for batch, end in zip(batches, ends, strict=True)]
    rows = [page.rows for page in pages if page.rows is not None]
    return PointPage(
        Batch(
            np.concatenate([batch.series for batch in batches]),
            np.concatenate([np.zeros(1, np.int64), *starts]),
            np.concatenate([batch.times for batch in batches]),
            np.concatenate([batch.bits for batch in batches]),
            np.concatenate([batch.floats for batch in batches]),
        ),
        sum(page.rows_read for page in pages),
        sum(page.size for page in pages),
        [note for page in pages for note in page.annotations],
        [text for page in pages for text in page.warnings],
        sum(page.duplicates for page in pages),
        _JoinedRows(rows) if len(rows) == len(pages) else None,
    )
