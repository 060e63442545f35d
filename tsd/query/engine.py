"""Answers queries: plan, read, downsample, rate, group, merge (docs/compat/query.md §1), each step in its own module.

Long work is done in pages, in threads, or in slices of a few milliseconds. Every wait can be cancelled.
"""

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import TypeVar

import trio

from tsd.codec.metadata import Annotation
from tsd.codec.names import Kind
from tsd.codec.putline import HOUR_S
from tsd.errors import BadQuery, PointsWait, StoreDown, TsdError, bare
from tsd.lazy import LazyLogger
from tsd.query.assemble import GROUP_BYTES, Assembly, answer_bytes, counts_of, global_annotations, sub_answer_of
from tsd.query.cached_reader import CachedReader
from tsd.query.collect import SERIES_BYTES, SMALL, Collected, PointCollector, SeriesPoints, collect, take_series
from tsd.query.group_sums import GroupSums, sums_of
from tsd.query.histograms import SLICE_BUCKETS, HistogramQuery
from tsd.query.joint import JointRead, joint_groups, read_together
from tsd.query.limits import Limits, MemoryShare, QueryBudget, QueryMemory, timeout_error
from tsd.query.merge import tags_of
from tsd.query.model import Query, SubQuery
from tsd.query.plan import Plan, scan_range
from tsd.query.registry import RunningQuery, cancelled_error
from tsd.query.result import Answer, SubAnswer, figures_of, is_histogram
from tsd.query.rollups import RollupQuery
from tsd.query.short import ShortQueries, WrittenAnswer
from tsd.query.texts import SeriesTexts, TextCollector
from tsd.query.workers import WorkerPool
from tsd.store.retry import run_bounded
from tsd.store.scheduling import IngestLoad
from tsd.tables.open_points import OpenPointSource, OpenSelection, split_span
from tsd.tables.reading import PointDeleter, PointReader, ScanRange, Selection, SeriesRequest, SeriesSet

log = LazyLogger(__name__)
T = TypeVar("T")

CONCURRENT_SELECTS = 16  # requests of one query that are resolved at once
ALL = b""  # every metric
THREADS = 2  # more would only wait for the interpreter's lock
LAST_LETTER = "\xff"  # of names in lines
OPEN_HOURS = 8  # most hours whose open points a query reads from memory: each is read on its own
Flush = Callable[[bytes], Awaitable[bool]]  # returns whether the points are stored


Approve = Callable[[Sequence[SeriesPoints]], None]


@dataclass(frozen=True)
class EngineSettings:
    """How queries are run."""

    limits: Limits = field(default_factory=Limits)
    memory_bytes: int = 512 << 20  # of points, for all queries together
    max_concurrent: int = 16  # running queries; others wait
    cache_bytes: int = 0  # of downsampled hours; 0: none are cached
    summed_bytes: int = 64 << 20  # of pages whose rows are added to groups, kept in case that other rows do not fit
    histogram_slice: int = SLICE_BUCKETS  # buckets added in one thread call


