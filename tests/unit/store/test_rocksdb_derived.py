"""Values that the embedded store derives from rows: they are gone with the first write to one of the rows."""

import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
import trio

from tests.unit.store.crashing import FIRST, REPLACED, RUN_COLUMNS, RUN_ROWS, SECOND, THIRD
from tests.unit.store.rocksdb_parts import child
from tests.unit.store.rocksdb_parts import opened as opened_cells
from tsd.errors import StoreError
from tsd.store import CellMatrix, Family, Put, Rewrite, Table, scan
from tsd.store.rocksdb.database import Batch, Database
from tsd.store.rocksdb.engine import EmbeddedStore
from tsd.store.rocksdb.keys import row_prefix
from tsd.store.rocksdb.verification import read_back

TABLE = Table("rows", (Family(b"t"),))
ROW = Put(b"aab1", b"t:q", b"v")
NONE: Mapping[bytes, bytes] = {}


@asynccontextmanager
async def opened(path: Path) -> AsyncIterator[EmbeddedStore]:
    store = await EmbeddedStore.open(path, lambda: 1_000_000)
    try:
        await store.create_tables([TABLE])
        yield store
    finally:
        await store.aclose()


async def derive(store: EmbeddedStore, prefix: bytes, values: Mapping[bytes, bytes]) -> bool:
    async def compute() -> Mapping[bytes, bytes]:
        return values

    return await store.derived_values.derive("rows", prefix, compute)


async def derived(store: EmbeddedStore, *prefixes: bytes, kinds: bytes = b"\1\2") -> dict[bytes, dict[bytes, bytes]]:
    return await store.derived_values.derived("rows", prefixes, kinds)


async def test_values_are_read_by_kind_and_survive(tmp_path: Path) -> None:
    async with opened(tmp_path / "store") as store:
        await store.put("rows", [ROW])
        assert await derived(store, b"aab") == {}
        assert await derive(store, b"aab", {b"\1x": b"one", b"\1y": b"two", b"\2x": b"", b"\3": b"three"})
        assert await derive(store, b"aac", NONE)
    async with opened(tmp_path / "store") as store:
        assert await store.tables() == ["rows"]
        assert await derived(store, b"aaa", b"aab", b"aac", kinds=b"\1") == {
            b"aab": {b"\1x": b"one", b"\1y": b"two"},
            b"aac": {},
        }
        assert [row.cells for rows in [part async for part in scan(store, "rows")] for row in rows]
    *_, contents = read_back(tmp_path / "store")
    assert contents.tables == 1


@pytest.mark.parametrize(
    "write", ["put", "delete", "create", "check_and_put", "increment", "rewrite", "range", "range inside"]
)
async def test_any_write_to_a_row_drops_the_values_of_its_prefix(tmp_path: Path, write: str) -> None:
    async with opened(tmp_path / "store") as store:
        await store.put("rows", [ROW])
        for prefix in (b"aab", b"aac"):
            assert await derive(store, prefix, {b"\1": b"old", b"\1left": b"over"})
        match write:
            case "put":
                await store.put("rows", [Put(b"aab2", b"t:q", b"")])
            case "delete":
                await store.delete("rows", {ROW.row: [ROW.column]}, up_to_ms=None)
            case "create":
                await store.create("rows", [Put(b"aab9", b"t:q", b"v")])
            case "check_and_put":
                await store.check_and_put("rows", *ROW[:2], b"w", expected=b"v")
            case "increment":
                await store.increment("rows", b"aab3", b"t:n", 1)
            case "rewrite":
                change = Rewrite(ROW.row, [ROW._replace(value=b"w")], 2_000_000, [])
                await store.atomic_rewrites.rewrite("rows", [change])
            case "range":
                await store.range_deletes.delete_range("rows", b"aa", b"aac", changed=[])
            case _:
                await store.range_deletes.delete_range("rows", b"aab1", b"aab2", changed=[])
        assert await derived(store, b"aab", b"aac") == {b"aac": {b"\1": b"old", b"\1left": b"over"}}
        assert await derive(store, b"aab", {b"\1": b"new"})
        assert await derived(store, b"aab") == {b"aab": {b"\1": b"new"}}


async def test_values_of_rows_that_change_meanwhile_are_not_stored(tmp_path: Path) -> None:
    async with opened(tmp_path / "store") as store:

        async def compute() -> Mapping[bytes, bytes]:
            await store.put("rows", [ROW])
            return {b"\1": b"old"}

        assert not await store.derived_values.derive("rows", b"aab", compute)
        assert await derived(store, b"aab") == {}


