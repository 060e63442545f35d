"""The newest points of series while points of open hours are in memory only, and commands change the rows."""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.property.layout_worlds import COMMON, FORMS, LayoutWorld, OpenRows, PagedMemory, made_world, opened_worlds
from tests.unit.query.engines import make_query
from tsd.codec.putline import HOUR_S
from tsd.config.loader import Given
from tsd.daemon.settings import read_config
from tsd.errors import StoreError
from tsd.ingest.unstored_points import UnstoredPoints
from tsd.store import Cell, Put, scan
from tsd.tables.catalog import SeriesSelector
from tsd.tables.open_points import ChooseSeries, OpenPoints
from tsd.tables.opentsdb.last_point_cache import LastPointCache
from tsd.tables.reading import ScanRange

T = 1356998400


async def put_by_command(world: LayoutWorld, *values: bytes) -> None:
    """Put points into the only row of an hour, as `tsd import` does through a daemon: one second after the other."""
    table = world.config.data_table
    rows = [row.key for row in (await world.store.page(table, b"", None, limit=10)).rows]
    for row in rows:
        puts = [Put(row, b"t:" + (at << 4).to_bytes(2, "big"), value) for at, value in enumerate(values)]
        await world.store.put(table, puts)
    world.tables.on_change(table, rows)


@pytest.mark.parametrize("hours_later", [0, 2])
async def test_command_that_writes_an_open_row_leaves_the_newest_point_in_memory(
    hours_later: int, tmp_path: Path
) -> None:
    now_ms = (T + 10) * 1000
    async with opened_worlds({"held": FORMS["held"]}, tmp_path, lambda: now_ms) as worlds:
        world = worlds["held"]
        await world.put([f"a {T + 1} 1 host=x"])
        await world.flush()
        await world.put([f"a {T + 5} 5 host=x"])  # in memory
        await world.flush_metric(b"m.a")
        now_ms += hours_later * HOUR_S * 1000
        await put_by_command(world, b"\7", b"\7", b"\7")
        for back_h in (None, 1):
            newest = {} if back_h and hours_later else {(("host", "x"),): ((T + 5) * 1000, 5.0)}
            assert await world.newest("a", back_h) == newest


async def test_late_point_of_a_series_that_a_command_wrote_hides_no_stored_one(tmp_path: Path) -> None:
    """Regression: the daemon knew the late point alone: it had not written the series before."""
    now_ms = T * 1000
    async with opened_worlds({"packed": FORMS["packed"]}, tmp_path, lambda: now_ms) as worlds:
        world = worlds["packed"]
        now_ms += 10_000
        await world.put([f"a {T + 1} 1 host=x", f"b {T + 1} 1 host=x"])
        world.tables.drop_caches()
        await world.newest("b", None)
        now_ms += 20_000
        await put_by_command(world, b"\7", *[b"\7"] * 29)
        await world.put([f"a {T + 20} 1 host=x"])
        assert await world.newest("a", None) == {(("host", "x"),): ((T + 29) * 1000, 7.0)}


async def test_stored_point_is_forgotten_once_a_command_deletes_it(tmp_path: Path) -> None:
    """It was in memory before."""
    async with opened_worlds({"held": FORMS["held"]}, tmp_path, lambda: (T + 10) * 1000) as worlds:
        world = worlds["held"]
        await world.put([f"a {T + 5} 5 host=x"])
        assert await world.newest("a", None) == {(("host", "x"),): ((T + 5) * 1000, 5.0)}
        await world.flush()
        table = world.config.data_table
        [row] = (await world.store.page(table, b"", None, limit=10)).rows
        await world.store.delete(table, {row.key: [cell.column for cell in row.cells]}, up_to_ms=None)
        world.tables.on_change(table, [row.key])
        assert await world.newest("a", None) == {}


