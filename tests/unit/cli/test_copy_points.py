"""Copies of points between layouts: interruptions, and the hours that are copied."""

from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from tests.property.layout_worlds import FORMS, PLAIN, LayoutWorld, opened_worlds
from tsd.cli.copy_points import PointCopyStats, Target, copy_points
from tsd.codec.putline import LAST_BASE_MS, NameRules
from tsd.errors import StoreDown
from tsd.store import scan
from tsd.tables.checkpoint import Checkpoint
from tsd.tables.reading import SeriesRequest

T = 1356998400
VALUES = "0.5 0.1 -2.25e10 3e300 1 300 -70000 9007199254740993".split()
LAYOUTS = {"source": PLAIN, "events": FORMS["events-in-memory"]}  # rows of events have a tag `host`


class Copy:
    """A copy, from OpenTSDB's rows to rows of events by default, and how many points each run has copied."""

    def __init__(
        self, worlds: dict[str, LayoutWorld], folder: Path, source: str = "source", target: str = "events"
    ) -> None:
        self._source = worlds[source].tables
        self._target = Target(worlds[target].tables, NameRules(), ())
        self._checkpoint = Checkpoint(folder / "copy.json", ["copy"])
        self.copied: list[int] = []

    async def run(self) -> PointCopyStats:
        points: list[int] = []
        try:
            return await copy_points(self._source, self._target, self._checkpoint, points.append)
        finally:
            self.copied.append(sum(points))

    async def run_until(self, metric: str) -> None:
        """Run until the source fails at a metric."""
        select = self._source.reader.select

        async def fail(request: SeriesRequest) -> Any:
            if request.metric == metric:
                raise StoreDown("down")
            return await select(request)

        with patch.object(self._source.reader, "select", fail), pytest.raises(StoreDown):
            await self.run()


async def test_interrupted_copy_continues_after_a_metric_without_copied_points(tmp_path: Path) -> None:
    async with opened_worlds(LAYOUTS, tmp_path, lambda: T * 1000) as worlds:
        await worlds["source"].put([f"a {T} 1 host=x", f"b {T} 1 dc=x", f"c {T} 1 host=x"])
        copy = Copy(worlds, tmp_path)
        await copy.run_until("m.c")
        total = await copy.run()
        assert copy.copied == [1, 1]
        assert (total.metrics, total.points, total.refused_points) == (3, 2, 1)
        assert [text.partition(":")[0] for text in total.refused] == ["m.b dc=x"]


async def test_points_of_the_last_hour_are_copied(tmp_path: Path) -> None:
    async with opened_worlds(LAYOUTS, tmp_path, lambda: T * 1000) as worlds:
        await worlds["source"].put([f"a {time} 1 host=x" for time in (1, LAST_BASE_MS)])
        assert (await Copy(worlds, tmp_path).run()).points == 2


async def test_copied_numbers_have_the_bytes_of_written_ones(tmp_path: Path) -> None:
    lines = [f"a {T + number} {value} host=x" for number, value in enumerate(VALUES)]
    async with opened_worlds({**LAYOUTS, "copied": PLAIN}, tmp_path, lambda: T * 1000) as worlds:
        await worlds["source"].put(lines)
        await worlds["events"].put(lines)
        await Copy(worlds, tmp_path, "events", "copied").run()
        written, copied = [await _values(worlds[name]) for name in ("source", "copied")]
        assert copied == written != []


async def _values(world: LayoutWorld) -> list[tuple[bytes, bytes]]:
    """Return the columns and values of the points' cells."""
    pages = [page async for page in scan(world.store, world.config.data_table)]
    return [(cell.column, cell.value) for page in pages for row in page for cell in row.cells]
