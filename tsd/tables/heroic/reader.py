"""Reads and deletes points of Heroic's table: the layout's `PointReader` and `PointDeleter`.

Rows with other resources are series of their own, because entries of a resource are tags here. If two keys have
the same tags all the same, their points are one series.
"""

from collections.abc import Callable, Sequence
from contextlib import aclosing
from functools import partial

from tsd.codec.heroic.values import PERIOD_MS
from tsd.codec.names import Kind
from tsd.codec.points import Points
from tsd.errors import CorruptRow, UnknownName
from tsd.tables import reading
from tsd.tables.heroic.index import ListedSeries, SeriesList
from tsd.tables.heroic.series import names_of, parse_series_id, series_id
from tsd.tables.heroic.slices import StoredRow, decode_rows, read_slice, slices
from tsd.tables.heroic.tables import HeroicTables
from tsd.tables.interned import InternedSeries, Resolved, batch_of, in_thread, resolve
from tsd.tables.reading import PointPage, ScanRange, SeriesRequest, Take
from tsd.tables.writing import NO_KEY, SeriesKey, SeriesKeys

SERIES_AT_ONCE = 100
WARNINGS = 20  # of a page
LAST_MS = (1 << 63) - 1


class HeroicPage:
    """Rows of some series as stored."""

    def __init__(self, series: InternedSeries, rows: Sequence[tuple[bytes, Sequence[StoredRow]]]) -> None:
        """`rows` has the rows of each series by its pairs."""
        self._series = series
        self._rows = rows
        self.cells = sum(len(row.cells) for _, rows_of_one in rows for row in rows_of_one)

    def series(self) -> list[bytes]:
        """Return the series of the page."""
        return [pairs for pairs, _ in self._rows]

    def decode(self) -> PointPage:
        """Decode the rows."""
        decoded = [(self._series.numbers[pairs], decode_rows(rows)) for pairs, rows in self._rows]
        stored = [row for _, rows in self._rows for row in rows]
        warnings = [text for _, one in decoded for text in one.wrong]
        batch = batch_of([(number, one.points) for number, one in decoded])
        duplicates = sum(one.duplicates for _, one in decoded)
        return PointPage(batch, len(stored), sum(row.size for row in stored), (), warnings[:WARNINGS], duplicates, None)


class HeroicSelection(reading.Selection):
    """One request, resolved."""

    reads_hours_in_parts = True  # an hour of a series may come in several pages

    def __init__(self, reader: "HeroicReader", resolved: Resolved, series: InternedSeries, *, deletes: bool) -> None:
        self._reader = reader
        self._resolved = resolved
        self._series = self.series = series
        self._deletes = deletes
        self._read: list[StoredRow] = []  # for `delete`
        self.metric = resolved.metric
        tagks = tuple(sorted(series.id_of(Kind.TAGK, tagk) for tagk in resolved.tagks))
        self.filter_tagks = tagks or None

    def pairs_of(self, keys: SeriesKeys) -> list[bytes | None]:
        """Return the ids of the tags of those series that pass the filters."""
        return [None if key == NO_KEY else self._pairs_of(key) for key in keys]

    def _pairs_of(self, key: SeriesKey) -> bytes | None:
        metric, tags = names_of(key)
        if metric != self.metric or not self._resolved.passes(tags):
            return None
        return self._series.pairs_of(series_id(metric, tags), tags)

    async def read(self, span: ScanRange, take: Take[PointPage], *, annotations: bool) -> None:  # noqa: ARG002 - none
        """Read the rows of points, page by page."""
        for group in await self._reader.groups(self._resolved):
            pairs_by_key = {one.key: self._pairs_of(one.key) for one in group}
            async with aclosing(slices(self._reader.tables, group, span.start_ms, span.stop_ms - 1)) as parts:
                async for part in parts:
                    rows: dict[bytes, list[StoredRow]] = {}
                    for key, stored in part.items():
                        if (found := pairs_by_key[key]) is not None:
                            rows.setdefault(found, []).extend(stored)
                            self._read += stored if self._deletes else ()
                    await take(HeroicPage(self._series, list(rows.items())))

    async def delete(self, read_ms: int) -> None:  # noqa: ARG002
        """Delete the points that were read, unless they were written again since. Stores may stamp writes in quick
        succession later than `read_ms`, so the stamps that were read count."""
        for row in self._read:
            newest_ms = max(cell.time_ms for cell in row.cells)
            await self._reader.tables.delete({row.row: row.cells}, newest_ms)
        await self._reader.tables.store.sync()