@pytest.mark.parametrize("is_known", [True, False])
async def test_late_point_in_memory_is_the_newest_once_a_command_deletes_the_stored_ones(
    is_known: bool, tmp_path: Path
) -> None:
    """Regression: a point of the hour before was answered, or none, until the open hour was written."""
    async with opened_worlds({"held": FORMS["held"]}, tmp_path, lambda: (T + 50) * 1000) as worlds:
        world = worlds["held"]
        await world.put([f"a {T - 5} 7 host={host}" for host in "xy"] if is_known else [])
        await world.put([f"a {T + 40} 5 host={host}" for host in "xy"])
        await world.flush()
        await world.put([f"a {T + 5} 1 host=x", f"a {T + 4} 3 host=x", f"a {T + 6} 2.5 host=y"])
        await delete_since(world, T)
        newest = {(("host", "x"),): ((T + 5) * 1000, 1.0), (("host", "y"),): ((T + 6) * 1000, 2.5)}
        for back_h in (None, 0, 1):
            assert await world.newest("a", back_h) == newest
        await world.flush()
        assert await world.newest("a", None) == newest
        await delete_since(world, T - HOUR_S)
        assert await world.newest("a", None) == {}


async def test_late_points_of_many_series_are_found_once_the_stored_ones_are_deleted(tmp_path: Path) -> None:
    """They are written first: a search of memory may unpack all points of an open hour."""
    hosts = [f"h{number:03d}" for number in range(150)]
    async with opened_worlds({"held": FORMS["held"]}, tmp_path, lambda: (T + 50) * 1000) as worlds:
        world = worlds["held"]
        await world.put([f"a {T + 40} 5 host={host}" for host in hosts])
        await world.flush()
        for at, some in enumerate((hosts, hosts[:3])):
            await world.put([f"a {T + 5 + at} 1 host={host}" for host in some])
            await delete_since(world, T)
            found = await world.newest("a", None)
            assert found == {(("host", host),): ((T + 5 + at) * 1000, 1.0) for host in some}


async def test_memory_is_searched_once_for_the_newest_points_of_all_series_of_a_metric(tmp_path: Path) -> None:
    """Regression: it was searched for some series at a time, and each search went through all series."""
    searches: list[bytes] = []

    class Searched(OpenRows):
        def __init__(self, points: UnstoredPoints, flush: Callable[[], Awaitable[None]]) -> None:
            super().__init__(points, flush)
            found = self.open_points

            async def counted(
                metric: bytes, choose: ChooseSeries | None = None, span: ScanRange | None = None
            ) -> OpenPoints | None:
                searches.append(metric)
                return await found(metric, choose, span)

            self.open_points = counted

    hosts = [f"h{number:04d}" for number in range(2500)]
    async with opened_worlds({"held": FORMS["held"]}, tmp_path, lambda: (T + 50) * 1000) as worlds:
        world = worlds["held"]
        await world.put([f"a {T + 40} 5 host={host}" for host in hosts])
        await world.flush()
        await world.put([f"a {T + 5} 1 host={host}" for host in hosts[:3]])
        world.tables.include_open_points(Searched(world.ingest.unstored, world.flush))
        await delete_since(world, T)
        assert len(await world.newest("a", None)) == 3
        assert searches == [b"m.a"]


@pytest.mark.parametrize("is_stored", [True, False])
async def test_caches_that_are_dropped_during_a_request_hide_no_point(is_stored: bool, tmp_path: Path) -> None:
    """Regression: the answer lacked series whose newest points were cached when the request began."""
    now_ms = (T + 10) * 1000
    async with opened_worlds({"held": FORMS["held"]}, tmp_path, lambda: now_ms) as worlds:
        world = worlds["held"]
        now_ms += 40_000
        await world.put([f"a {T + 5} 7 host=y", f"a {T + 5} 1 host=x"])  # older than the cache: the rows of y are read
        await world.flush()
        await world.put([f"a {T + 20} 5 host=x"])
        await (world.flush() if is_stored else world.flush_metric(b"m.a"))
        newest = {(("host", "x"),): ((T + 20) * 1000, 5.0), (("host", "y"),): ((T + 5) * 1000, 7.0)}
        read = world.store.get

        async def dropping(*words: Any, **options: Any) -> Mapping[bytes, list[Cell]]:
            if words[0] == world.config.data_table:
                world.store.get = read
                world.ingest.writer.expire_names()
                world.tables.drop_caches()
            found: Mapping[bytes, list[Cell]] = await read(*words, **options)
            return found

        world.store.get = dropping
        assert await world.newest("a", None) == newest
        assert world.store.get == read


