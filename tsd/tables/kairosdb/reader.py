"""Reads and deletes points of KairosDB's tables: the layout's `PointReader` and `PointDeleter`."""

from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import NamedTuple

import numpy as np
import trio
from cachetools import TTLCache

from tsd.codec.kairosdb.keys import DOUBLE, LONG, STRING, DataRow, parse_tags
from tsd.codec.kairosdb.rows import COLUMNS, FIRST_MS, LAST_MS, RowSpec
from tsd.codec.names import Kind
from tsd.codec.points import NO_POINTS, Points, starts_of
from tsd.errors import CorruptRow, UnknownName
from tsd.store.retry import run_bounded
from tsd.tables import reading
from tsd.tables.interned import InternedSeries, Resolved, hourly_batch, resolve
from tsd.tables.kairosdb.decode import (
    NUMBERS,
    WARNINGS,
    StoredRow,
    by_series,
    decode_numbers,
    decode_plain,
    decode_texts,
    unknown_types,
)
from tsd.tables.kairosdb.find import FoundRow, FoundRows, find_rows
from tsd.tables.kairosdb.index import IndexRows
from tsd.tables.kairosdb.points import RowsAnswer
from tsd.tables.kairosdb.series import TTL_BYTES, names_id, parse_series_id, series_id
from tsd.tables.kairosdb.tables import CONCURRENT, KairosTables
from tsd.tables.read_ahead import take_sequences
from tsd.tables.reading import PointPage, ScanRange, SeriesRequest, Take, TextPage, TextPoint
from tsd.tables.writing import SeriesKey, SeriesKeys

SERIES_AT_ONCE = 128  # of one page
PAGES_AHEAD = 2  # that are read while one is read or decoded: Cassandra never waits for the last rows of a page
READ_POINTS, READ_TEXTS = 40_000, 5_000  # at a time, shared among the rows of a page
ANSWER_CELLS, POINTS_OF_CELL = 16, 64  # cells that take as long to decode as an answer, and points as a cell
MOST_SHARES = 32  # of them: with smaller ones, pages of many rows would be read in many small pieces
ALL_POINTS = (1 << 31) - 1
MOST_LISTED, LISTED_S = 10_000, 60  # metrics that are known to exist, and for how long
Bounds = Mapping[DataRow, tuple[int, int]]  # the first and the last column to read


def cells_of(answer: RowsAnswer) -> int:
    """Return about how many cells take as long to decode as an answer."""
    if answer.timed or not len(answer):
        return len(answer)
    return ANSWER_CELLS + len(answer.rows) + len(answer) // POINTS_OF_CELL


class Decoding(NamedTuple):
    """How the rows of a read are decoded."""

    spec: RowSpec
    span: tuple[int, int]  # first and last time in ms
    numbers: Mapping[bytes, int]  # of series, by their ids


class NumberPage:
    """Rows of some series as stored, for numbers."""

    def __init__(
        self,
        decoding: Decoding,
        pairs_by_tags: Mapping[bytes, bytes],
        answers: Sequence[RowsAnswer],
        left: Bounds,
        warnings: Sequence[str],
        *,
        counts_expiring: bool = False,
    ) -> None:
        """`pairs_by_tags` has the pairs of each series by its encoded tags, `left` what another page will have."""
        self._decoding = decoding
        self._pairs_by_tags = pairs_by_tags
        self._answers = answers
        self._left = left
        self._warnings = warnings
        self._counts_expiring = counts_expiring
        self.cells = sum(map(cells_of, answers))

    def series(self) -> list[bytes]:
        """Return the series of the page."""
        rows = (row for answer in self._answers for row in answer.rows.values())
        return list(dict.fromkeys(self._pairs_by_tags[row.tags] for row in rows))

    def decode(self) -> PointPage:
        """Decode the rows."""
        spec, span, _ = self._decoding
        numbers: list[int] = []
        lengths: list[int] = []
        parts: list[Points] = []
        others: list[StoredRow] = []
        size = rows_read = duplicates = 0
        for answer in self._answers:
            rows_read += len(answer.rows)
            found = decode_plain(answer, spec, *span)
            if found is None:
                others += [up_to(StoredRow(row, points), self._left) for row, points in answer.stored.items()]
                continue
            numbers += [self._number(row.tags) for row in found.rows]
            lengths += np.diff(found.starts).tolist()
            parts.append(found.points)
            size += found.size
        warnings = list(self._warnings)
        for tags, rows in by_series(others).items():
            one = decode_numbers(rows, spec, *span, warnings.append)
            numbers.append(self._number(tags))
            lengths.append(len(one.points.times))
            parts.append(one.points)
            duplicates += one.duplicates
        size += sum(row.points.size for row in others)
        expiring = sum(row.points.expiring for row in others) if self._counts_expiring else 0
        joined = Points(*map(np.concatenate, zip(NO_POINTS, *parts, strict=True)))
        starts = starts_of(lengths)
        batch = hourly_batch(np.array(numbers, np.int64), starts, joined)
        return PointPage(
            batch=batch,
            rows_read=rows_read,
            size=size,
            annotations=(),
            warnings=warnings[:WARNINGS],
            duplicates=duplicates,
            rows=None,
            expiring=expiring,
        )

    def _number(self, tags: bytes) -> int:
        return self._decoding.numbers[self._pairs_by_tags[tags]]