class HeroicReader(reading.PointReader):
    """Requests → selections; deletes by time."""

    def __init__(
        self,
        tables: HeroicTables,
        index: SeriesList,
        *,
        is_known: Callable[[str], bool],
        now_ms: Callable[[], int],
    ) -> None:
        """`is_known` returns whether points of a metric are about to be written."""
        self.tables = tables
        self._index = index
        self._is_known = is_known
        self._now_ms = now_ms

    async def select(self, request: SeriesRequest) -> HeroicSelection:
        """Resolve a request. Raise BadQuery, StoreError."""
        resolved = resolve(request, series_id, parse_series_id)
        if not self._is_known(resolved.metric) and not await self._index.has_metric(resolved.metric):
            raise UnknownName(Kind.METRIC.value, resolved.metric)
        group_by = {one.tagk for one in request.filters if one.group_by}
        return HeroicSelection(self, resolved, InternedSeries(group_by, lambda series: series), deletes=request.delete)

    async def groups(self, resolved: Resolved) -> list[list[ListedSeries]]:
        """Return the listed series of a request, some at a time. Those with the same tags are together."""
        listed = await self.listed(resolved.metric)
        return await in_thread(len(listed), partial(_groups, listed, resolved))

    async def listed(self, metric: str) -> list[ListedSeries]:
        """Return the listed series of a metric. Each may have points up to the present, which Heroic writes."""
        present_ms = self._now_ms() // PERIOD_MS * PERIOD_MS
        listed = await self._index.series(metric)

        def extend() -> None:
            listed[:] = [one._replace(last_ms=max(one.last_ms, present_ms)) for one in listed]

        await in_thread(len(listed), extend)
        return listed

    async def read_series(self, key: SeriesKey, start_ms: int, end_ms: int) -> Points:
        """Return the points of a series, which need not be listed. Raise StoreError, CorruptRow."""
        whole = ListedSeries(key, 0, end_ms)
        found = decode_rows((await read_slice(self.tables, [whole], start_ms, end_ms)).get(key, ()))
        if found.wrong:
            raise CorruptRow(found.wrong[0])
        return found.points

    async def delete(self, request: SeriesRequest, first_ms: int, last_ms: int) -> None:
        """Delete points, see `PointDeleter`. The index keeps their series."""
        for group in await self.groups(resolve(request, series_id, parse_series_id)):
            async with aclosing(slices(self.tables, group, first_ms, last_ms)) as parts:
                async for part in parts:
                    rows = {row.row: row.cells for stored in part.values() for row in stored}
                    await self.tables.delete(rows, None)
        await self.tables.store.sync()

    async def delete_metric(self, metric: str) -> None:
        """Delete all points of a metric, and its name, see `PointDeleter`."""
        async with self._index.lock:
            await self.delete(SeriesRequest(metric), 0, LAST_MS)
            await self._index.remove(metric)


def _groups(listed: list[ListedSeries], resolved: Resolved) -> list[list[ListedSeries]]:
    """Return the groups of `HeroicReader.groups`, and empty `listed`: freeing many takes long."""
    by_tags: dict[bytes, list[ListedSeries]] = {}
    for one in listed:
        metric, tags = names_of(one.key)
        if resolved.passes(tags):
            by_tags.setdefault(series_id(metric, tags), []).append(one)
    listed.clear()
    found = [by_tags[each] for each in sorted(by_tags)]
    parts = (found[at : at + SERIES_AT_ONCE] for at in range(0, len(found), SERIES_AT_ONCE))
    return [[one for same in part for one in same] for part in parts]
