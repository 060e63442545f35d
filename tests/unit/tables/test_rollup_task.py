"""A daemon's rollups: built when hours and days are over, again after late points, and used by queries."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock

from tests.unit.query.engines import START_S, make_query
from tests.unit.tables.rollup_parts import (
    BUILT,
    DAY_S,
    HOUR_S,
    LATER_S,
    LINES,
    TABLES,
    Rolled,
    aggregates,
    builder,
    environment,
    lines_of,
    rollups,
    shown,
)
from tsd.codec.names import Kind
from tsd.codec.opentsdb.rollup import default_config
from tsd.config.settings import Backend, Config
from tsd.daemon.wiring import rollup_progress
from tsd.query.model import Calendar, Downsample, Fill
from tsd.query.result import SubAnswer
from tsd.query.rollups import NO_FALLBACK, RAW
from tsd.store import Page
from tsd.store.memory import MemoryStore
from tsd.tables.opentsdb.rollup_progress import MOST_LATE_DAYS, LateDay, RollupProgress, whole
from tsd.tables.opentsdb.rollup_sums import intervals_to_build
from tsd.tables.reading import ScanRange


async def test_all_past_intervals_are_built(tmp_path: Path) -> None:
    rolled = Rolled(await environment(LINES), tmp_path, LATER_S)
    await rolled.task.round()
    assert await rollups(rolled.env) == BUILT


async def test_hours_follow_when_they_are_over(tmp_path: Path) -> None:
    rolled = Rolled(await environment([]), tmp_path, START_S + HOUR_S + 600)
    await rolled.put(LINES[:2])
    await rolled.task.round()
    assert ("1h", "a", HOUR_S) not in await rollups(rolled.env)
    await rolled.put(LINES[2:3])
    rolled.now_s += HOUR_S
    await rolled.task.round()
    found = await rollups(rolled.env)
    assert found["1h", "a", HOUR_S] == BUILT["1h", "a", HOUR_S]
    assert not any(interval == "1d" for interval, _, _ in found)
    rolled.now_s += DAY_S
    await rolled.task.round()
    assert (await rollups(rolled.env))["1d", "a", 0] == BUILT["1d", "a", 0]


async def test_late_points_are_built_again_even_after_a_crash(tmp_path: Path) -> None:
    env = await environment([])
    rolled = Rolled(env, tmp_path, LATER_S)
    await rolled.put(LINES[1:])
    await rolled.task.round()
    await rolled.put(LINES[:1])
    restarted = Rolled(env, tmp_path, LATER_S)
    await restarted.task.round()
    assert await rollups(env) == BUILT


async def test_late_points_that_come_all_day_do_not_fill_the_log(tmp_path: Path) -> None:
    rolled = Rolled(await environment([]), tmp_path, LATER_S)
    await rolled.put(LINES[1:])
    await rolled.task.round()
    await rolled.put(LINES[:1])
    with capture_logs() as logs:
        await rolled.task.round()
    assert await rollups(rolled.env) == BUILT
    assert [one for one in logs if one["log_level"] != "debug"] == []


class SlowStore(MemoryStore):
    """A store whose pages take time."""

    page_s = 0.0

    async def page(
        self, table: str, start: bytes, stop: bytes | None, *, limit: int, columns: Collection[bytes] | None = None
    ) -> Page:
        await trio.sleep(self.page_s)
        return await super().page(table, start, stop, limit=limit, columns=columns)


async def test_days_that_always_get_late_points_are_seldom_built_if_that_takes_long(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    del autojump_clock
    store = SlowStore(lambda: 0)
    rolled = Rolled(await environment([], store=store), tmp_path, LATER_S)
    await rolled.put(lines_of(1))
    await rolled.task.round()

    async def late_builds() -> int:
        """Return how often the day is built again in an hour of late points."""
        begun, builds = trio.current_time(), 0
        while trio.current_time() < begun + HOUR_S:
            await rolled.put(LINES[:1])
            before = rolled.task.points
            await rolled.task.round()
            builds += rolled.task.points > before
            await trio.sleep(60)
        return builds

    quick = await late_builds()
    store.page_s = 30.0
    assert 0 < await late_builds() < quick / 4
    found = await rolled.answer("none:1d-sum:m", days=1)
    assert shown(found) == shown(await rolled.answer("none:1d-sum:m", days=1, usage=RAW))
    await trio.sleep(HOUR_S)
    await rolled.task.round()
    assert (await rolled.answer("none:1d-sum:m", days=1)).rollup_table != "raw"


async def test_days_of_many_metrics_rest_if_all_of_them_take_long(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Each of them takes few seconds."""
    del autojump_clock
    store = SlowStore(lambda: 0)
    rolled = Rolled(await environment([], store=store), tmp_path, LATER_S)
    late = [f"m{number} {START_S + 30} 1 host=a" for number in range(12)]
    await rolled.put(late)
    await rolled.task.round()
    store.page_s = 1.0
    built = []
    for pause_s in (60, 60, HOUR_S):
        await rolled.put(late)
        before = rolled.task.points
        await trio.sleep(pause_s)
        await rolled.task.round()
        built.append(rolled.task.points - before)
    assert built == [len(late), 0, len(late)]


