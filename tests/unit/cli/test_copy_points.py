"""Copies of points between layouts: interruptions, and the hours that are copied."""

from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from tests.property.layout_worlds import FORMS, PLAIN, LayoutWorld, opened_worlds
from tsd.cli.copy_points import PointCopyStats, Target, copy_points
from tsd.codec.putline import LAST_BASE_MS, NameRules
from tsd.errors import StoreDown
from tsd.tables.checkpoint import Checkpoint
from tsd.tables.reading import SeriesRequest

T = 1356998400
LAYOUTS = {"source": PLAIN, "events": FORMS["events-in-memory"]}  # rows of events have a tag `host`


class Copy:
    """A copy from OpenTSDB's rows to rows of events, and how many points each run has copied."""

    def __init__(self, worlds: dict[str, LayoutWorld], folder: Path) -> None:
        self._source = worlds["source"].tables
        self._target = Target(worlds["events"].tables, NameRules(), ())
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
