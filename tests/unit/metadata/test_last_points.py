"""The newest points of series: from memory where it can be trusted, from rows where it cannot."""

import json
from collections.abc import Sequence

import pytest
import trio
from hypothesis import given

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
from tsd.errors import CorruptRow
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


async def test_a_row_that_cannot_be_read_is_told_of_until_it_is_mended() -> None:
    """It was passed over without a word, and an older point, or none, was the newest."""
    world = await make_world()
    one, lone, sound = [await world.series("m", host=host) for host in "abc"]
    await store(world, one, HOUR - HOUR_S, 1)
    await store(world, sound, HOUR, 3)
    broken = COLUMN + b"\0\0\0\x10"
    for tsuid in (one, lone):
        await world.store.put("tsdb", [Put(tsuid_row(world.layout, tsuid, HOUR), broken, b"\1")])
    asked = Asked(world)

    async def told(query: str) -> tuple[dict[str, str], str]:
        response = await world.endpoints["api/query/last"](request_of("GET", f"/api/query/last?{query}"))
        headers = dict(response.headers)
        assert not isinstance(response.body, bytes)
        body = json.loads(b"".join([part async for part in response.body]))
        return {entry["tsuid"]: entry["value"] for entry in body}, headers.get("X-Tsd-Warnings", "")

    for _ in range(2):  # whatever is remembered
        values, warnings = await told("timeseries=m{host=a}&timeseries=m{host=b}&timeseries=m{host=c}")
        assert values == {one.hex().upper(): "1", sound.hex().upper(): "3"}
        assert warnings.startswith("2; row ")
    assert await told(f"tsuids={sound.hex()}") == ({sound.hex().upper(): "3"}, "")
    assert asked.points.warnings == 4
    await world.store.delete("tsdb", {tsuid_row(world.layout, one, HOUR): [broken]}, up_to_ms=None)
    await store(world, one, HOUR, 2)
    assert await told(f"tsuids={one.hex()}") == ({one.hex().upper(): "2"}, "")


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
