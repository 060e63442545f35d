"""Rollups that the embedded store keeps as columns give the answers of their cells, and of the points."""

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest

from tests.unit.query.engines import DATA, START_S, QueryEnvironment
from tests.unit.tables.rollup_parts import (
    DAY_S,
    HOUR_S,
    INTERVALS,
    LAYOUTS,
    TABLES,
    Rolled,
    environment,
    lines_of,
    shown,
)
from tsd.codec.opentsdb.rowkey import KeyLayout
from tsd.query.rollups import RAW
from tsd.store import Put, Row, scan
from tsd.store.rocksdb.engine import EmbeddedStore
from tsd.tables.opentsdb.rollup_derive import derive_rows
from tsd.tables.reading import ScanRange

KINDS = bytes(range(256))
LATER_S = START_S + 70 * DAY_S
QUERIES = [
    "none:1h-{}:m",
    "none:1d-{}:m",
    "sum:2h-{}-zero:m{{host=*}}",
    "max:2d-{}:m{{host=literal_or(b)}}",
    "none:1h-{}:m{{host=regexp(nothing)}}",
]


@asynccontextmanager
async def rolling(tmp_path: Path, layout: KeyLayout | None = None) -> AsyncIterator[Rolled]:
    """Rollups of points in an embedded store, 70 days later."""
    store = await EmbeddedStore.open(tmp_path / "store", lambda: LATER_S * 1000)
    try:
        yield Rolled(await environment([], layout, store), tmp_path, LATER_S)
    finally:
        await store.aclose()


async def all_rows(rolled: Rolled, table: str) -> list[Row]:
    """The rows of a table."""
    async with aclosing(scan(rolled.env.store, table)) as pages:
        return [row async for rows in pages for row in rows]


