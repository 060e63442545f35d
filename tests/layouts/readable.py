"""A second table layout, as small as it can be: points under readable keys, without UIDs, metadata and trees.

The table `points` has a row for each series and hour, `sys.cpu|dc=lga|host=web01|1356998400` with zero bytes for the
bars, and in it a cell for each point: `p:1356998410000` has the text of its number. The table `series` has a row for
each series. Users see a series' key in hex where OpenTSDB has TSUIDs. Queries need ids of names, which are interned.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from tests.query_vectors import from_points, to_points
from tsd.codec.names import Kind, Widths, parse_uid
from tsd.codec.points import NO_POINTS, Batch, Columns, Points
from tsd.codec.putline import HOUR_S, split_tags
from tsd.codec.text import decode_number
from tsd.errors import UNKNOWN_NAME, BadLine, BadQuery, NoSuchName, UnknownName
from tsd.store import Family, Put, Row, Store, Table, scan
from tsd.tables import catalog, reading
from tsd.tables.filters import matcher_of
from tsd.tables.writing import NO_KEY, Admission, Hours, ResolvedSeries, SeriesKey, SeriesKeys, SeriesLookup, SeriesText

POINTS, SERIES, COLUMN = "points", "series", b"p:"
TABLES = [Table(POINTS, (Family(b"p"),)), Table(SERIES, (Family(b"p"),))]
ID_BYTES, HOUR_BYTES = 3, 10
Take = Callable[[reading.EncodedPage[reading.PointPage]], Awaitable[None]]


def key_of(text: SeriesText) -> bytes:
    return b"\0".join([text.metric, *sorted(b"%s=%s" % tag for tag in split_tags(text.tags))])


def split_key(key: bytes) -> tuple[str, dict[str, str]]:
    """Return the metric and the tags of a series."""
    metric, *words = key.decode("latin-1").split("\0")
    return metric, dict(word.split("=", 1) for word in words)


def split_row(row: Row) -> tuple[bytes, int]:
    return row.key[: -HOUR_BYTES - 1], int(row.key[-HOUR_BYTES:])


def points_of(row: Row) -> Points:
    texts = {int(cell.column[len(COLUMN) :]): cell.value.decode() for cell in row.cells}
    return to_points({time: float(text) if set(text) & set(".en") else int(text) for time, text in texts.items()})


def joined(rows: Iterable[Row]) -> Points:
    return Points(*map(np.concatenate, zip(NO_POINTS, *map(points_of, rows), strict=True)))


async def rows_of(store: Store, table: str, start: bytes = b"", stop: bytes | None = None) -> list[Row]:
    return [row async for page in scan(store, table, start, stop) for row in page]


class ReadableSeries:
    """Every series by its key, and the ids of names, in the order in which they were seen. Resolves series to keys."""

    composer = None

    def __init__(self, store: Store, *, creates_metrics: bool = True) -> None:
        self._store = store
        self._creates_metrics = creates_metrics
        self.ids: dict[Kind, dict[str, bytes]] = {kind: {} for kind in Kind}
        self.pairs: dict[bytes, bytes] = {}  # ids of the tags of each series, by its key

    async def resolve(self, series: Sequence[SeriesText], admission: Admission | None = None) -> ResolvedSeries:
        await self.load()
        keys = list(map(key_of, series))
        new = {name: None for key in keys for name in self._names_of(key) if name[1] not in self.ids[name[0]]}
        errors = {name: error for name in new if (error := self._check(*name, admission))}
        first = [next((errors[name] for name in self._names_of(key) if name in errors), None) for key in keys]
        await self._put([key for key, error in zip(keys, first, strict=True) if not error])
        found = [NO_KEY if error else SeriesKey(key, b"") for key, error in zip(keys, first, strict=True)]
        return ResolvedSeries(SeriesKeys.of(found), {at: error for at, error in enumerate(first) if error})

    def _check(self, kind: Kind, name: str, admission: Admission | None) -> BadLine | None:
        if kind is Kind.METRIC and not self._creates_metrics:
            return BadLine(UNKNOWN_NAME, f"unknown metric: No such name for 'metrics': '{name}'")
        return admission.admit_name(kind, name.encode("latin-1")) if admission else None

    async def assign(self, series: SeriesText) -> SeriesKey:
        await self._put([key_of(series)])
        return SeriesKey(key_of(series), b"")

    async def load(self) -> None:
        if not self.pairs:
            self._add([row.key for row in await rows_of(self._store, SERIES)])

    async def _put(self, keys: Iterable[bytes]) -> None:
        await self.load()
        new = list(dict.fromkeys(key for key in keys if key not in self.pairs))
        await self._store.put(SERIES, [Put(key, COLUMN, b"") for key in new])
        self._add(new)

    def _add(self, keys: Iterable[bytes]) -> None:
        for key in keys:
            for kind, name in self._names_of(key):
                self.ids[kind].setdefault(name, (len(self.ids[kind]) + 1).to_bytes(ID_BYTES, "big"))
            tags = split_key(key)[1].items()
            self.pairs[key] = b"".join(sorted(self.ids[Kind.TAGK][k] + self.ids[Kind.TAGV][v] for k, v in tags))

    def _names_of(self, key: bytes) -> list[tuple[Kind, str]]:
        metric, tags = split_key(key)
        return [(Kind.METRIC, metric), *((Kind.TAGK, k) for k in tags), *((Kind.TAGV, v) for v in tags.values())]

    def id_of(self, kind: Kind, name: str) -> bytes:
        if name not in self.ids[kind]:
            raise NoSuchName(f"No such name for '{kind.value}': '{name}'")
        return self.ids[kind][name]


class ReadableWriter:
    """Points → cells, one for each point."""

    summaries = None

    def __init__(self, store: Store) -> None:
        self._store = store
        self.cells = 0

    async def write(self, points: Columns, series: SeriesLookup, *, hours: Hours = Hours.OPEN) -> None:
        numbers, places = np.unique(points.series, return_inverse=True)
        keys = [key.head for key in series.keys(numbers)]
        cells: dict[tuple[bytes, bytes], bytes] = {}  # by row and column: the last one of equal points
        columns = (column.tolist() for column in (places, points.instants, points.flags, points.bits))
        for place, instant, flags, bits in zip(*columns, strict=True):
            time_ms = instant >> 1
            row = b"%s\0%010d" % (keys[place], time_ms // 1000 // HOUR_S * HOUR_S)
            value = bits.to_bytes(8, "big", signed=True)[-(flags & 7) - 1 :]
            cells[row, b"%s%d" % (COLUMN, time_ms)] = repr(decode_number(flags, value)).encode()
        await self._store.put(POINTS, [Put(*cell, value) for cell, value in sorted(cells.items())])
        self.cells += len(cells)

    async def record(self, points: Columns, series: SeriesLookup) -> None:
        pass  # series are known as soon as they have a key

    async def sync(self) -> None:
        await self._store.sync()


@dataclass
class ReadableSelection(reading.Selection, reading.SeriesSet):
    """One request, resolved. It is its own set of series."""

    store: Store
    known: ReadableSeries
    metric: str
    passes: Callable[[bytes], bool]  # whether a series matches, by its key
    group_by: tuple[bytes, ...]
    filter_tagks: tuple[bytes, ...] | None
    numbers: dict[bytes, int] = field(default_factory=dict)
    series_pairs: list[bytes] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)  # that were read of matching series
    widths = Widths(ID_BYTES, ID_BYTES, ID_BYTES)
    resolved = 0

    def __post_init__(self) -> None:
        self.series = self
        self._keys = {pairs: key for key, pairs in self.known.pairs.items() if split_key(key)[0] == self.metric}

    async def match(self, series_pairs: Iterable[bytes]) -> None:
        for one in series_pairs:
            if one not in self.numbers:
                matches = self.passes(self._keys[one])
                self.numbers[one] = len(self.series_pairs) if matches else reading.UNWANTED
                self.series_pairs += [one] * matches

    async def names(self, kind: Kind, ids: Sequence[bytes]) -> dict[bytes, str]:
        return {one: name for name, one in self.known.ids[kind].items() if one in ids}

    def order(self, numbers: Iterable[int]) -> list[int]:
        return sorted(numbers, key=self.series_pairs.__getitem__)

    def tsuid(self, pairs: bytes) -> bytes:
        return self._keys[pairs]

    def pairs_of(self, keys: SeriesKeys) -> list[bytes | None]:
        return [self.known.pairs[key.head] if split_key(key.head)[0] == self.metric else None for key in keys]

    async def read(self, span: reading.ScanRange, take: Take, **_: bool) -> None:
        metric = self.metric.encode("latin-1")
        rows = await rows_of(self.store, POINTS, metric + b"\0", metric + b"\1")
        if within := [row for row in rows if span.start_s <= split_row(row)[1] < span.stop_s]:
            await take(ReadablePage(self, within))

    async def delete(self, read_ms: int) -> None:
        columns = {row.key: [cell.column for cell in row.cells] for row in self.rows}
        await self.store.delete(POINTS, columns, up_to_ms=read_ms)


class ReadablePage:
    """Some rows of a selection."""

    def __init__(self, selection: ReadableSelection, rows: Sequence[Row]) -> None:
        self._selection = selection
        self._rows = rows
        self._series_pairs = [selection.known.pairs[split_row(row)[0]] for row in rows]
        self.cells = sum(len(row.cells) for row in rows)

    def series(self) -> set[bytes]:
        return set(self._series_pairs)

    def decode(self) -> reading.PointPage:
        numbers = np.array([self._selection.numbers[pairs] for pairs in self._series_pairs], np.int32)
        rows = [row for row, number in zip(self._rows, numbers, strict=True) if number != reading.UNWANTED]
        self._selection.rows += rows
        starts = np.cumsum([0, *(len(row.cells) for row in rows)])
        size = sum(len(cell.column) + len(cell.value) for row in rows for cell in row.cells)
        batch = Batch(numbers[numbers != reading.UNWANTED], starts, *joined(rows))
        return reading.PointPage(batch, len(self._rows), size, (), (), 0, None)


@dataclass
class ReadableReader(reading.PointReader):
    """Requests → selections."""

    store: Store
    known: ReadableSeries

    async def select(self, request: reading.SeriesRequest) -> ReadableSelection:
        await self.known.load()
        tests = [(f.tagk, matcher_of(f, loose_wildcards=request.quirks.loose_wildcards)) for f in request.filters]
        try:
            keys = {parse_uid(text) for text in request.tsuids}
            metric = split_key(min(keys))[0] if keys else request.metric
        except BadLine as error:
            raise BadQuery(str(error)) from error
        self._id_of(Kind.METRIC, metric)
        tagks = {tagk: self._id_of(Kind.TAGK, tagk) for tagk, _ in tests}
        for name in [name for _, test in tests for name in test.literals]:
            self._id_of(Kind.TAGV, name)

        def passes(key: bytes) -> bool:
            tags = split_key(key)[1]
            if (keys and key not in keys) or (request.explicit_tags and tests and not tags.keys() <= tagks.keys()):
                return False
            return all(test.matches(tags[tagk]) if tagk in tags else test.wants_no_key for tagk, test in tests)

        group_by = tuple(sorted({tagks[one.tagk] for one in request.filters if one.group_by}))
        filter_tagks = tuple(sorted(tagks.values())) or None
        return ReadableSelection(self.store, self.known, metric, passes, group_by, filter_tagks)

    def _id_of(self, kind: Kind, name: str) -> bytes:
        try:
            return self.known.id_of(kind, name)
        except NoSuchName:
            raise UnknownName(kind.value, name) from None

    async def read_series(self, key: SeriesKey, start_ms: int, end_ms: int) -> Points:
        points = joined(await rows_of(self.store, POINTS, key.head + b"\0", key.head + b"\1"))
        return points.at((points.times >= start_ms) & (points.times <= end_ms))


@dataclass
class SelectedKeys:
    """The series of a selector."""

    keys: list[bytes]
    exact: Callable[[], bytes | None]

    async def pages(self, limit: int | None = None) -> AsyncGenerator[list[bytes], None]:
        yield self.keys[:limit]


@dataclass
class ReadableCatalog:
    """Names, series and their newest points."""

    store: Store
    known: ReadableSeries
    now_ms: Callable[[], int]
    warnings = 0

    async def suggest(self, kind: Kind, prefix: str, limit: int) -> list[str]:
        await self.known.load()
        return sorted(name for name in self.known.ids[kind] if name.startswith(prefix))[:limit]

    async def metrics(self) -> list[str]:
        return await self.suggest(Kind.METRIC, "", 1 << 30)

    async def select(self, selector: catalog.SeriesSelector) -> SelectedKeys:
        await self.known.load()
        any_name = set() if selector.is_literal else {"*", ""}
        wanted = {tagk: {v for k, v in selector.tags if k == tagk} for tagk, _ in selector.tags}
        tags = [name for k, v in selector.tags for name in ((Kind.TAGK, k), (Kind.TAGV, v))]
        for kind, name in [(Kind.METRIC, selector.metric), *tags]:
            if name not in any_name:
                self.known.id_of(kind, name)

        def selects(key: bytes) -> bool:
            metric, tags = split_key(key)
            found = {tagk: set(tags.values()) if tagk in any_name else {tags.get(tagk)} - {None} for tagk in wanted}
            matches = [found[tagk] and tagvs & (found[tagk] | any_name) for tagk, tagvs in wanted.items()]
            return selector.metric in {metric, *any_name} and all(matches)

        exact = "\0".join([selector.metric, *sorted(f"{k}={v}" for k, v in selector.tags)]).encode("latin-1")
        return SelectedKeys(sorted(filter(selects, self.known.pairs)), lambda: exact if wanted else None)

    async def describe(self, series: Sequence[bytes]) -> list[catalog.SeriesName]:
        return [catalog.SeriesName(key, *split_key(key)) for key in series if key in self.known.pairs]

    async def metrics_of(self, series: Iterable[bytes]) -> set[bytes]:
        return {key.partition(b"\0")[0] for key in series}

    async def last_points(self, series: Sequence[bytes], back_h: int | None) -> catalog.LastPoints:
        first_s = 0 if back_h is None else self.now_ms() // 1000 // HOUR_S * HOUR_S - back_h * HOUR_S
        found = [await rows_of(self.store, POINTS, b"%s\0%010d" % (key, first_s), key + b"\1") for key in series]
        newest = [max(from_points(points_of(rows[-1])).items()) if rows else None for rows in found]
        return catalog.LastPoints([point and catalog.LastPoint(*point) for point in newest], ())

    def parse_series(self, text: str) -> bytes:
        return parse_uid(text)