@pytest.mark.parametrize("function", ["sum", "count", "min", "max", "avg", "mimmax"])
@pytest.mark.parametrize("spec", ["1h-{}", "1d-{}", "2h-{}-zero", "30m-{}", "1d-{}-nan", "1dc-{}", "1dc-{}-zero"])
async def test_rollups_and_points_give_the_answer_of_points(tmp_path: Path, function: str, spec: str) -> None:
    rolled = Rolled(await environment([]), tmp_path, START_S + 2 * DAY_S + 5 * HOUR_S)
    await rolled.put(lines_of(2.3))
    await rolled.task.round()
    cases = ("none", "", 0), ("sum", "", 5000), ("sum:rate", "{host=*}", 5000)
    for prefix, suffix, offset_s in cases:
        start_s = START_S + offset_s
        m = f"{prefix}:{spec.format(function)}:m{suffix}"
        found = await rolled.answer(m, start_s=start_s)
        assert found.rollup_table != "raw"
        assert shown(found) == shown(await rolled.answer(m, start_s=start_s, usage=RAW))


@pytest.mark.parametrize(
    ("zone", "table"), [("Europe/Berlin", "1h"), ("America/New_York", "1h"), ("Asia/Kolkata", "raw"), ("UTC", "1d")]
)
@pytest.mark.parametrize("fill", [Fill.NONE, Fill.ZERO])
@pytest.mark.parametrize("tags", ["", "explicit_tags:"])
async def test_days_of_a_time_zone_are_answered_from_hours(
    tmp_path: Path, zone: str, table: str, fill: Fill, tags: str
) -> None:
    """Regression: all points were read, years of them for a graph of days. With explicit tags the first hour of rollups
    was also read as points, and its day had two values."""
    rolled = Rolled(await environment([]), tmp_path, START_S + 4 * DAY_S + 5 * HOUR_S)
    await rolled.put(lines_of(4.3))
    await rolled.task.round()
    query = make_query(f"sum:1dc-avg:{tags}m{{host=*}}", start_ms=START_S * 1000, end_ms=(START_S + 5 * DAY_S) * 1000)
    spec = Downsample("1dc-avg", DAY_S * 1000, "avg", fill, Calendar(1, "d", zone))

    async def answer(usage: str) -> SubAnswer:
        subs = tuple(replace(sub, downsample=spec, rollup_usage=usage) for sub in query.queries)
        return (await rolled.engine.run(replace(query, queries=subs))).subs[0]

    found = await answer(NO_FALLBACK)
    assert found.rollup_table == table
    assert shown(found) == shown(await answer(RAW))


