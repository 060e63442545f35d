"""The newest points of series among those that are not stored, for series whose newest stored point was deleted."""

import math
from collections import defaultdict
from collections.abc import Sequence
from functools import partial

import numpy as np
import trio

from tsd.codec.names import Kind
from tsd.codec.points import newest_points, wide_values
from tsd.errors import StoreDown
from tsd.tables.catalog import LastPoint
from tsd.tables.open_points import OpenPoints, OpenPointSource
from tsd.tables.opentsdb.last_point_cache import Series
from tsd.tables.opentsdb.uids import Uids
from tsd.tables.reading import Places, ScanRange
from tsd.tables.writing import KnownSeries

FEW = 100  # series: for more, points in memory are written first
FLUSHED_S = 60.0  # after such a write: memory has few points


class UnstoredNewest:
    """Finds newest points in memory."""

    def __init__(self, source: OpenPointSource, uids: Uids, salt_width: int) -> None:
        self._source = source
        self._uids = uids
        self._salt_width = salt_width
        self._flushed_s = -math.inf  # by trio's clock

    async def of(self, series: Sequence[Series], span: ScanRange) -> dict[Series, LastPoint]:
        """Return the newest points of series within a span that the store may lack. Raise StoreError.

        Points of open hours are unpacked once for each metric. So for many series they are written first."""
        if len(series) > FEW and trio.current_time() > self._flushed_s + FLUSHED_S:
            self._flushed_s = trio.current_time()
            await self._source.flush(patient=False)
        by_metric: dict[bytes, set[bytes]] = defaultdict(set)
        for metric, pairs in series:
            by_metric[metric].add(pairs)
        names = await self._uids.names(Kind.METRIC, by_metric)
        found: dict[Series, LastPoint] = {}
        for metric, wanted in by_metric.items():
            if isinstance(name := names.get(metric), bytes):
                found |= await self._of_metric(name, metric, wanted, span)
        return found

    async def _of_metric(
        self, name: bytes, metric: bytes, wanted: set[bytes], span: ScanRange
    ) -> dict[Series, LastPoint]:
        async def choose(known: KnownSeries) -> Places:
            return await trio.to_thread.run_sync(partial(self._places, known, metric, wanted))

        points = await self._source.open_points(name, choose, span)
        if points is not None:
            return await trio.to_thread.run_sync(partial(self._newest, points, metric, wanted, span))
        await self.write()
        return {}

    async def write(self) -> None:
        """Write all points in memory. Raise StoreDown."""
        if not await self._source.flush(patient=False):
            raise StoreDown("points that wait for the store cannot be written now")

    def _places(self, known: KnownSeries, metric: bytes, wanted: set[bytes]) -> Places:
        series_pairs = known.keys.tails(metric, self._salt_width)
        return np.array([at for at, one in enumerate(series_pairs) if one in wanted], np.intp)

    def _newest(
        self, points: OpenPoints, metric: bytes, wanted: set[bytes], span: ScanRange
    ) -> dict[Series, LastPoint]:
        columns = points.columns
        times = columns.instants >> 1
        newest = newest_points(columns.at((times >= span.start_ms) & (times < span.stop_ms)))
        bits, floats = wide_values(newest)
        series_pairs = points.keys.tails(metric, self._salt_width)
        found: dict[Series, LastPoint] = {}
        for number, at_ms, integer, double, is_float in zip(
            newest.series.tolist(), (newest.instants >> 1).tolist(),
            bits.tolist(), bits.view(np.float64).tolist(), floats.tolist(), strict=True,
        ):  # fmt: skip
            one = series_pairs[number]
            if one is None or one not in wanted:
                continue
            known = found.get((metric, one))  # two numbers may be of one series
            if known is None or known.time_ms <= at_ms:
                found[metric, one] = LastPoint(at_ms, double if is_float else integer)
        return found
