"""The engine's bounds: what a query may hold and how long it may take; queries that are listed and cancelled."""

import threading
from dataclasses import replace
from functools import partial

import pytest
import trio

from tests.unit.query.engines import FEW, NOW_MS, START_S, House, asked
from tsd.errors import BadQuery, StoreError
from tsd.query import assembling
from tsd.query.engine import GROUP_BYTES, Settings
from tsd.query.gathering import POINT_BYTES, SERIES_BYTES
from tsd.query.limits import Bounds, Limits
from tsd.query.merge import Merged, merge
from tsd.query.running import Registry, Running
from tsd.store.memory import MemoryStore


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        (Bounds(points=50), "more than our limit of 50 data points"),
        (Bounds(size=100), "more than our maximum amount of 0MB from storage"),
    ],
)
async def test_limits(bounds: Bounds, message: str) -> None:
    limits = Limits(bounds, size_override=True, points_override=True)
    house = await House.build(FEW, settings=Settings(limits))
    with pytest.raises(BadQuery, match=message) as caught:
        await house.run("sum:sys.cpu")
    assert caught.value.status == 413
    await house.run("sum:sys.cpu", override_byte_limit=True, override_point_limit=True)


async def test_queries_share_a_memory() -> None:
    house = await House.build(FEW, settings=Settings(memory_bytes=20 * SERIES_BYTES + 99 * POINT_BYTES))
    with pytest.raises(BadQuery, match=r"tsd\.query\.memory_limit") as caught:
        await house.run("sum:sys.cpu")
    assert caught.value.status == 413
    await house.run("sum:0all-sum:sys.cpu")
    assert house.engine.memory.held == 0


@pytest.mark.parametrize("m", ["sum:1ms-sum-nan:sys.cpu", "sum:1msc-sum-zero:sys.cpu", "sum:1s-p99-null:sys.cpu"])
async def test_a_fill_that_would_be_far_larger_than_what_was_read_is_refused(m: str) -> None:
    house = await House.build(FEW)
    query = replace(asked(m), end_ms=(START_S + 365 * 86400) * 1000)
    with pytest.raises(BadQuery, match=r"tsd\.query\.memory_limit") as caught:
        await house.engine.run(query)
    assert caught.value.status == 413


async def test_nothing_is_filled_where_there_is_no_series() -> None:
    """Not even the grid was held, and its length is the range's: this one had 10 TB."""
    house = await House.build(FEW, settings=Settings(memory_bytes=1 << 20))
    for m in ("sum:1ms-avg-zero:sys.cpu{host=wildcard(zzz*)}", "sum:1ms-p99-nan:sys.cpu{host=wildcard(zzz*)}"):
        answer = await house.engine.run(replace(asked(m), start_ms=1000, end_ms=NOW_MS))
        assert answer.subs[0].groups == []


