"""Rollups are built from raw points: which intervals, in which rows, and again after an error or late points."""

from collections.abc import Sequence

import pytest
from trio.testing import MockClock

from tests.flaky_store import Fault, FlakyStore
from tests.unit.query.engines import DATA, START_S, UID
from tests.unit.tables.rollup_parts import (
    BUILT,
    DAY_S,
    EVERYTHING,
    HOUR_S,
    LAYOUTS,
    LINES,
    ROLLUPS,
    aggregates,
    build,
    builder,
    environment,
    rollups,
)
from tsd.codec.names import Kind
from tsd.codec.opentsdb.rowkey import KeyLayout, split_key
from tsd.codec.opentsdb.uid import NAME_FAMILY, id_column
from tsd.errors import StoreError, WrongClock
from tsd.store import Put, scan
from tsd.tables.opentsdb.rollup_progress import START, BuildRange


@pytest.mark.parametrize("layout", LAYOUTS, ids=["plain", "salted"])
async def test_rollups_of_all_metrics_are_built(layout: KeyLayout) -> None:
    env = await environment(LINES, layout)
    steps = await build(builder(env))
    assert await rollups(env) == BUILT
    assert sum(step.points for step in steps) == len(LINES)
    assert sum(step.cells for step in steps) == 4 * len(BUILT)


async def test_chosen_intervals_and_metrics_are_built() -> None:
    env = await environment(LINES)
    [uid] = [found for found in (await env.uids.find(Kind.METRIC, [b"other"])).values() if isinstance(found, bytes)]
    await build(builder(env, "1h"), EVERYTHING._replace(metrics=(uid,)))
    assert await rollups(env) == {("1h", "c", DAY_S): aggregates(3)}


async def test_metric_whose_name_has_no_uid_is_built() -> None:
    """Regression: an interrupted rename leaves such a name, and no rollups of any later metric were built."""
    env = await environment(LINES)
    await env.store.delete(UID, {b"m": [id_column(Kind.METRIC)]}, up_to_ms=None)
    await build(builder(env))
    assert await rollups(env) == BUILT


async def test_intervals_that_are_not_whole_are_left_out() -> None:
    env = await environment(LINES)
    await build(builder(env), BuildRange(START_S + 1, START_S + 40 * DAY_S + HOUR_S))
    assert await rollups(env) == {
        place: found for place, found in BUILT.items() if place[2] >= 600 and place != ("1d", "b", 40 * DAY_S)
    }


async def test_late_points_replace_rollups() -> None:
    env = await environment(LINES)
    await build(builder(env))
    await env.put([f"m {START_S + 60} 0.25 host=a"])
    await build(builder(env))
    found = await rollups(env)
    assert found["1h", "a", 0] == aggregates(1, 2.5, 0.25)
    assert found["1d", "a", 0] == aggregates(1, 2.5, -4, 0.25)
    assert found["1d", "b", 0] == BUILT["1d", "b", 0]


async def test_build_resumes_at_any_position() -> None:
    env = await environment(LINES)
    positions = [START, *(step.position for step in await build(builder(env)))]
    for position in positions:
        resumed = await environment(LINES)
        made = builder(resumed).run(EVERYTHING, START)
        at = START
        while at != position:
            at = (await anext(made)).position
        await made.aclose()
        await build(builder(resumed), position=position)
        assert await rollups(resumed) == BUILT


@pytest.mark.parametrize("layout", LAYOUTS, ids=["plain", "salted"])
async def test_intervals_that_may_have_expired_keep_their_rollups(layout: KeyLayout) -> None:
    env = await environment(LINES, layout)
    await build(builder(env))
    rows = [row async for page in scan(env.store, DATA) for row in page]
    gone = {row.key: [cell.column for cell in row.cells] for row in rows if split_key(layout, row.key).base == START_S}
    await env.store.delete(DATA, gone, up_to_ms=None)
    keep_s = 2 * DAY_S
    await build(builder(env, keep_s=keep_s, now_s=START_S + HOUR_S + keep_s))
    assert await rollups(env) == BUILT


async def test_series_get_the_tag_of_raw_rollups() -> None:
    env = await environment([*LINES[:3], f"m {START_S} 8 host=a _aggregate=RAW"])
    await build(builder(env, "1d", rollups=ROLLUPS._replace(tag_raw=True)))
    found = await rollups(env)
    assert set(found) == {("1d", "RAW,a", 0)}


async def test_failing_store_is_tried_again(autojump_clock: MockClock) -> None:
    env = await environment(LINES)
    flaky = FlakyStore(env.store)
    flaky.plan = [Fault.REFUSED, Fault.REFUSED, *[Fault.NONE] * 6, Fault.ANSWER_LOST, Fault.REFUSED]
    await build(builder(env, store=flaky))
    assert await rollups(env) == BUILT


async def test_store_that_keeps_failing_ends_the_build(autojump_clock: MockClock) -> None:
    env = await environment(LINES)
    flaky = FlakyStore(env.store)
    flaky.always = Fault.REFUSED
    with pytest.raises(StoreError):
        await build(builder(env, store=flaky))


async def test_wrong_clock_ends_the_build_at_once(autojump_clock: MockClock) -> None:
    class Refusing(FlakyStore):
        async def put(self, table: str, cells: Sequence[Put], *, time_ms: int | None = None) -> None:
            self.calls.append("refused")
            raise WrongClock("late")

    env = await environment(LINES)
    refusing = Refusing(env.store)
    with pytest.raises(WrongClock):
        await build(builder(env, store=refusing))
    assert refusing.calls.count("refused") == 1


async def test_metric_without_name_is_reported() -> None:
    env = await environment(LINES)
    [uid] = [found for found in (await env.uids.find(Kind.METRIC, [b"other"])).values() if isinstance(found, bytes)]
    await env.store.delete(UID, {uid: [NAME_FAMILY + b":metrics"]}, up_to_ms=None)
    warnings: list[str] = []
    await build(builder(env, warnings=warnings))
    assert len(warnings) == 1
    assert uid.hex() in warnings[0]
    assert await rollups(env) == {place: found for place, found in BUILT.items() if place[1] != "c"}
