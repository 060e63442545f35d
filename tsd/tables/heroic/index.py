"""The index of series: which rows of points there are, and all names. Heroic has its own in another database.

A row is a letter and what it lists. `s` and a row key without its base time: the series has a column for each period of
2^32 ms with points, its number in 4 bytes. `m`, `k` and `v`, and a metric, a tag name or a tag value in UTF-8. Entries
are written before points, and values mean nothing.
"""

from collections.abc import Iterable, Sequence
from contextlib import aclosing
from functools import partial
from typing import NamedTuple

import trio

from tsd.codec.heroic.keys import BASE_BYTES, metric_prefix, parse_head, parse_tail
from tsd.codec.heroic.values import OFFSET_BYTES, PERIOD_MS
from tsd.codec.names import Kind
from tsd.errors import CorruptRow
from tsd.store import Put, Row, scan
from tsd.store.cells import prefix_end
from tsd.tables.heroic.tables import INDEX, HeroicTables
from tsd.tables.interned import in_thread
from tsd.tables.name_list import PAGE_ROWS, NameList, forget_oldest
from tsd.tables.writing import SeriesKey

SERIES = b"s"
LISTED = INDEX + b":"  # column of a name
PRESENT = b"1"
MOST_KNOWN = 1_000_000  # entries


class Entry(NamedTuple):
    """A row of points."""

    key: SeriesKey
    base_ms: int


class ListedSeries(NamedTuple):
    """A series with the first and the last of its listed rows."""

    key: SeriesKey
    first_ms: int
    last_ms: int


class SeriesList:
    """Lists series. What this process listed it does not write again."""

    def __init__(self, tables: HeroicTables) -> None:
        self.lock = trio.Lock()  # held while points and their entries are written, and while both are deleted
        self.name_list = NameList(tables.store, tables.index, "utf-8")
        self._tables = tables
        self._known: dict[tuple[bytes, bytes], None] = {}  # row and column; the oldest first
        self._listed: dict[Entry, None] = {}  # likewise

    async def ensure(self, entries: Iterable[Entry]) -> None:
        """Return when rows of points are listed. Raise StoreError."""
        places: dict[tuple[bytes, bytes], None] = {}
        new = [entry for entry in entries if entry not in self._listed]
        for key, base_ms in new:
            place = SERIES + key.head + key.tail, LISTED + (base_ms // PERIOD_MS).to_bytes(OFFSET_BYTES, "big")
            if place not in self._known and place not in places:
                places[place] = None
                for kind, names in _names(key).items():
                    places.update(((self.name_list.row(kind, name), LISTED), None) for name in names)
        await self._put(places)
        self._listed.update(dict.fromkeys(new))
        forget_oldest(self._listed, MOST_KNOWN)

    async def list_names(self, keys: Iterable[SeriesKey]) -> None:
        """Return when the names of series are listed. Raise StoreError."""
        names = [(kind, found) for key in keys for kind, found in _names(key).items()]
        await self._put(
            dict.fromkeys((self.name_list.row(kind, name), LISTED) for kind, found in names for name in found)
        )

    async def _put(self, places: Iterable[tuple[bytes, bytes]]) -> None:
        """Write the entries that are not known yet, each a row and a column."""
        if new := sorted(place for place in places if place not in self._known):
            await self._tables.put([Put(row, column, PRESENT) for row, column in new], index=True)
            self._known.update(dict.fromkeys(new))
        forget_oldest(self._known, MOST_KNOWN)

    async def has_metric(self, metric: str) -> bool:
        """Return whether a metric is listed. Raise StoreError."""
        row = self.name_list.row(Kind.METRIC, metric)
        return (row, LISTED) in self._known or await self.name_list.has(Kind.METRIC, metric)

    async def names(self, kind: Kind, prefix: str, limit: int) -> list[str]:
        """Return listed names of a kind with a prefix, in order of their bytes, at most `limit`. Raise StoreError."""
        return await self.name_list.names(kind, prefix, limit)

    async def series(self, metric: str) -> list[ListedSeries]:
        """Return the series of a metric. Raise StoreError."""
        prefix = SERIES + metric_prefix(metric)
        found: list[ListedSeries] = []
        listed = scan(self._tables.store, self._tables.index, prefix, prefix_end(prefix), limit=PAGE_ROWS)
        async with aclosing(listed) as pages:
            async for page in pages:
                found += await in_thread(len(page), partial(_all_listed, page))
        return found

    async def remove(self, metric: str) -> None:
        """Remove a metric with its series. Names of tags stay. Raise StoreError."""
        rows = {self.name_list.row(Kind.METRIC, metric): [LISTED]}
        async with aclosing(self.name_list.rows(SERIES + metric_prefix(metric))) as found:
            async for row in found:
                rows[row.key] = [cell.column for cell in row.cells]
        try:
            await self._tables.store.delete(self._tables.index, rows, up_to_ms=None)
        finally:  # also if only some are removed; last: a name that is resolved meanwhile is listed with its points
            self.forget()

    def forget(self) -> None:
        """Forget what is listed: it is written again."""
        self._known.clear()
        self._listed.clear()


def entry_of(row: bytes) -> Entry:
    """Return the entry of a row of points by its key. Raise CorruptRow."""
    _, _, at = parse_head(row)
    end = at + BASE_BYTES
    if len(row) < end:
        raise CorruptRow(f"row key: got {row.hex()}, wanted {BASE_BYTES} bytes of a base time at {at}")
    parse_tail(row[end:])
    base_ms = int.from_bytes(row[at:end], "big", signed=True)
    if base_ms < 0:
        raise CorruptRow(f"row key: got {row.hex()} of a time before 1970")
    return Entry(SeriesKey(row[:at], row[end:]), base_ms)


def _all_listed(rows: Sequence[Row]) -> list[ListedSeries]:
    return [one for one in map(_listed, rows) if one is not None]


def _listed(row: Row) -> ListedSeries | None:
    """Return the series of an entry, None if it cannot be read."""
    try:
        _, _, at = parse_head(row.key[1:])
        parse_tail(row.key[1 + at :])
    except CorruptRow:
        return None
    periods = [int.from_bytes(cell.column[len(LISTED) :], "big") for cell in row.cells]
    key = SeriesKey(row.key[1 : 1 + at], row.key[1 + at :])
    return ListedSeries(key, min(periods) * PERIOD_MS, max(periods) * PERIOD_MS)


def _names(key: SeriesKey) -> dict[Kind, list[str]]:
    metric, tags, _ = parse_head(key.head)
    pairs = [*tags, *parse_tail(key.tail)]
    return {
        Kind.METRIC: [metric],
        Kind.TAGK: [name for name, _ in pairs if name],
        Kind.TAGV: [value for _, value in pairs if value],
    }
