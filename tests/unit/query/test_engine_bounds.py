"""Bounds of queries: memory, time and concurrency; listing and cancelling."""

import threading
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import trio

from tests import layouts
from tests.unit.query.engines import FEW, NOW_MS, START_S, QueryEnvironment, least_memory, make_query
from tsd.errors import BadQuery, StoreError
from tsd.query import assemble, buckets
from tsd.query.buckets import steps
from tsd.query.engine import EngineSettings
from tsd.query.limits import Bounds, Limits
from tsd.query.merge import MergedPoints, merge
from tsd.query.registry import QueryRegistry, RunningQuery
from tsd.store.memory import MemoryStore

pytestmark = layouts.on_all


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        (Bounds(points=50), "more than our limit of 50 data points"),
        (Bounds(size=100), "more than our maximum amount of 0MB from storage"),
    ],
)
async def test_limits_refuse_large_queries(bounds: Bounds, message: str) -> None:
    limits = Limits(bounds, size_override=True, points_override=True)
    env = await QueryEnvironment.build(FEW, settings=EngineSettings(limits))
    with pytest.raises(BadQuery, match=message) as caught:
        await env.run("sum:sys.cpu")
    assert caught.value.status == 413
    await env.run("sum:sys.cpu", override_byte_limit=True, override_point_limit=True)


@pytest.mark.difference("query-resources")
async def test_queries_share_one_memory_limit() -> None:
    env = await QueryEnvironment.build(FEW)
    for_points = await least_memory(env.new_engine, make_query("sum:sys.cpu"))
    assert for_points > 1.1 * await least_memory(env.new_engine, make_query("sum:0all-sum:sys.cpu"))
    narrow = env.new_engine(EngineSettings(memory_bytes=round(1.5 * for_points)))
    other = narrow.memory.share()
    other.add(for_points)
    with pytest.raises(BadQuery, match=r"tsd\.query\.memory_limit"):
        await narrow.run(make_query("sum:sys.cpu"))
    other.release()
    await narrow.run(make_query("sum:sys.cpu"))


@pytest.mark.parametrize("m", ["sum:1ms-sum-nan:sys.cpu", "sum:1msc-sum-zero:sys.cpu", "sum:1s-p99-null:sys.cpu"])
async def test_fill_larger_than_memory_is_refused(m: str) -> None:
    env = await QueryEnvironment.build(FEW)
    query = replace(make_query(m), end_ms=(START_S + 365 * 86400) * 1000)
    with pytest.raises(BadQuery, match=r"tsd\.query\.memory_limit") as caught:
        await env.engine.run(query)
    assert caught.value.status == 413


async def test_no_series_means_no_fill() -> None:
    """Regression: a grid as long as the range (10 TB here) was allocated."""
    env = await QueryEnvironment.build(FEW, settings=EngineSettings(memory_bytes=1 << 20))
    for m in ("sum:1ms-avg-zero:sys.cpu{host=wildcard(zzz*)}", "sum:1ms-p99-nan:sys.cpu{host=wildcard(zzz*)}"):
        answer = await env.engine.run(replace(make_query(m), start_ms=1000, end_ms=NOW_MS))
        assert answer.subs[0].groups == []


@pytest.mark.parametrize(
    ("m", "in_thread"),
    [
        ("sum:1s-avg-zero:sys.cpu{host=web01}", True),
        ("sum:1m-avg-zero:sys.cpu{host=web01}", False),
        ("sum:sys.cpu", False),
    ],
)
async def test_large_fill_is_merged_in_a_thread(m: str, in_thread: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: only the few points read were considered."""
    threads = []

    def watched(*arguments: object, **options: object) -> MergedPoints:
        threads.append(threading.get_ident())
        return merge(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(assemble, "merge", watched)
    env = await QueryEnvironment.build(FEW)
    await env.run(m)
    assert [one != threading.get_ident() for one in threads] == [in_thread]


@pytest.mark.parametrize("m", ["sum:7ms-avg:sys.cpu", "sum:7ms-p99:sys.cpu", "sum:1ms-avg:sys.cpu"])
async def test_buckets_without_a_fill_take_no_memory_for_the_range(m: str) -> None:
    """Regression: a grid as long as the range was allocated where buckets span two hours: 2 TB here."""
    env = await QueryEnvironment.build(FEW, settings=EngineSettings(memory_bytes=1 << 20))
    answer = await env.engine.run(replace(make_query(m), start_ms=1000, end_ms=NOW_MS))
    assert len(answer.subs[0].groups[0].points.times) == 5


@pytest.mark.parametrize(
    ("m", "start_s", "in_thread"),
    [
        ("sum:1dc-sum:sys.cpu", 1, True),
        ("sum:1dc-sum-zero:sys.cpu", START_S - 1000 * 86400, True),
        ("sum:1yc-sum-zero:sys.cpu", 1, False),
    ],
)
async def test_many_calendar_buckets_are_computed_in_a_thread(
    m: str, start_s: int, in_thread: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: a few points far apart held the event loop while the start of each day between them was computed."""
    threads = []

    def watched(*arguments: Any) -> object:
        threads.append(threading.get_ident())
        return steps(*arguments)

    monkeypatch.setattr(buckets, "steps", watched)
    env = await QueryEnvironment.build([*FEW[:2], "sys.cpu 86400 1 host=web00 dc=sjc"])
    await env.run(m, start_ms=start_s * 1000)
    assert {one != threading.get_ident() for one in threads} == {in_thread}


async def test_memory_of_series_is_counted() -> None:
    env = await QueryEnvironment.build(FEW)
    of_one = await least_memory(env.new_engine, make_query("sum:0all-sum:sys.cpu{host=web01}"))
    assert await least_memory(env.new_engine, make_query("sum:0all-sum:sys.cpu")) > 3 * of_one  # 20 series


async def test_memory_of_groups_is_counted() -> None:
    env = await QueryEnvironment.build(FEW)
    of_two = await least_memory(env.new_engine, make_query("sum:0all-sum:sys.cpu{dc=*}"))
    assert await least_memory(env.new_engine, make_query("sum:0all-sum:sys.cpu{host=*}")) > 1.5 * of_two  # 20 groups


class Stuck(MemoryStore):
    """A store whose scans never return."""

    async def page(self, *_: object, **__: object) -> None:  # type: ignore[override]
        await trio.sleep_forever()


async def stuck(settings: EngineSettings) -> QueryEnvironment:
    env = await QueryEnvironment.build(FEW, settings=settings)
    env.store.__class__ = Stuck
    return env


async def test_slow_query_times_out(autojump_clock: trio.testing.MockClock) -> None:
    env = await stuck(EngineSettings(Limits(timeout_ms=3000)))
    with pytest.raises(BadQuery, match=r"timed out\. Time limit: 3000 ms, fetch time: 3000 ms") as caught:
        await env.run("sum:sys.cpu")
    assert caught.value.status == 408
    assert trio.current_time() == pytest.approx(autojump_clock.current_time())


@pytest.mark.difference(
    "query-resources",
    topic="limits",
    theirs="A query cannot be cancelled, and the memory of all queries is not bounded",
    ours=(
        "A query can be cancelled (`DELETE /api/stats/query?id=`). The number of concurrent queries and their "
        "memory, including that of expressions and functions, are bounded"
    ),
)
async def test_query_can_be_listed_and_cancelled() -> None:
    env = await stuck(EngineSettings())
    registry = QueryRegistry(lambda: NOW_MS)
    errors = []

    async def run_query() -> None:
        with registry.register(make_query("sum:sys.cpu"), "127.0.0.1:5", {}) as running:
            try:
                await env.run("sum:sys.cpu", running=running)
            except BadQuery as error:
                errors.append(error.message)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run_query)
        await trio.testing.wait_all_tasks_blocked()
        [running] = registry.running
        assert not registry.cancel(running.number + 1)
        assert registry.cancel(running.number)
    assert errors == ["The query was cancelled"]
    assert registry.running == []
    assert registry.ended == [running]
    assert registry.counts["cancelled"] == 1


