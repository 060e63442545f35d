"""fsck in a store: what others write meanwhile stays, what a crash leaves is whole, and names are asked for in time."""

import pytest

from tests.meddled import Meddled
from tests.unit.codec.codec_rows import KEY, cells
from tests.wavering import Fault
from tsd.codec.cell import COLUMN
from tsd.codec.fsck import FsckOptions, Line
from tsd.codec.merge import MergeRules
from tsd.codec.row import data_cells, points
from tsd.codec.rowkey import Layout
from tsd.codec.uid import ID_FAMILY, NAME_FAMILY, Kind, Widths
from tsd.errors import StoreDown
from tsd.fsck import BUSY_MS, LOOK_ROWS, Fsck, Verdict
from tsd.store import Family, Put, Row, Table
from tsd.store.memory import MemoryStore
from tsd.uids import Uids

NOW_MS = 1_000_000
UID = b"\0\0\1"
DATA, UID_TABLE = "tsdb", "tsdb-uid"
ALL = FsckOptions.fix_all()


async def made(row: str, *, key: bytes = KEY, named: bool = True) -> Meddled:
    """A store with one row, and names for its UIDs."""
    store = Meddled(MemoryStore(lambda: NOW_MS))
    await store.create_tables(
        [Table(DATA, (Family(COLUMN[:-1]),)), Table(UID_TABLE, (Family(ID_FAMILY), Family(NAME_FAMILY)))]
    )
    await written(store, row, key=key)
    for kind in Kind if named else ():
        await store.put(UID_TABLE, [Put(UID, kind.name_column, b"name")])
    store.calls.clear()
    return store


async def written(store: Meddled, row: str, *, key: bytes = KEY) -> None:
    for cell in cells(row):
        await store.store.put(DATA, [Put(key, COLUMN + cell.qualifier, cell.value)], time_ms=cell.time_ms)


async def row_of(store: Meddled, key: bytes = KEY) -> Row | None:
    rows = await store.store.get(DATA, [key])
    return Row(key, rows[key]) if key in rows else None


async def shown(store: Meddled, key: bytes = KEY) -> str:
    """The row as `cells` reads it."""
    row = await row_of(store, key)
    held = data_cells(row.cells) if row else []
    return " ".join(f"{cell.qualifier.hex()}={cell.value.hex()}@{cell.time_ms}" for cell in held)


async def examined(store: Meddled, options: FsckOptions = ALL, key: bytes = KEY, now_ms: int = NOW_MS) -> Verdict:
    row = await row_of(store, key)
    assert row is not None
    uids = Uids(store, UID_TABLE, Widths())
    [verdict] = await Fsck(store, DATA, uids, Layout(), options).examine([row], read_ms=now_ms)
    return verdict


async def test_a_row_is_mended_at_the_time_of_its_newest_cell() -> None:
    store = await made("0007=2a@3 0010=2b@7 0020=2c@5")
    verdict = await examined(store)
    assert await shown(store) == "000000100020=2a2b2c00@7"
    assert (verdict.left, verdict.series) == ("", "name 1356998400 {name=name}")
    assert verdict.check.counts[Line.ENCODING_FIXED] == 1
    assert (await examined(store)).check.findings == []


async def test_without_fix_nothing_is_written() -> None:
    store = await made("0007=2a@3 0010=2b@7 0010aa=2b@7")
    verdict = await examined(store, FsckOptions(compact=True, resolve_duplicates=True, delete_unknown_columns=True))
    assert set(store.calls) == {"get"}
    assert (verdict.check.counts[Line.ENCODING], verdict.check.counts[Line.ENCODING_FIXED]) == (1, 0)


async def test_a_newer_value_in_the_cell_that_is_to_be_written_stays_and_nothing_is_deleted() -> None:
    store = await made("0007=2a@3")
    store.before["put"] = lambda: written(store, "0000=63@9")
    verdict = await examined(store)
    assert await shown(store) == "0000=63@9 0007=2a@3"
    assert verdict.left.startswith("what was written does not show")
    assert verdict.check.counts[Line.ENCODING_FIXED] == 0
    assert (await examined(store)).left == ""
    assert await shown(store) == "0000=2a@9"  # the oldest of a time stays unless --last-write-wins


async def test_a_newer_value_in_a_cell_that_is_to_be_deleted_stays() -> None:
    store = await made("0000=2a@3 0010=2b@7")
    store.before["delete"] = lambda: written(store, "0010=63@8 0020=64@8")
    verdict = await examined(store)
    assert verdict.left == ""
    assert await shown(store) == "00000010=2a2b00@7 0010=63@8 0020=64@8"


