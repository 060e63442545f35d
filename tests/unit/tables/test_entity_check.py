"""The check of the tables of entities against stored points, while a daemon stores more of both."""

from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unit.tables.entity_parts import Lookup as TextLookup
from tests.unit.tables.interned_layout import Lookup as KeyLookup
from tsd.codec.points import Columns
from tsd.config.loader import Given
from tsd.daemon.layouts import build_configured_tables
from tsd.daemon.settings import read_config
from tsd.daemon.wiring import opened_store, versioned_cells
from tsd.store import Cell, Store, VersionedCells
from tsd.store.versions import END_MS, VersionPut, Wanted
from tsd.tables import Tables
from tsd.tables.entity.building import EntityChecker
from tsd.tables.entity.tables import ENTITIES
from tsd.tables.stored_windows import TimeRange
from tsd.tables.writing import SeriesText

START_S = 1_500_000_000
HOST = SeriesText(b"sys.cpu", b"host=a")
COLUMN = b"t:sys.cpu"
ALL = TimeRange(0, END_MS)


class Lookup(KeyLookup):
    """The series with its key and its text."""

    def text(self, number: int) -> SeriesText | None:
        return TextLookup([HOST]).text(number)


class InterruptedCells:
    """Versioned cells, before whose first read of rows something else happens."""

    def __init__(self, cells: VersionedCells, meanwhile: Callable[[], Awaitable[None]]) -> None:
        self._cells = cells
        self._meanwhile: Callable[[], Awaitable[None]] | None = meanwhile

    async def get(self, table: str, rows: Collection[bytes], wanted: Wanted) -> dict[bytes, list[Cell]]:
        if self._meanwhile is not None:
            meanwhile, self._meanwhile = self._meanwhile, None
            await meanwhile()
        return await self._cells.get(table, rows, wanted)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cells, name)


class Made:
    """OpenTSDB's tables with those of entities, on an embedded store."""

    def __init__(self, store: Store, tables: Tables, cells: VersionedCells) -> None:
        self.store = store
        self.tables = tables
        self.cells = cells

    async def put(self, *points: tuple[int, int]) -> None:
        """Store points of (seconds since the start, value) as one window."""
        resolved = await self.tables.resolver.resolve([HOST])
        offsets, values = map(np.array, zip(*points, strict=True))
        flags = np.full(len(points), 7, np.uint8)
        columns = Columns(np.zeros(len(points), np.int32), (START_S + offsets) * 2000, flags, values)
        await self.tables.writer.write(columns, Lookup(list(resolved.keys)))

    async def check(self, meanwhile: Callable[[], Awaitable[None]], kept_from_ms: int = 0) -> tuple[list[str], int]:
        """Return the kinds of differences, and the number of points compared."""
        counts: list[int] = []
        cells: Any = InterruptedCells(self.cells, meanwhile)
        checker = EntityChecker(
            self.tables.reader, cells, b"host", self.store.sync, counts.append, pytest.fail,
            kept_from_ms=lambda _: kept_from_ms,
        )  # fmt: skip
        await checker.begin(ALL)
        found = [*await checker.run("sys.cpu", ALL), *checker.unknown(["sys.cpu"])]
        return [one.kind for one in found], sum(counts)


@pytest.fixture
async def made(tmp_path: Path) -> AsyncIterator[Made]:
    given = {"tsd.storage.path": str(tmp_path), "tsd.entity.enabled": "true", "tsd.core.auto_create_metrics": "true"}
    config, _ = read_config(Given("test", key, value) for key, value in given.items())
    async with opened_store(config) as store:
        tables = build_configured_tables(config, store, lambda: START_S * 1000)
        assert tables.entities is not None
        await tables.entities.create()
        yield Made(store, tables, versioned_cells(config, store))


async def test_points_that_are_stored_during_a_check_do_not_differ(made: Made) -> None:
    """Regression: a late point was reported as extra, and a corrected one as different."""
    await made.put((0, 1), (60, 2), (120, 3))

    async def store_more() -> None:
        await made.put((30, 9), (60, 5), (180, 4))

    assert await made.check(store_more) == ([], 3)


async def test_damage_is_found_while_points_are_stored(made: Made) -> None:
    await made.put((0, 1), (60, 2), (120, 3))
    at_ms = START_S * 1000
    await made.cells.delete(ENTITIES.name, b"a", [COLUMN], since_ms=at_ms + 60_000, until_ms=at_ms + 60_001)
    await made.cells.put(ENTITIES.name, [VersionPut(b"a", COLUMN, b"\0\x07", at_ms + 90_000)])

    async def store_more() -> None:
        await made.put((30, 9), (180, 4))

    assert await made.check(store_more) == (["missing", "extra"], 3)


async def test_expired_points_that_wait_for_their_deletion_do_not_differ(made: Made) -> None:
    """Regression: of points that had expired when they came, some tables have none until the next round."""
    await made.put((0, 1), (60, 2), (7200, 3))
    at_ms = START_S * 1000
    await made.cells.delete(ENTITIES.name, b"a", [COLUMN], since_ms=0, until_ms=at_ms + 60_001)
    gone = [VersionPut(b"a", column, b"\0\x07", at_ms + 60_000) for column in (b"t:sys.mem", b"t:sys.cpu cpu=1")]
    await made.cells.put(ENTITIES.name, gone)
    assert await made.check(made.store.sync, kept_from_ms=at_ms + 3600_000) == ([], 1)
    kinds, points = await made.check(made.store.sync, kept_from_ms=at_ms)
    assert (sorted(kinds), points) == (["extra", "extra", "missing", "missing"], 3)
