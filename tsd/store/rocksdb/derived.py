"""Derived values of the embedded store: a column family for each such table, with values by key prefix.

A value has its prefix and its name as key. The key of the prefix alone has the names of its valid values. A write to a
row deletes that key in its batch, and so all values of the prefix; the next values replace what is left of them.
"""

from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, TypeVar

from rocksdict import RdictIter, ReadOptions, WriteBatch

from tsd.codec.opentsdb.rowkey import after
from tsd.errors import StoreError
from tsd.store import Page, Put
from tsd.store.rocksdb.database import Batch, Database, DerivedFamily
from tsd.store.rocksdb.watches import PrefixWatch

T = TypeVar("T")

_NAME_BYTES = 1  # of the length before each name in the list of names


class Engine(Protocol):
    """The store, as far as derived values need it."""

    def watching(self, table: str, prefix: bytes) -> AbstractContextManager[PrefixWatch]:
        """Notice writes to rows with a prefix during the block."""
        ...

    async def put_unnoticed(self, table: str, cells: Sequence[Put], watch: PrefixWatch) -> None:
        """See Store.put, without a change of the watch."""
        ...

    async def page(self, table: str, start: bytes, stop: bytes | None, *, limit: int) -> Page:
        """See Store."""
        ...

    async def write_step(self, call: str, table: str, change: Callable[[Database, Batch], tuple[list[bytes], T]]) -> T:
        """See EmbeddedRewrites."""
        ...

    async def read_in_thread(self, read: Callable[[Database], T]) -> T:
        """Run a function on the database in a thread. Raise StoreError."""
        ...


class EmbeddedDerived:
    """DerivedValues of the embedded store."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def derive(
        self, table: str, prefix: bytes, compute: Callable[[], Awaitable[Mapping[bytes, bytes] | None]]
    ) -> bool:
        """See DerivedValues."""
        with self._engine.watching(table, prefix) as watch:
            values = await compute()
            return values is not None and await self._store(watch, values)

    async def put_new(
        self, table: str, prefix: bytes, parts: AsyncIterable[Sequence[Put]], values: Mapping[bytes, bytes]
    ) -> bool:
        """See DerivedValues."""
        with self._engine.watching(table, prefix) as watch:
            stored = await self._engine.page(table, prefix, after(prefix), limit=1)
            async for cells in parts:
                await self._engine.put_unnoticed(table, cells, watch)
            return not stored.rows and stored.next_start is None and await self._store(watch, values)

    async def _store(self, watch: PrefixWatch, values: Mapping[bytes, bytes]) -> bool:
        """Store the values of a prefix, unless one of its rows was written to."""
        table, prefix = watch.table, watch.prefix

        def change(database: Database, batch: Batch) -> tuple[list[bytes], bool]:
            if watch.changed:
                return [], False
            family = database.derived_family(table, len(prefix))
            if family.width != len(prefix):
                raise StoreError(f"values of {table} have prefixes of {family.width} bytes, not {len(prefix)}")
            batch.put(prefix, _joined(values), family.handle)
            for name, value in values.items():
                batch.put(prefix + name, value, family.handle)
            return [], True

        return await self._engine.write_step("derive", table, change)

    async def derived(self, table: str, prefixes: Sequence[bytes], kinds: bytes) -> dict[bytes, dict[bytes, bytes]]:
        """See DerivedValues."""

        def read(database: Database) -> dict[bytes, dict[bytes, bytes]]:
            family = database.derived(table)
            if family is None:
                return {}
            options = ReadOptions()  # must outlive the iterator
            at = family.rows.iter(options)
            found = {prefix: _read(at, prefix, kinds) for prefix in prefixes}
            return {prefix: values for prefix, values in found.items() if values is not None}

        return await self._engine.read_in_thread(read)


def _read(at: RdictIter, prefix: bytes, kinds: bytes) -> dict[bytes, bytes] | None:
    """Return the valid values of a prefix with names of some kinds; None if it has none of any kind."""
    at.seek(prefix)
    if not at.valid() or at.key() != prefix:
        at.status()
        return None
    found: dict[bytes, bytes] = {}
    for name in sorted(_split(at.value())):
        if name[0] in kinds:
            at.seek(prefix + name)
            if not at.valid() or at.key() != prefix + name:
                at.status()
                return None
            found[name] = at.value()
    return found


def drop(batch: WriteBatch, family: DerivedFamily, rows: Iterable[bytes]) -> None:
    """Add the removal of the values that depend on some rows to a batch."""
    for prefix in {row[: family.width] for row in set(rows)}:
        batch.delete(prefix, family.handle)


def _joined(names: Iterable[bytes]) -> bytes:
    return b"".join(len(name).to_bytes(_NAME_BYTES, "big") + name for name in names)


def _split(text: bytes) -> list[bytes]:
    names, at = [], 0
    while at < len(text):
        end = at + _NAME_BYTES + text[at]
        names.append(text[at + _NAME_BYTES : end])
        at = end
    return names
