"""UIDs map to names one to one, despite interruptions and concurrent assignments."""

import itertools
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from tests.flaky_store import Fault, FlakyStore
from tsd.codec.names import Kind, Widths
from tsd.codec.opentsdb.uid import (
    COUNTER_ROW,
    ID_FAMILY,
    NAME_FAMILY,
    decode_counter,
    encode_counter,
    id_column,
    name_column,
)
from tsd.errors import CorruptRow, NoSuchName, StoreDown, TsdError, UidsExhausted, WrongTable
from tsd.store import Family, Put, Table, scan
from tsd.store.memory import MemoryStore
from tsd.tables.opentsdb.uids import RECHECKED, Uids

TABLE = "tsdb-uid"


async def make_store() -> FlakyStore:
    clock = itertools.count(1)
    store = FlakyStore(MemoryStore(lambda: next(clock)))
    await store.create_tables([Table(TABLE, (Family(ID_FAMILY), Family(NAME_FAMILY)))])
    return store


def make_uids(store: FlakyStore, width: int = 3, **settings: bool) -> Uids:
    return Uids(store, TABLE, Widths(width, width, width), **settings)


async def mapping(store: FlakyStore, kind: Kind) -> tuple[dict[bytes, bytes], dict[bytes, bytes]]:
    """What the table holds of a kind: name → UID, UID → name."""
    forward, reverse = {}, {}
    async for rows in scan(store.store, TABLE):
        for row in rows:
            for cell in row.cells:
                if cell.column == id_column(kind) and row.key != COUNTER_ROW:
                    forward[row.key] = cell.value
                elif cell.column == name_column(kind):
                    reverse[row.key] = cell.value
    return forward, reverse


async def check_table(store: FlakyStore, kind: Kind) -> dict[bytes, bytes]:
    """Assert that the table is sound; name → UID."""
    forward, reverse = await mapping(store, kind)
    assert len(set(forward.values())) == len(forward)
    for name, uid in forward.items():
        assert reverse[uid] == name
    rows = await store.store.get(TABLE, [COUNTER_ROW], columns=[id_column(kind)])
    used = max((int.from_bytes(uid, "big") for uid in reverse), default=0)
    assert decode_counter(rows[COUNTER_ROW][0].value) >= used
    return forward


async def test_new_names_are_counted_from_one_in_order() -> None:
    store = await make_store()
    found = await make_uids(store).find_or_assign(Kind.METRIC, [b"c", b"a", b"b", b"a"])
    assert found == {b"c": b"\0\0\1", b"a": b"\0\0\2", b"b": b"\0\0\3"}
    assert await check_table(store, Kind.METRIC) == found


async def test_kinds_are_counted_separately() -> None:
    store = await make_store()
    uids = make_uids(store)
    for kind in Kind:
        assert await uids.find_or_assign(kind, [b"same"]) == {b"same": b"\0\0\1"}


async def test_known_name_is_read_once() -> None:
    store = await make_store()
    uids = make_uids(store)
    await uids.find_or_assign(Kind.TAGK, [b"host"])
    store.calls.clear()
    assert await uids.find(Kind.TAGK, [b"host"]) == {b"host": b"\0\0\1"}
    assert store.calls == []
    uids.drop_caches()
    assert await uids.find(Kind.TAGK, [b"host"]) == {b"host": b"\0\0\1"}
    assert store.calls == ["get"]


async def test_unknown_name_is_not_cached_as_missing() -> None:
    store = await make_store()
    uids = make_uids(store)
    found = await uids.find(Kind.METRIC, [b"x"])
    assert isinstance(found[b"x"], NoSuchName)
    assert str(found[b"x"]) == "No such name for 'metrics': 'x'"
    await make_uids(store).find_or_assign(Kind.METRIC, [b"x"])
    assert await uids.find(Kind.METRIC, [b"x"]) == {b"x": b"\0\0\1"}