@pytest.mark.parametrize(
    ("m", "in_thread"),
    [
        ("sum:1s-avg-zero:sys.cpu{host=web01}", True),
        ("sum:1m-avg-zero:sys.cpu{host=web01}", False),
        ("sum:sys.cpu", False),
    ],
)
async def test_what_a_fill_makes_much_of_is_merged_in_a_thread(
    m: str, in_thread: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It went by the few points that were read."""
    threads = []

    def watched(*arguments: object, **options: object) -> Merged:
        threads.append(threading.get_ident())
        return merge(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(assembling, "merge", watched)
    house = await House.build(FEW)
    await house.run(m)
    assert [one != threading.get_ident() for one in threads] == [in_thread]


async def test_series_count_even_where_they_have_one_point() -> None:
    house = await House.build(FEW, settings=Settings(memory_bytes=10 * SERIES_BYTES))
    with pytest.raises(BadQuery, match=r"tsd\.query\.memory_limit"):
        await house.run("sum:0all-sum:sys.cpu")


async def test_groups_count_too() -> None:
    house = await House.build(FEW, settings=Settings(memory_bytes=20 * (SERIES_BYTES + POINT_BYTES) + 5 * GROUP_BYTES))
    await house.run("sum:0all-sum:sys.cpu{dc=*}")
    with pytest.raises(BadQuery, match=r"tsd\.query\.memory_limit"):
        await house.run("sum:0all-sum:sys.cpu{host=*}")


class Stuck(MemoryStore):
    """Answers no scan."""

    async def page(self, *_: object, **__: object) -> None:  # type: ignore[override]
        await trio.sleep_forever()


async def stuck(settings: Settings) -> House:
    house = await House.build(FEW, settings=settings)
    house.store.__class__ = Stuck
    return house


async def test_a_query_that_takes_too_long(autojump_clock: trio.testing.MockClock) -> None:
    house = await stuck(Settings(Limits(timeout_ms=3000)))
    with pytest.raises(BadQuery, match=r"timed out\. Time limit: 3000 ms, fetch time: 3000 ms") as caught:
        await house.run("sum:sys.cpu")
    assert caught.value.status == 408
    assert trio.current_time() == pytest.approx(autojump_clock.current_time())


async def test_a_query_can_be_listed_and_cancelled() -> None:
    house = await stuck(Settings())
    registry = Registry(lambda: NOW_MS)
    errors = []

    async def ask() -> None:
        with registry.entered(asked("sum:sys.cpu"), "127.0.0.1:5", {}) as running:
            try:
                await house.run("sum:sys.cpu", running=running)
            except BadQuery as error:
                errors.append(error.message)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        [running] = registry.running
        assert not registry.cancel(running.number + 1)
        assert registry.cancel(running.number)
    assert errors == ["The query was cancelled"]
    assert registry.running == []
    assert registry.ended == [running]
    assert registry.counts["cancelled"] == 1


async def test_the_same_question_twice_may_be_refused() -> None:
    registry = Registry(lambda: NOW_MS, duplicates=False)
    with registry.entered(asked("sum:sys.cpu"), "10.0.0.1:1", {}):
        with (
            pytest.raises(BadQuery, match="already executing"),
            registry.entered(asked("sum:sys.cpu"), "10.0.0.1:2", {}),
        ):
            pass
        with (
            registry.entered(asked("sum:sys.cpu"), "10.0.0.2:1", {}),
            registry.entered(asked("max:sys.cpu"), "10.0.0.1:1", {}),
        ):
            assert len(registry.running) == 3  # fmt: skip


async def test_other_expressions_over_the_same_query_are_another_question() -> None:
    registry = Registry(lambda: NOW_MS, duplicates=False)
    entered = partial(registry.entered, asked("sum:sys.cpu"), headers={})
    with entered("10.0.0.1:1"), entered("10.0.0.1:2", made_of_it=("scale(sum:sys.cpu,2)",)):
        with entered("10.0.0.1:3", made_of_it=("absolute(sum:sys.cpu)",)):
            assert len(registry.running) == 3
        with (
            pytest.raises(BadQuery, match="already executing"),
            entered("10.0.0.1:4", made_of_it=("scale(sum:sys.cpu,2)",)),
        ):
            pass


async def test_so_many_run_at_once_and_others_wait() -> None:
    house = await stuck(Settings(at_once=2))
    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(partial(house.run, "sum:sys.cpu"))
        await trio.testing.wait_all_tasks_blocked()
        assert len(house.flushed) == 2
        nursery.cancel_scope.cancel()


async def test_waiting_for_its_turn_is_part_of_a_query_s_time(autojump_clock: trio.testing.MockClock) -> None:
    house = await stuck(Settings(Limits(timeout_ms=3000), at_once=1))
    ends = []

    async def ask() -> None:
        with pytest.raises(BadQuery, match="timed out"):
            await house.run("sum:sys.cpu")
        ends.append(trio.current_time())

    begun = trio.current_time()
    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(ask)
    assert ends == [pytest.approx(begun + 3)] * 4
    assert autojump_clock.current_time() == pytest.approx(begun + 3)


async def test_a_query_that_waits_for_its_turn_can_be_cancelled() -> None:
    house = await stuck(Settings(at_once=1))
    waiting = Running(2, asked("sum:sys.cpu"), "127.0.0.1:5", {}, NOW_MS)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(house.run, "sum:sys.cpu")
        await trio.testing.wait_all_tasks_blocked()

        async def ask() -> None:
            with pytest.raises(BadQuery, match="was cancelled"):
                await house.run("sum:sys.cpu", running=waiting)
            nursery.cancel_scope.cancel()

        nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        waiting.cancel()
    assert len(house.flushed) == 1


async def test_an_error_of_the_store_is_raised_as_it_is() -> None:
    house = await House.build(FEW)

    async def broken(*_: object, **__: object) -> None:
        raise StoreError("away")

    house.store.page = broken  # type: ignore[method-assign, assignment]
    with pytest.raises(StoreError, match="away"):
        await house.run("sum:sys.cpu")
