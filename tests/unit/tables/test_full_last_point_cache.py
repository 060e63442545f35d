"""Newest points and lookups of more series than the cache of newest points holds."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.property.layout_worlds import (
    COMMON,
    FORMS,
    LayoutForm,
    LayoutWorld,
    PagedMemory,
    made_world,
    opened_worlds,
)
from tsd.codec.putline import HOUR_S
from tsd.config.loader import Given
from tsd.daemon.settings import read_config
from tsd.errors import StoreDown
from tsd.store import Cell, Put
from tsd.tables.catalog import SeriesSelector
from tsd.tables.opentsdb.last_point_cache import LastPointCache

T = 1356998400
HOSTS = [f"h{number:03d}" for number in range(60)]
NO_INDEX = {"tsd.query.series_index": "false"}
Newest = dict[tuple[tuple[str, str], ...], tuple[int, float]]


@pytest.fixture(autouse=True)
def small_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tsd.tables.opentsdb.layout.LastPointCache", partial(LastPointCache, max_idle=20))


def newest_of(hosts: list[str], at_s: int) -> Newest:
    return {(("host", host),): (at_s * 1000, 5.0) for host in hosts}


async def stored_rows(world: LayoutWorld) -> int:
    return len((await world.store.page(world.config.data_table, b"", None, limit=1000)).rows)


async def found_by_lookup(world: LayoutWorld, metric: str) -> int:
    selected = await world.tables.catalog.select(SeriesSelector(world.form.prefix + metric, ()))
    return sum([len(page) async for page in selected.pages()])


def make_idle(world: LayoutWorld) -> None:
    """Let ingest forget all series."""
    later_s = T + 10 * HOUR_S
    world.ingest.open_window.table.evict(later_s, held_since_s=later_s)


async def fill_cache(world: LayoutWorld) -> None:
    """Ask for so many series of no metric that idle ones leave the cache."""
    for at in range(3):
        unknown = [b"\0\0\xff\0\0\1\0" + bytes([at, number]) for number in range(60)]
        await world.tables.catalog.last_points(unknown, None)


@pytest.mark.parametrize("settings", [{}, NO_INDEX])
@pytest.mark.parametrize("is_shared", [False, True])
async def test_points_in_memory_are_answered_and_stay_there(
    settings: Mapping[str, str], is_shared: bool, tmp_path: Path
) -> None:
    """Regression: each request, and each lookup, wrote all points in memory, and answered half of the series."""
    config, _ = read_config(
        Given("test", key, value) for key, value in {**COMMON, **settings, "tsd.storage.path": str(tmp_path)}.items()
    )
    store = PagedMemory(lambda: (T + 50) * 1000)
    store.capabilities = replace(store.capabilities, shared=is_shared)
    async with made_world(FORMS["held"], config, store, lambda: (T + 50) * 1000) as world:
        for round_s in range(3):
            for at in range(0, len(HOSTS), 15):
                await world.put([f"a {T + round_s} 5 host={host}" for host in HOSTS[at : at + 15]])
                await world.flush_metric(b"m.a")
            assert await world.newest("a", None) == newest_of(HOSTS, T + round_s)
            assert await found_by_lookup(world, "a") == len(HOSTS)
        assert await stored_rows(world) == 0


@pytest.mark.parametrize("form", ["packed", "salted", "held", "entity", "blocks"])
async def test_rows_of_all_series_of_a_call_are_answered(form: str, tmp_path: Path) -> None:
    """Regression: half of the series were missing."""
    async with opened_worlds({form: FORMS[form]}, tmp_path, lambda: (T + 50) * 1000) as worlds:
        world = worlds[form]
        await world.put([f"a {T + 5} 5 host={host}" for host in HOSTS])
        await world.flush()
        world.tables.drop_caches()
        for back_h in (None, 1):
            assert await world.newest("a", back_h) == newest_of(HOSTS, T + 5)


async def test_rows_on_shared_tables_are_answered(tmp_path: Path) -> None:
    """They are read again after a minute."""
    now_ms = (T + 50) * 1000
    config, _ = read_config(
        Given("test", key, value) for key, value in {**COMMON, "tsd.storage.path": str(tmp_path)}.items()
    )
    store = PagedMemory(lambda: now_ms)
    store.capabilities = replace(store.capabilities, shared=True)
    async with made_world(LayoutForm(), config, store, lambda: now_ms) as world:
        for at_s in (5, 45):
            await world.put([f"a {T + at_s} 5 host={host}" for host in HOSTS])
            make_idle(world)
            for _ in range(2):
                assert await world.newest("a", None) == newest_of(HOSTS, T + at_s)
                now_ms += 90_000


async def test_late_point_of_a_series_that_left_the_cache_hides_no_stored_one(tmp_path: Path) -> None:
    now_ms = T * 1000
    async with opened_worlds({"packed": FORMS["packed"]}, tmp_path, lambda: now_ms) as worlds:
        world = worlds["packed"]
        now_ms += 50_000
        await world.put([f"a {T + 40} 5 host={host}" for host in HOSTS])
        make_idle(world)
        await fill_cache(world)
        await world.put([f"a {T + 5} 1 host={host}" for host in HOSTS])
        assert await world.newest("a", None) == newest_of(HOSTS, T + 40)


async def test_series_that_is_deleted_while_it_leaves_the_cache_has_no_point(tmp_path: Path) -> None:
    """Regression: the row was read before it was deleted, and nothing marked its series."""
    async with opened_worlds({"packed": FORMS["packed"]}, tmp_path, lambda: (T + 50) * 1000) as worlds:
        world, table = worlds["packed"], worlds["packed"].config.data_table
        await world.put([f"a {T + 5} 5 host=x"])
        world.tables.drop_caches()
        read = world.store.get

        async def deleting(*words: Any, **options: Any) -> Mapping[bytes, list[Cell]]:
            found: Mapping[bytes, list[Cell]] = await read(*words, **options)
            if words[0] == table:
                patch.setattr(world.store, "get", read)
                await fill_cache(world)
                await world.store.delete(
                    table, {row: [cell.column for cell in found[row]] for row in found}, up_to_ms=None
                )
                world.tables.on_change(table, found.keys())
            return found

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(world.store, "get", deleting)
            assert await world.newest("a", None) == {}
        assert await world.newest("a", None) == {}


async def test_lookup_finds_the_rows_of_series_that_left_the_cache(tmp_path: Path) -> None:
    """Regression: without the series index they were missing: the daemon scans a metric only once."""
    form = LayoutForm(NO_INDEX)
    async with opened_worlds({"packed": form}, tmp_path, lambda: (T + 50) * 1000) as worlds:
        world = worlds["packed"]
        await world.put([f"a {T} 5 host=x"])
        assert await found_by_lookup(world, "a") == 1
        await world.put([f"a {T + 5} 5 host={host}" for host in HOSTS])
        make_idle(world)
        await fill_cache(world)
        assert await found_by_lookup(world, "a") == len(HOSTS) + 1


async def test_lookup_finds_series_that_a_command_wrote(tmp_path: Path) -> None:
    """Regression: without the series index they were missing: the daemon scans a metric only once."""
    async with opened_worlds({"packed": LayoutForm(NO_INDEX)}, tmp_path, lambda: (T + 50) * 1000) as worlds:
        world, table = worlds["packed"], worlds["packed"].config.data_table
        await world.put([f"a {T} 5 host={host}" for host in "xy"])
        [x, y] = (await world.store.page(table, b"", None, limit=10)).rows
        await world.store.delete(table, {y.key: [cell.column for cell in y.cells]}, up_to_ms=None)
        world.tables.drop_caches()
        assert await found_by_lookup(world, "a") == 1
        await world.store.put(table, [Put(y.key, cell.column, cell.value) for cell in x.cells])
        world.tables.on_change(table, [y.key])
        assert await found_by_lookup(world, "a") == 2


async def test_lookup_scans_a_metric_once_while_no_series_goes_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened_worlds({"packed": LayoutForm(NO_INDEX)}, tmp_path, lambda: (T + 50) * 1000) as worlds:
        world = worlds["packed"]
        await world.put([f"a {T} 5 host=x"])
        assert await found_by_lookup(world, "a") == 1
        await world.put([f"a {T} 5 host=y"])
        page, scanned = world.store.page, []

        async def counted(table: str, *words: Any, **options: Any) -> Any:
            scanned.append(table)
            return await page(table, *words, **options)

        monkeypatch.setattr(world.store, "page", counted)
        assert await found_by_lookup(world, "a") == 2
        assert world.config.data_table not in scanned


async def test_request_fails_if_caches_are_dropped_during_each_read(tmp_path: Path) -> None:
    """Regression: the answer lacked series, with status 200."""
    async with opened_worlds({"packed": FORMS["packed"]}, tmp_path, lambda: (T + 50) * 1000) as worlds:
        world = worlds["packed"]
        hosts = [f"h{number:04d}" for number in range(1200)]  # more than are read with one call of the store
        await world.put([f"a {T + 5} 5 host={host}" for host in hosts])
        world.tables.drop_caches()
        read = world.store.get

        async def dropping(*words: Any, **options: Any) -> Mapping[bytes, list[Cell]]:
            if words[0] == world.config.data_table:
                world.tables.drop_caches()
            found: Mapping[bytes, list[Cell]] = await read(*words, **options)
            return found

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(world.store, "get", dropping)
            with pytest.raises(StoreDown):
                await world.newest("a", None)
        assert await world.newest("a", None) == newest_of(hosts, T + 5)