async def test_names_of_uids() -> None:
    store = await make_store()
    uids = make_uids(store)
    await uids.find_or_assign(Kind.TAGV, [b"a", b"b"])
    names = await uids.names(Kind.TAGV, [b"\0\0\2", b"\0\0\1", b"\0\0\7"])
    assert names[b"\0\0\1"] == b"a"
    assert names[b"\0\0\2"] == b"b"
    assert isinstance(names[b"\0\0\7"], NoSuchName)


async def test_concurrent_callers_share_one_assignment() -> None:
    store = await make_store()
    uids = make_uids(store)
    answers = []

    async def assign(names: list[bytes]) -> None:
        answers.append(await uids.find_or_assign(Kind.TAGV, names))

    async with trio.open_nursery() as nursery:
        for number in range(50):
            nursery.start_soon(assign, [b"shared", b"own%d" % number])
    assert {answer[b"shared"] for answer in answers} == {answers[0][b"shared"]}
    assert store.calls.count("increment") <= 2
    assert len(await check_table(store, Kind.TAGV)) == 51


async def test_two_daemons_assign_one_uid_to_a_name() -> None:
    store = await make_store()
    daemons = [make_uids(store) for _ in range(4)]
    names = [b"name%d" % number for number in range(200)]
    answers: list[dict[bytes, object]] = []

    async def assign(uids: Uids, mine: list[bytes]) -> None:
        answer: dict[bytes, object] = {}
        for at in range(0, len(mine), 10):
            answer.update(await uids.find_or_assign(Kind.METRIC, mine[at : at + 10]))
        answers.append(answer)

    async with trio.open_nursery() as nursery:
        for number, uids in enumerate(daemons):
            nursery.start_soon(assign, uids, random.Random(number).sample(names, len(names)))
    assert answers == [await check_table(store, Kind.METRIC)] * len(daemons)


@pytest.mark.parametrize("fault", [Fault.REFUSED, Fault.ANSWER_LOST])
@pytest.mark.parametrize("calls_before", range(7))
async def test_failed_call_leaves_a_valid_table(
    fault: Fault, calls_before: int, autojump_clock: trio.testing.MockClock
) -> None:
    store = await make_store()
    uids = make_uids(store)
    store.plan = [Fault.NONE] * calls_before + [fault]
    names = [b"a", b"b", b"c"]
    try:
        found = await uids.find_or_assign(Kind.METRIC, names)
    except StoreDown:
        found = await uids.find_or_assign(Kind.METRIC, names)
    assert found == await check_table(store, Kind.METRIC)
    assert set(found) == set(names)


async def test_increment_with_a_lost_answer_is_not_repeated() -> None:
    store = await make_store()
    store.plan = [Fault.NONE, Fault.NONE, Fault.NONE, Fault.ANSWER_LOST]
    with pytest.raises(StoreDown):
        await make_uids(store).find_or_assign(Kind.METRIC, [b"a", b"b"])
    assert store.calls.count("increment") == 1
    assert (await make_uids(store).find_or_assign(Kind.METRIC, [b"a"]))[b"a"] == b"\0\0\3"


async def test_unavailable_store_fails_assignment(autojump_clock: trio.testing.MockClock) -> None:
    store = await make_store()
    uids = make_uids(store)
    store.always = Fault.REFUSED
    with pytest.raises(StoreDown):
        await uids.find_or_assign(Kind.METRIC, [b"a"])
    store.always = Fault.NONE
    assert await uids.find_or_assign(Kind.METRIC, [b"a"]) == {b"a": b"\0\0\1"}


class SlowCreates(FlakyStore):
    """A store that answers no large create in time, and every third small one."""

    async def create(self, table: str, cells: Sequence[Put]) -> list[bool]:
        found = await super().create(table, cells)
        if len(cells) > RECHECKED or self.calls.count("create") % 3 == 0:
            raise StoreDown("too slow")
        return found