class TextRows:
    """Rows of some series as stored, for texts."""

    def __init__(self, decoding: Decoding, rows: Sequence[tuple[bytes, StoredRow]]) -> None:
        """`rows`: each with the id of its series."""
        self._decoding = decoding
        self._rows = rows
        self.cells = sum(len(row.points) for _, row in rows)

    def series(self) -> list[bytes]:
        """Return the series of the page."""
        return [pairs for pairs, _ in self._rows]

    def decode(self) -> TextPage:
        """Decode the rows."""
        spec, (first_ms, last_ms), numbers = self._decoding
        warnings: list[str] = []
        texts = [
            TextPoint(numbers[pairs], time_ms, text)
            for pairs, row in self._rows
            for time_ms, text in decode_texts(row, spec, warnings.append)
            if first_ms <= time_ms <= last_ms
        ]
        return TextPage(texts, len(self._rows), sum(row.points.size for _, row in self._rows), warnings[:WARNINGS])


class KairosSelection(reading.Selection):
    """One request, resolved."""

    reads_hours_in_parts = True  # an hour of a series may come in several pages

    def __init__(
        self, tables: KairosTables, resolved: Resolved, series: InternedSeries, *, counts_expiring: bool = False
    ) -> None:
        self._tables = tables
        self._resolved = resolved
        self._counts_expiring = counts_expiring
        self._series = self.series = series
        self._read: list[ScanRange] = []  # for `delete`
        self._slots = trio.Semaphore(CONCURRENT)  # of requests of rows: the next page's wait for those of a page
        self.metric = resolved.metric
        tagks = tuple(sorted(series.id_of(Kind.TAGK, tagk) for tagk in resolved.tagks))
        self.filter_tagks = tagks or None
        self._texts = self.texts = KairosTexts(tables, resolved, series)

    def pairs_of(self, keys: SeriesKeys) -> list[bytes | None]:
        """Return the ids of the tags of those series that pass the filters."""
        return [self._pairs_of(key) for key in keys]

    def _pairs_of(self, key: SeriesKey) -> bytes | None:
        if key.head != self.metric.encode():
            return None
        encoded = key.tail[TTL_BYTES:]
        tags = parse_tags(encoded)
        return self._series.pairs_of(encoded, tags) if self._resolved.passes(tags) else None

    async def read(self, span: ScanRange, take: Take[PointPage], *, annotations: bool) -> None:  # noqa: ARG002 - none
        """Read the rows of numbers, page by page."""
        self._read.append(span)
        await take_sequences(self._sequences(span), take, PAGES_AHEAD)

    async def _sequences(self, span: ScanRange) -> AsyncGenerator[AsyncGenerator[NumberPage, None], None]:
        """Yield the pages of some series at a time."""
        spec = await self._tables.spec()
        times = span.start_ms, span.stop_ms - 1
        decoding = Decoding(spec, times, self._series.numbers)
        ahead: list[tuple[Bounds, list[RowsAnswer]]] = []

        async def read_ahead(rows: Sequence[FoundRow]) -> None:
            some = next(iter(series_of(numbers_of(rows))), [])
            bounds = bounds_of(spec, some, times)
            ahead.append((bounds, await self._read_rows(some, bounds)))

        found = find_rows(self._tables, self.metric, *times, self._resolved.passes, expect=read_ahead)
        async with aclosing(found) as groups:
            async for group in groups:
                self._texts.listed(span, group)
                warnings = [*group.warnings, *unknown_types([one.row for one in group.rows])]
                for some in series_of(numbers_of(group.rows)):
                    yield self._pages_of(decoding, some, warnings, ahead)
                    ahead, warnings = [], []
                if warnings:
                    yield self._pages_of(decoding, (), warnings, [])

    async def _pages_of(
        self,
        decoding: Decoding,
        rows: Sequence[FoundRow],
        warnings: Sequence[str],
        ahead: list[tuple[Bounds, list[RowsAnswer]]],
    ) -> AsyncGenerator[NumberPage, None]:
        """Yield the rows of some series. Those of one row time are read piece by piece. `ahead` has what was read
        before the rows were found: the first page is not read again if it has the same rows."""
        pairs_by_tags = {one.row.tags: self._series.pairs_of(one.row.tags, one.tags) for one in rows}
        limit = limit_of(rows, READ_POINTS)
        left = bounds_of(decoding.spec, rows, decoding.span)
        while left:
            read, answers = ahead.pop() if ahead else ({}, [])
            if read != left:
                answers = await self._read_rows(rows, left)
            left = rest_of(answers, left, limit)
            yield NumberPage(decoding, pairs_by_tags, answers, left, warnings, counts_expiring=self._counts_expiring)
            warnings = []
        if warnings:
            yield NumberPage(decoding, {}, (), {}, warnings)

    async def _read_rows(self, rows: Sequence[FoundRow], bounds: Bounds) -> list[RowsAnswer]:
        """Read some of the rows of a page. Raise StoreError."""
        counts = Counter(one.row.tags for one in rows)
        timed = self._counts_expiring
        return await self._tables.read_rows(
            bounds,
            limit_of(rows, READ_POINTS),
            timed=lambda row: timed or counts[row.tags] > 1,
            slots=self._slots,
        )

    async def delete(self, read_ms: int) -> None:
        """Delete the numbers of the hours that were read, unless they were written after `read_ms`."""
        for span in self._read:
            first_ms, last_ms = span.start_ms, span.stop_ms - 1
            await delete_span(self._tables, self._resolved, (first_ms, last_ms), read_ms)


