"""From a sub query to its plan, and from the plan to its points: of the store, of memory, of the cache, of rollups."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial

from tsd.errors import PointsWait, TsdError, UnknownName, bare
from tsd.query.cached_reader import CachedReader
from tsd.query.collect import Collected, PointCollector, collect
from tsd.query.group_sums import GroupSums
from tsd.query.joint import JointRead, joint_groups, read_together
from tsd.query.limits import Limits, MemoryShare, QueryBudget
from tsd.query.model import Query, SubQuery
from tsd.query.plan import Plan, scan_range
from tsd.query.rollups import RollupQuery
from tsd.query.workers import WorkerPool
from tsd.store.retry import run_bounded
from tsd.tables.filters import may_pass
from tsd.tables.open_points import (
    MAX_UNORDERED,
    OPEN_HOURS,
    MayPass,
    OpenPointSource,
    OpenSelection,
    is_ordered,
    split_span,
)
from tsd.tables.reading import PointReader, Selection, SeriesRequest

CONCURRENT_SELECTS = 16  # requests of one query that are resolved at once
ALL = b""  # stands for every metric
LAST_LETTER = "\xff"  # of names in lines
Flush = Callable[[bytes], Awaitable[bool]]  # returns whether the points are stored


class PlanReader:
    """Plans the sub queries of a query, and reads the rows of plans."""

    def __init__(
        self,
        reader: PointReader,
        cached: CachedReader,
        workers: WorkerPool,
        limits: Limits,
        *,
        summed_bytes: int,
        flush: Flush,
        open_points: OpenPointSource | None,
    ) -> None:
        """For `flush` and `open_points` see `QueryEngine`, for `summed_bytes` its settings."""
        self.workers = workers
        self._reader = reader
        self._cached = cached
        self._limits = limits
        self._summed_bytes = summed_bytes
        self._flush = flush
        self._open_points = open_points

    @property
    def selects_together(self) -> bool:
        """Whether rows may hold points of several metrics, see `PointReader`."""
        return self._reader.selects_together

    async def all_with_open_points(self, query: Query, plans: Sequence[Plan]) -> list[Plan]:
        """Return the plans of all sub queries with open points. Raise as `with_open_points` does."""
        flushed: set[bytes] = set()
        return [await self.with_open_points(query, plan, flushed) for plan in plans]

    async def plan_all(self, query: Query) -> list[Plan]:
        """Plan all sub queries, without open points. Raise what the first invalid one raises."""
        if not self._reader.selects_together:
            return [await self.plan(query, sub) for sub in query.queries]
        found: dict[int, Plan | TsdError] = {}

        async def plan(number: int) -> None:
            try:
                found[number] = await self.plan(query, query.queries[number])
            except TsdError as exc:
                found[number] = bare(exc)

        await run_bounded(range(len(query.queries)), plan, limit=CONCURRENT_SELECTS)
        plans = []
        for number in range(len(query.queries)):
            one = found[number]
            if isinstance(one, TsdError):
                raise one
            plans.append(one)
        return plans

    async def plan(self, query: Query, sub: SubQuery) -> Plan:
        """Plan a sub query. Raise BadQuery in OpenTSDB's words, PointsWait, StoreError."""
        scan = scan_range(query.start_ms, query.end_ms, sub.downsample, quirks=query.quirks)
        request = request_of(query, sub)
        try:
            return Plan(sub, scan, await self._reader.select(request))
        except UnknownName:
            metric, source = _name_in_lines(request.metric), self._open_points
            if source is None or not await source.wait_for_keys(metric, _passing(request)):
                raise
        if not await self._flush(metric):
            raise PointsWait
        return Plan(sub, scan, await self._reader.select(request))

    async def with_open_points(self, query: Query, plan: Plan, flushed: set[bytes]) -> Plan:
        """Return a plan that reads all points accepted so far, so that a client reads its own writes.

        Open points, which the store lacks, are merged from memory with the stored rows. Where that is not possible,
        they are written first; `flushed` remembers what was written for the query. Raise PointsWait if they cannot be
        written: an answer would lack them.
        """
        metric = _name_in_lines(plan.selection.metric)
        if not metric:
            return plan
        source = self._open_points
        if source is None:
            await _flush_once(metric, flushed, partial(self._flush, metric))
            return plan
        if not (query.delete or plan.selection.reads_hours_in_parts):
            passes = _passing(request_of(query, plan.sub))
            merged = await _merge_open_points(source, metric, plan, passes)
            if merged is None:
                await self._flush(metric)  # leaves at most the points of open hours in memory
                merged = await _merge_open_points(source, metric, plan, passes)
            if merged is not None:
                return merged
        await _flush_once(ALL, flushed, partial(source.flush, patient=False))
        return plan

    async def flush(self, metric: str) -> bool:
        """Write the points of a metric that are not stored yet, before some are deleted. Return whether all are
        stored."""
        name = _name_in_lines(metric)
        if name and self._open_points is not None:
            return await self._open_points.flush(patient=False)
        return not name or await self._flush(name)

    def budget(self, query: Query, metric: str, set_memory: Callable[[int], None]) -> QueryBudget:
        """Return the limits of a sub query; `set_memory` is called with the bytes that it keeps."""
        bounds = self._limits.bounds(
            metric, override_size=query.override_byte_limit, override_points=query.override_point_limit
        )
        return QueryBudget(bounds, set_memory, self.workers)

    async def read_together(
        self, query: Query, plans: Mapping[int, Plan], share: MemoryShare
    ) -> tuple[dict[int, JointRead], int]:
        """Return what was read of plans that share rows, and its size."""
        found: dict[int, JointRead] = {}
        if len(plans) < 2:
            return found, share.held
        for group in joint_groups(plans):
            before = share.held

            def set_memory(size: int, before: int = before) -> None:
                share.resize(before + size)

            def budget_of(plan: Plan, set_one: Callable[[int], None]) -> QueryBudget:
                return self.budget(query, plan.selection.metric, set_one)

            some = {number: plans[number] for number in group.numbers}
            found |= await read_together(query, group.source, some, budget_of, set_memory)
        return found, share.held

    async def collect(
        self, query: Query, plan: Plan, budget: QueryBudget, *, sums: GroupSums | None = None
    ) -> Collected:
        """Collect the points of the plan's series: from rollups if the query allows it and there are some, else raw.
        With `sums`, of its groups if possible."""
        rollups = plan.selection.rollups
        if rollups is not None:
            read_raw = partial(self._read, query)
            found = await RollupQuery(query, plan, rollups, budget, read_raw).collect()
            if found is not None:
                return found
        return await collect(partial(self._read, query, plan), query, plan, budget, sums, self._summed_bytes)

    async def _read(self, query: Query, plan: Plan, collector: PointCollector) -> None:
        """Read all rows of the plan in the fastest way."""
        selection: Selection = plan.selection
        annotations = not query.no_annotations
        if isinstance(selection, OpenSelection):
            selection.count_with(collector.hold)
            if await selection.read_few_joined(plan.rows, collector.take, annotations=annotations):
                return
        for span, is_open in split_span(plan.rows, plan.open_hours):
            if await selection.read_few(span, collector.take, annotations=annotations):
                continue
            part = plan._replace(part=span)
            bucketing = None if is_open else self._cached.bucketing(query, part)
            if bucketing is not None:
                await self._cached.read(part, bucketing, collector, annotations=annotations)
            else:
                await selection.read(span, collector.take, annotations=annotations)