async def derived(env: QueryEnvironment) -> dict[str, set[int]]:
    """The base times that have columns, by table, in days since START_S."""
    values = env.store.derived_values
    assert values is not None
    found: dict[str, set[int]] = {}
    for table in TABLES.values():
        keys = [row.key[: env.layout.pairs_start] async for rows in scan(env.store, table) for row in rows]
        for prefix in await values.derived(table, sorted(set(keys)), KINDS):
            found.setdefault(table, set()).add((int.from_bytes(prefix[-4:], "big") - START_S) // DAY_S)
    return found


@pytest.mark.parametrize(
    "function", ["sum", *(pytest.param(name, marks=pytest.mark.slow) for name in ("count", "min", "avg"))]
)
@pytest.mark.parametrize("layout", LAYOUTS, ids=["plain", "salted"])
async def test_columns_give_the_answers_of_points(tmp_path: Path, function: str, layout: KeyLayout) -> None:
    async with rolling(tmp_path, layout) as rolled:
        await rolled.put(lines_of(33, step_s=9_000))
        await rolled.task.round()
        assert (await derived(rolled.env))["r1d"] == {0, 31}
        assert (await derived(rolled.env))["r1h"] >= set(range(2, 33))
        for m in QUERIES:
            found = await rolled.answer(m.format(function), days=40)
            assert found.rollup_table != "raw"
            assert shown(found) == shown(await rolled.answer(m.format(function), days=40, usage=RAW))


async def test_rows_without_columns_are_read_with_those_that_have_some(tmp_path: Path) -> None:
    async with rolling(tmp_path) as rolled:
        await rolled.put(lines_of(33, step_s=9_000))
        await rolled.task.round()
        rows = await all_rows(rolled, "r1h")
        await rolled.env.store.put("r1h", [Put(row.key, *row.cells[0][:2]) for row in rows[20:25]])
        assert len((await derived(rolled.env))["r1h"]) < 33
        for m in QUERIES:
            assert shown(await rolled.answer(m.format("sum"))) == shown(await rolled.answer(m.format("sum"), usage=RAW))


async def test_written_cells_are_answered_at_once(tmp_path: Path) -> None:
    async with rolling(tmp_path) as rolled:
        await rolled.put(lines_of(3))
        await rolled.task.round()
        [before] = (await rolled.answer("none:1d-count:m{host=a}", days=1)).groups
        assert before.points.doubles().tolist()[0] == 58
        row = (await all_rows(rolled, "r1d"))[0]
        [column, *_] = [cell.column for cell in row.cells if cell.column[2] == 1]
        await rolled.env.store.put("r1d", [Put(row.key, column, (77).to_bytes(8, "big"))])
        [found] = (await rolled.answer("none:1d-count:m{host=a}", days=1)).groups
        assert found.points.doubles().tolist()[0] == 77


async def test_late_points_renew_the_columns_of_their_day(tmp_path: Path) -> None:
    async with rolling(tmp_path) as rolled:
        await rolled.put(lines_of(3))
        await rolled.task.round()
        before = await derived(rolled.env)
        await rolled.put([f"m {START_S + HOUR_S} 1e6 host=a"])
        await rolled.task.round()
        assert await derived(rolled.env) == before
        found = await rolled.answer("none:1h-max:m{host=a}")
        assert found.rollup_table == "1h"
        assert shown(found) == shown(await rolled.answer("none:1h-max:m{host=a}", usage=RAW))


async def test_hours_of_a_day_that_goes_on_have_no_columns(tmp_path: Path) -> None:
    async with rolling(tmp_path) as rolled:
        rolled.now_s = START_S + 2 * DAY_S + 5 * HOUR_S
        await rolled.put(lines_of(2.1))
        await rolled.task.round()
        found = await derived(rolled.env)
        assert found["r1h"] == {0, 1}
        assert found["r1d"] == {0}


async def test_late_hours_renew_the_columns_of_rows_that_are_over(tmp_path: Path) -> None:
    """Though longer intervals go on."""
    async with rolling(tmp_path) as rolled:
        rolled.now_s = START_S + 2 * DAY_S + 8 * HOUR_S
        await rolled.put(lines_of(2.3))
        await rolled.task.round()
        before = await derived(rolled.env)
        assert 2 in before["r10m"]
        await rolled.put([f"m {START_S + 2 * DAY_S + 3 * HOUR_S + 5} 1e6 host=a"])
        await rolled.task.round()
        assert await derived(rolled.env) == before
        found = await rolled.answer("none:10m-max:m{host=a}")
        assert found.rollup_table == "10m"
        assert shown(found) == shown(await rolled.answer("none:10m-max:m{host=a}", usage=RAW))


async def test_cells_of_unusual_form_are_read_as_cells(tmp_path: Path) -> None:
    async with rolling(tmp_path) as rolled:
        await rolled.put(lines_of(1))
        row = (await all_rows(rolled, DATA))[0]
        await rolled.env.store.put("r1d", [Put(row.key, b"t:sum:\0\x17", b"\0" * 7 + b"\5")])
        await rolled.task.round()
        assert "r1d" not in await derived(rolled.env)
        [found] = (await rolled.answer("none:1d-sum:m{host=a}", days=3)).groups
        assert found.points.doubles().tolist()[1] == 5


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS, ids=["plain", "salted"])
async def test_columns_of_new_rows_are_those_of_stored_cells(tmp_path: Path, layout: KeyLayout) -> None:
    async with rolling(tmp_path, layout) as rolled:
        await rolled.put(lines_of(33, step_s=9_000))
        await rolled.task.round()
        values = rolled.env.store.derived_values
        assert values is not None
        for interval in INTERVALS:
            table = interval.table
            rows = await all_rows(rolled, table)
            prefixes = sorted({row.key[: layout.pairs_start] for row in rows})
            found = await values.derived(table, prefixes, KINDS)
            cells = [Put(row.key, cell.column, cell.value) for row in rows for cell in row.cells]
            await rolled.env.store.put(table, cells)  # again: columns are then made of what is stored
            assert await values.derived(table, prefixes, KINDS) == {}
            metric = prefixes[0][layout.salt_width : layout.metric_end]
            span = ScanRange(START_S, START_S + 60 * DAY_S)
            await derive_rows(rolled.env.store, layout, interval, metric, span, span.stop_s)
            again = await values.derived(table, prefixes, KINDS)
            assert {prefix: again[prefix] for prefix in found} == found
