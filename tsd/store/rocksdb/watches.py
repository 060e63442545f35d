"""Detects writes to rows that a fold or a compaction has read and will replace."""

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager

from tsd.store.rocksdb.row_cache import RowCache


class PrefixWatch:
    """Whether a row of a table with a prefix may have been written to."""

    def __init__(self, table: str, prefix: bytes) -> None:
        self.table = table
        self.prefix = prefix
        self.changed = False


class PrefixesWatch:
    """Whether a row of a table with one of some prefixes, all of one width, may have been written to."""

    def __init__(self, table: str, prefixes: Iterable[bytes], width: int) -> None:
        self.table = table
        self.prefixes = frozenset(prefixes)
        self.width = width
        self.changed = False


class RangeWatch:
    """Whether a row of a table from `start` to before `stop` may have been written to."""

    def __init__(self, table: str, start: bytes, stop: bytes) -> None:
        self.table = table
        self.start = start
        self.stop = stop
        self.changed = False


class _RowWatch:
    """Which of some rows of a table may have been written to."""

    def __init__(self, table: str, rows: Collection[bytes]) -> None:
        self.table = table
        self.rows = frozenset(rows)
        self.written: set[bytes] = set()


class Watches:
    """All watches of a store, and its cache of rows: a write is noted in both."""

    def __init__(self, cache: RowCache) -> None:
        self.cache = cache
        self._prefixes: list[PrefixWatch] = []
        self._several: list[PrefixesWatch] = []
        self._rows: list[_RowWatch] = []
        self._ranges: list[RangeWatch] = []

    def __bool__(self) -> bool:
        return bool(self._prefixes or self._several or self._rows or self._ranges or self.cache)

    @contextmanager
    def of_prefix(self, table: str, prefix: bytes) -> Iterator[PrefixWatch]:
        """Notice writes to rows with a prefix during the block."""
        watch = PrefixWatch(table, prefix)
        self._prefixes.append(watch)
        try:
            yield watch
        finally:
            self._prefixes.remove(watch)

    @contextmanager
    def of_prefixes(self, table: str, prefixes: Iterable[bytes], width: int) -> Iterator[PrefixesWatch]:
        """Notice writes to rows with some prefixes of one width during the block."""
        watch = PrefixesWatch(table, prefixes, width)
        self._several.append(watch)
        try:
            yield watch
        finally:
            self._several.remove(watch)

    @contextmanager
    def of_rows(self, table: str, rows: Collection[bytes]) -> Iterator[Collection[bytes]]:
        """Collect those of some rows that may have been written to during the block."""
        watch = _RowWatch(table, rows)
        self._rows.append(watch)
        try:
            yield watch.written
        finally:
            self._rows.remove(watch)

    @contextmanager
    def of_range(self, table: str, start: bytes, stop: bytes) -> Iterator[RangeWatch]:
        """Notice writes to the rows from `start` to before `stop` during the block."""
        watch = RangeWatch(table, start, stop)
        self._ranges.append(watch)
        try:
            yield watch
        finally:
            self._ranges.remove(watch)

    def note(self, table: str, rows: Collection[bytes], by: PrefixWatch | None = None) -> None:
        """Note a write to some rows. The watch of the writer itself, `by`, does not change."""
        self.cache.note(table, rows)
        for prefix in self._prefixes:
            if prefix is not by and not prefix.changed and prefix.table == table:
                prefix.changed = any(row.startswith(prefix.prefix) for row in rows)
        for several in self._several:
            if not several.changed and several.table == table:
                several.changed = not several.prefixes.isdisjoint([row[: several.width] for row in rows])
        for watch in self._rows:
            if watch.table == table:
                watch.written |= watch.rows.intersection(rows)
        for each in self._ranges:
            if not each.changed and each.table == table:
                each.changed = any(each.start <= row < each.stop for row in rows)

    def note_range(self, table: str, start: bytes, stop: bytes, by: object = None) -> None:
        """Note a deletion of the rows from `start` to before `stop`. The watch `by` of the caller does not change."""
        self.cache.note_range(table, start, stop)
        for prefix in self._prefixes:
            overlaps = start[: len(prefix.prefix)] <= prefix.prefix < stop
            prefix.changed |= prefix.table == table and overlaps
        for several in self._several:
            if not several.changed and several.table == table:
                several.changed = any(start[: several.width] <= prefix < stop for prefix in several.prefixes)
        for watch in self._rows:
            if watch.table == table:
                watch.written.update(_within(watch.rows, start, stop))
        for each in self._ranges:
            each.changed |= each is not by and each.table == table and start < each.stop and each.start < stop

    def note_all(self) -> None:
        """Note that any row may have changed."""
        self.cache.clear()
        for prefix in self._prefixes:
            prefix.changed = True
        for several in self._several:
            several.changed = True
        for each in self._ranges:
            each.changed = True
        for watch in self._rows:
            watch.written |= watch.rows


def _within(rows: Iterable[bytes], start: bytes, stop: bytes) -> Iterator[bytes]:
    return (row for row in rows if start <= row < stop)
