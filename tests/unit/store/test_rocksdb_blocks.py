"""Blocks of the embedded store: what they hold, and damage. tests/property/test_stores.py folds between all calls."""

from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path

import pytest
import rocksdict  # noqa: TID251 - reads and damages the files
import trio

from tests.unit.store.crashing import POINTS, ROWS
from tests.unit.store.damaging import stored_blocks
from tests.unit.store.rocksdb_parts import child, lines_until_killed, opened
from tsd.codec.blocks.block import FORMAT
from tsd.codec.opentsdb.cell import seconds_qualifier
from tsd.codec.opentsdb.merge import join_simple
from tsd.errors import DamagedBlock, StoreError
from tsd.store import Cell, Put, cell_pages, scan
from tsd.store.rocksdb.database import SYSTEM
from tsd.store.rocksdb.engine import EmbeddedStore
from tsd.store.rocksdb.options import options

COLUMN, VALUE = POINTS
STORED_HEAD_BYTES = 10  # before a block without deleted rows, see tsd/codec/blocks/FORMATS.md


async def fill(store: EmbeddedStore, *hours: bytes) -> None:
    """Put three rows of each hour and move them to blocks."""
    for hour in hours:
        await store.put("cells", [Put(hour + series, COLUMN, VALUE) for series in (b"a", b"b", b"c")])
        await store.column_blocks.fold("cells", hour)