@pytest.mark.parametrize("m", ["none:1d-count:m", "sum:1d-sum:m", "none:1h-avg:m", "sum:1d-max-zero:m{host=*}"])
async def test_a_series_that_began_after_the_rollups_moves_no_points(tmp_path: Path, m: str) -> None:
    rolled = Rolled(await environment([]), tmp_path, START_S + 2 * DAY_S + 5 * HOUR_S)
    sent = [(at, host) for host in ("a", "b", "c") for at in range(0, round(2.2 * DAY_S), 1500)]
    await rolled.put([f"m {START_S + at} {at} host={host}" for at, host in sent if host != "b" or at > 2.1 * DAY_S])
    await rolled.task.round()
    found = await rolled.answer(m)
    assert found.rollup_table != "raw"
    assert shown(found) == shown(await rolled.answer(m, usage=RAW))


@pytest.mark.parametrize("m", ["none:1h-sum:m", "none:1d-avg:m", "sum:2h-count:m{host=*}"])
async def test_points_after_the_range_are_left_out_as_points_are(tmp_path: Path, m: str) -> None:
    rolled = Rolled(await environment([]), tmp_path, LATER_S)
    await rolled.put(lines_of(3))
    await rolled.task.round()
    found = await rolled.answer(m, days=1)
    assert found.rollup_table != "raw"
    assert shown(found) == shown(await rolled.answer(m, days=1, usage=RAW))


@pytest.mark.parametrize("m", ["sum:1h-dev:m", "sum:7m-sum:m", "sum:m", "sum:2dc-sum:m", "sum:0all-sum:m"])
async def test_other_queries_read_points(tmp_path: Path, m: str) -> None:
    rolled = Rolled(await environment([]), tmp_path, LATER_S)
    await rolled.put(lines_of(2))
    await rolled.task.round()
    assert (await rolled.answer(m)).rollup_table == "raw"


async def test_day_with_late_points_is_answered_from_points_until_it_is_built_again(tmp_path: Path) -> None:
    rolled = Rolled(await environment([]), tmp_path, LATER_S)
    await rolled.put(lines_of(2))
    await rolled.task.round()
    await rolled.put([f"m {START_S + 100} 1e6 host=a"])
    for interval in ("raw", "1d"):
        found = await rolled.answer("sum:1d-max:m")
        assert found.rollup_table == interval
        assert shown(found) == shown(await rolled.answer("sum:1d-max:m", usage=RAW))
        await rolled.task.round()


COPIES = {name: f"{table}-copy" for name, table in TABLES.items()}


@pytest.mark.parametrize("tables", [None, TABLES, COPIES], ids=["same", "crash", "copied"])
async def test_deleted_points_are_in_no_rollup(tmp_path: Path, tables: Mapping[str, str] | None) -> None:
    env = await environment([])
    rolled = Rolled(env, tmp_path, LATER_S)
    await rolled.put(LINES)
    await rolled.task.round()
    await rolled.delete("sum:m{host=a}", START_S + HOUR_S, START_S + HOUR_S + 60)
    await rolled.delete("sum:other", START_S + DAY_S, START_S + DAY_S + 60)
    assert shown(await rolled.answer("none:1h-count:m")) == shown(await rolled.answer("none:1h-count:m", usage=RAW))
    restarted = rolled if tables is None else Rolled(env, tmp_path, LATER_S, tables)
    await restarted.task.round()
    gone = {("10m", "a", HOUR_S), ("1h", "a", HOUR_S), *((name, "c", DAY_S) for name in TABLES)}
    left = {place: found for place, found in BUILT.items() if place not in gone}
    assert await rollups(env) == left | {("1d", "a", 0): aggregates(1, 2.5)}
    assert restarted.task.progress.late_days == 0


