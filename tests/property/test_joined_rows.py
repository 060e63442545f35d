"""Rows that the embedded store joins in one step become what the merge of cells that were read makes of them."""

import tempfile
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import pytest
import trio
from hypothesis import example, given
from hypothesis import strategies as st

from tests.property.codec_rows import KEY, anything, deciding, in_seconds
from tests.unit.tables.compaction.parts import NOW_MS, TABLE, compactor
from tsd.codec.opentsdb.cell import COLUMN
from tsd.codec.opentsdb.merge import HAS_MERGE_LOOP, MergeRules, StoredCell
from tsd.store import Cell, Family, JoinCells, Put, Rewrite, Store, Table
from tsd.store.rocksdb.engine import EmbeddedStore
from tsd.tables.opentsdb.compaction.compactor import CompactionStats


class Unjoined:
    """A store that joins no row."""

    def __init__(self, store: EmbeddedStore) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    @property
    def atomic_rewrites(self) -> "Unjoined":
        return self

    def watching(self, table: str, rows: Collection[bytes]) -> AbstractContextManager[Collection[bytes]]:
        return self._store.atomic_rewrites.watching(table, rows)

    async def rewrite(
        self, table: str, changes: Sequence[Rewrite], *, written: Collection[bytes] | None = None
    ) -> list[bool]:
        return await self._store.atomic_rewrites.rewrite(table, changes, written=written)

    async def join(self, table: str, rows: Sequence[bytes], join: JoinCells) -> list[bytes]:
        await trio.lowlevel.checkpoint()
        return []


async def fill(store: EmbeddedStore, found: Sequence[Sequence[StoredCell]]) -> list[bytes]:
    """Write rows into an empty table and return their keys."""
    await store.create_tables([Table(TABLE, (Family(b"t"),))])
    keys = [KEY[:-1] + bytes([number]) for number in range(len(found))]
    for key, cells in zip(keys, found, strict=True):
        for cell in cells:
            await store.put(TABLE, [Put(key, COLUMN + cell.qualifier, cell.value)], time_ms=cell.time_ms)
    return keys


async def compacted(
    found: Sequence[Sequence[StoredCell]], rules: MergeRules, *, joins: bool
) -> tuple[dict[bytes, list[Cell]], CompactionStats, int]:
    """Return rows after a compaction, its counters, and the number of steps in which rows were joined."""
    with tempfile.TemporaryDirectory() as folder:
        store = await EmbeddedStore.open(folder, lambda: NOW_MS)
        try:
            keys = await fill(store, found)
            chosen: Store = store if joins else Unjoined(store)
            did = compactor(chosen, rules=rules)
            assert await did.compact_keys(keys) == []
            return await store.get(TABLE, keys), did.stats, store.statistics().get("join", 0)
        finally:
            await store.aclose()


def part(first_s: int, count: int, time_ms: int) -> StoredCell:
    """Return a cell with a point of one byte in each of some seconds."""
    qualifier = b"".join((second << 4).to_bytes(2, "big") for second in range(first_s, first_s + count))
    return StoredCell(qualifier, bytes(count) + b"\0" * (count > 1), time_ms)


PARTS = [part(0, 900, 5), part(900, 900, 9), part(1800, 1, 7)]
NEWEST = MergeRules(fix_duplicates=True)


@pytest.mark.slow
@given(st.lists(st.one_of(anything, in_seconds), min_size=1, max_size=4), deciding)
@example([PARTS, PARTS[:1], PARTS[1:], []], NEWEST)
@example([PARTS, [*PARTS, StoredCell(b"\1\0\0", b"{}", 5)], [*PARTS, part(1799, 3, 6)]], NEWEST)
@example([[part(0, 3000, 5), part(3000, 600, 5)], PARTS], MergeRules(cell_points=3600))
def test_rows_joined_in_one_step_are_those_that_are_read_first(
    found: list[list[StoredCell]], rules: MergeRules
) -> None:
    async def run() -> None:
        one, other = await compacted(found, rules, joins=True), await compacted(found, rules, joins=False)
        assert one[:2] == other[:2]
        assert bool(one[2]) == HAS_MERGE_LOOP
        assert not other[2]

    trio.run(run)


def test_steps_that_join_many_rows_are_short() -> None:
    large = [part(second * 10, 2, 5) for second in range(100)]
    for rows, least in ([PARTS] * 40, 3), ([large] * 8, 4):
        *_, steps = trio.run(partial(compacted, rows, NEWEST, joins=True))
        if HAS_MERGE_LOOP:
            assert steps >= least
