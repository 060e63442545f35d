"""The index of series: which there are, by metric and then by the prefix of their row keys, and all names.

A row is a letter and what it lists. `s`, a metric, the prefix of row keys and the field, with zero bytes between them:
a series. `m`, `k` and `v`, and a metric, a tag name or a tag value. Entries are written before points; their values
mean nothing.
"""

from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import NamedTuple

import trio

from tsd.codec.names import Kind
from tsd.codec.tall.fields import COLUMN
from tsd.codec.tall.rules import Place
from tsd.store import Put, Row, scan
from tsd.store.cells import prefix_end
from tsd.tables.interned import in_thread
from tsd.tables.name_list import PAGE_ROWS, NameList, forget_oldest
from tsd.tables.tall.tables import TallTables
from tsd.tables.writing import SeriesKey

SERIES = b"s"
END, NEXT = b"\0", b"\1"  # of a name, and what follows it
PRESENT = b"1"
MOST_KNOWN = 1_000_000  # entries


class ListedSeries(NamedTuple):
    """A series with its place."""

    metric: str
    tags: Mapping[str, str]
    place: Place


class SeriesList:
    """Lists series. What this process listed it does not write again."""

    def __init__(self, tables: TallTables) -> None:
        self.lock = trio.Lock()  # held while points and their entries are written, and while both are deleted
        self.name_list = NameList(tables.store, tables.index, "latin-1")
        self._tables = tables
        self._known: dict[bytes, None] = {}  # rows; the oldest first
        self._keys: dict[SeriesKey, None] = {}  # of listed series; likewise

    async def ensure(self, keys: Iterable[SeriesKey], listed: Callable[[SeriesKey], ListedSeries]) -> None:
        """Return when series and their names are listed; `listed` returns the entry of a key. Raise StoreError."""
        rows: dict[bytes, None] = {}
        new_keys = [key for key in keys if key not in self._keys]
        for metric, tags, place in map(listed, new_keys):
            row = _series_row(metric, place)
            if row in self._known or row in rows:
                continue
            rows[row] = None
            words = [(Kind.METRIC, metric), *((Kind.TAGK, each) for each in tags)]
            words += [(Kind.TAGV, each) for each in tags.values()]
            rows.update((self.name_list.row(kind, name), None) for kind, name in words)
        if new := sorted(row for row in rows if row not in self._known):
            await self._tables.store.put(self._tables.index, [Put(row, COLUMN, PRESENT) for row in new])
            self._known.update(dict.fromkeys(new))
        self._keys.update(dict.fromkeys(new_keys))
        forget_oldest(self._known, MOST_KNOWN)
        forget_oldest(self._keys, MOST_KNOWN)

    async def has_metric(self, metric: str) -> bool:
        """Return whether a metric is listed. Raise StoreError."""
        return self.name_list.row(Kind.METRIC, metric) in self._known or await self.name_list.has(Kind.METRIC, metric)

    async def names(self, kind: Kind, prefix: str, limit: int) -> list[str]:
        """Return listed names of a kind with a prefix, in order of their bytes, at most `limit`. Raise StoreError."""
        return await self.name_list.names(kind, prefix, limit)

    async def places(self, metric: str, prefix: bytes | None = None) -> list[Place]:
        """Return the places of the series of a metric, all or those with one prefix of row keys. Raise StoreError."""
        head = SERIES + _encode(metric) + END
        start = head if prefix is None else head + prefix + END
        found: list[Place] = []
        listed = scan(self._tables.store, self._tables.index, start, prefix_end(start), limit=PAGE_ROWS)
        async with aclosing(listed) as pages:
            async for page in pages:
                found += await in_thread(len(page), partial(_places, page, len(head)))
        return found

    async def prefixes(self, metric: str, after: bytes, limit: int) -> AsyncGenerator[list[bytes], None]:
        """Yield the prefixes of row keys of a metric's series after one, in order, up to `limit` at a time. Raise
        StoreError."""
        head = SERIES + _encode(metric) + END
        found: list[bytes] = []
        start = head + after + NEXT if after else head
        pages = scan(self._tables.store, self._tables.index, start, prefix_end(head), limit=PAGE_ROWS)
        async with aclosing(pages):
            async for page in pages:
                for row in page:
                    prefix = _place(row.key[len(head) :]).prefix
                    if found and found[-1] == prefix:
                        continue
                    if len(found) == limit:
                        yield found
                        found = []
                    found.append(prefix)
        if found:
            yield found

    async def remove(self, metric: str) -> None:
        """Remove a metric with its series. Names of tags stay. Raise StoreError."""
        rows = {self.name_list.row(Kind.METRIC, metric): [COLUMN]}
        async with aclosing(self.name_list.rows(SERIES + _encode(metric) + END)) as found:
            async for row in found:
                rows[row.key] = [COLUMN]
        try:
            await self._tables.store.delete(self._tables.index, rows, up_to_ms=None)
        finally:  # also if only some are removed; last: a name that is resolved meanwhile is listed with its points
            self.forget()

    def forget(self) -> None:
        """Forget what is listed: it is written again."""
        self._known.clear()
        self._keys.clear()


def _encode(name: str) -> bytes:
    return name.encode("latin-1", "replace")


def _series_row(metric: str, place: Place) -> bytes:
    return SERIES + _encode(metric) + END + place.prefix + END + place.field


def _places(rows: Sequence[Row], at: int) -> list[Place]:
    """Return the places of entries, which begin at a byte of their keys."""
    return [_place(row.key[at:]) for row in rows]


def _place(data: bytes) -> Place:
    prefix, _, field = data.rpartition(END)
    return Place(prefix, field)