async def test_what_comes_with_a_time_of_its_own_as_new_as_the_row_stays() -> None:
    """Older cells go up to the ms before the row's newest: another fsck's or compaction's put at that time stays."""
    store = await made("0000=2a@3 0010=2b@7")
    store.before["delete"] = lambda: written(store, "0000=63@7")
    await examined(store)
    assert await shown(store) == "0000=63@7 00000010=2a2b00@7"


async def test_cells_of_many_times_go_with_two_calls() -> None:
    store = await made(" ".join(f"00{offset:02x}=2a@{offset + 1}" for offset in range(0, 256, 16)))
    await examined(store)
    assert store.calls[len(Kind) :] == ["put", "get", "delete", "delete"]
    assert await shown(store) == "".join(f"00{n:02x}" for n in range(0, 256, 16)) + "=" + "2a" * 16 + "00@241"


async def test_of_a_row_that_goes_whole_only_what_was_read_goes() -> None:
    key = KEY[:-1]
    store = await made("0000=2a@3 0010=2b@7", key=key)
    store.before["delete"] = lambda: written(store, "0020=2c@8", key=key)
    verdict = await examined(store, key=key)
    assert (verdict.series, verdict.check.counts[Line.BAD_KEY_DELETED]) == ("", 1)
    assert await shown(store, key) == "0020=2c@8"


async def test_a_row_whose_uids_have_no_name_goes_if_it_may() -> None:
    store = await made("0000=2a@3", named=False)
    kept = await examined(store, FsckOptions(fix=True))
    assert (kept.series, kept.check.counts[Line.ORPHAN]) == ("<000001> 1356998400 {<000001>=<000001>}", 1)
    assert await shown(store) == "0000=2a@3"
    assert (await examined(store)).check.counts[Line.ORPHAN_DELETED] == 1
    assert await shown(store) == ""


async def test_a_table_fits_where_any_of_its_metrics_has_names() -> None:
    store = await made("0000=2a@3")
    fsck = Fsck(store, DATA, Uids(store, UID_TABLE, Widths()), Layout(), ALL)
    assert await fsck.fits()
    await store.store.delete(DATA, {KEY: [COLUMN + b"\0\0"]}, up_to_ms=9)
    assert await fsck.fits()  # it is empty
    other = b"\0\0\2" + KEY[3:]
    for hour in range(LOOK_ROWS + 5):
        await written(store, "0000=2a@3", key=b"\0\0\0" + (3600 * hour).to_bytes(4, "big") + KEY[7:])
    await written(store, "0000=2a@3", key=other)
    assert not await fsck.fits()
    await store.put(UID_TABLE, [Put(b"\0\0\2", Kind.METRIC.name_column, b"another")])
    assert await fsck.fits()


@pytest.mark.parametrize(("age_ms", "left"), [(BUSY_MS, True), (BUSY_MS + 1, False), (-BUSY_MS - 1, False)])
async def test_a_row_that_is_being_written_is_left_alone(age_ms: int, left: bool) -> None:
    """In that very moment another cell might get the time that ours gets."""
    store = await made("0007=2a@500000")
    verdict = await examined(store, now_ms=500000 + age_ms)
    assert verdict.left == ("it is being written to" if left else "")
    assert await shown(store) == ("0007=2a@500000" if left else "0000=2a@500000")
    assert verdict.check.counts[Line.ENCODING_FIXED] == (not left)


@pytest.mark.parametrize("fault", [Fault.REFUSED, Fault.ANSWER_LOST])
async def test_a_crash_at_any_step_leaves_every_point_where_a_reader_finds_it(fault: Fault) -> None:
    row = "0000=01@1 0010=02@2 0011=0003@3 0027=04@4 00300040=0506@5"
    options = FsckOptions.fix_all(last_write_wins=True)
    whole = await made(row)
    await examined(whole, options)
    steps = len(whole.calls)
    assert steps >= 7
    for step in range(steps):
        store = await made(row)
        store.plan = [Fault.NONE] * step + [fault]
        with pytest.raises(StoreDown):
            await examined(store, options)
        left = await row_of(store)
        assert left is not None
        found = points(KEY, data_cells(left.cells), MergeRules(fix_duplicates=True))
        assert [(point.offset_ms, point.number) for point in found] == [
            (0, 1), (1000, 3), (2000, 4), (3000, 5), (4000, 6)
        ]  # fmt: skip
        await examined(store, options)
        assert await shown(store) == await shown(whole)
