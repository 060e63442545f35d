"""Derived values of the embedded store: a column family for each such table, with values by key prefix.

A value has its prefix and its name as key. The key of the prefix alone has the names of its valid values. A write to a
row deletes that key in its batch, and so all values of the prefix; the next values replace what is left of them.
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice

import numpy as np
import trio
from rocksdict import RdictIter, ReadOptions

from tsd.codec.blocks.run import Matrix
from tsd.errors import StoreError
from tsd.store import CellMatrix
from tsd.store.cells import prefix_end
from tsd.store.rocksdb.access import DatabaseAccess
from tsd.store.rocksdb.database import Batch, Database
from tsd.store.rocksdb.keys import ESCAPED_ZERO, row_prefix
from tsd.store.rocksdb.runs import RunChange, add_runs
from tsd.store.rocksdb.watches import PrefixWatch

RUNS_AT_ONCE = 8  # encoded by one call in a thread, and written in one step: a quarter of a megabyte
_NAME_BYTES = 1  # of the length before each name in the list of names


class EmbeddedDerived:
    """DerivedValues of the embedded store."""

    def __init__(self, access: DatabaseAccess) -> None:
        self._access = access

    async def derive(
        self, table: str, prefix: bytes, compute: Callable[[], Awaitable[Mapping[bytes, bytes] | None]]
    ) -> bool:
        """See DerivedValues."""
        with self._access.watches.of_prefix(table, prefix) as watch:
            values = await compute()
            return values is not None and await self._store(watch, values)

    async def put_new(
        self, table: str, prefix: bytes, parts: Iterator[CellMatrix], values: Mapping[bytes, bytes] | None
    ) -> bool:
        """See DerivedValues. Cells are stored in runs, unless the table has cells of such rows itself."""
        access = self._access
        with access.watches.of_prefix(table, prefix) as watch:
            takes_runs, is_new = await access.read_in_thread(partial(_takes_runs, table, prefix))
            cells = 0
            while some := await trio.to_thread.run_sync(lambda: list(islice(parts, RUNS_AT_ONCE))):
                takes_runs = takes_runs and await self._put_runs(watch, some)
                if not takes_runs:
                    for part in some:
                        await access.put_unnoticed(table, await trio.to_thread.run_sync(part.puts), watch)
                cells += sum(part.cells for part in some)
            if values is None or not takes_runs:
                return False
            if not is_new and cells != await access.read_in_thread(partial(_cells_in_runs, table, prefix)):
                return False
            return await self._store(watch, values)

    async def _put_runs(self, watch: PrefixWatch, parts: Sequence[CellMatrix]) -> bool:
        """Store cells in runs. Return False, and store none, if their rows were written to meanwhile, or if a cell of
        the table may have a later timestamp."""
        table = watch.table

        def next_stamp(database: Database, _: Batch) -> tuple[list[bytes], int | None]:
            return [], database.clock.next_newest()

        stamp = await self._access.write_step("put_new", table, next_stamp)
        if stamp is None:
            return False
        change = await self._access.read_in_thread(partial(_change_of_runs, table, parts, stamp))

        def add(database: Database, batch: Batch) -> tuple[list[bytes], bool]:
            if watch.changed:
                return [], False
            change.add_to(batch, database.runs(table) or database.create_runs(table))
            return [row for part in parts for row in part.rows], True

        if not await self._access.write_step("put_new", table, add, watch):
            return False
        self._access.count["cells_put"] += sum(part.cells for part in parts)
        return True

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

        return await self._access.write_step("derive", table, change)

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

        return await self._access.read_in_thread(read)


def _takes_runs(table: str, prefix: bytes, database: Database) -> tuple[bool, bool]:
    """Return whether rows with a prefix may be stored in runs, and whether none are in runs yet. They may if the table
    has no cells of them. Raise StoreError."""
    database.require(table)
    pages = database.plain_view(table, prefix_end(prefix)).row_keys(prefix, 1)
    try:
        while True:
            next(pages)
    except StopIteration as done:
        takes_runs = not done.value and database.blocks(table) is None
    return takes_runs, not _cells_in_runs(table, prefix, database, most_runs=1)


def _change_of_runs(table: str, parts: Sequence[CellMatrix], stamp: int, database: Database) -> RunChange:
    """Return the change that stores cells in runs."""
    family = database.runs(table)
    new = [
        Matrix(
            [row_prefix(row) for row in part.rows],
            part.columns,
            part.values,
            part.present,
            np.broadcast_to(np.int64(stamp), part.values.shape),
        )
        for part in parts
    ]
    return add_runs(None if family is None else database.run_reader(family), new)


def _cells_in_runs(table: str, prefix: bytes, database: Database, most_runs: int | None = None) -> int:
    """Return the number of cells in runs of rows with a prefix, or in the first ones."""
    family, stop = database.runs(table), prefix_end(prefix)
    if family is None:
        return 0
    end = None if stop is None else stop.replace(b"\0", ESCAPED_ZERO)
    counts = database.run_reader(family).counts(prefix.replace(b"\0", ESCAPED_ZERO), end)
    return sum(islice(counts, most_runs))


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


def _joined(names: Iterable[bytes]) -> bytes:
    return b"".join(len(name).to_bytes(_NAME_BYTES, "big") + name for name in names)


def _split(text: bytes) -> list[bytes]:
    names, at = [], 0
    while at < len(text):
        end = at + _NAME_BYTES + text[at]
        names.append(text[at + _NAME_BYTES : end])
        at = end
    return names
