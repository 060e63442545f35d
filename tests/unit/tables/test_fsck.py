"""fsck in a store: what others write meanwhile stays, what a crash leaves is whole, and names are asked for in time."""

from pathlib import Path

import pytest

from tests.flaky_store import Fault
from tests.interfering_store import InterferingStore
from tests.unit.codec.codec_rows import KEY, cells
from tests.unit.store.damaging import stored_blocks
from tests.unit.store.rocksdb_parts import opened
from tsd.codec.names import Kind, Widths
from tsd.codec.opentsdb.cell import COLUMN
from tsd.codec.opentsdb.fsck import FsckLine, FsckOptions
from tsd.codec.opentsdb.merge import MergeRules
from tsd.codec.opentsdb.row import data_cells, points
from tsd.codec.opentsdb.rowkey import KeyLayout
from tsd.codec.opentsdb.uid import ID_FAMILY, NAME_FAMILY, name_column
from tsd.errors import CorruptRow, DamagedBlock, StoreDown
from tsd.store import Family, Put, Row, Table
from tsd.store.memory import MemoryStore
from tsd.tables.opentsdb.compaction.compactor import RowCompactor
from tsd.tables.opentsdb.data_table import DataTable
from tsd.tables.opentsdb.fsck import BUSY_MS, Fsck, RowReport
from tsd.tables.opentsdb.uids import Uids

NOW_MS = 1_000_000
UID = b"\0\0\1"
DATA, UID_TABLE = "tsdb", "tsdb-uid"
NEWEST = MergeRules(fix_duplicates=True)
ALL = FsckOptions.fix_all()


async def made(row: str, *, key: bytes = KEY, named: bool = True) -> InterferingStore:
    """A store with one row, and names for its UIDs."""
    store = InterferingStore(MemoryStore(lambda: NOW_MS))
    await store.create_tables(
        [Table(DATA, (Family(COLUMN[:-1]),)), Table(UID_TABLE, (Family(ID_FAMILY), Family(NAME_FAMILY)))]
    )
    await written(store, row, key=key)
    for kind in Kind if named else ():
        await store.put(UID_TABLE, [Put(UID, name_column(kind), b"name")])
    store.calls.clear()
    return store


async def written(store: InterferingStore, row: str, *, key: bytes = KEY) -> None:
    for cell in cells(row):
        await store.store.put(DATA, [Put(key, COLUMN + cell.qualifier, cell.value)], time_ms=cell.time_ms)


async def row_of(store: InterferingStore, key: bytes = KEY) -> Row | None:
    rows = await store.store.get(DATA, [key])
    return Row(key, rows[key]) if key in rows else None


async def shown(store: InterferingStore, key: bytes = KEY) -> str:
    """The row as `cells` reads it."""
    row = await row_of(store, key)
    held = data_cells(row.cells) if row else []
    return " ".join(f"{cell.qualifier.hex()}={cell.value.hex()}@{cell.time_ms}" for cell in held)


async def examined(
    store: InterferingStore, options: FsckOptions = ALL, key: bytes = KEY, now_ms: int = NOW_MS
) -> RowReport:
    row = await row_of(store, key)
    assert row is not None
    uids = Uids(store, UID_TABLE, Widths())
    [verdict] = await Fsck(DataTable(store, DATA, KeyLayout()), uids, options).check([row], read_ms=now_ms)
    return verdict


@pytest.mark.parametrize("options", [FsckOptions(), FsckOptions(fix=True), ALL])
async def test_damaged_block_is_reported_and_removed_if_allowed(tmp_path: Path, options: FsckOptions) -> None:
    point = COLUMN + b"\0\0", b"\7"
    async with opened(tmp_path) as store:
        await store.create_tables([Table(DATA, (Family(b"t"),)), Table(UID_TABLE, (Family(b"id"), Family(b"name")))])
        await store.put(UID_TABLE, [Put(UID, name_column(Kind.METRIC), b"sys.cpu")])
        await store.put(DATA, [Put(KEY, *point)])
        await store.column_blocks.fold(DATA, KEY[:7])
        await store.put(DATA, [Put(KEY, COLUMN + b"\0\x10", b"\x08")])
    stored_blocks(tmp_path, DATA, (KEY, -1))
    async with opened(tmp_path) as store:
        with pytest.raises(DamagedBlock) as error:
            await store.get(DATA, [KEY])
        check = Fsck(DataTable(store, DATA, KeyLayout()), Uids(store, UID_TABLE, Widths()), options)
        assert await check.matches_configuration()
        found = await check.check_damaged(error.value)
        assert found.series.startswith("sys.cpu ")
        removes = options.delete_bad_compacts
        wanted = {FsckLine.BAD_COMPACT: 1, **({FsckLine.BAD_COMPACT_DELETED: 1} if removes else {})}
        assert found.check.counts == wanted
        assert bool(found.skipped) is not removes
        if removes:
            [cell] = (await store.get(DATA, [KEY]))[KEY]
            assert cell[:2] == (COLUMN + b"\0\x10", b"\x08")
        else:
            with pytest.raises(DamagedBlock):
                await store.get(DATA, [KEY])