def request_of(query: Query, sub: SubQuery) -> SeriesRequest:
    """Return what a sub query asks of a layout: its series, and what is to be done with their rows."""
    return SeriesRequest(
        metric=sub.metric or "",
        tsuids=sub.tsuids,
        filters=sub.filters,
        explicit_tags=sub.explicit_tags,
        fuzzy_filter=sub.use_fuzzy_filter,
        quirks=query.quirks,
        global_annotations=query.global_annotations,
        delete=query.delete,
    )


def _passing(request: SeriesRequest) -> MayPass | None:
    """Return which series a request may match, by their tags; None: any."""
    if not request.filters or request.tsuids:
        return None
    return lambda tags: may_pass(request.filters, tags, request.quirks)


async def _merge_open_points(source: OpenPointSource, metric: bytes, plan: Plan, passes: MayPass | None) -> Plan | None:
    """Return a plan that also reads the open points of a metric from memory: the same one if its hours have none. None
    if some cannot be read from memory, or if they are of too many hours."""
    points = await source.open_points(metric, plan.selection.find_known, plan.rows, passes)
    if points is None:
        return None
    hours = points.hours(plan.rows)
    if not hours:
        return plan
    if len(hours) > OPEN_HOURS:
        return None
    if points.every.points > MAX_UNORDERED and not is_ordered(plan.selection, points):
        return None
    return plan._replace(selection=OpenSelection(plan.selection, points), open_hours=hours)


async def _flush_once(name: bytes, flushed: set[bytes], flush: Callable[[], Awaitable[bool]]) -> None:
    """Call `flush`, which writes the points of a metric, or all of them, unless that was done before: `flushed` has the
    names, ALL for all points. Raise PointsWait if they cannot be written."""
    if name in flushed:
        return
    flushed.add(name)
    if not await flush():
        raise PointsWait


def _name_in_lines(metric: str) -> bytes:
    """Return a metric's name as lines have it; nothing for a name that no line can have."""
    return metric.encode("latin-1") if metric and max(metric) <= LAST_LETTER else b""
