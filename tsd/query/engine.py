"""Answers queries: plan, read, downsample, rate, group, merge (docs/compat/query.md §1), each step in its own module.

Long work is done in pages, in threads, or in slices of a few milliseconds. Every wait can be cancelled.
"""

import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import TypeVar

import trio

from tsd.codec.metadata import Annotation
from tsd.errors import BadQuery
from tsd.lazy import LazyLogger
from tsd.query.assemble import GROUP_BYTES, Assembly, answer_bytes, counts_of, global_annotations, sub_answer_of
from tsd.query.cached_reader import CachedReader
from tsd.query.group_sums import sums_of
from tsd.query.histograms import SLICE_BUCKETS, HistogramQuery
from tsd.query.joint import JointRead
from tsd.query.limits import Limits, MemoryShare, QueryBudget, QueryMemory, timeout_error
from tsd.query.model import Query
from tsd.query.plan import Plan
from tsd.query.plan_reader import Flush, PlanReader
from tsd.query.registry import RunningQuery, cancelled_error
from tsd.query.result import Answer, SubAnswer, figures_of, is_histogram
from tsd.query.short_queries import ShortQueries, WrittenAnswer
from tsd.query.stored_series import StoredSeries
from tsd.query.workers import WorkerPool, check_cancelled
from tsd.store.scheduling import IngestLoad
from tsd.tables.open_points import OpenPointSource
from tsd.tables.reading import PointReader

log = LazyLogger(__name__)
T = TypeVar("T")

THREADS = 2  # more would only wait for the interpreter's lock


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
        self._slots = trio.CapacityLimiter(settings.max_concurrent)
        load = load or IngestLoad()
        self.workers = WorkerPool(THREADS, load)
        cached = CachedReader(reader.changes, settings.cache_bytes, workers=self.workers, now_ms=now_ms)
        self.cache = cached.cache
        self.memory = QueryMemory(settings.memory_bytes)
        self.now_ms = now_ms
        self.plan_reader = PlanReader(
            reader,
            cached,
            self.workers,
            settings.limits,
            summed_bytes=settings.summed_bytes,
            flush=flush,
            open_points=open_points,
        )
        self._short = ShortQueries(settings.limits, self.memory, self.workers, load, cached, open_points)
        self.warnings = 0  # in answers: rows that could not be read, missing names

    def write(self, query: Query, *, arrays: bool) -> WrittenAnswer | None:
        """Return the answer as JSON, see `ShortQueries.write`; None for most queries."""
        return self._short.write(query, arrays=arrays) if self._has_slot() else None

    def _has_slot(self) -> bool:
        return self._slots.borrowed_tokens < self._slots.total_tokens

    async def run(self, query: Query, *, running: RunningQuery | None = None, is_cut: bool = False) -> Answer:
        """Return the answer. `is_cut`: the caller shows none of its points after the query's end. Raise StoreError,
        and BadQuery if the query is invalid, takes too long (waiting included) or is cancelled with `running`."""
        if self._has_slot() and (answer := self._short.answer(query)) is not None:
            if running is not None:
                running.figures = figures_of(answer)
            return answer
        return await self.work(lambda job: job.answer(query, is_cut=is_cut), running=running)

    async def work(self, task: Callable[["QueryJob"], Awaitable[T]], *, running: RunningQuery | None = None) -> T:
        """Return what `task` returns: queries of one request, and computations on their answers, within the time and
        memory of one query. Raise what `run` does."""
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

    def report(self, warnings: Sequence[str]) -> None:
        """Count and log the warnings of an answer."""
        if warnings:
            self.warnings += len(warnings)
            log.warning("query.answer_incomplete", warnings=len(warnings), first=warnings[0])

    async def answer(self, query: Query, share: MemoryShare, *, is_cut: bool) -> Answer:
        """Return the answer to a query of a job; `share` accounts for its memory. `is_cut`: see `run`."""
        if (found := await self._short.answer_longer(query, share, is_cut=is_cut)) is not None:
            return found
        plans = await self.plan_reader.plan_all(query)
        first = await self._short.read_first(query, plans[0], share) if len(plans) == 1 else None
        if first is None:
            plans = await self.plan_reader.all_with_open_points(query, plans)
        read_ms = self.now_ms()
        subs = []
        held = 0
        if first is None:
            joint, joint_size = await self.plan_reader.read_together(query, dict(enumerate(plans)), share)
        else:
            joint, joint_size = {0: first.read}, share.held
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
            await self._short.learn(query, plans[0], subs[0], first.known if first else None)
        return Answer(query, subs, notes)

    async def _sub_answer(
        self, query: Query, plan: Plan, share: MemoryShare, held: int, joint: JointRead | None
    ) -> tuple[SubAnswer, int]:
        """Return the answer to a sub query, and its size. `held` is the size of earlier answers and of what was read
        together, `joint` its own part of that."""
        selection = plan.selection
        series = selection.series
        started = perf_counter()
        budget = self.plan_reader.budget(query, selection.metric, lambda size: share.resize(held + size))
        if is_histogram(plan.sub):
            return await self._histogram_answer(query, plan, budget)
        sums = None if query.delete else sums_of(plan)  # they may decode a page twice, which lists its rows to delete
        collected = joint.collected if joint else await self.plan_reader.collect(query, plan, budget, sums=sums)
        read = perf_counter()
        scan_ms = (joint.spent_s if joint else read - started) * 1000
        assembly = Assembly(query, plan, collected)
        count = len(series.series_pairs)
        share.add(await self.workers.run_sized(count, assembly.form_groups) * GROUP_BYTES)
        grouped_at = perf_counter()
        for size, work in assembly.slices():
            await self.workers.run_sized(size, work)
        merged = perf_counter()
        await assembly.look_up_names()
        groups = await self.workers.run_sized(count, lambda: assembly.groups(selection.metric))
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


class QueryJob:
    """One request: its queries, computations on their answers, and the memory of all."""

    def __init__(self, engine: QueryEngine, running: RunningQuery | None) -> None:
        self._engine = engine
        self._running = running
        self._answers: list[MemoryShare] = []
        self._made = engine.memory.share()

    @property
    def stored(self) -> StoredSeries:
        """Series as they are stored. Not kept here: both would reference each other."""
        engine = self._engine
        return StoredSeries(engine.plan_reader, self._share, engine.report, engine.now_ms)

    def _share(self) -> MemoryShare:
        """Return a new share of the engine's memory, held until the job ends."""
        share = self._engine.memory.share()
        self._answers.append(share)
        return share

    async def answer(self, query: Query, *, is_cut: bool = False) -> Answer:
        """Return the answer to one query, held until the job ends. `is_cut`: see `QueryEngine.run`. Raise BadQuery,
        StoreError."""
        answer = await self._engine.answer(query, self._share(), is_cut=is_cut)
        self._engine.report(answer.warnings)
        if self._running is not None:
            groups = sum([len(sub.groups) for sub in answer.subs])
            self._running.figures = await self.in_thread(groups, partial(figures_of, answer))
        return answer

    async def in_thread(self, size: int, work: Callable[[], T]) -> T:
        """Return what `work` returns; in a thread if it has many values. It calls `check` often."""
        return await self._engine.workers.run_sized(size, work)

    def check(self) -> None:
        """Raise Cancelled if the job was cancelled."""
        check_cancelled()

    def add_memory(self, size: int) -> None:
        """Add bytes for computed values; negative numbers release. Raise BadQuery if that is too much."""
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