async def test_damaged_block_of_a_running_daemon_is_left() -> None:
    store = await made("0000=2a@5")
    check = Fsck(DataTable(store, DATA, KeyLayout()), Uids(store, UID_TABLE, Widths()), ALL)
    found = await check.check_damaged(DamagedBlock("a block", KEY[:7]))
    assert found.skipped
    assert found.check.counts == {FsckLine.BAD_COMPACT: 1}


def no_error(error: CorruptRow) -> None:
    raise error


async def test_repair_is_newer_than_the_row() -> None:
    store = await made("0007=2a@3 0010=2b@7 0020=2c@5")
    verdict = await examined(store)
    assert await shown(store) == "000000100020=2a2b2c00@8"
    assert (verdict.skipped, verdict.series) == ("", "name 1356998400 {name=name}")
    assert verdict.check.counts[FsckLine.ENCODING_FIXED] == 1
    assert (await examined(store)).check.findings == []


async def test_check_without_fix_writes_nothing() -> None:
    store = await made("0007=2a@3 0010=2b@7 0010aa=2b@7")
    verdict = await examined(store, FsckOptions(compact=True, resolve_duplicates=True, delete_unknown_columns=True))
    assert set(store.calls) == {"get"}
    assert (verdict.check.counts[FsckLine.ENCODING], verdict.check.counts[FsckLine.ENCODING_FIXED]) == (1, 0)


async def test_newer_value_in_the_written_cell_prevents_deletes() -> None:
    store = await made("0007=2a@3")
    store.before["put"] = lambda: written(store, "0000=63@9")
    verdict = await examined(store)
    assert await shown(store) == "0000=63@9 0007=2a@3"
    assert verdict.skipped
    assert verdict.check.counts[FsckLine.ENCODING_FIXED] == 0
    assert (await examined(store)).skipped == ""
    assert await shown(store) == "0000=2a@10"  # the oldest of a time stays unless --last-write-wins


async def test_newer_value_in_a_deleted_cell_stays() -> None:
    store = await made("0000=2a@3 0010=2b@7")
    store.before["delete"] = lambda: written(store, "0010=63@9 0020=64@9")
    verdict = await examined(store)
    assert verdict.skipped == ""
    assert await shown(store) == "00000010=2a2b00@8 0010=63@9 0020=64@9"


async def test_concurrent_put_with_equal_timestamp_stays() -> None:
    """Older cells go up to the ms before the row's newest: another fsck's or compaction's put at that time stays."""
    store = await made("0000=2a@3 0010=2b@7")
    store.before["delete"] = lambda: written(store, "0000=63@7")
    await examined(store)
    assert await shown(store) == "0000=63@7 00000010=2a2b00@8"


@pytest.mark.parametrize(
    "row", ["000000100020=2a2b2c00@7 0011=0102@6", "000000110020=2a01022c00@6 000000100020=2a2b2c00@7"]
)
async def test_compaction_before_the_deletes_loses_no_point(row: str) -> None:
    """It takes the repaired cell for a duplicate of one that is deleted then."""
    store = await made(row)

    async def compact() -> None:
        compactor = RowCompactor(
            DataTable(store.store, DATA, KeyLayout()), NEWEST, lambda: NOW_MS, no_error, settle_ms=0
        )
        await compactor.compact_keys([KEY])
        assert compactor.stats.compacted

    store.before["delete"] = compact
    await examined(store)
    left = await row_of(store)
    assert [point.offset_ms for point in points(KEY, data_cells(left.cells if left else []), NEWEST)] == [0, 1000, 2000]


