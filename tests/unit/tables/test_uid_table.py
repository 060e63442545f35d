"""The UID table checked, mended and changed while others are at work on it, and after each way to die."""

from collections.abc import Awaitable, Callable, Iterable

import pytest

from tests.flaky_store import Fault
from tests.interfering_store import InterferingStore
from tsd.codec.names import Kind, Widths
from tsd.codec.opentsdb.uid import (
    COUNTER_ROW,
    ID_FAMILY,
    NAME_FAMILY,
    encode_counter,
    id_column,
    meta_column,
    name_column,
)
from tsd.errors import NoSuchName, StoreDown
from tsd.store import Family, Put, Table, scan
from tsd.store.memory import MemoryStore
from tsd.tables.catalog import NameTaken
from tsd.tables.opentsdb.uid_table import (
    SETTLED_MS,
    ChangedMeanwhile,
    InconsistentName,
    UidFsck,
    delete,
    rename,
)
from tsd.tables.opentsdb.uids import Uids

NOW_MS = SETTLED_MS + 1_000_000
OLD_MS = 1_000
TABLE = "tsdb-uid"
METRIC = Kind.METRIC


def forward(name: bytes, number: int) -> Put:
    return Put(name, id_column(METRIC), number.to_bytes(3, "big"))


def reverse(number: int, name: bytes) -> Put:
    return Put(number.to_bytes(3, "big"), name_column(METRIC), name)


def counter(number: int) -> Put:
    return Put(COUNTER_ROW, id_column(METRIC), encode_counter(number))


SOUND = (forward(b"a", 1), reverse(1, b"a"), forward(b"b", 2), reverse(2, b"b"), counter(2))


async def made(puts: Iterable[Put] = SOUND, time_ms: int = OLD_MS) -> InterferingStore:
    store = InterferingStore(MemoryStore(lambda: NOW_MS))
    await store.create_tables([Table(TABLE, (Family(ID_FAMILY), Family(NAME_FAMILY)))])
    await store.put(TABLE, sorted(puts), time_ms=time_ms)
    store.calls.clear()
    return store


async def held(store: InterferingStore) -> set[Put]:
    return {
        Put(row.key, cell.column, cell.value)
        async for rows in scan(store.store, TABLE)
        for row in rows
        for cell in row.cells
    }


def fsck(store: InterferingStore) -> UidFsck:
    return UidFsck(store, TABLE, Widths(), lambda: NOW_MS)


def putting(store: InterferingStore, *puts: Put) -> Callable[[], Awaitable[None]]:
    """A write of another process."""
    return lambda: store.store.put(TABLE, sorted(puts))


BROKEN = {  # cells in addition to SOUND; cells added and removed by the repair
    "a name that its UID does not know": ([forward(b"c", 3), counter(3)], [reverse(3, b"c")], []),
    "a name whose UID has another's": ([reverse(1, b"x")], [reverse(1, b"a")], [reverse(1, b"x")]),
    "a UID that its name does not know": ([reverse(3, b"c"), counter(3)], [], [reverse(3, b"c")]),
    "a UID whose name has another": ([reverse(3, b"a"), counter(3)], [], [reverse(3, b"a")]),
    "two names of one UID": (
        [forward(b"b", 1)],
        [forward(b"fsck.a.b", 1), reverse(1, b"fsck.a.b")],
        [forward(b"a", 1), forward(b"b", 1), reverse(1, b"a"), reverse(2, b"b")],
    ),
    "a counter behind the highest UID": ([counter(1)], [counter(2)], [counter(1)]),
    "an unknown column": ([Put(b"a", b"id:odd", b"x")], [], [Put(b"a", b"id:odd", b"x")]),
}


@pytest.mark.parametrize("case", BROKEN)
async def test_damage_is_found_and_repaired_once(case: str) -> None:
    more, there, gone = BROKEN[case]
    store = await made([*{put[:2]: put for put in (*SOUND, *more)}.values()])
    before = await held(store)
    found = await fsck(store).check()
    assert found.findings
    assert await held(store) == before
    check, repaired = await fsck(store).repair(delete_unknown=True)
    assert (check.findings, repaired.left) == (found.findings, [])
    after = await held(store)
    assert after == before - set(gone) | set(there)
    again, nothing = await fsck(store).repair(delete_unknown=True)
    assert [one for one in again.findings if one.is_error] == []
    assert (nothing.written, nothing.deleted, nothing.raised, await held(store)) == (0, 0, {}, after)


async def test_valid_table_is_read_once() -> None:
    store = await made()
    rows: list[int] = []
    assert (await fsck(store).check(rows.append)).findings == []
    assert store.calls == ["page", "get"]
    assert sum(rows) == 5


async def test_assignment_between_two_pages_is_not_reported() -> None:
    """The scan has passed the UID's row when it is written; the name's is still to come."""
    numbers = range(1, 1500)
    names = [put for n in numbers for put in (forward(b"z%04d" % n, n), reverse(n, b"z%04d" % n))]
    store = await made([*names, counter(numbers[-1])])
    assigned = Uids(store.store, TABLE, Widths())

    async def assign() -> None:
        async def on_second_page() -> None:
            await assigned.find_or_assign(METRIC, [b"zz"])

        store.before["page"] = on_second_page

    store.before["page"] = assign
    assert (await fsck(store).check()).findings == []
    assert store.calls.count("page") > 2
    assert (await assigned.find(METRIC, [b"zz"]))[b"zz"] == b"\0\x05\xdc"