async def test_prefixes_have_one_width(tmp_path: Path) -> None:
    async with opened(tmp_path / "store") as store:
        assert await derive(store, b"aab", NONE)
        with pytest.raises(StoreError):
            await derive(store, b"aa", NONE)
        assert await derived(store, b"aab") == {b"aab": {}}


VALUE = b"-value-1"


def matrix(*cells: Put) -> CellMatrix:
    """Cells of 8 bytes by row and column."""
    rows, columns = sorted({cell.row for cell in cells}), sorted({cell.column for cell in cells})
    shape = len(rows), len(columns)
    made = CellMatrix(rows, columns, np.zeros(shape, np.uint64), np.zeros(shape, np.bool_))
    for cell in cells:
        at = rows.index(cell.row), columns.index(cell.column)
        made.values[at] = int.from_bytes(cell.value, sys.byteorder)
        made.present[at] = True
    return made


async def put_new(store: EmbeddedStore, prefix: bytes, *parts: CellMatrix) -> bool:
    return await store.derived_values.put_new("rows", prefix, iter(parts), {b"\1": b"new"})


async def stored(store: EmbeddedStore, *rows: bytes) -> dict[bytes, list[tuple[bytes, bytes]]]:
    found = await store.get("rows", rows)
    return {row: [cell[:2] for cell in cells] for row, cells in found.items()}


async def test_values_of_new_rows_are_stored_with_their_cells(tmp_path: Path) -> None:
    async with opened(tmp_path / "store") as store:
        parts = matrix(Put(b"aab1", b"t:q", VALUE)), matrix(Put(b"aab2", b"t:q", VALUE))
        assert await put_new(store, b"aab", *parts)
        assert await put_new(store, b"aab", *parts)
        assert await derived(store, b"aab") == {b"aab": {b"\1": b"new"}}
    async with opened(tmp_path / "store") as store:
        assert await store.tables() == ["rows"]
        assert await stored(store, b"aab1", b"aab2", b"aab3") == {key: [(b"t:q", VALUE)] for key in [b"aab1", b"aab2"]}
        await store.put("rows", [Put(b"aab3", b"t:q", b"")])
        assert await derived(store, b"aab") == {}


@pytest.mark.parametrize("earlier", [ROW, Put(b"aab1", b"t:q", VALUE), Put(b"aab3", b"t:q", VALUE)])
async def test_rows_that_exist_get_cells_but_no_values_of_the_new_ones(tmp_path: Path, earlier: Put) -> None:
    async with opened(tmp_path / "store") as store:
        if earlier is ROW:
            await store.put("rows", [ROW])
        else:
            assert await put_new(store, b"aab", matrix(earlier))
        assert not await put_new(store, b"aab", matrix(Put(b"aab2", b"t:q", VALUE)))
        assert await stored(store, earlier.row, b"aab2") == {earlier.row: [earlier[1:]], b"aab2": [(b"t:q", VALUE)]}
        assert await derived(store, b"aab") == {}


@pytest.mark.parametrize("row", [b"aab1", b"aab9"])
async def test_values_are_not_stored_if_another_writes_among_new_rows(tmp_path: Path, row: bytes) -> None:
    async with opened(tmp_path / "store") as store:

        def parts() -> Iterator[CellMatrix]:
            for number in range(9):
                yield matrix(Put(b"aab%d" % number, b"t:q", VALUE))
            trio.from_thread.run(store.put, "rows", [Put(row, b"t:other", b"")])
            yield matrix(Put(b"aab9", b"t:q", VALUE))

        assert not await store.derived_values.put_new("rows", b"aab", parts(), {b"\1": b"new"})
        assert await derived(store, b"aab") == {}
        found = await stored(store, *(b"aab%d" % number for number in range(10)))
        assert {key: [cell for cell in cells if cell[1]] for key, cells in found.items()} == {
            b"aab%d" % number: [(b"t:q", VALUE)] for number in range(10)
        }


async def test_a_damaged_run_is_an_error_of_its_rows(tmp_path: Path) -> None:
    async with opened(tmp_path / "store") as store:
        assert await put_new(store, b"aab", matrix(Put(b"aab1", b"t:q", VALUE)))
        assert await put_new(store, b"aac", matrix(Put(b"aac1", b"t:q", VALUE)))

        def damage(database: Database, batch: Batch) -> tuple[list[bytes], None]:
            runs = database.runs("rows")
            assert runs is not None
            key = row_prefix(b"aab1") + b"t:q"
            value = runs.rows.get(key)
            assert isinstance(value, bytes)
            batch.put(key, value[:-1] + b"x", runs.handle)
            return [], None

        await store.access.write_step("damage", "rows", damage)
        with pytest.raises(StoreError, match="damaged"):
            await store.get("rows", [b"aab1"])
        assert await stored(store, b"aac1")