@pytest.mark.parametrize("is_indexed", [True, False])
async def test_caches_that_are_dropped_before_a_page_of_series_is_read_hide_no_point(
    is_indexed: bool, tmp_path: Path
) -> None:
    """Regression: the answer lacked series whose points were in memory only, or the list of series lacked them."""
    form = FORMS["held"]._replace(settings={"tsd.query.series_index": str(is_indexed).lower()})
    async with opened_worlds({"held": form}, tmp_path, lambda: (T + 50) * 1000) as worlds:
        world, catalog = worlds["held"], worlds["held"].tables.catalog

        def drop() -> None:
            world.ingest.writer.expire_names()
            world.tables.drop_caches()

        await world.put([f"a {T + 5} 7 host=x"])  # in memory
        await world.flush_metric(b"m.a")
        selected = await catalog.select(SeriesSelector("m.a", ()))
        drop()
        series = [one async for page in selected.pages() for one in page]
        await world.put([f"a {T + 6} 8 host=x"])
        await world.flush_metric(b"m.a")
        drop()
        found = await catalog.last_points(series, None)
        assert [(point.time_ms, point.number) for point in found.points if point] == [((T + 6) * 1000, 8)]


async def test_full_cache_hides_no_point_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: series that it dropped had no newest point until their open hour was written."""
    monkeypatch.setattr("tsd.tables.opentsdb.layout.LastPointCache", partial(LastPointCache, max_idle=20))
    async with opened_worlds({"held": FORMS["held"]}, tmp_path, lambda: (T + 50) * 1000) as worlds:
        world = worlds["held"]
        for metric, hosts in (("a", range(2)), ("b", range(2, 21))):
            await world.put([f"{metric} {T + host} {host} host=h{host}" for host in hosts])  # in memory
            await world.flush_metric(b"m." + metric.encode())
        newest = {(("host", f"h{host}"),): ((T + host) * 1000, float(host)) for host in range(2)}
        assert await world.newest("a", None) == newest


async def test_cache_that_gets_full_during_a_request_keeps_old_points(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: points before the hours that are read were forgotten, also of series that stayed in the cache."""
    monkeypatch.setattr("tsd.tables.opentsdb.layout.LastPointCache", partial(LastPointCache, max_idle=20))
    now_ms = (T + 10) * 1000
    async with opened_worlds({"held": FORMS["held"]}, tmp_path, lambda: now_ms) as worlds:
        world = worlds["held"]
        await world.put([f"b {T + 1} 0 host=h{host}" for host in range(10)])
        await world.put([f"a {T + 5} 7 host=y", f"a {T + 20} 5 host=x"])  # the rows of y are read
        await world.flush()
        now_ms += 1000 * HOUR_S * 1000
        read = world.store.get

        async def filling(*words: Any, **options: Any) -> Mapping[bytes, list[Cell]]:
            if words[0] == world.config.data_table:
                monkeypatch.setattr(world.store, "get", read)
                await world.put([f"c {now_ms // 1000} 0 host=h{host}" for host in range(10)])
                await world.flush()
            found: Mapping[bytes, list[Cell]] = await read(*words, **options)
            return found

        monkeypatch.setattr(world.store, "get", filling)
        newest = {(("host", "x"),): ((T + 20) * 1000, 5.0), (("host", "y"),): ((T + 5) * 1000, 7.0)}
        assert await world.newest("a", None) == newest
        assert world.store.get == read


async def test_deleted_points_stay_so_while_commands_delete_during_each_read(tmp_path: Path) -> None:
    """Regression: of points that were in memory at the start of the last read."""
    async with opened_worlds({"held": FORMS["held"]}, tmp_path, lambda: (T + 50) * 1000) as worlds:
        world = worlds["held"]
        await world.put([f"a {T + 40} 5 host=x"])
        await world.flush()
        await world.put([f"a {T + 39} 5 host=x"])
        await delete_since(world, T)
        left = iter(range(38, 0, -1))
        get = world.store.get

        async def deleting(
            table: str, rows: Sequence[bytes], *, columns: Collection[bytes] | None = None
        ) -> Mapping[bytes, Sequence[Cell]]:
            found: Mapping[bytes, Sequence[Cell]] = await get(table, rows, columns=columns)
            if table == world.config.data_table:
                await world.flush()
                await delete_since(world, T)
                await world.put([f"a {T + next(left)} 5 host=x"])
            return found

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(world.store, "get", deleting)
            await world.newest("a", None)
        await world.flush()
        assert await world.newest("a", None) == {(("host", "x"),): ((T + next(left) + 1) * 1000, 5.0)}