async def test_fold_moves_cells_of_points(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        other = Put(b"hour1d", b"t:\1\0\0", b"{}")
        await store.put("cells", [Put(b"hour1a", COLUMN, VALUE), Put(b"hour1b", COLUMN, VALUE), other])
        assert await store.column_blocks.fold("cells", b"hour1") == (2, 4)
        assert await store.column_blocks.fold("cells", b"hour1") == (0, 0)
        assert await store.tables() == ["cells"]
        rows = [row.key async for page in scan(store, "cells") for row in page]
        assert rows == [b"hour1a", b"hour1b", b"hour1d"]
    assert list(stored_blocks(tmp_path, "cells")) == [b"hour1a"]


async def test_cells_are_joined_unless_their_row_is_in_a_block(tmp_path: Path) -> None:
    asked: list[bytes] = []

    def join(row: bytes, cells: Sequence[tuple[bytes, bytes, int]]) -> tuple[bytes, bytes]:
        asked.append(row)
        return b"t:joined", b"+".join(value for _, value, _ in cells)

    async with opened(tmp_path) as store:
        await fill(store, b"hour2")
        rows = [hour + series for hour in (b"hour1", b"hour2", b"hour3") for series in (b"a", b"b")]
        rows += [b"hour2d", b"hour20"]  # next to a block
        await store.put("cells", [Put(row, column, b"1") for row in rows for column in (b"t:x", b"t:y")])
        before = await store.get("cells", rows)
        assert await store.atomic_rewrites.join("cells", [*rows, b"hour4a"], join) == asked == rows[:2] + rows[4:]
        found = await store.get("cells", rows)
    time_ms = before[rows[0]][0].time_ms
    assert all(found[row] == [Cell(b"t:joined", b"1+1", time_ms)] for row in asked)
    assert all(found[row] == before[row] for row in rows[2:4])


async def test_late_cells_join_their_block(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await fill(store, b"hour1")
        await store.put("cells", [Put(b"hour1bb", COLUMN, VALUE), Put(b"hour1c", COLUMN, b"\3\4\0")])
        assert await store.column_blocks.fold("cells", b"hour1") == (2, 4)
        assert [cell.value for cell in (await store.get("cells", [b"hour1c"]))[b"hour1c"]] == [b"\3\4\0"]
    assert list(stored_blocks(tmp_path, "cells")) == [b"hour1a"]


async def test_block_without_cells_is_removed(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await fill(store, b"hour1", b"hour2")
        await store.delete("cells", {b"hour1" + series: [COLUMN] for series in (b"a", b"b", b"c")}, up_to_ms=None)
    assert list(stored_blocks(tmp_path, "cells")) == [b"hour2a"]


OTHER = Put(b"", b"t:" + seconds_qualifier(5, 0), b"\5")


async def written(store: EmbeddedStore, *cells: Put, least_rows: int = 1) -> list[Put]:
    """Write sorted cells straight to blocks. Return those that were not written."""
    return await store.column_blocks.write("cells", cells, width=5, least_rows=least_rows)


async def test_cells_are_written_straight_to_blocks_and_join_those_there(tmp_path: Path) -> None:
    rows = [b"hour1%04d" % row for row in range(3000)] + [b"hour2%04d" % row for row in range(3000)]
    async with opened(tmp_path) as store:
        assert await written(store, *(Put(row, COLUMN, VALUE) for row in rows)) == []
        before = await store.get("cells", rows)
        assert all([cell[:2] for cell in before[row]] == [(COLUMN, VALUE)] for row in rows)
        assert await written(store, *(Put(row, *OTHER[1:]) for row in rows[::3])) == []
        assert await written(store, Put(b"hour1", *POINTS), Put(b"hour3", *POINTS)) == []
        assert await store.column_blocks.next_unfolded("cells", b"", None) is None
        found = await store.get("cells", rows)
    joined = join_simple([(COLUMN, VALUE, 1), (*OTHER[1:], 2)], b"t:", 4096)
    assert all(found[row] == before[row] for at, row in enumerate(rows) if at % 3)
    assert {cell[:2] for row in rows[::3] for cell in found[row]} == {joined}
    assert {len(found[row]) for row in rows[::3]} == {1}
    assert found[rows[0]][0].time_ms > before[rows[0]][0].time_ms
    keys = list(stored_blocks(tmp_path, "cells"))
    assert keys[0] == b"hour1"
    assert len(keys) > 20


async def test_cells_that_no_block_can_take_are_left(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await store.put("cells", [Put(b"hour1b", b"t:\1\0\0", b"{}")])
        await fill(store, b"hour2")
        cells = [
            Put(b"hour1a", COLUMN, VALUE),
            Put(b"hour1b", COLUMN, VALUE),  # the row has an annotation
            Put(b"hour1c", COLUMN, VALUE),  # twice
            Put(b"hour1c", *OTHER[1:]),
            Put(b"hour1d", b"t:\1\0\0", b"{}"),
            Put(b"hour2a", COLUMN, b"\3\4\0"),  # other values of its points
            Put(b"hour2b", COLUMN, VALUE),  # as it is
            Put(b"hour3a", COLUMN, VALUE),  # too few rows
        ]
        left = await written(store, *cells, least_rows=2)
        assert sorted(left) == [*cells[1:6], cells[7]]
        found = await store.get("cells", [b"hour1a", b"hour1b", b"hour1c", b"hour2a", b"hour3a"])
        assert {row: [cell.column for cell in some] for row, some in found.items()} == {
            b"hour1a": [COLUMN],
            b"hour1b": [b"t:\1\0\0"],
            b"hour2a": [COLUMN],
        }


async def test_few_new_rows_between_those_of_a_block_are_left(tmp_path: Path) -> None:
    """To encode a block again for each would take quadratic time where rows come in another order than their keys'."""
    rows = [b"hour1%03d" % row for row in range(200)]
    async with opened(tmp_path) as store:
        assert await written(store, *(Put(row, COLUMN, VALUE) for row in rows)) == []
        few = [Put(rows[at] + b"+", COLUMN, VALUE) for at in (0, 100, -1)]
        late = [Put(row, *OTHER[1:]) for row in rows[:2]]
        assert await written(store, *sorted([*few, *late])) == few[:2]
        assert await written(store, *(Put(row + b"-", COLUMN, VALUE) for row in rows)) == []


async def test_cells_stay_out_of_a_damaged_block(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await fill(store, b"hour1", b"hour2")
    stored_blocks(tmp_path, "cells", (b"hour2a", -1))
    async with opened(tmp_path) as store:
        cells = [Put(hour + b"d", COLUMN, VALUE) for hour in (b"hour1", b"hour2", b"hour3")]
        assert await written(store, *cells) == [cells[1]]


async def test_cells_written_by_others_meanwhile_are_not_lost(tmp_path: Path) -> None:
    rows = [b"hour1%04d" % row for row in range(4000)]
    left: list[Put] = []
    async with opened(tmp_path) as store:

        async def write() -> None:
            left.extend(await written(store, *(Put(row, COLUMN, VALUE) for row in rows)))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(write)
            for row in rows[::100]:
                await store.put("cells", [Put(row, *OTHER[1:])])
                await trio.lowlevel.checkpoint()
        await store.put("cells", left)
        found = await store.get("cells", rows)
    for at, row in enumerate(rows):
        points = {qualifier for cell in found[row] for qualifier in (cell.column[2:4], cell.column[4:6]) if qualifier}
        assert points == {COLUMN[2:4], COLUMN[4:6]} | (set() if at % 100 else {OTHER.column[2:4]})


async def test_prefix_of_another_width_is_refused(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await fill(store, b"hour1")
        with pytest.raises(StoreError, match="5 bytes"):
            await store.column_blocks.fold("cells", b"hour")


async def test_cell_written_during_a_fold_is_kept(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        rows = [b"hour1%04d" % row for row in range(2000)]
        await store.put("cells", [Put(row, COLUMN, VALUE) for row in rows])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(store.column_blocks.fold, "cells", b"hour1")
            for row in rows[::100]:
                await store.put("cells", [Put(row, COLUMN, b"\3\4\0")])
        found = await store.get("cells", rows)
    assert [found[row][0].value for row in rows] == [b"\3\4\0" if not at % 100 else VALUE for at in range(2000)]


@pytest.mark.parametrize("at", [0, 5, 8, 12, 30, -1])
async def test_damaged_block_is_named_and_costs_no_other(tmp_path: Path, at: int) -> None:
    async with opened(tmp_path) as store:
        await fill(store, b"hour1", b"hour2", b"hour3")
    stored_blocks(tmp_path, "cells", (b"hour2a", at))
    async with opened(tmp_path) as store:
        named = b"hour2".hex()
        with pytest.raises(DamagedBlock, match=named) as error:
            await store.get("cells", [b"hour2b"])
        assert error.value.prefix == b"hour2"
        with pytest.raises(DamagedBlock, match=named):
            await store.get("cells", [b"hour2b"], columns=[COLUMN])
        with pytest.raises(DamagedBlock, match=named):
            await store.page("cells", b"", None, limit=10)
        with pytest.raises(DamagedBlock, match=named):
            [row async for page in scan(store, "cells", b"hour2") for row in page]
        for hour in (b"hour1", b"hour3"):
            page = await store.page("cells", hour, hour + b"\xff", limit=10)
            assert [row.key for row in page.rows] == [hour + series for series in (b"a", b"b", b"c")]
            assert {row.cells[0][:2] for row in page.rows} == {(COLUMN, VALUE)}
        await store.put("cells", [Put(b"hour2b", b"t:late", b"v")])
        assert await store.column_blocks.fold("cells", b"hour3") == (0, 0)


async def test_damaged_blocks_are_removed(tmp_path: Path) -> None:
    """Other blocks of the same rows stay, and cells outside of blocks."""
    rows = [b"hour1%04d" % row for row in range(1000)]
    async with opened(tmp_path) as store:
        await store.put("cells", [Put(row, COLUMN, VALUE) for row in rows])
        await store.column_blocks.fold("cells", b"hour1")
        await fill(store, b"hour2")
        await store.put("cells", [Put(row, b"t:late", b"v") for row in rows])
    first, second, third, *_ = stored_blocks(tmp_path, "cells")
    stored_blocks(tmp_path, "cells", (first, -1), (third, 0))
    async with opened(tmp_path) as store:
        assert await store.column_blocks.remove_damaged("cells", b"hour2") == 0
        assert await store.column_blocks.remove_damaged("cells", b"hour1") == 2
        found = {row.key: row.cells async for page in scan(store, "cells") for row in page}
    kept = [*stored_blocks(tmp_path, "cells")]
    assert kept[:1] == [second]
    assert len(kept) >= 3
    assert [row for row in found if row in rows] == rows
    whole = [row for row in rows if len(found[row]) == 2]
    assert second in whole
    assert first not in whole
    assert third not in whole
    assert {cell[:2] for row in found.values() for cell in row} == {(COLUMN, VALUE), (b"t:late", b"v")}


async def test_block_of_another_version_is_not_removed(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await fill(store, b"hour1")
    [(key, stored)] = stored_blocks(tmp_path, "cells").items()
    assert stored[STORED_HEAD_BYTES] == FORMAT
    changed = stored_blocks(tmp_path, "cells", (key, STORED_HEAD_BYTES))
    async with opened(tmp_path) as store:
        with pytest.raises(DamagedBlock, match="format"):
            await store.get("cells", [b"hour1b"])
        assert await store.column_blocks.remove_damaged("cells", b"hour1") == 0
    assert stored_blocks(tmp_path, "cells") == changed


async def test_damaged_cell_stays_out_of_blocks(tmp_path: Path) -> None:
    """A block would give it a new checksum."""
    column = COLUMN[:2] + b"".join(seconds_qualifier(time_s, 0) for time_s in range(40))
    async with opened(tmp_path) as store:
        await store.put("cells", [Put(b"hour1" + series, column, bytes(41)) for series in (b"a", b"b", b"c")])
    settings, table_settings = options(1 << 20, 1 << 20)
    names = [name for name in rocksdict.Rdict.list_cf(str(tmp_path), settings) if name != SYSTEM]
    database = rocksdict.Rdict(str(tmp_path), settings, dict.fromkeys(names, table_settings))
    cells = database.get_column_family("cells")
    [key] = [key for key, _ in cells.items() if key.startswith(b"hour1b")]
    cells[key] = cells[key][:-6] + b"\xff" + cells[key][-5:]
    cells.close()
    database.close()
    async with opened(tmp_path) as store:
        assert (await store.column_blocks.fold("cells", b"hour1")).cells == 2
        with pytest.raises(StoreError, match="damaged"):
            await store.get("cells", [b"hour1b"])


@pytest.mark.parametrize("what", ["fold", "write_blocks"])
async def test_rows_in_blocks_survive_a_crash(tmp_path: Path, what: str) -> None:
    process = await trio.to_thread.run_sync(child, what, tmp_path)
    hours = await trio.to_thread.run_sync(lines_until_killed, process, 40)
    async with opened(tmp_path) as store:
        found = {row.key: row.cells async for rows in scan(store, "cells") for row in rows}
        wanted = [b"%08d%02d" % (hour, row) for hour in range(hours[-1] + 1) for row in range(ROWS)]
        assert list(found)[: len(wanted)] == wanted
        cells = [cell for row in found.values() for cell in row]
        assert {Cell(*cell)[:2] for cell in cells} == {POINTS}
        assert len(cells) == len(found)


async def test_rows_of_many_hours_are_read_with_newer_cells(tmp_path: Path) -> None:
    hours = [b"%05d" % hour for hour in range(30)]
    async with opened(tmp_path) as store:
        await fill(store, *hours)
        await store.put("cells", [Put(hours[3] + b"b", COLUMN, b"\3\4\0"), Put(hours[4] + b"b", b"t:note", b"x")])
        await store.put("cells", [Put(hours[5] + b"d", COLUMN, VALUE)])
        await store.delete("cells", {hours[6] + b"b": [COLUMN]}, up_to_ms=None)
        rows = [hour + series for hour in hours for series in (b"b", b"d")]
        for _ in range(2):
            parts = await store.column_blocks.get_columns("cells", rows)
            pages = [part.packed.unpack() for part in parts if part.packed]
            cells = [(key, *page.cell(at)[:2]) for page in pages for at, key in enumerate(page.keys)]
            wanted = [(hour + b"b", COLUMN, VALUE) for hour in hours]
            wanted[3:4] = [(hours[3] + b"b", COLUMN, b"\3\4\0")]
            wanted[4:5] = [wanted[4], (hours[4] + b"b", b"t:note", b"x")]
            wanted[6:7] = [wanted[6], (hours[5] + b"d", COLUMN, VALUE)]
            del wanted[8]
            assert cells == wanted


async def test_scan_during_the_first_fold_reads_all_rows(tmp_path: Path) -> None:
    """Beyond its share of the cache a scan continues on a newer snapshot, but not on one without the rows of blocks."""
    async with opened(tmp_path, cache_bytes=1 << 10) as store:
        rows = [b"hour%d%04d" % (hour, row) for hour in range(3) for row in range(900)]
        await store.put("cells", [Put(row, COLUMN, VALUE) for row in rows])
        found: list[bytes] = []
        async for parts in store.column_blocks.read_columns("cells", b"hour0", b"hour3", limit_bytes=100):
            if not found:
                assert await store.column_blocks.fold("cells", b"hour1") == (900, 1800)
            found += [key for part in parts if part.packed is not None for key in part.packed.keys]
        assert found == rows


async def test_scan_that_waits_during_the_first_fold_reads_all_rows(tmp_path: Path) -> None:
    """Other scans take their turns first while the ingest load is high."""
    async with opened(tmp_path) as store:
        rows = [b"hour1a", b"hour1b"]
        await store.put("cells", [Put(row, COLUMN, VALUE) for row in rows])
        step = await store.access.scan("scan", lambda database: database.view("cells").stored_cells(b"", 100))
        assert await store.column_blocks.fold("cells", b"hour1") == (2, 4)
        pages = [await step(), await step()]
        assert [key for page in pages if page is not None for key in page.keys] == rows


@pytest.mark.parametrize("limit_bytes", [1, 100, 1 << 20])
@pytest.mark.parametrize("cache_bytes", [1 << 10, 256 << 20])
async def test_scan_of_many_blocks_has_the_rows_between_them(
    tmp_path: Path, limit_bytes: int, cache_bytes: int
) -> None:
    """Every third hour is folded before the scan, and another third meanwhile."""
    hours = [b"%05d" % hour for hour in range(90)]
    rows = [hour + series for hour in hours for series in (b"a", b"b", b"c")]
    async with opened(tmp_path, cache_bytes=cache_bytes) as store:
        await store.put("cells", [Put(row, COLUMN, VALUE) for row in rows])
        for hour in hours[::3]:
            await store.column_blocks.fold("cells", hour)
        left = iter(hours[1::3])
        for start, stop in ((rows[0], b"~"), (rows[1], rows[-1]), (b"00020", b"00070")):
            found: list[bytes] = []
            async for parts in store.column_blocks.read_columns("cells", start, stop, limit_bytes=limit_bytes):
                found += [key for part in parts if part.packed is not None for key in part.packed.keys]
                await store.column_blocks.fold("cells", next(left, hours[0]))
            assert found == [row for row in rows if start <= row < stop]
            cells: list[bytes] = []
            async with aclosing(cell_pages(store, "cells", start, stop, limit_bytes=limit_bytes)) as pages:
                async for page in pages:
                    cells += page.keys
            assert cells == found


async def test_rows_read_by_key_during_a_fold(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await fill(store, b"hour9")
        blocks = store.column_blocks
        rows = [b"hour1%04d" % row for row in range(1500)]
        column = b"t:" + b"".join(seconds_qualifier(time_s, 0) for time_s in range(40))
        await store.put("cells", [Put(row, column, bytes(41)) for row in rows])
        cells = await store.get("cells", rows)
        folded = trio.Event()
        reads = 0

        async def read() -> None:
            nonlocal reads
            while not folded.is_set():
                assert await store.get("cells", rows) == cells
                found: list[bytes] = []
                for part in await blocks.get_columns("cells", rows):
                    assert part.packed is not None
                    found += part.packed.keys
                assert sorted(found) == rows
                reads += 1

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await blocks.fold("cells", b"hour1")
            folded.set()
        assert reads