async def test_a_run_of_the_same_places_is_replaced_and_another_one_is_joined(tmp_path: Path) -> None:
    async with opened(tmp_path / "store") as store:
        new, late = b"newvalue", b"latevalu"
        first = [Put(row, column, VALUE) for row in (b"aab1", b"aab2") for column in (b"t:p", b"t:q")]
        await put_new(store, b"aab", matrix(*first))
        await put_new(store, b"aab", matrix(*(put._replace(value=new) for put in first)))
        both = {row: [(b"t:p", new), (b"t:q", new)] for row in (b"aab1", b"aab2")}
        assert await stored(store, *both) == both
        fewer = matrix(*(put._replace(value=late) for put in first if put[:2] != (b"aab1", b"t:q")))
        await put_new(store, b"aab", fewer)  # has the same rows and columns, but not all cells
        assert await stored(store, *both) == {
            b"aab1": [(b"t:p", late), (b"t:q", new)],
            b"aab2": [(b"t:p", late), (b"t:q", late)],
        }
        assert await store.access.read_in_thread(count_runs) == 1


async def test_runs_grow_and_are_divided(tmp_path: Path) -> None:
    async with opened(tmp_path / "store") as store:
        rows = [b"aab%02d" % row for row in range(20)]
        for hour in range(24):
            columns = [b"t:%02d%02d" % (hour, column) for column in range(40)]
            shape = len(rows), len(columns)
            values = np.full(shape, hour, np.uint64)
            part = CellMatrix(rows, columns, values, np.ones(shape, np.bool_))
            assert not await store.derived_values.put_new("rows", b"aab", iter([part]), None)
        page = await store.page("rows", b"", None, limit=100)
        assert [row.key for row in page.rows] == rows
        for row in page.rows:
            assert [int.from_bytes(cell.value, sys.byteorder) for cell in row.cells] == sorted([*range(24)] * 40)
        runs = await store.access.read_in_thread(count_runs)
        assert runs == 5
        await store.range_deletes.delete_range("rows", b"aab03", b"aab17", changed=[])
        page = await store.page("rows", b"", None, limit=100)
        assert [(row.key, len(row.cells)) for row in page.rows] == [(row, 960) for row in rows[:3] + rows[17:]]


@pytest.mark.slow
@pytest.mark.parametrize("writes", [1, 3, 4, 5])  # done when it is killed: some cells, all, some replaced, all
async def test_killed_writer_of_runs_leaves_each_cell_as_it_was_or_replaced(tmp_path: Path, writes: int) -> None:
    process = await trio.to_thread.run_sync(child, "put_runs", tmp_path)
    output, _ = await trio.to_thread.run_sync(process.communicate, f"{writes}\n")
    assert process.returncode == -signal.SIGKILL
    done = len(output.splitlines())
    async with opened_cells(tmp_path) as store:
        found: dict[bytes, list[tuple[bytes, Counter[int]]]] = {}
        async for page in scan(store, "cells"):
            for key, cells in page:
                values = Counter(int.from_bytes(cell.value, sys.byteorder) for cell in cells)
                found.setdefault(key[:-2], []).append((key, values))
        derived_of = await store.derived_values.derived("cells", list(found), b"\1")
    assert len(found) in (-(-done // 3), done // 3 + 1)
    for number, (prefix, rows) in enumerate(sorted(found.items())):
        every = sum((values for _, values in rows), Counter[int]())
        least = min(done - 3 * number, 3)  # changes that were synced
        assert len(rows) == RUN_ROWS or least < 1
        states = {FIRST: RUN_COLUMNS}, {FIRST: RUN_COLUMNS - REPLACED, SECOND: REPLACED}, {THIRD: RUN_COLUMNS}
        assert all(values in states[max(least - 1, 0) : least + 1] for _, values in rows)
        if prefix in derived_of:  # of all cells, or they are not there
            [value] = derived_of[prefix].values()
            assert every == {int(value): RUN_ROWS * RUN_COLUMNS}
        else:
            assert least < THIRD


def count_runs(database: Database) -> int:
    runs = database.runs("rows")
    assert runs is not None
    return sum(1 for _ in database.run_reader(runs).counts(b"", None))