class QueryEngine:
    """Answers queries from one data table."""

    def __init__(
        self,
        reader: PointReader,
        *,
        settings: EngineSettings,
        flush: Flush,
        now_ms: Callable[[], int],
        load: IngestLoad | None = None,
        open_points: OpenPointSource | None = None,
    ) -> None:
        """`open_points` has the points that the store lacks. Where it cannot tell them, `flush` writes points of a
        metric, by name; without `open_points` all of them. `now_ms` is the wall clock."""
        self._reader = reader
        self._settings = settings
        self._flush = flush
        self._open_points = open_points
        self._now_ms = now_ms
        self._slots = trio.CapacityLimiter(settings.max_concurrent)
        self.workers = WorkerPool(THREADS, load or IngestLoad())
        self._cached = CachedReader(reader.changes, settings.cache_bytes, workers=self.workers, now_ms=now_ms)
        self.cache = self._cached.cache
        self.memory = QueryMemory(settings.memory_bytes)
        load = load or IngestLoad()
        self._short = ShortQueries(settings.limits, self.memory, self.workers, load, self._cached, open_points)
        self.warnings = 0  # in answers: rows that could not be read, missing names

    @property
    def answered_at_once(self) -> int:
        """Number of queries that were answered in one step of the event loop, or with one read of a store in another
        process, see `tsd.query.short`."""
        return self._short.answered

    @property
    def answered_in_thread(self) -> int:
        """Number of longer queries whose rows were read in one step, see `tsd.query.short`."""
        return self._short.answered_in_thread

    def write(self, query: Query, *, arrays: bool) -> WrittenAnswer | None:
        """Return the answer as JSON, see `ShortQueries.write`; None for most queries."""
        return self._short.write(query, arrays=arrays) if self._has_slot() else None

    def _has_slot(self) -> bool:
        return self._slots.borrowed_tokens < self._slots.total_tokens

    async def run(self, query: Query, *, running: RunningQuery | None = None, is_cut: bool = False) -> Answer:
        """Return the answer. `is_cut`: the caller shows none of its points after the query's end. Raises StoreError,
        and BadQuery if the query is invalid, takes too long (waiting included) or is cancelled with `running`."""
        if self._has_slot() and (answer := self._short.answer(query)) is not None:
            if running is not None:
                running.figures = figures_of(answer)
            return answer
        return await self.work(lambda job: job.answer(query, is_cut=is_cut), running=running)

    async def work(self, task: Callable[["QueryJob"], Awaitable[T]], *, running: RunningQuery | None = None) -> T:
        """Return what `task` returns: queries of one request, and computations on their answers, within the time and
        memory of one query. Raises what `run` does."""
        started = trio.current_time()
        job = QueryJob(self, running)
        timeout_ms = self._settings.limits.timeout_ms
        with trio.CancelScope(deadline=started + timeout_ms / 1000 if timeout_ms else math.inf) as scope:
            if running is not None:
                running.add(scope)
            try:
                return await self._in_slot(task, job)
            finally:
                job.release()
                if running is not None:
                    running.scopes.discard(scope)
        if running is not None and running.cancelled:
            raise cancelled_error()
        assert scope.cancelled_caught
        raise timeout_error(self._settings.limits.timeout_ms, (trio.current_time() - started) * 1000)

    async def _in_slot(self, task: Callable[["QueryJob"], Awaitable[T]], job: "QueryJob") -> T:
        """Return what `task` returns, as one of at most `max_concurrent`."""
        try:
            self._slots.acquire_nowait()
        except trio.WouldBlock:
            await self._slots.acquire()
        try:
            return await task(job)
        finally:
            self._slots.release()

    def report_warnings(self, answer: Answer) -> None:
        """Count and log the warnings of an answer."""
        self._report(answer.warnings)

    def _report(self, warnings: Sequence[str]) -> None:
        if warnings:
            self.warnings += len(warnings)
            log.warning("query.answer_incomplete", warnings=len(warnings), first=warnings[0])

    async def answer(self, query: Query, share: MemoryShare, *, is_cut: bool) -> Answer:
        """Return the answer to a query of a job; `share` accounts for its memory. `is_cut`: see `run`."""
        if (found := await self._short.answer_longer(query, share, is_cut=is_cut)) is not None:
            return found
        plans = await self._plans(query)
        flushed: set[bytes] = set()
        plans = [await self._with_open_points(query, plan, flushed) for plan in plans]
        read_ms = self._now_ms()
        subs = []
        held = 0
        joint, joint_size = await self._read_together(query, dict(enumerate(plans)), share)
        for number, plan in enumerate(plans):
            sub, size = await self._sub_answer(query, plan, share, joint_size + held, joint.pop(number, None))
            subs.append(sub)
            held += size
        notes: Sequence[Annotation] = ()
        if query.global_annotations and not query.no_annotations:
            notes = await global_annotations(self._reader, query.start_ms, query.end_ms, quirks=query.quirks)
        if query.delete:
            for plan in plans:
                await plan.selection.delete(read_ms)
        share.resize(held)  # no more than the answer
        if len(plans) == 1:
            await self._short.learn(query, plans[0], subs[0])
        return Answer(query, subs, notes)

    async def series(self, query: Query, share: MemoryShare, approve: Approve = lambda _: None) -> list[SeriesPoints]:
        """Return the series with numbers in the hours of a query of one metric, as stored. If the query deletes,
        `approve` raises an exception if they must not be deleted."""
        plan = await self._plan_hours(query)
        read_ms = self._now_ms()
        found = await self._numbers(query, plan, share)
        if query.delete:
            approve(found)
            await plan.selection.delete(read_ms)
        return found

    async def series_and_texts(self, query: Query, share: MemoryShare) -> tuple[list[SeriesPoints], list[SeriesTexts]]:
        """Return the series with numbers in the hours of a query of one metric, as stored, and those with texts."""
        plan = await self._plan_hours(query)
        return await self._numbers(query, plan, share), await self._texts(query, plan, share)

    async def series_together(self, query: Query, share: MemoryShare) -> dict[int, list[SeriesPoints]]:
        """Return the series with numbers in the hours of a query, as stored, of those sub queries whose rows are read
        together, by their numbers. Others are left out, those that are refused as well."""
        plans = await self._joint_plans(query)
        joint, _ = await self._read_together(query, plans, share)
        found: dict[int, list[SeriesPoints]] = {}
        for number, read in joint.items():
            collected = read.collected
            self._report(collected.read.warnings)
            found[number] = await self._series_points(plans[number], collected)
        return found

    async def tags_together(self, query: Query, share: MemoryShare) -> dict[int, list[Mapping[str, str]]]:
        """Return the tags of the series with rows in the hours of a query, of those sub queries whose rows are read
        together, by their numbers. Others are left out, those that are refused as well."""
        plans = await self._joint_plans(query)
        sets = {number: plan.selection.series for number, plan in plans.items()}

        def resize() -> None:
            share.resize(sum(len(one.pairs) for one in sets.values()) * SERIES_BYTES)

        found: dict[int, list[Mapping[str, str]]] = {}
        for source, numbers in joint_groups(plans):
            takes = [(plans[number].selection, take_series(sets[number], resize)) for number in numbers]
            await source.read(_hours(query), takes)
            found |= {number: await self._names(sets[number]) for number in numbers}
        return found

    async def _joint_plans(self, query: Query) -> dict[int, Plan]:
        """Plan those sub queries for whole hours that may share rows, by their numbers; none that is refused."""
        found: dict[int, Plan] = {}
        if not self._reader.selects_together or len(query.queries) < 2:
            return found

        async def plan(number: int) -> None:
            with suppress(BadQuery):  # it is raised where the sub query is asked for alone
                found[number] = (await self._plan(query, query.queries[number]))._replace(scan=_hours(query))

        await run_bounded(range(len(query.queries)), plan, limit=CONCURRENT_SELECTS)
        flushed: set[bytes] = set()
        together = sorted(number for group in joint_groups(found) for number in group.numbers)
        return {number: await self._with_open_points(query, found[number], flushed) for number in together}

    async def _plan_hours(self, query: Query) -> Plan:
        """Plan the only sub query for whole hours."""
        plan = (await self._plan(query, query.queries[0]))._replace(scan=_hours(query))
        return await self._with_open_points(query, plan, set())

    async def _numbers(self, query: Query, plan: Plan, share: MemoryShare) -> list[SeriesPoints]:
        collected = await self._collect(query, plan, self._budget(query, plan.selection.metric, share.resize))
        self._report(collected.read.warnings)
        return await self._series_points(plan, collected)

    async def _series_points(self, plan: Plan, collected: Collected) -> list[SeriesPoints]:
        """Return the series that have points."""
        tags = await self._names(plan.selection.series)
        return [
            SeriesPoints(tags[number], points)
            for number, points in enumerate(collected.series)
            if collected.counts[number]
        ]

    async def _texts(self, query: Query, plan: Plan, share: MemoryShare) -> list[SeriesTexts]:
        selection, held = plan.selection, share.held
        if selection.texts is None:
            return []
        budget = self._budget(query, selection.metric, lambda size: share.resize(held + size))
        collector = TextCollector(selection.series, budget)
        await selection.texts.read(plan.scan, collector.take)
        self._report(collector.warnings)
        found = list(collector.series())
        tags = await self._names(selection.series) if found else []
        return [SeriesTexts(tags[number], times, texts) for number, times, texts in found]

    async def delete(self, query: Query, deleter: PointDeleter, span_ms: tuple[int, int]) -> None:
        """Delete the points of a query of one metric at some times, both ends included, those in memory too. Raise
        StoreDown if these cannot be written first: they would come back."""
        [sub] = query.queries
        metric = sub.metric or ""
        if metric and max(metric) <= LAST_LETTER and not await self._flush(metric.encode("latin-1")):
            raise StoreDown("accepted points cannot be written to the store now, and would come back")
        await deleter.delete(_request(query, sub), *span_ms)

    async def tags(self, query: Query, share: MemoryShare) -> list[Mapping[str, str]]:
        """Return the tags of the series with rows in the hours of a query of one metric."""
        plan = await self._plan_hours(query)
        series = plan.selection.series

        take = take_series(series, lambda: share.resize(len(series.pairs) * SERIES_BYTES))
        for span, _ in split_span(plan.scan, plan.open_hours):
            await plan.selection.read(span, take, annotations=False)
        if plan.selection.texts is not None:
            await plan.selection.texts.read(plan.scan, take)
        return await self._names(series)

    async def _names(self, series: SeriesSet) -> list[Mapping[str, str]]:
        """Return the tags of series, by number."""
        each = await self.in_thread(
            len(series.pairs), lambda: [tags_of(pairs, series.widths) for pairs in series.pairs]
        )
        tagks = await series.names(Kind.TAGK, list(dict.fromkeys(uid for tags in each for uid in tags)))
        tagvs = await series.names(Kind.TAGV, list(dict.fromkeys(uid for tags in each for uid in tags.values())))
        return [{tagks[tagk]: tagvs[tagv] for tagk, tagv in tags.items()} for tags in each]

    async def _read_together(
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
                return self._budget(query, plan.selection.metric, set_one)

            some = {number: plans[number] for number in group.numbers}
            found |= await read_together(query, group.source, some, budget_of, set_memory)
        return found, share.held

    async def _plans(self, query: Query) -> list[Plan]:
        """Plan all sub queries. Raises what the first invalid one raises."""
        if not self._reader.selects_together:
            return [await self._plan(query, sub) for sub in query.queries]
        found: dict[int, Plan | TsdError] = {}

        async def plan(number: int) -> None:
            try:
                found[number] = await self._plan(query, query.queries[number])
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

    async def _plan(self, query: Query, sub: SubQuery) -> Plan:
        """Plan a sub query. Raises BadQuery in OpenTSDB's words, StoreError."""
        scan = scan_range(query.start_ms, query.end_ms, sub.downsample, quirks=query.quirks)
        return Plan(sub, scan, await self._reader.select(_request(query, sub)))

    async def _with_open_points(self, query: Query, plan: Plan, flushed: set[bytes]) -> Plan:
        """Return a plan that also reads the points that are not stored yet, so that a client reads its own writes.

        Those that cannot be read from memory are written first, and all if the query deletes points: once, or once for
        each metric, which `flushed` remembers. Raise PointsWait if they cannot be written: an answer would lack them.
        """
        selection = plan.selection
        if not selection.metric or max(selection.metric) > LAST_LETTER:  # no line has such a name
            return plan
        metric = selection.metric.encode("latin-1")
        source = self._open_points
        is_mergeable = not (query.delete or selection.reads_beyond or selection.reads_hours_in_parts)
        if source is not None and is_mergeable:
            for is_last in (False, True):
                points = await source.open_points(metric, selection.find_known, plan.scan)
                hours = points.hours(plan.scan) if points is not None else ()
                if points is not None and not hours:
                    return plan
                if points is not None and len(hours) <= OPEN_HOURS:
                    return Plan(plan.sub, plan.scan, OpenSelection(selection, points), hours)
                if not is_last:
                    await self._flush(metric)
        written = metric if source is None else ALL
        if written not in flushed:
            flushed.add(written)
            if not await (self._flush(metric) if source is None else source.flush(patient=False)):
                raise PointsWait
        return plan

    async def _sub_answer(
        self, query: Query, plan: Plan, share: MemoryShare, held: int, joint: JointRead | None
    ) -> tuple[SubAnswer, int]:
        """Return the answer to a sub query, and its size. `held` is the size of earlier answers and of what was read
        together, `joint` its own part of that."""
        selection = plan.selection
        series = selection.series
        started = perf_counter()
        budget = self._budget(query, selection.metric, lambda size: share.resize(held + size))
        if is_histogram(plan.sub):
            return await self._histogram_answer(query, plan, budget)
        sums = None if query.delete else sums_of(plan)  # they may decode a page twice, which lists its rows to delete
        collected = joint.collected if joint else await self._collect(query, plan, budget, sums=sums)
        read = perf_counter()
        scan_ms = (joint.spent_s if joint else read - started) * 1000
        assembly = Assembly(query, plan, collected, check_cancelled)
        count = len(series.pairs)
        share.add(await self.in_thread(count, assembly.form_groups) * GROUP_BYTES)
        grouped_at = perf_counter()
        for size, work in assembly.slices():
            await self.in_thread(size, work)
        merged = perf_counter()
        await assembly.look_up_names()
        groups = await self.in_thread(count, lambda: assembly.groups(selection.metric))
        answer = sub_answer_of(
            plan,
            groups,
            collected.read,
            table=collected.table,
            members=assembly.members,
            stats=counts_of(collected.read, series.resolved + assembly.resolved)
            | {
                "queryScanTime": scan_ms,
                "scannerTime": scan_ms,
                "groupByTime": (grouped_at - read) * 1000,
                "aggregationTime": (merged - grouped_at) * 1000,
                "uidToStringTime": (perf_counter() - merged) * 1000,
            },
        )
        return answer, answer_bytes(groups)

    async def _histogram_answer(self, query: Query, plan: Plan, budget: QueryBudget) -> tuple[SubAnswer, int]:
        source = plan.selection.histograms
        if source is None:
            raise BadQuery(
                "Histogram storage has not been enabled. Check the 'tsd.core.histograms.config' configuration."
            )
        histograms = HistogramQuery(query, plan, source, budget, self._settings.histogram_slice)
        groups = await histograms.groups()
        stats = counts_of(histograms.read, plan.selection.series.resolved)
        return sub_answer_of(plan, groups, histograms.read, stats=stats), answer_bytes(groups)

    def _budget(self, query: Query, metric: str, set_memory: Callable[[int], None]) -> QueryBudget:
        """Return the limits of a sub query; `set_memory` is called with the bytes that it keeps."""
        bounds = self._settings.limits.bounds(
            metric, override_size=query.override_byte_limit, override_points=query.override_point_limit
        )
        return QueryBudget(bounds, set_memory, self.workers, check_cancelled)

    async def _collect(
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
        return await collect(partial(self._read, query, plan), query, plan, budget, sums, self._settings.summed_bytes)

    async def _read(self, query: Query, plan: Plan, collector: PointCollector) -> None:
        """Read all rows of the plan in the fastest way."""
        selection: Selection = plan.selection
        annotations = not query.no_annotations
        if isinstance(selection, OpenSelection) and await selection.read_few_joined(
            plan.scan, collector.take, annotations=annotations
        ):
            return
        for span, is_open in split_span(plan.scan, plan.open_hours):
            if await selection.read_few(span, collector.take, annotations=annotations):
                continue
            part = plan._replace(scan=span)
            bucketing = None if is_open else self._cached.bucketing(query, part)
            if bucketing is not None:
                await self._cached.read(part, bucketing, collector, annotations=annotations)
            else:
                await selection.read(span, collector.take, annotations=annotations)

    async def in_thread(self, points: int, work: Callable[[], T]) -> T:
        """Return what `work` returns; in a thread if it has many points."""
        if points <= SMALL:
            return self.workers.run_here(work)
        return await self.workers.run(work)


class QueryJob:
    """One request: its queries, computations on their answers, and the memory of all."""

    def __init__(self, engine: QueryEngine, running: RunningQuery | None) -> None:
        self._engine = engine
        self._running = running
        self._answers: list[MemoryShare] = []
        self._made = engine.memory.share()

    def _share(self) -> MemoryShare:
        """Return a new share of the engine's memory, held until the job ends."""
        share = self._engine.memory.share()
        self._answers.append(share)
        return share

    async def tags(self, query: Query) -> list[Mapping[str, str]]:
        """Return the tags of the series with rows in the hours of a query of one metric. Raises BadQuery,
        StoreError."""
        return await self._engine.tags(query, self._share())

    async def series_together(self, query: Query) -> dict[int, list[SeriesPoints]]:
        """Return the series of sub queries whose rows are read together, held until the job ends, see `QueryEngine`.
        Raises BadQuery, StoreError."""
        return await self._engine.series_together(query, self._share())

    async def tags_together(self, query: Query) -> dict[int, list[Mapping[str, str]]]:
        """Return the tags of series of sub queries whose rows are read together, see `QueryEngine`. Raises BadQuery,
        StoreError."""
        return await self._engine.tags_together(query, self._share())

    async def series(self, query: Query, approve: Approve = lambda _: None) -> list[SeriesPoints]:
        """Return the series with points in the hours of a query of one metric, held until the job ends. If the query
        deletes, `approve` raises an exception if they must not be deleted. Raises BadQuery, StoreError."""
        return await self._engine.series(query, self._share(), approve)

    async def series_and_texts(self, query: Query) -> tuple[list[SeriesPoints], list[SeriesTexts]]:
        """Return the series with numbers in the hours of a query of one metric, and those with texts, both held until
        the job ends. Raises BadQuery, StoreError."""
        return await self._engine.series_and_texts(query, self._share())

    async def delete(self, query: Query, deleter: PointDeleter, span_ms: tuple[int, int]) -> None:
        """Delete points, see `QueryEngine.delete`. Raises BadQuery, StoreError."""
        await self._engine.delete(query, deleter, span_ms)

    async def answer(self, query: Query, *, is_cut: bool = False) -> Answer:
        """Return the answer to one query, held until the job ends. `is_cut`: see `QueryEngine.run`. Raises BadQuery,
        StoreError."""
        answer = await self._engine.answer(query, self._share(), is_cut=is_cut)
        self._engine.report_warnings(answer)
        if self._running is not None:
            self._running.figures = figures_of(answer)
        return answer

    async def in_thread(self, size: int, work: Callable[[], T]) -> T:
        """Return what `work` returns; in a thread if it has many values. It calls `check` often."""
        return await self._engine.in_thread(size, work)

    def check(self) -> None:
        """Raise Cancelled if the job was cancelled."""
        check_cancelled()

    def add_memory(self, size: int) -> None:
        """Add bytes for computed values; negative numbers release. Raises BadQuery if that is too much."""
        if trio.lowlevel.in_trio_run():
            self._made.add(size)
        else:
            trio.from_thread.run_sync(self._made.add, size)

    @property
    def held(self) -> int:
        """Bytes of the answers and of computed values."""
        return self._made.held + sum(share.held for share in self._answers)

    def release(self) -> None:
        """Release all memory."""
        for share in (self._made, *self._answers):
            share.release()


def _request(query: Query, sub: SubQuery) -> SeriesRequest:
    return SeriesRequest(
        sub.metric or "",
        sub.tsuids,
        sub.filters,
        sub.explicit_tags,
        sub.use_fuzzy_filter,
        query.quirks,
        query.global_annotations,
        query.delete,
    )


def _hours(query: Query) -> ScanRange:
    """Return the hours that hold the times of a query."""
    return ScanRange(query.start_ms // 1000 // HOUR_S * HOUR_S, (query.end_ms // 1000 // HOUR_S + 1) * HOUR_S)


def check_cancelled() -> None:
    """Raise Cancelled in a thread of a cancelled query."""
    if not trio.lowlevel.in_trio_run():  # small work runs in the event loop without interruption
        trio.from_thread.check_cancelled()