async def test_points_that_are_deleted_before_the_first_round_are_in_no_rollup(tmp_path: Path) -> None:
    """The tables have rollups, but the state folder is new."""
    env = await environment(LINES)
    await Rolled(env, tmp_path, LATER_S).task.round()
    (tmp_path / "rollup-progress.json").unlink()
    rolled = Rolled(env, tmp_path, LATER_S)
    await rolled.delete("sum:other", START_S + DAY_S, START_S + DAY_S + 60)
    await rolled.task.round()
    gone = {(name, "c", DAY_S) for name in TABLES}
    assert await rollups(env) == {place: found for place, found in BUILT.items() if place not in gone}
    assert rolled.task.progress.late_days == 0


@pytest.mark.parametrize(("keep_d", "table"), [(None, "raw"), (60, "raw"), (50, "raw"), (49, "1d"), (10, "1d")])
async def test_late_points_that_have_expired_hide_no_rollups(tmp_path: Path, keep_d: int | None, table: str) -> None:
    rolled = Rolled(await environment([]), tmp_path, LATER_S)
    await rolled.put(lines_of(2))
    await rolled.task.round()
    rolled.keep_s = None if keep_d is None else keep_d * DAY_S
    await rolled.put([f"m {START_S + 100} 1e6 host=a"])
    assert (await rolled.answer("sum:1d-max:m")).rollup_table == table


async def test_rollups_of_expired_points_are_not_deleted(tmp_path: Path) -> None:
    env = await environment(LINES)
    rolled = Rolled(env, tmp_path, LATER_S)
    await rolled.task.round()
    [metric] = [uid for uid in (await env.uids.find(Kind.METRIC, [b"m"])).values() if isinstance(uid, bytes)]
    await builder(env, keep_s=30 * DAY_S, now_s=LATER_S).clear(metric, ScanRange(START_S, START_S + DAY_S))
    assert await rollups(env) == BUILT


async def test_clock_that_was_ahead_loses_no_rollup(tmp_path: Path) -> None:
    rolled = Rolled(await environment([]), tmp_path, LATER_S)
    await rolled.task.round()
    rolled.now_s = START_S + HOUR_S
    await rolled.task.round()
    await rolled.put(LINES)
    rolled.now_s = LATER_S
    await rolled.task.round()
    assert await rollups(rolled.env) == BUILT


async def test_state_survives_and_belongs_to_its_tables(tmp_path: Path) -> None:
    rolled = Rolled(await environment(LINES), tmp_path, LATER_S)
    await rolled.task.round()
    same, other = (RollupProgress(tmp_path / "rollup-progress.json", tables) for tables in (TABLES, {"1h": "other"}))
    await same.load()
    await other.load()
    assert same.complete_s == rolled.task.progress.complete_s
    assert other.complete_s == {"1h": 0}


@pytest.mark.parametrize(
    ("change", "is_kept"),
    [
        ({}, True),
        ({"thrift": "other:9090"}, True),
        ({"backend": Backend.EMBEDDED}, False),
        ({"data_table": "other"}, False),
    ],
)
async def test_state_belongs_to_the_points_that_were_read(
    tmp_path: Path, change: Mapping[str, Any], is_kept: bool
) -> None:
    """Regression: with the state folder of another store, queries took rollups from tables that had none."""
    config = Config(backend=Backend.HBASE, path=str(tmp_path))
    intervals = intervals_to_build(default_config("tsdb"))
    saved, found = (rollup_progress(each, intervals) for each in (config, replace(config, **change)))
    saved.complete_s = dict.fromkeys(saved.complete_s, DAY_S)
    await saved.save()
    await found.load()
    assert set(found.complete_s.values()) == {DAY_S if is_kept else 0}


def test_many_late_days_let_all_be_built_again_from_the_first(tmp_path: Path) -> None:
    progress = RollupProgress(tmp_path / "rollup-progress.json", TABLES)
    progress.complete_s = dict.fromkeys(TABLES, 10 * DAY_S)
    days = [LateDay(at.to_bytes(3, "big"), (3 + at % 5) * DAY_S) for at in range(MOST_LATE_DAYS + 1)]
    progress.mark(whole(days))
    assert set(progress.complete_s.values()) == {3 * DAY_S}
    assert progress.late_days == 0