class KairosTexts:
    """The texts of a selection."""

    def __init__(self, tables: KairosTables, resolved: Resolved, series: InternedSeries) -> None:
        self._tables = tables
        self._resolved = resolved
        self._series = series
        self._listed: dict[ScanRange, list[FoundRows]] = {}  # found while numbers were read

    def listed(self, span: ScanRange, group: FoundRows) -> None:
        """Note the rows of texts that an index lists for a span."""
        rows = [one for one in group.rows if one.row.type == STRING]
        self._listed.setdefault(span, []).extend([group._replace(rows=rows)] if rows else [])

    async def read(self, span: ScanRange, take: Take[TextPage]) -> None:
        """Read texts, page by page."""
        times = span.start_ms, span.stop_ms - 1
        if span not in self._listed:
            async with aclosing(
                find_rows(self._tables, self._resolved.metric, *times, self._resolved.passes)
            ) as groups:
                async for group in groups:
                    self.listed(span, group)
        decoding = Decoding(await self._tables.spec(), times, self._series.numbers)
        for group in self._listed.pop(span, ()):
            for page in series_of(group.rows):
                await self._read_rows(decoding, page, take)

    async def _read_rows(self, decoding: Decoding, rows: Sequence[FoundRow], take: Take[TextPage]) -> None:
        left = bounds_of(decoding.spec, rows, decoding.span)
        pairs_by_row = {one.row: self._series.pairs_of(one.row.tags, one.tags) for one in rows}
        limit = limit_of(rows, READ_TEXTS)
        slots = trio.Semaphore(CONCURRENT)
        while left:
            answers = await self._tables.read_rows(left, limit, timed=lambda _: False, slots=slots)
            parts = [StoredRow(row, points) for answer in answers for row, points in answer.stored.items()]
            left = {row: bounds for part in parts for row, bounds in rest_of_series([part], left, limit).items()}
            await take(TextRows(decoding, [(pairs_by_row[part.row], part) for part in parts]))


def numbers_of(rows: Iterable[FoundRow]) -> list[FoundRow]:
    """Return the rows of numbers."""
    return [one for one in rows if one.row.type in NUMBERS]


