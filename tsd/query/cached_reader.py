"""The hours of a plan with the result cache: cached hours that are unchanged, and all others from the tables.

Hours can be cached if they are over, their buckets end with them, all their rows are read, and they hold nothing but
points. If the engine has signatures, they are read with each query, which moves a fifth of the bytes.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby, repeat

import trio

from tsd.codec.putline import HOUR_S
from tsd.query.cache import Bucketing, CachedHour, CacheFiller, CacheKey, ResultCache
from tsd.query.collect import HOUR_COST, PointCollector
from tsd.query.model import Query
from tsd.query.plan import Plan
from tsd.query.workers import SMALL, WorkerPool
from tsd.tables.reading import ChangeSource, HourSource, ScanRange, SignedHour

MAX_HOURS = 10_000  # of a query that uses the cache: each costs something, even if there is little in it
SMALL_BUCKETS = 1 << 20  # bytes of buckets that are joined without a thread
FEW_HOURS = 50  # hours that are joined without a thread
MAX_GAPS = 4  # between cached hours: each is read on its own, one after the other


class CachedReader:
    """Reads plans with one cache."""

    def __init__(
        self, changes: ChangeSource | None, limit: int, *, workers: WorkerPool, now_ms: Callable[[], int]
    ) -> None:
        """`limit`: bytes of the cache; 0: nothing is cached, as without `changes`. `now_ms` is the wall clock."""
        self._workers = workers
        self._now_ms = now_ms
        self.cache = ResultCache(limit)
        self._enabled = bool(limit) and changes is not None
        if self._enabled and changes is not None:
            changes.on_change(self.cache.invalidate)

    def bucketing(self, query: Query, plan: Plan) -> Bucketing | None:
        """Return how the hours of a plan are downsampled; None if they cannot be cached."""
        spec = plan.sub.downsample
        if not self._enabled or spec is None or spec.is_all or spec.calendar or HOUR_S * 1000 % spec.interval_ms:
            return None
        if plan.selection.hours is None or plan.rows.hours > MAX_HOURS:
            return None
        return Bucketing(spec.interval_ms, spec.function, query.quirks.plain_percentiles)

    def present_hour_s(self) -> int:
        """Return the base time of the hour that is not over, which is not cached."""
        return self._now_ms() // 1000 // HOUR_S * HOUR_S

    def cached_now(self, plan: Plan, bucketing: Bucketing) -> list[list[CachedHour]] | None:
        """Return all hours of a plan, those for one call of `PointCollector.take_cached` together. None if one is not
        cached, or if signatures must be read to tell whether it has changed."""
        hours = plan.selection.hours
        if hours is None or hours.signatures is not None:
            return None
        cached = self.cache.get(map(CacheKey._make, zip(hours.keys(plan.rows), repeat(bucketing))))
        if len(cached) < plan.rows.hours:
            return None
        self.cache.count(hits=len(cached), misses=0)
        return list(_together(cached.values()))

    async def read(self, plan: Plan, bucketing: Bucketing, collector: PointCollector, *, annotations: bool) -> None:
        """Pass all rows of a plan to a collector. Raise BadQuery, StoreError."""
        hours = plan.selection.hours
        assert hours is not None
        bases = plan.rows.bases
        keys = dict(zip(bases, map(CacheKey._make, zip(hours.keys(plan.rows), repeat(bucketing))), strict=True))
        cached = _few_gaps(bases, self.cache.get(keys.values()))
        stale = await _stale(hours, cached)
        self.cache.remove(keys[base_s] for base_s in stale)
        if stale:
            cached = _few_gaps(bases, {base_s: hour for base_s, hour in cached.items() if base_s not in stale})
        self.cache.count(hits=len(cached), misses=len(bases) - len(cached))
        for is_cached, run in groupby(bases, cached.__contains__):
            if is_cached:
                for some in _together(cached[base_s] for base_s in run):
                    await collector.take_cached(some)
                    await trio.lowlevel.checkpoint()
            else:
                gap = {base_s: keys[base_s] for base_s in run}
                await self._read_gap(plan, hours, gap, collector, annotations=annotations)

    async def _read_gap(
        self,
        plan: Plan,
        hours: HourSource,
        keys: Mapping[int, CacheKey],
        collector: PointCollector,
        *,
        annotations: bool,
    ) -> None:
        """Read consecutive hours and cache those that are over."""
        span = ScanRange(min(keys), max(keys) + HOUR_S)
        now_ms = self._now_ms()
        over = [base_s for base_s in keys if (base_s + HOUR_S) * 1000 <= now_ms and hours.reads_all]
        filler = CacheFiller(over, hours.signatures, now_ms=now_ms, room=self.cache.query_limit)
        with self.cache.reading(keys[base_s].hour for base_s in over) as pending:
            await collector.decoded()  # pages of open hours before this span are not for the filler
            collector.filler = filler
            try:
                await plan.selection.read(span, collector.take, annotations=annotations)
                await collector.decoded()
            finally:
                collector.filler = None
            is_small = filler.size <= SMALL_BUCKETS and len(over) <= FEW_HOURS
            read = filler.finish() if is_small else await self._workers.run(filler.finish)
            self.cache.put(pending, [(keys[hour.base_s], hour) for hour in read])


def _together(hours: Iterable[CachedHour]) -> Iterator[list[CachedHour]]:
    """Yield the hours with rows, in order, several at once while they can be joined and have few buckets."""
    some: list[CachedHour] = []
    size, is_even = 0, False
    series_pairs: tuple[bytes, ...] = ()
    for hour in hours:
        if not hour.series_pairs:
            continue
        values = len(hour.buckets.values)
        fits = is_even and (hour.series_pairs is series_pairs or hour.series_pairs == series_pairs)
        is_even = len(hour.series_pairs) == 1 or hour.buckets.is_even
        if some and (size + values > SMALL or not (fits and is_even)):
            yield some
            some, size = [], 0
        some.append(hour)
        series_pairs = hour.series_pairs
        size += HOUR_COST + values
    if some:
        yield some


def _few_gaps(bases: range, cached: dict[int, CachedHour]) -> dict[int, CachedHour]:
    """Return some of the cached hours, so that the rest is read with a few scans."""
    if not 0 < len(cached) < len(bases):
        return cached
    gaps = [list(run) for is_cached, run in groupby(bases, cached.__contains__) if not is_cached]
    if len(gaps) <= MAX_GAPS:
        return cached
    first, last = gaps[MAX_GAPS - 1][0], gaps[-1][-1]
    return {base_s: hour for base_s, hour in cached.items() if not first <= base_s <= last}


async def _stale(hours: HourSource, cached: Mapping[int, CachedHour]) -> set[int]:
    """Return which cached hours have other signatures now."""
    if hours.signatures is None or not cached:
        return set()
    signed: Sequence[SignedHour] = [
        SignedHour(base_s, len(hour.series_pairs), hour.names_size) for base_s, hour in cached.items()
    ]
    now = await hours.signatures.read(signed)
    return {base_s for base_s, hour in cached.items() if now[base_s] != hour.signatures}