async def test_slow_store_gets_few_names_at_once(autojump_clock: trio.testing.MockClock) -> None:
    store = SlowCreates((await make_store()).store)
    names = [b"n%d" % number for number in range(4 * RECHECKED)]
    found = await make_uids(store).find_or_assign(Kind.TAGV, names)
    assert found == await check_table(store, Kind.TAGV)
    assert set(found) == set(names)


@asynccontextmanager
async def assigning(store: FlakyStore, name: bytes) -> AsyncIterator[Uids]:
    """UIDs while a metric's name waits to be created again."""
    uids = make_uids(store)
    store.plan = [Fault.NONE] * 4 + [Fault.REFUSED]  # get, widths, the counter, its increment; then a create
    async with trio.open_nursery() as nursery:
        nursery.start_soon(uids.find_or_assign, Kind.METRIC, [name])
        await trio.testing.wait_all_tasks_blocked()
        assert store.calls[-1] == "create"
        yield uids


async def test_lookup_does_not_wait_for_names_whose_assignment_fails(autojump_clock: trio.testing.MockClock) -> None:
    store = await make_store()
    known = await make_uids(store).find_or_assign(Kind.METRIC, [b"known"])
    async with assigning(store, b"new") as uids:
        before = trio.current_time()
        assert await uids.find(Kind.METRIC, [b"known"]) == known
        assert trio.current_time() == before
    assert set(await check_table(store, Kind.METRIC)) == {b"known", b"new"}


async def test_lookup_waits_for_names_that_are_being_assigned(autojump_clock: trio.testing.MockClock) -> None:
    async with assigning(await make_store(), b"new") as uids:
        assert set(await uids.find(Kind.METRIC, [b"new"])) == {b"new"}
        assert isinstance((await uids.find(Kind.METRIC, [b"other"]))[b"other"], NoSuchName)


async def test_cancelled_caller_does_not_cancel_the_batch() -> None:
    store = await make_store()
    uids = make_uids(store)
    answers = []

    async def assign() -> None:
        answers.append(await uids.find_or_assign(Kind.METRIC, [b"a", b"b"]))

    async with trio.open_nursery() as nursery:
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as first:
                first.start_soon(uids.find_or_assign, Kind.METRIC, [b"a"])
                await trio.testing.wait_all_tasks_blocked()
                nursery.start_soon(assign)
                scope.cancel()
    assert answers == [await check_table(store, Kind.METRIC)]


async def test_lost_race_uses_the_winners_uid() -> None:
    store = await make_store()
    ours, theirs = make_uids(store), make_uids(store)
    won = False
    create = store.store.create

    async def first_theirs(table: str, cells: list[Put]) -> list[bool]:
        nonlocal won
        if not won and cells[0].column == id_column(Kind.METRIC):
            won = True
            await theirs.find_or_assign(Kind.METRIC, [b"a"])
        return await create(table, cells)

    store.store.create = first_theirs  # type: ignore[method-assign, assignment]
    assert await ours.find_or_assign(Kind.METRIC, [b"a"]) == {b"a": b"\0\0\2"}
    forward, reverse = await mapping(store, Kind.METRIC)
    assert forward == {b"a": b"\0\0\2"}
    assert reverse == {b"\0\0\2": b"a"}
    assert await check_table(store, Kind.METRIC) == forward


async def test_lost_race_keeps_an_entry_that_a_repair_renamed() -> None:
    store = await make_store()
    ours, theirs = make_uids(store), make_uids(store)
    create, got = store.store.create, store.store.get

    async def first_theirs(table: str, cells: list[Put]) -> list[bool]:
        if cells[0].column == id_column(Kind.METRIC):
            store.store.create = create  # type: ignore[method-assign]
            await theirs.find_or_assign(Kind.METRIC, [b"a"])
            await store.store.put(table, [Put(b"\0\0\1", name_column(Kind.METRIC), b"b")])
        return await create(table, cells)

    store.store.create = first_theirs  # type: ignore[method-assign, assignment]
    assert await ours.find_or_assign(Kind.METRIC, [b"a"]) == {b"a": b"\0\0\2"}
    rows = await got(TABLE, [b"\0\0\1"])
    assert rows[b"\0\0\1"][0].value == b"b"