async def test_deleted_point_is_forgotten_though_the_delete_fails_after_it(tmp_path: Path) -> None:
    """Regression: a request that read its row before the delete had cached it."""
    async with opened_worlds({"held": FORMS["held"]}, tmp_path, lambda: (T + 50) * 1000) as worlds:
        world = worlds["held"]
        await world.put([f"a {T + 40} 5 host=x"])
        await world.flush()
        delete = world.store.delete

        async def read_and_delete(*words: Any, **options: Any) -> None:
            assert await world.newest("a", None) == {(("host", "x"),): ((T + 40) * 1000, 5.0)}
            await delete(*words, **options)

        async def fail() -> None:
            await trio.lowlevel.checkpoint()
            raise StoreError("as the test wants")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(world.store, "delete", read_and_delete)
            patch.setattr(world.store, "sync", fail)
            with pytest.raises(StoreError):
                await world.engine.run(replace(make_query("sum:m.a"), delete=True))
        assert await world.newest("a", None) == {}


async def delete_since(world: LayoutWorld, start_s: int) -> None:
    """Delete the stored rows of points from some hour on, as a command does."""
    table = world.config.data_table
    found = [row async for rows in scan(world.store, table) for row in rows]
    rows = {row.key: [cell.column for cell in row.cells] for row in found if row.key[3:7] >= start_s.to_bytes(4)}
    await world.store.delete(table, rows, up_to_ms=None)
    world.tables.on_change(table, rows.keys())


async def test_point_that_is_not_stored_yet_is_known_on_shared_tables(tmp_path: Path) -> None:
    """Regression: its row is read again after a while, lacks it, and it counted as deleted by another process."""
    now_ms = (T + 10) * 1000
    config, _ = read_config(
        Given("test", key, value) for key, value in {**COMMON, "tsd.storage.path": str(tmp_path)}.items()
    )
    store = PagedMemory(lambda: now_ms)
    store.capabilities = replace(store.capabilities, shared=True)
    async with made_world(FORMS["held"], config, store, lambda: now_ms) as world:
        await world.put([f"a {T + 1} 1 host=x"])
        await world.flush()
        await world.put([f"a {T + 5} 5 host=x"])  # in memory
        for _ in range(3):
            assert await world.newest("a", None) == {(("host", "x"),): ((T + 5) * 1000, 5.0)}
            now_ms += HOUR_S // 10 * 1000


@pytest.mark.parametrize("hosts", [1, 150, 1200])
async def test_late_points_in_memory_are_the_newest_once_another_process_deletes_the_stored_ones(
    tmp_path: Path, hosts: int
) -> None:
    """Regression: points of many series were missed for a minute. They were written between the read of the rows and
    that of the memory."""
    names = [f"h{number:04d}" for number in range(hosts)]
    now_ms = (T + 50) * 1000
    config, _ = read_config(
        Given("test", key, value) for key, value in {**COMMON, "tsd.storage.path": str(tmp_path)}.items()
    )
    store = PagedMemory(lambda: now_ms)
    store.capabilities = replace(store.capabilities, shared=True)
    async with made_world(FORMS["held"], config, store, lambda: now_ms) as world:
        await world.put([line for host in names for line in (f"a {T - 5} 7 host={host}", f"a {T + 40} 5 host={host}")])
        await world.flush()
        await world.put([f"a {T + 5} 1 host={host}" for host in names])  # in memory
        assert await world.newest("a", None) == {(("host", host),): ((T + 40) * 1000, 5.0) for host in names}
        stored = [row async for some in scan(store, config.data_table) for row in some]
        rows = {row.key: [cell.column for cell in row.cells] for row in stored if row.key[3:7] == T.to_bytes(4)}
        await store.delete(config.data_table, rows, up_to_ms=None)
        now_ms += HOUR_S // 2 * 1000
        assert await world.newest("a", None) == {(("host", host),): ((T + 5) * 1000, 1.0) for host in names}
