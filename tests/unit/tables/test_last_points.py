"""The newest points of series: from memory where it can be trusted, from rows where it cannot."""

import json
from collections.abc import Sequence
from typing import Never

import pytest
import trio
from hypothesis import given

import tsd.query.last
from tests.property.codec_rows import anything
from tests.unit.metadata.asking import NOW_MS, World, at_once, make_world, request_of
from tsd.api import last
from tsd.codec.cell import COLUMN, seconds_qualifier
from tsd.codec.merge import MergeRules, StoredCell, merge
from tsd.codec.row import points
from tsd.codec.rowkey import Layout
from tsd.codec.times import HOUR_S
from tsd.codec.tsuid import tsuid_row
from tsd.codec.uid import Widths
from tsd.errors import CorruptRow, StoreError
from tsd.metadata.known import KnownSeries
from tsd.metadata.latest import LastPoint, Latest
from tsd.query.last import LastPoints, last_of
from tsd.store import Put
from tsd.store.memory import MemoryStore

HOUR = NOW_MS // 1000 // HOUR_S * HOUR_S


class Asked:
    """A world whose endpoint can be asked; `clock_ms` may be set."""

    def __init__(self, world: World, trust_ms: int | None = None, *, exact: bool = False) -> None:
        self.world = world
        self.clock_ms = NOW_MS
        self.latest = Latest(0)
        known = KnownSeries(
            world.store,
            world.layout,
            self.latest,
            lambda: self.clock_ms // 1000,
            data_table="tsdb",
            uid_table="tsdb-uid",
            meta_table=None,
            look_back_h=24,
            trust_s=trust_ms // 1000 if trust_ms else None,
        )
        self.points = LastPoints(
            world.store,
            "tsdb",
            world.layout,
            self.latest,
            lambda: self.clock_ms,
            look_back_h=2,
            trust_ms=trust_ms,
        )
        answers = last.Answers(known, self.points, world.uids, Widths(), exact_back_scans=exact, written=at_once)
        world.endpoints = last.routes(answers)

    async def values(self, query: str) -> dict[str, str]:
        """The values that are answered, by TSUID."""
        said = await self.world.ask("GET", f"/api/query/last?{query}")
        assert said.status == 200, said
        return {one["tsuid"]: one["value"] for one in said.body}