def bounds_of(spec: RowSpec, rows: Sequence[FoundRow], span: tuple[int, int]) -> dict[DataRow, tuple[int, int]]:
    """Return the first and the last column of rows with times of a span."""
    of_time: dict[int, tuple[int, int] | None] = {}
    for one in rows:
        if one.row.row_ms not in of_time:
            of_time[one.row.row_ms] = spec.bounds(*span, one.row.row_ms)
    return {one.row: bounds for one in rows if (bounds := of_time[one.row.row_ms]) is not None}


def series_of(rows: Sequence[FoundRow]) -> Iterable[list[FoundRow]]:
    """Yield the rows of some series at a time. Rows of one series follow each other."""
    page: list[FoundRow] = []
    count = 0
    for row in rows:
        if not page or row.row.tags != page[-1].row.tags:
            if count == SERIES_AT_ONCE:
                yield page
                page, count = [], 0
            count += 1
        page.append(row)
    if page:
        yield page


def limit_of(rows: Sequence[FoundRow], points: int) -> int:
    """Return how many points of each row are read at a time: `points` shared among the rows, but among MOST_SHARES at
    most. Rows of several times are read whole: points of one series come in order of time."""
    if len({one.row.row_ms for one in rows}) > 1:
        return ALL_POINTS
    return points // min(max(len(rows), 1), MOST_SHARES)


def rest_of(answers: Sequence[RowsAnswer], read: Bounds, limit: int) -> dict[DataRow, tuple[int, int]]:
    """Return what is left to read of rows: of those of one series from the same column on."""
    left: dict[DataRow, tuple[int, int]] = {}
    if max(map(len, answers)) < limit:
        return left
    others: list[StoredRow] = []
    for answer in answers:
        plain = answer.plain  # the only row of its series
        if plain is None:
            others += [StoredRow(row, points) for row, points in answer.stored.items()]
            continue
        for at in np.flatnonzero(np.diff(plain.starts) >= limit).tolist():
            row = answer.rows[plain.keys[at]]
            start, end = int(plain.columns[plain.starts[at + 1] - 1]) + 1, read[row][1]
            if start <= end:
                left[row] = start, end
    for rows_of_one in by_series(others).values():
        left |= rest_of_series(rows_of_one, read, limit)
    return left


def rest_of_series(rows: Sequence[StoredRow], read: Bounds, limit: int) -> dict[DataRow, tuple[int, int]]:
    """Return what is left to read of a series' rows of one time, in each from the same column on."""
    ends = [int(row.points.numbers[-1]) for row in rows if len(row.points) >= limit]
    start = min(ends, default=COLUMNS) + 1
    return {row.row: (start, read[row.row][1]) for row in rows if start <= read[row.row][1]}


def up_to(row: StoredRow, left: Bounds) -> StoredRow:
    """Return the part of a row that will not be read again."""
    if row.row not in left:
        return row
    return row._replace(points=row.points.at(row.points.numbers < left[row.row][0]))


async def delete_span(tables: KairosTables, resolved: Resolved, span: tuple[int, int], stamp_ms: int) -> None:
    """Delete the numbers of a selection at some times, both ends included. Index rows stay."""
    spec = await tables.spec()
    async with aclosing(find_rows(tables, resolved.metric, *span, resolved.passes)) as groups:
        async for group in groups:
            for one in group.rows:
                bounds = spec.bounds(*span, one.row.row_ms)
                if bounds is not None and one.row.type in NUMBERS:
                    await tables.delete_points(one.row.encode(), *bounds, stamp_ms)