async def test_cells_of_many_timestamps_need_two_deletes() -> None:
    store = await made(" ".join(f"00{offset:02x}=2a@{offset + 1}" for offset in range(0, 256, 16)))
    await examined(store)
    assert store.calls[len(Kind) :] == ["put", "get", "delete", "delete"]
    assert await shown(store) == "".join(f"00{n:02x}" for n in range(0, 256, 16)) + "=" + "2a" * 16 + "00@242"


async def test_row_deletion_spares_unread_cells() -> None:
    key = KEY[:-1]
    store = await made("0000=2a@3 0010=2b@7", key=key)
    store.before["delete"] = lambda: written(store, "0020=2c@8", key=key)
    verdict = await examined(store, key=key)
    assert (verdict.series, verdict.check.counts[FsckLine.BAD_KEY_DELETED]) == ("", 1)
    assert await shown(store, key) == "0020=2c@8"


async def test_row_with_unknown_uids_is_deleted_if_allowed() -> None:
    store = await made("0000=2a@3", named=False)
    kept = await examined(store, FsckOptions(fix=True))
    assert (kept.series, kept.check.counts[FsckLine.ORPHAN]) == ("<000001> 1356998400 {<000001>=<000001>}", 1)
    assert await shown(store) == "0000=2a@3"
    assert (await examined(store)).check.counts[FsckLine.ORPHAN_DELETED] == 1
    assert await shown(store) == ""


async def test_table_matches_if_any_metric_has_names() -> None:
    store = await made("0000=2a@3")
    fsck = Fsck(DataTable(store, DATA, KeyLayout()), Uids(store, UID_TABLE, Widths()), ALL)
    assert await fsck.matches_configuration()
    await store.store.delete(DATA, {KEY: [COLUMN + b"\0\0"]}, up_to_ms=9)
    assert await fsck.matches_configuration()  # it is empty
    other = b"\0\0\2" + KEY[3:]
    for hour in range(500):
        await written(store, "0000=2a@3", key=b"\0\0\0" + (3600 * hour).to_bytes(4, "big") + KEY[7:])
    await written(store, "0000=2a@3", key=other)
    assert not await fsck.matches_configuration()
    await store.put(UID_TABLE, [Put(b"\0\0\2", name_column(Kind.METRIC), b"another")])
    assert await fsck.matches_configuration()


@pytest.mark.parametrize(("age_ms", "left"), [(BUSY_MS, True), (BUSY_MS + 1, False), (-BUSY_MS - 1, False)])
async def test_row_with_recent_cells_is_skipped(age_ms: int, left: bool) -> None:
    """In that very moment another cell might get the time that ours gets."""
    store = await made("0007=2a@500000")
    verdict = await examined(store, now_ms=500000 + age_ms)
    assert verdict.skipped == ("it is being written to" if left else "")
    assert await shown(store) == ("0007=2a@500000" if left else "0000=2a@500001")
    assert verdict.check.counts[FsckLine.ENCODING_FIXED] == (not left)


@pytest.mark.parametrize("fault", [Fault.REFUSED, Fault.ANSWER_LOST])
async def test_crash_at_any_step_loses_no_point(fault: Fault) -> None:
    row = "0000=01@1 0010=02@2 0011=0003@3 0027=04@4 00300040=0506@5"
    options = FsckOptions.fix_all(last_write_wins=True)
    whole = await made(row)
    await examined(whole, options)
    repaired = await row_of(whole)
    assert repaired is not None
    steps = len(whole.calls)
    assert steps >= 7
    for step in range(steps):
        store = await made(row)
        store.plan = [Fault.NONE] * step + [fault]
        with pytest.raises(StoreDown):
            await examined(store, options)
        left = await row_of(store)
        assert left is not None
        found = points(KEY, data_cells(left.cells), NEWEST)
        assert [(point.offset_ms, point.number) for point in found] == [
            (0, 1), (1000, 3), (2000, 4), (3000, 5), (4000, 6)
        ]  # fmt: skip
        await examined(store, options)
        again = await row_of(store)  # as in the whole repair, with a later timestamp
        assert again is not None
        assert [cell[:2] for cell in again.cells] == [cell[:2] for cell in repaired.cells]