@pytest.mark.difference(
    "uid-fsck-race",
    topic="rows",
    theirs="`uid fsck` mistakes a UID that is being assigned for a leak and deletes its name",
    ours="It deletes nothing younger than ten minutes",
)
async def test_uid_being_assigned_is_not_deleted() -> None:
    store = await made()
    await store.store.put(TABLE, [reverse(3, b"new")], time_ms=NOW_MS - SETTLED_MS + 1)
    check, repaired = await fsck(store).repair()
    assert [one.text for one in check.findings if not one.of_counter] == ["000003 -> new, which has no UID"]
    [left] = repaired.left
    assert left.startswith("000003 name:metrics ")
    assert reverse(3, b"new") in await held(store)


async def test_cell_changed_since_its_read_is_not_overwritten() -> None:
    store = await made([*SOUND, reverse(1, b"x")])
    store.before["check_and_put"] = putting(store, reverse(1, b"y"))
    _, repaired = await fsck(store).repair()
    assert (repaired.written, repaired.left) == (0, ["000001 name:metrics was changed meanwhile"])
    assert reverse(1, b"y") in await held(store)


async def test_rename_keeps_the_data() -> None:
    store = await made()
    assert await rename(store, TABLE, METRIC, b"a", b"new") == b"\0\0\1"
    assert await held(store) == {*SOUND[2:], forward(b"new", 1), reverse(1, b"new")}
    assert (await fsck(store).check()).findings == []


async def test_invalid_renames_are_refused() -> None:
    store = await made()
    with pytest.raises(NoSuchName, match=r"^No such name for 'metrics': 'nosuch'$"):
        await rename(store, TABLE, METRIC, b"nosuch", b"new")
    with pytest.raises(NameTaken):
        await rename(store, TABLE, METRIC, b"a", b"b")
    with pytest.raises(NameTaken):
        await rename(store, TABLE, METRIC, b"a", b"a")  # its UID was taken away
    await store.store.put(TABLE, [reverse(1, b"other")])
    with pytest.raises(InconsistentName):
        await rename(store, TABLE, METRIC, b"a", b"new")
    assert await held(store) == {*SOUND, reverse(1, b"other")} - {reverse(1, b"a")}


async def test_one_of_two_renames_wins() -> None:
    store = await made()
    store.before["check_and_put"] = putting(store, reverse(1, b"theirs"))
    with pytest.raises(ChangedMeanwhile):
        await rename(store, TABLE, METRIC, b"a", b"ours")
    assert {forward(b"a", 1), reverse(1, b"theirs")} <= await held(store)


async def test_rename_to_a_name_assigned_meanwhile_fails() -> None:
    store = await made()
    store.before["create"] = putting(store, forward(b"new", 3), reverse(3, b"new"))
    with pytest.raises(ChangedMeanwhile):
        await rename(store, TABLE, METRIC, b"a", b"new")
    assert await held(store) == {*SOUND, forward(b"new", 3), reverse(3, b"new")}


@pytest.mark.parametrize("fault", [Fault.REFUSED, Fault.ANSWER_LOST])
async def test_interrupted_rename_is_completed_by_a_repeat(fault: Fault) -> None:
    whole = await made()
    await rename(whole, TABLE, METRIC, b"a", b"new")
    steps = len(whole.calls)
    assert steps == 5
    for step in range(steps):
        store = await made()
        store.plan = [Fault.NONE] * step + [fault]
        with pytest.raises(StoreDown):
            await rename(store, TABLE, METRIC, b"a", b"new")
        if forward(b"a", 1) in await held(store):
            assert await rename(store, TABLE, METRIC, b"a", b"new") == b"\0\0\1"
        assert await held(store) == await held(whole)


async def test_deleted_name_can_be_assigned_again() -> None:
    meta = Put(b"\0\0\1", meta_column(METRIC), b"{}")
    other = Put(b"\0\0\1", name_column(Kind.TAGK), b"host")
    store = await made([*SOUND, meta, other])
    assert await delete(store, TABLE, METRIC, b"a") == b"\0\0\1"
    assert await held(store) == {*SOUND[2:], other}
    with pytest.raises(NoSuchName):
        await delete(store, TABLE, METRIC, b"a")
    uids = Uids(store, TABLE, Widths())
    assert (await uids.find_or_assign(METRIC, [b"a"]))[b"a"] == b"\0\0\3"
    assert [one for one in (await fsck(store).check()).findings if one.kind is METRIC and one.is_error] == []


async def test_delete_keeps_a_uid_of_another_name() -> None:
    store = await made([*SOUND, forward(b"c", 2)])
    assert await delete(store, TABLE, METRIC, b"c") == b"\0\0\2"
    assert await held(store) == set(SOUND)


@pytest.mark.parametrize("fault", [Fault.REFUSED, Fault.ANSWER_LOST])
async def test_interrupted_delete_leaves_no_uid_without_a_name(fault: Fault) -> None:
    for step in range(4):
        store = await made()
        store.plan = [Fault.NONE] * step + [fault]
        with pytest.raises(StoreDown):
            await delete(store, TABLE, METRIC, b"a")
        assert (await fsck(store).check()).errors == 0