async def test_lost_race_gives_the_winners_uid_if_its_own_entry_cannot_be_deleted() -> None:
    store = await make_store()
    ours, theirs = make_uids(store), make_uids(store)
    create = store.store.create

    async def first_theirs(table: str, cells: list[Put]) -> list[bool]:
        if cells[0].column == id_column(Kind.METRIC):
            store.store.create = create  # type: ignore[method-assign]
            await theirs.find_or_assign(Kind.METRIC, [b"a"])
            store.plan = [Fault.NONE] * 2 + [Fault.REFUSED]  # both reads, delete
        return await create(table, cells)

    store.store.create = first_theirs  # type: ignore[method-assign, assignment]
    assert await ours.find_or_assign(Kind.METRIC, [b"a"]) == {b"a": b"\0\0\2"}
    assert store.calls[-1] == "delete"
    assert await mapping(store, Kind.METRIC) == ({b"a": b"\0\0\2"}, {b"\0\0\1": b"a", b"\0\0\2": b"a"})


async def test_number_used_without_the_counter_is_skipped() -> None:
    store = await make_store()
    await store.store.put(TABLE, [Put(b"\0\0\1", name_column(Kind.METRIC), b"squatter")])
    uids = make_uids(store)
    assert await uids.find_or_assign(Kind.METRIC, [b"a", b"b"]) == {b"a": b"\0\0\3", b"b": b"\0\0\2"}
    assert uids.statistics()[Kind.METRIC].collisions == 1


@pytest.mark.difference("uid-assign")
async def test_last_uids_are_assigned_and_then_refused() -> None:
    store = await make_store()
    await store.store.put(TABLE, [Put(COUNTER_ROW, id_column(Kind.TAGV), encode_counter(253))])
    uids = make_uids(store, width=1)
    found = await uids.find_or_assign(Kind.TAGV, [b"a", b"b", b"c", b"d"])
    assert (found[b"a"], found[b"b"]) == (b"\xfe", b"\xff")
    for name in (b"c", b"d"):
        assert isinstance(found[name], UidsExhausted)
        assert str(found[name]) == "All Unique IDs for tagv on 1 bytes are already assigned!"
    again = await uids.find_or_assign(Kind.TAGV, [b"c", b"a"])
    assert isinstance(again[b"c"], UidsExhausted)
    assert again[b"a"] == b"\xfe"
    rows = await store.store.get(TABLE, [COUNTER_ROW])
    assert decode_counter(rows[COUNTER_ROW][0].value) == 255  # OpenTSDB counts on and on
    assert uids.statistics()[Kind.TAGV].available == 0


async def test_uid_of_wrong_width_fails_that_name_only() -> None:
    store = await make_store()
    await make_uids(store).find_or_assign(Kind.METRIC, [b"other"])
    await store.store.put(TABLE, [Put(b"wide", id_column(Kind.METRIC), b"\0\0\0\1")])
    found = await make_uids(store).find_or_assign(Kind.METRIC, [b"wide", b"fine"])
    assert found[b"fine"] == b"\0\0\2"
    assert isinstance(found[b"wide"], CorruptRow)
    assert str(found[b"wide"]) == "Found id.length = 4 which is != 3 required for 'metrics'"


async def test_uids_of_another_width_than_configured_are_an_error() -> None:
    store = await make_store()
    ours = make_uids(store)
    await ours.check_widths()
    await ours.find_or_assign(Kind.TAGV, [b"web01", b"web02"])
    await make_uids(store).check_widths()
    before = await mapping(store, Kind.TAGV)
    with pytest.raises(WrongTable, match=r"'tagv' with 3 bytes, wanted 4 \(tsd.storage.uid.width.tagv\)"):
        await make_uids(store, 4).check_widths()
    for kind in Kind:
        with pytest.raises(WrongTable, match="tagv"):
            await make_uids(store, 4).find_or_assign(kind, [b"web03"])
    assert await mapping(store, Kind.TAGV) == before