async def test_duplicate_query_may_be_refused() -> None:
    registry = QueryRegistry(lambda: NOW_MS, duplicates=False)
    with registry.register(make_query("sum:sys.cpu"), "10.0.0.1:1", {}):
        with (
            pytest.raises(BadQuery, match="already executing"),
            registry.register(make_query("sum:sys.cpu"), "10.0.0.1:2", {}),
        ):
            pass
        with (
            registry.register(make_query("sum:sys.cpu"), "10.0.0.2:1", {}),
            registry.register(make_query("max:sys.cpu"), "10.0.0.1:1", {}),
        ):
            assert len(registry.running) == 3  # fmt: skip


async def test_other_expressions_are_no_duplicate() -> None:
    registry = QueryRegistry(lambda: NOW_MS, duplicates=False)
    register = partial(registry.register, make_query("sum:sys.cpu"), headers={})
    with register("10.0.0.1:1"), register("10.0.0.1:2", expressions=("scale(sum:sys.cpu,2)",)):
        with register("10.0.0.1:3", expressions=("absolute(sum:sys.cpu)",)):
            assert len(registry.running) == 3
        with (
            pytest.raises(BadQuery, match="already executing"),
            register("10.0.0.1:4", expressions=("scale(sum:sys.cpu,2)",)),
        ):
            pass


@pytest.mark.difference("query-resources")
async def test_concurrency_is_limited() -> None:
    env = await stuck(EngineSettings(max_concurrent=2))
    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(partial(env.run, "sum:sys.cpu"))
        await trio.testing.wait_all_tasks_blocked()
        assert len(env.flushed) == 2
        nursery.cancel_scope.cancel()


async def test_timeout_includes_waiting(autojump_clock: trio.testing.MockClock) -> None:
    env = await stuck(EngineSettings(Limits(timeout_ms=3000), max_concurrent=1))
    ends = []

    async def run_query() -> None:
        with pytest.raises(BadQuery, match="timed out"):
            await env.run("sum:sys.cpu")
        ends.append(trio.current_time())

    begun = trio.current_time()
    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(run_query)
    assert ends == [pytest.approx(begun + 3)] * 4
    assert autojump_clock.current_time() == pytest.approx(begun + 3)


async def test_waiting_query_can_be_cancelled() -> None:
    env = await stuck(EngineSettings(max_concurrent=1))
    waiting = RunningQuery(2, make_query("sum:sys.cpu"), "127.0.0.1:5", {}, NOW_MS)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(env.run, "sum:sys.cpu")
        await trio.testing.wait_all_tasks_blocked()

        async def run_query() -> None:
            with pytest.raises(BadQuery, match="was cancelled"):
                await env.run("sum:sys.cpu", running=waiting)
            nursery.cancel_scope.cancel()

        nursery.start_soon(run_query)
        await trio.testing.wait_all_tasks_blocked()
        waiting.cancel()
    assert len(env.flushed) == 1


async def test_store_error_is_raised_unchanged() -> None:
    env = await QueryEnvironment.build(FEW)

    async def broken(*_: object, **__: object) -> None:
        raise StoreError("away")

    env.store.page = broken  # type: ignore[method-assign, assignment]
    with pytest.raises(StoreError, match="away"):
        await env.run("sum:sys.cpu")