async def store(world: World, tsuid: bytes, time_s: int, value: int) -> None:
    row = tsuid_row(world.layout, tsuid, time_s // HOUR_S * HOUR_S)
    column = COLUMN + seconds_qualifier(time_s % HOUR_S, 0)
    await world.store.put("tsdb", [Put(row, column, bytes((value,)))])


async def test_series_with_at_least_these_tags_are_answered_without_any_meta_table() -> None:
    world = await make_world()
    one = await world.series("m", host="a")
    two = await world.series("m", host="a", cpu="0")
    await store(world, one, HOUR, 1)
    await store(world, one, HOUR + 10, 2)
    await store(world, two, HOUR - HOUR_S, 3)  # the hour before
    asked = Asked(world)
    assert await asked.values("timeseries=m{host=a}") == {one.hex().upper(): "2", two.hex().upper(): "3"}
    assert await asked.values("timeseries=m{cpu=0}") == {two.hex().upper(): "3"}
    assert await asked.values(f"tsuids={two.hex()}") == {two.hex().upper(): "3"}


async def test_a_back_scan_without_the_meta_table_is_for_the_one_series() -> None:
    world = await make_world()
    one = await world.series("m", host="a")
    await store(world, one, HOUR - 5 * HOUR_S, 1)
    await store(world, await world.series("m", host="a", cpu="0"), HOUR, 3)
    asked = Asked(world, exact=True)
    assert await asked.values("timeseries=m{host=a}&back_scan=4") == {}
    assert await asked.values("timeseries=m{host=a}&back_scan=5") == {one.hex().upper(): "1"}
    assert await asked.values("timeseries=m{host=a}&back_scan=4") == {}  # though it is known by now
    assert len(await asked.values("timeseries=m{host=a}&back_scan=5&corrected")) == 2  # those like it too
    body = {"queries": [{"metric": "m", "tags": {"host": "a"}}], "backScan": 5}
    for said, count in (({}, 1), ({"corrected": True}, 2), ({"corrected": "true"}, 2), ({"corrected": False}, 1)):
        assert len((await world.ask("POST", "/api/query/last", body | said)).body) == count
    own = {**body, "corrected": False}  # what a body says counts, as in a query's
    assert len((await world.ask("POST", "/api/query/last?corrected", own)).body) == 1
    assert len((await world.ask("POST", "/api/query/last?corrected", body)).body) == 2


async def test_an_old_point_that_came_late_does_not_hide_what_stood_there_before_the_start() -> None:
    world = await make_world()
    one = await world.series("m", host="a")
    await store(world, one, HOUR + 100, 2)
    asked = Asked(world)
    slot = asked.latest.slot(one[:3], one[3:])
    asked.latest.take(slot, LastPoint((HOUR - 86_400) * 1000, 1), checked_ms=0, depth_h=-1)  # as from a window
    assert await asked.values("timeseries=m{host=a}") == {one.hex().upper(): "2"}


BROKEN = COLUMN + b"\0\0\0\x10"  # with a value of one byte: fits nothing


async def told(world: World, query: str) -> tuple[dict[str, str], str]:
    """The values that are answered, by TSUID, and the header that tells of warnings."""
    response = await world.endpoints["api/query/last"](request_of("GET", f"/api/query/last?{query}"))
    headers = dict(response.headers)
    assert not isinstance(response.body, bytes)
    body = json.loads(b"".join([part async for part in response.body]))
    return {entry["tsuid"]: entry["value"] for entry in body}, headers.get("X-Tsd-Warnings", "")


async def unreadable(*hosts: str, at_s: int = HOUR) -> tuple[World, list[bytes]]:
    """Series of a metric whose rows of that hour cannot be read."""
    world = await make_world()
    found = [await world.series("m", host=host) for host in hosts]
    await world.store.put("tsdb", [Put(tsuid_row(world.layout, one, at_s), BROKEN, b"\1") for one in found])
    return world, found


async def mend(world: World, tsuid: bytes, value: int) -> None:
    await world.store.delete("tsdb", {tsuid_row(world.layout, tsuid, HOUR): [BROKEN]}, up_to_ms=None)
    await store(world, tsuid, HOUR, value)


async def test_a_row_that_cannot_be_read_is_told_of_until_it_is_mended() -> None:
    """It was passed over without a word, and an older point, or none, was the newest."""
    world, [one, _] = await unreadable("a", "b")
    sound = await world.series("m", host="c")
    await store(world, one, HOUR - HOUR_S, 1)
    await store(world, sound, HOUR, 3)
    asked = Asked(world)
    for _ in range(2):  # whatever is remembered
        values, warnings = await told(world, "timeseries=m{host=a}&timeseries=m{host=b}&timeseries=m{host=c}")
        assert values == {one.hex().upper(): "1", sound.hex().upper(): "3"}
        assert warnings.startswith("2; row ")
    assert await told(world, f"tsuids={sound.hex()}") == ({sound.hex().upper(): "3"}, "")
    assert asked.points.warnings == 4
    await mend(world, one, 2)
    assert await told(world, f"tsuids={one.hex()}") == ({one.hex().upper(): "2"}, "")


async def test_a_row_that_cannot_be_read_is_told_of_after_a_look_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was told of once more, or to one of several who asked at once; and was not looked at again when mended."""
    world, [one] = await unreadable("a")
    Asked(world)
    query = f"tsuids={one.hex()}"

    async def fail(*_: object) -> Never:
        raise StoreError("down")

    assert (await told(world, query))[1]
    with monkeypatch.context() as patched:
        patched.setattr(world.store, "get", fail)
        with pytest.raises(StoreError):
            await told(world, query)
    warned = list[str]()

    async def ask() -> None:
        warned.append((await told(world, query))[1])

    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(ask)
    assert len(warned) == 4
    assert all(warned)
    await mend(world, one, 2)
    assert await told(world, query) == ({one.hex().upper(): "2"}, "")


async def test_a_row_that_cannot_be_read_is_told_of_to_who_looks_as_far_back() -> None:
    """It was told of for ever once it was older than what is looked at, also where it was mended since."""
    world, [one] = await unreadable("a")
    asked = Asked(world)
    query = f"tsuids={one.hex()}"
    asked.clock_ms += 2 * HOUR_S * 1000
    for back_scan, there in (("", True), ("&back_scan=1", False), ("", True), ("&back_scan=2", True)):
        assert bool((await told(world, query + back_scan))[1]) == there
    asked.clock_ms += 2 * HOUR_S * 1000
    assert await told(world, query) == ({}, "")
    assert (await told(world, query + "&back_scan=4"))[1]
    await mend(world, one, 2)
    assert await told(world, query + "&back_scan=4") == ({one.hex().upper(): "2"}, "")


async def test_rows_too_old_to_be_looked_at_leave_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tsd.query.last, "MOST_UNREADABLE", 2)
    world, series = await unreadable("a", "b", "c")
    asked = Asked(world)
    queries = [f"tsuids={one.hex()}" for one in series]
    assert [bool((await told(world, query))[1]) for query in queries] == [True, True, False]
    asked.clock_ms += 3 * HOUR_S * 1000
    late = await world.series("m", host="d")
    await world.store.put("tsdb", [Put(tsuid_row(world.layout, late, HOUR + 3 * HOUR_S), BROKEN, b"\1")])
    assert (await told(world, f"tsuids={late.hex()}"))[1]


@pytest.mark.parametrize(("trust_ms", "value"), [(None, "1"), (60_000, "2")])
async def test_in_tables_that_others_write_to_rows_are_looked_at_again(trust_ms: int | None, value: str) -> None:
    world = await make_world()
    one = await world.series("m", host="a")
    await store(world, one, HOUR, 1)
    asked = Asked(world, trust_ms)
    assert await asked.values("timeseries=m{host=a}") == {one.hex().upper(): "1"}
    await store(world, one, HOUR + 1, 2)
    asked.clock_ms += 30_000
    assert await asked.values("timeseries=m{host=a}") == {one.hex().upper(): "1"}
    asked.clock_ms += 31_000
    assert await asked.values("timeseries=m{host=a}") == {one.hex().upper(): value}


async def test_names_come_with_resolve_and_bodies_are_read() -> None:
    world = await make_world()
    one = await world.series("m", host="a")
    await store(world, one, HOUR, 1)
    Asked(world)
    body = {"queries": [{"metric": "m", "tags": {"host": "a"}}, {"tsuids": [one.hex()]}], "resolveNames": True}
    said = await world.ask("POST", "/api/query/last", body)
    wanted = {"metric": "m", "timestamp": HOUR * 1000, "value": "1", "tags": {"host": "a"}, "tsuid": one.hex().upper()}
    assert said.body == [wanted]  # once
    assert list(said.body[0]) == list(wanted)


@pytest.mark.parametrize(
    ("method", "query", "body", "status", "message"),
    [
        ("GET", "timeseries=m{host=a}&back_scan=-1", None, 400, "Backscan must be zero or a positive number"),
        ("GET", "timeseries=m{host=a", None, 500, "Missing '}' at the end of: m{host=a"),
        ("GET", "timeseries=m{host=*}", None, 400, "No such name for 'tagv': '*'"),
        ("GET", "tsuids=000001", None, 400, "TSUID is too short, may be missing tags"),
        ("POST", "", {"queries": [{"metric": "m", "aggregator": "sum"}]}, 400, "Unable to parse the given JSON"),
    ],
)
async def test_what_cannot_be_asked(method: str, query: str, body: object, status: int, message: str) -> None:
    world = await make_world()
    await world.series("m", host="a")
    Asked(world)
    said = await world.ask(method, f"/api/query/last?{query}", body)
    assert (said.status, said.body["error"]["message"]) == (status, message)


@given(anything)
def test_the_last_point_of_a_row_is_that_of_all_its_points(cells: list[StoredCell]) -> None:
    rules = MergeRules(fix_duplicates=True)
    try:
        row = merge(b"", cells, rules)
    except CorruptRow:
        return
    wanted = points(b"", cells, rules)
    assert last_of(row) == (wanted[-1] if wanted else None)


async def test_what_is_forgotten_while_the_store_is_asked_gives_no_series_anothers_point(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    latest = Latest(0)
    known = LastPoints(
        MemoryStore(lambda: NOW_MS), "tsdb", Layout(), latest, lambda: NOW_MS, look_back_h=1, trust_ms=None
    )
    metric, one, other = b"\0\0\1", b"\0\0\1\0\0\1", b"\0\0\1\0\0\2"
    found = LastPoint(NOW_MS - 5000, 111)

    async def newest(wanted: Sequence[tuple[bytes, bytes]], _span: object) -> dict[tuple[bytes, bytes], LastPoint]:
        await trio.lowlevel.checkpoint()
        latest.drop()
        latest.slot(metric, other)  # somebody else's is the first now
        return {series: found for series in wanted if series[1] == one}

    monkeypatch.setattr(known, "_newest", newest)
    assert await known.of([(metric, one)], None) == [found]
    monkeypatch.setattr(known, "_newest", lambda *_: nothing())
    assert await known.of([(metric, other)], None) == [None]


async def nothing() -> dict[tuple[bytes, bytes], LastPoint]:
    return {}