async def test_damaged_uid_among_others_does_not_stop_assignment() -> None:
    store = await make_store()
    await make_uids(store).find_or_assign(Kind.METRIC, [b"b"])
    await store.store.put(TABLE, [Put(b"a", id_column(Kind.METRIC), b"\0\0\0\1")])
    uids = make_uids(store)
    await uids.check_widths()
    assert await uids.find_or_assign(Kind.METRIC, [b"c"]) == {b"c": b"\0\0\2"}


async def test_invalid_counter_is_refused() -> None:
    store = await make_store()
    await store.store.put(TABLE, [Put(COUNTER_ROW, id_column(Kind.METRIC), b"\0\1")])
    with pytest.raises(TsdError):
        await make_uids(store).find_or_assign(Kind.METRIC, [b"a"])
    uids = make_uids(store)
    await store.store.put(TABLE, [Put(COUNTER_ROW, id_column(Kind.TAGV), encode_counter(7))])
    with pytest.raises(CorruptRow, match="8 bytes, got 2"):
        await uids.read_counters()
    assert uids.statistics()[Kind.TAGV].used == 7  # the others were read all the same


async def test_counters_are_read_together() -> None:
    """A daemon reads them again and again; each request wakes processes that rest."""
    store = await make_store()
    uids = make_uids(store)
    used = {Kind.METRIC: 5, Kind.TAGK: 6, Kind.TAGV: 7}
    await store.store.put(TABLE, [Put(COUNTER_ROW, id_column(kind), encode_counter(used[kind])) for kind in used])
    store.calls.clear()
    await uids.read_counters()
    assert store.calls == ["get"]
    assert {kind: found.used for kind, found in uids.statistics().items()} == used


async def test_random_metrics_leave_the_counter_alone() -> None:
    store = await make_store()
    uids = make_uids(store, random_metrics=True)
    names = [b"m%d" % number for number in range(300)]
    found = await uids.find_or_assign(Kind.METRIC, names)
    forward, reverse = await mapping(store, Kind.METRIC)
    assert forward == found
    assert all(reverse[uid] == name for name, uid in found.items())
    assert await store.store.get(TABLE, [COUNTER_ROW]) == {}
    assert await uids.find_or_assign(Kind.TAGK, [b"k"]) == {b"k": b"\0\0\1"}


async def test_colliding_random_numbers_are_redrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "tsd.tables.opentsdb.uids.secrets.randbelow", random.Random(1).randrange
    )  # by chance, the same one every time
    store = await make_store()
    uids = make_uids(store, width=1, random_metrics=True)
    found = await uids.find_or_assign(Kind.METRIC, [b"m%d" % number for number in range(70)])
    assert len(set(found.values())) == 70
    assert uids.statistics()[Kind.METRIC].collisions > 0


async def test_caches_are_bounded() -> None:
    store = await make_store()
    uids = Uids(store, TABLE, Widths(), name_cache=10, id_cache=10)
    names = [b"n%d" % number for number in range(100)]
    found = await uids.find_or_assign(Kind.TAGV, names)
    assert await uids.find(Kind.TAGV, names) == found
    await uids.names(Kind.TAGV, [uid for uid in found.values() if isinstance(uid, bytes)])
    assert uids.statistics()[Kind.TAGV].cached <= 20


async def test_name_that_is_no_row_key_is_refused_alone() -> None:
    store = await make_store()
    name = b"x" * (store.capabilities.longest_key + 1)
    found = await make_uids(store).find_or_assign(Kind.METRIC, [name, b"short"])
    assert isinstance(found[name], TsdError)
    assert found[b"short"] == b"\0\0\1"
    assert list(await check_table(store, Kind.METRIC)) == [b"short"]
