"""Reads and deletes points: the layout's `PointReader` and `PointDeleter`.

A query that names all tags of the row key reads the index for that prefix only; others read it for their metric.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from itertools import product
from math import prod
from typing import NamedTuple, TypeVar

import numpy as np

from tsd.codec.names import Kind
from tsd.codec.points import NO_POINTS, Points
from tsd.codec.tall.rules import Place, TableRule, rule_of
from tsd.errors import CorruptRow, UnknownName
from tsd.store.retry import run_bounded
from tsd.tables import reading
from tsd.tables.filters import matcher_of
from tsd.tables.interned import InternedSeries, Resolved, batch_of, in_thread, resolve
from tsd.tables.reading import PointPage, ScanRange, SeriesRequest, Take
from tsd.tables.tall.index import SeriesList
from tsd.tables.tall.rows import CONCURRENT, Decoded, Part, Reading, SeriesCells, decode
from tsd.tables.tall.series import Placing, parse_series_id, series_id
from tsd.tables.tall.tables import TallTables
from tsd.tables.writing import NO_KEY, SeriesKey, SeriesKeys

MOST_PREFIXES = 1000  # that are read from the index one by one
WARNINGS = 20  # of a page
POINTS_A_CELL = 32  # decoded points that are as much work as a stored cell
LAST_MS = (1 << 63) - 1
T = TypeVar("T")


class TallPage:
    """Points of one selection; each series is named by its pairs."""

    def __init__(self, series: InternedSeries, wrong: Sequence[str]) -> None:
        self._series = series
        self._points: list[tuple[bytes, Points]] = []
        self._wrong = [*wrong]
        self._rows: set[bytes] = set()
        self._size = 0
        self.cells = 0

    def add(self, pairs: bytes, rows: Sequence[bytes], decoded: Decoded, size: int) -> None:
        """Add the points of a series with the row key of each, and the bytes of their columns and values."""
        self._points.append((pairs, decoded.points))
        self._wrong += decoded.wrong
        self._rows.update(rows)
        self._size += size
        self.cells += 1 + len(rows) // POINTS_A_CELL

    def series(self) -> list[bytes]:
        """Return the series of the page."""
        return [pairs for pairs, _ in self._points]

    def decode(self) -> PointPage:
        """Return the points."""
        batch = batch_of([(self._series.numbers[pairs], points) for pairs, points in self._points])
        return PointPage(batch, len(self._rows), self._size, (), self._wrong[:WARNINGS], 0, None)


class TallSelection(reading.Selection):
    """One request, resolved."""

    reads_hours_in_parts = True  # an hour of a series may come in several pages

    def __init__(self, reader: "TallReader", request: SeriesRequest, resolved: Resolved, rule: TableRule) -> None:
        self._reader = reader
        self._request = request
        self._resolved = resolved
        self._rule = rule
        group_by = {one.tagk for one in request.filters if one.group_by}
        self.series = InternedSeries(group_by, lambda series: series)
        self.joint: reading.JointSource = TallRows(reader, rule)
        self._read: dict[bytes, list[bytes]] = {}  # columns by row, for `delete`
        self._written_ms: dict[bytes, int] = {}  # the newest of a row's cells
        self.metric = resolved.metric
        tagks = tuple(sorted(self.series.id_of(Kind.TAGK, tagk) for tagk in resolved.tagks))
        self.filter_tagks = tagks or None

    def pairs_of(self, keys: SeriesKeys) -> list[bytes | None]:
        """Return the ids of the tags of those series that pass the filters."""
        names_of = self._reader.placing.names_of
        return [None if key == NO_KEY else self._pairs_of(*names_of(key)) for key in keys]

    def _pairs_of(self, metric: str, tags: Mapping[str, str]) -> bytes | None:
        if metric != self.metric or not self._resolved.passes(tags):
            return None
        return self.series.pairs_of(series_id(metric, tags), tags)

    async def read(self, span: ScanRange, take: Take[PointPage], *, annotations: bool) -> None:  # noqa: ARG002 - none
        """Read the rows of points, page by page."""
        await self.joint.read(span, [(self, take)])

    async def places(self) -> list[Place]:
        """Return places among which are those of the series. Raise StoreError."""
        return await self._reader.places(self._request, self._resolved, self._rule)

    def add_owned(self, number: int, places: list[Place], wanted: dict[bytes, dict[bytes, list["Owner"]]]) -> None:
        """Add the places of the series to what is asked for, with the number of this selection. Empty `places`."""
        for place in sorted(places):
            if self._reader.is_readable(self._rule, place):
                pairs = self._pairs_of(*self._rule.names(place))
                if pairs is not None:
                    wanted.setdefault(place.prefix, {}).setdefault(place.field, []).append(Owner(number, pairs))
        places.clear()  # here, in a thread: many take long

    def remember(self, series: SeriesCells[T]) -> None:
        """Remember cells for `delete`."""
        if self._request.delete:
            for row, place in zip(series.rows(), series.places, strict=True):
                cell = series.page.cell(place)
                self._read.setdefault(row, []).append(cell.column)
                self._written_ms[row] = max(self._written_ms.get(row, 0), cell.time_ms)

    async def delete(self, read_ms: int) -> None:  # noqa: ARG002
        """Delete the points that were read, unless they were written again since. Stores may stamp writes in quick
        succession later than `read_ms`, so the stamps that were read count."""
        for row, columns in self._read.items():
            await self._reader.tables.delete(self._rule, {row: columns}, self._written_ms[row])
        await self._reader.tables.store.sync()


class Owner(NamedTuple):
    """A series that is asked for."""

    number: int  # of a selection
    pairs: bytes


class TallRows:
    """Rows of a table, which are read once for all selections of one query."""

    def __init__(self, reader: "TallReader", rule: TableRule) -> None:
        self._reader = reader
        self._rule = rule

    def key(self) -> str:
        """See JointSource."""
        return self._rule.table

    async def read(self, span: ScanRange, takes: Sequence[tuple[reading.Selection, Take[PointPage]]]) -> None:
        """See JointSource."""
        selections = [_own(selection) for selection, _ in takes]
        places: dict[int, list[Place]] = {}

        async def find(number: int) -> None:
            places[number] = await selections[number].places()

        await run_bounded(range(len(selections)), find, limit=CONCURRENT)
        wanted: dict[bytes, dict[bytes, list[Owner]]] = {}
        for number, selection in enumerate(selections):
            found = places.pop(number)
            await in_thread(len(found), partial(selection.add_owned, number, found, wanted))
        rows = Reading(self._reader.tables, self._rule, wanted, span.start_ms, span.stop_ms - 1)
        async with aclosing(rows.used(partial(_pages, selections))) as parts:
            async for pages in parts:
                for number, page in pages.items():
                    await takes[number][1](page)
        await in_thread(len(wanted), wanted.clear)


def _own(selection: reading.Selection) -> TallSelection:
    assert isinstance(selection, TallSelection)
    return selection


def _pages(selections: Sequence[TallSelection], part: Part[list[Owner]]) -> dict[int, TallPage]:
    """Return the pages of selections by number. A series of several selections is decoded once."""
    found = {number: TallPage(one.series, part.wrong) for number, one in enumerate(selections)} if part.wrong else {}
    for series in part.series:
        decoded, rows = decode(series), series.rows()
        size = sum(map(len, series.columns())) + sum(map(len, series.values()))
        for number, pairs in series.owner:
            selections[number].remember(series)
            if number not in found:
                found[number] = TallPage(selections[number].series, ())
            found[number].add(pairs, rows, decoded, size)
    return found


class TallReader(reading.PointReader):
    """Requests → selections; deletes by time."""

    selects_together = True

    def __init__(
        self, tables: TallTables, index: SeriesList, placing: Placing, *, is_known: Callable[[str], bool]
    ) -> None:
        """`is_known` returns whether points of a metric are about to be written."""
        self.tables = tables
        self.placing = placing
        self._index = index
        self._is_known = is_known

    async def select(self, request: SeriesRequest) -> TallSelection:
        """Resolve a request. Raise BadQuery, StoreError."""
        resolved, rule = self.resolve(request), self.rule(request)
        if rule is None or not (self._is_known(resolved.metric) or await self._index.has_metric(resolved.metric)):
            raise UnknownName(Kind.METRIC.value, resolved.metric)
        return TallSelection(self, request, resolved, rule)

    def resolve(self, request: SeriesRequest) -> Resolved:
        """Return the metric of a request, and the test of its series. Raise BadQuery."""
        return resolve(request, series_id, parse_series_id)

    def rule(self, request: SeriesRequest) -> TableRule | None:
        """Return the rule that applies to the metric of a request. Raise BadQuery."""
        return rule_of(self.placing.rules, self.resolve(request).metric)

    async def places(self, request: SeriesRequest, resolved: Resolved, rule: TableRule) -> list[Place]:
        """Return places of series of a request, and of others with the same tags in their row keys, in any order. Raise
        StoreError."""
        prefixes = named_prefixes(request, rule)
        found: list[Place] = []
        if prefixes is None:
            found = await self._index.places(resolved.metric)
        else:

            async def read(prefix: bytes) -> None:
                found.extend(await self._index.places(resolved.metric, prefix))

            await run_bounded(prefixes, read, limit=CONCURRENT)
        return found

    def is_readable(self, rule: TableRule, place: Place) -> bool:
        """Return whether the rule can read a place. One that it cannot read is of an earlier rule."""
        try:
            self.placing.names_of(self.placing.key_at(rule, place))
        except CorruptRow:
            return False
        return True

    async def read_series(self, key: SeriesKey, start_ms: int, end_ms: int) -> Points:
        """Return the points of a series, which need not be listed. Raise StoreError, CorruptRow."""
        rule, place = self.placing.placed(key)
        found = Reading(self.tables, rule, {place.prefix: {place.field: b""}}, start_ms, end_ms)
        points = [NO_POINTS]
        async with aclosing(found.parts()) as parts:
            async for part in parts:
                decoded = [decode(one) for one in part.series]
                if wrong := [*part.wrong, *(text for one in decoded for text in one.wrong)]:
                    raise CorruptRow(wrong[0])
                points += [one.points for one in decoded]
        return Points(*map(np.concatenate, zip(*points, strict=True)))

    async def delete(self, request: SeriesRequest, first_ms: int, last_ms: int) -> None:
        """Delete points, see `PointDeleter`. The index keeps their series."""
        resolved, rule = self.resolve(request), self.rule(request)
        if rule is None:
            return
        wanted: dict[bytes, dict[bytes, None]] = {}

        def choose(places: list[Place]) -> None:
            for place in sorted(places):
                if self.is_readable(rule, place) and resolved.passes(rule.names(place)[1]):
                    wanted.setdefault(place.prefix, {})[place.field] = None
            places.clear()

        listed = await self.places(request, resolved, rule)
        await in_thread(len(listed), partial(choose, listed))
        found = Reading(self.tables, rule, wanted, first_ms, last_ms)
        async with aclosing(found.parts()) as parts:
            async for part in parts:
                rows: dict[bytes, list[bytes]] = {}
                for one in part.series:
                    for row, column in zip(one.rows(), one.columns(), strict=True):
                        rows.setdefault(row, []).append(column)
                await self.tables.delete(rule, rows, None)
        await self.tables.store.sync()

    async def delete_metric(self, metric: str) -> None:
        """Delete all points of a metric, and its name, see `PointDeleter`."""
        async with self._index.lock:
            await self.delete(SeriesRequest(metric), 0, LAST_MS)
            await self._index.remove(metric)


def named_prefixes(request: SeriesRequest, rule: TableRule) -> Sequence[bytes] | None:
    """Return the prefixes of row keys that a request names; None if it names too many, or does not name a tag."""
    if request.tsuids:
        tags = [parse_series_id(bytes.fromhex(text)).tags for text in request.tsuids]
    else:
        values: list[Sequence[str]] = []
        for field in rule.template.fields:
            named = [one for one in request.filters if one.tagk == field.tag]
            literals = [found for one in named if (found := matcher_of(one).literals)]
            if not literals:
                return None
            values.append(min(literals, key=len))
        if prod(map(len, values)) > MOST_PREFIXES:
            return None
        names = [field.tag for field in rule.template.fields]
        tags = [dict(zip(names, chosen, strict=True)) for chosen in product(*values)]
    prefixes: dict[bytes, None] = {}
    for one in tags:
        try:
            prefixes[rule.template.prefix(one)] = None
        except ValueError:
            continue  # no series has such tags
    return list(prefixes)