class KairosReader(reading.PointReader):
    """Requests → selections; deletes by time."""

    def __init__(
        self, tables: KairosTables, index: IndexRows, *, shared: bool, is_known: Callable[[str], bool]
    ) -> None:
        """`is_known` returns whether points of a metric are about to be written. `shared`: other programs write to the
        tables. A running KairosDB does not write index rows again that others delete, so they stay."""
        self._tables = tables
        self._index = index
        self._shared = shared
        self._is_known = is_known
        self._listed = TTLCache[str, bool](MOST_LISTED, LISTED_S, timer=tables.now_s)  # metrics that exist

    async def select(self, request: SeriesRequest) -> KairosSelection:
        """Resolve a request. Raise BadQuery, StoreError."""
        resolved = resolve(request, names_id, parse_series_id)
        await self._tables.spec()
        if not await self._exists(resolved.metric):
            raise UnknownName(Kind.METRIC.value, resolved.metric)
        group_by = {one.tagk for one in request.filters if one.group_by}
        series = InternedSeries(group_by, partial(series_id, resolved.metric))
        return KairosSelection(self._tables, resolved, series, counts_expiring=request.counts_expiring)

    async def _exists(self, metric: str) -> bool:
        """Return whether a metric has a name or rows. What others delete counts for up to a minute longer."""
        if self._is_known(metric) or metric in self._listed:
            return True
        if not await self._tables.metric_exists(metric):
            rows, _ = await self._tables.old_keys(metric, FIRST_MS, LAST_MS)
            return bool(rows or await self._tables.row_times(metric, FIRST_MS, LAST_MS))
        self._listed[metric] = True
        return True

    async def read_series(self, key: SeriesKey, start_ms: int, end_ms: int) -> Points:
        """Return the points of a series, whose rows need not be listed. Raise StoreError, CorruptRow."""
        spec = await self._tables.spec()
        rows: list[StoredRow] = []
        wrong: list[str] = []
        for row_ms in dict.fromkeys(map(spec.row_time, [*range(start_ms, end_ms, spec.width), end_ms])):
            bounds = spec.bounds(start_ms, end_ms, row_ms)
            for kind in (LONG, DOUBLE):
                row = DataRow(key.head.decode(), row_ms, kind, key.tail[TTL_BYTES:])
                if bounds is not None:
                    points = await self._tables.points(row.encode(), *bounds, ALL_POINTS, timed=True)
                    rows.append(StoredRow(row, points))
        found = decode_numbers(rows, spec, start_ms, end_ms, wrong.append)
        if wrong:
            raise CorruptRow(wrong[0])
        return found.points

    async def delete(self, request: SeriesRequest, first_ms: int, last_ms: int) -> None:
        """Delete points of any type, see `PointDeleter`."""
        resolved = resolve(request, names_id, parse_series_id)
        spec = await self._tables.spec()
        first_ms, last_ms = max(first_ms, FIRST_MS), min(last_ms, LAST_MS)
        async with aclosing(find_rows(self._tables, resolved.metric, first_ms, last_ms, resolved.passes)) as groups:
            async for group in groups:
                await self._delete_rows(group.rows, resolved, spec, (first_ms, last_ms))

    async def _delete_rows(
        self, rows: Sequence[FoundRow], resolved: Resolved, spec: RowSpec, span: tuple[int, int]
    ) -> None:
        """Delete rows of points, or parts of them, and the row times that have no rows any more."""
        stamp = self._tables.stamps()
        whole = {one.row.row_ms for one in rows if spec.holds_row(*span, one.row.row_ms)}
        unlists = bool(whole) and not self._shared
        delete = partial(self._delete_row, spec=spec, span=span, stamp_ms=stamp)
        async with self._index.lock:
            try:
                await run_bounded(rows, delete, limit=CONCURRENT)
                for row_ms in whole if unlists and not resolved.names_tags else ():
                    # Rows may have been listed since they were found, and a later delete must find them.
                    if not await self._tables.row_keys(resolved.metric, row_ms):
                        await self._tables.delete_row_time(resolved.metric, row_ms, stamp)
            finally:  # also if only some are deleted
                if unlists:
                    self._index.forget(resolved.metric)

    async def _delete_row(self, one: FoundRow, *, spec: RowSpec, span: tuple[int, int], stamp_ms: int) -> None:
        """Delete a row of points with its index rows, or a part of it."""
        bounds = spec.bounds(*span, one.row.row_ms)
        if spec.holds_row(*span, one.row.row_ms):
            await self._tables.delete_row(one.row, stamp_ms)
            if not self._shared:
                await self._tables.delete_row_key(one.row, one.tags, stamp_ms)
        elif bounds is not None:
            await self._tables.delete_points(one.row.encode(), *bounds, stamp_ms)

    async def delete_metric(self, metric: str) -> None:
        """Delete all points of a metric, and unless the tables are shared its name, see `PointDeleter`."""
        await self.delete(SeriesRequest(metric), FIRST_MS, LAST_MS)
        if not self._shared:
            async with self._index.lock:
                try:
                    if not await self._has_rows(metric):  # put since the others were deleted
                        await self._tables.delete_metric(metric, self._tables.stamps())
                finally:
                    self._index.forget(metric)
                    self._listed.pop(metric, None)

    async def _has_rows(self, metric: str) -> bool:
        """Return whether the index lists a row of a metric."""
        for row_ms in await self._tables.row_times(metric, FIRST_MS, LAST_MS):
            if await self._tables.row_keys(metric, row_ms):
                return True
        return False
