"""Queries → answers: plan, read, downsample, rate, group, merge (query.md §1), each step in a part of its own.

Everything that takes long happens in pages, in threads, or in slices of a few milliseconds; every wait can be
cancelled.
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import structlog
import trio

from tsd.codec.annotation import Annotation
from tsd.codec.rowkey import Layout
from tsd.codec.uid import Kind
from tsd.query.answers import Answer, Group, SubAnswer
from tsd.query.assembling import Assembly
from tsd.query.choosing import few_series
from tsd.query.gathering import SMALL, Gathered, Gathering, Tally
from tsd.query.hours import Hours
from tsd.query.limits import Allowance, Limits, Memory, Share, timed_out
from tsd.query.model import Query
from tsd.query.notes import global_notes
from tsd.query.plan import Plan, Planner, PlanRules
from tsd.query.reading import hours, key_ranges, read_ranges, read_rows, row_keys, scan_parts, sieve_of
from tsd.query.removal import remove_rows
from tsd.query.running import Running, was_cancelled
from tsd.query.selecting import Selection
from tsd.query.summary import totals
from tsd.query.threads import Threads
from tsd.series_index import SeriesIndex
from tsd.store import Row, Store
from tsd.uids import Uids

log = structlog.get_logger(__name__)
T = TypeVar("T")

THREADS = 2  # that decode and merge: more would only wait for each other
ANSWER_BYTES = 17  # of a point in an answer
GROUP_BYTES = 1500  # of a group in an answer, beside its points
Flush = Callable[[bytes], Awaitable[object]]


@dataclass(frozen=True)
class Settings:
    """How queries are run."""

    limits: Limits = field(default_factory=Limits)
    rules: PlanRules = field(default_factory=PlanRules)
    memory_bytes: int = 512 << 20  # of points, for all queries together
    at_once: int = 16  # queries; others wait
    scans: int = 1  # side by side, for one query
    remember_bytes: int = 0  # of downsampled hours; 0: none are remembered
    most_rows_got: int = 20_000  # by their keys, instead of a scan


class Summaries(Protocol):
    """What stands beside the raw points: rollups and histograms (query.md §18)."""

    async def gather(self, query: Query, plan: Plan, selection: Selection, allowance: Allowance) -> Gathered | None:
        """The points of a plan's series out of a rollup table; None where the raw ones are to be read. Raises BadQuery,
        StoreError."""
        ...

    async def histograms(
        self, query: Query, plan: Plan, selection: Selection, metric: str, allowance: Allowance
    ) -> tuple[list[Group], Tally] | None:
        """The groups of a plan that asks for percentiles or buckets, and what was read for them; None where it asks for
        none. Raises BadQuery, StoreError."""
        ...


class Engine:
    """Answers queries from one data table."""

    def __init__(
        self,
        store: Store,
        table: str,
        uids: Uids,
        layout: Layout,
        *,
        index: SeriesIndex | None = None,
        summaries: Summaries | None = None,
        settings: Settings,
        flush: Flush,
        now_ms: Callable[[], int],
    ) -> None:
        """`flush` returns when what was put of a metric (its name) can be read from the store; `now_ms` is the wall
        clock."""
        self._store = store
        self._table = table
        self._uids = uids
        self._layout = layout
        self._index = index
        self._summaries = summaries
        self._settings = settings
        self._flush = flush
        self._now_ms = now_ms
        self._planner = Planner(uids, layout, settings.rules)
        self._slots = trio.CapacityLimiter(settings.at_once)
        self.threads = Threads(THREADS)
        self.hours = Hours(
            store,
            table,
            layout,
            settings.remember_bytes,
            scans=settings.scans,
            threads=self.threads,
            now_ms=now_ms,
        )
        self.memory = Memory(settings.memory_bytes)
        self.warnings = 0  # told with answers: rows that could not be read, names that are gone

    async def run(self, query: Query, *, running: Running | None = None) -> Answer:
        """The answer. Raises BadQuery where it cannot be answered as it was asked, takes too long or is cancelled by
        way of `running`, and StoreError. To wait for its turn is part of its time."""
        return await self.work(lambda job: job.answer(query), running=running)

    async def work(self, task: Callable[["Job"], Awaitable[T]], *, running: Running | None = None) -> T:
        """What `task` returns: one request's queries, and what is made of their answers, within the time and the memory
        that one query has. Raises what `run` does."""
        started = trio.current_time()
        job = Job(self, running)
        with self._bounded(running) as scope:
            async with self._slots:
                try:
                    return await task(job)
                finally:
                    job.release()
        if running is not None and running.cancelled:
            raise was_cancelled()
        assert scope.cancelled_caught
        raise timed_out(self._settings.limits.timeout_ms, (trio.current_time() - started) * 1000)

    @contextmanager
    def _bounded(self, running: Running | None) -> Iterator[trio.CancelScope]:
        """Around a query: it ends where the time is over, or somebody cancels it."""
        timeout_ms = self._settings.limits.timeout_ms
        with trio.CancelScope() as scope:
            if timeout_ms:
                scope.deadline = trio.current_time() + timeout_ms / 1000
            if running is None:
                yield scope
                return
            running.scopes.add(scope)
            if running.cancelled:
                scope.cancel()
            try:
                yield scope
            finally:
                running.scopes.discard(scope)

    def note(self, answer: Answer) -> None:
        """Count what an answer warns of, and log it: who asked may not look."""
        if warnings := answer.warnings:
            self.warnings += len(warnings)
            log.warning("an answer is without what cannot be read", warnings=len(warnings), first=warnings[0])

    async def answer(self, query: Query, share: Share) -> Answer:
        """The answer, which `share` holds from then on; a job's part."""
        plans = [await self._planner.plan(query, sub) for sub in query.queries]
        await self._write_open_rows(plans)
        read_ms = self._now_ms()
        subs, doomed = [], list[Row]()
        held = 0
        for plan in plans:
            sub, rows, size = await self._sub_answer(query, plan, share, held)
            subs.append(sub)
            doomed += rows
            held += size
        notes: Sequence[Annotation] = ()
        if query.global_annotations and not query.no_annotations:
            notes = await global_notes(
                self._store, self._table, self._layout, query.start_ms, query.end_ms, corrected=query.corrected
            )
        if query.delete:
            await remove_rows(self._store, self._table, doomed, read_ms=read_ms)
        share.hold(held)  # no more than what is answered
        return Answer(query, subs, notes)

    async def _write_open_rows(self, plans: Sequence[Plan]) -> None:
        """A client reads its own writes."""
        metrics = dict.fromkeys(plan.metric for plan in plans if plan.metric is not None)
        names = await self._uids.names(Kind.METRIC, metrics)
        for name in names.values():
            if isinstance(name, bytes):
                await self._flush(name)

    async def _sub_answer(self, query: Query, plan: Plan, share: Share, held: int) -> tuple[SubAnswer, list[Row], int]:
        """The answer to a sub query, the rows it read if they are to be deleted, and the bytes it keeps; `held` are
        those of earlier sub queries."""
        metric = await self._metric_name(plan)
        selection = Selection(plan, self._layout, self._uids)
        started = trio.current_time()
        allowance = self._allowance(query, metric, lambda size: share.hold(held + size))
        if self._summaries:
            found = await self._summaries.histograms(query, plan, selection, metric, allowance)
            if found is not None:
                counts = _counts(found[1], selection)
                return _answered(plan, *found, selection, stats=counts), [], _kept(found[0])
        gathered = await self._gather(query, plan, selection, allowance)
        read = trio.current_time()
        assembly = Assembly(query, plan, selection.wanted, gathered, self._layout, check_going_on)
        series = len(selection.wanted)
        share.add(await self.in_thread(series, assembly.sort_out) * GROUP_BYTES)
        sorted_out = trio.current_time()
        for size, work in assembly.slices():
            await self.in_thread(size, work)
        merged = trio.current_time()
        await assembly.learn(self._uids, selection.nameless)
        groups = await self.in_thread(series, lambda: assembly.groups(metric))
        selection.resolved += assembly.resolved
        answer = _answered(
            plan,
            groups,
            gathered.tally,
            selection,
            table=gathered.table,
            stats=_counts(gathered.tally, selection)
            | {
                "queryScanTime": (read - started) * 1000,
                "scannerTime": (read - started) * 1000,
                "groupByTime": (sorted_out - read) * 1000,
                "aggregationTime": (merged - sorted_out) * 1000,
                "uidToStringTime": (trio.current_time() - merged) * 1000,
            },
        )
        return answer, gathered.rows, _kept(groups)

    def _allowance(self, query: Query, metric: str, hold: Callable[[int], None]) -> Allowance:
        """What a sub query may use; `hold` is told what it keeps."""
        bounds = self._settings.limits.bounds(
            metric, override_size=query.override_byte_limit, override_points=query.override_point_limit
        )
        return Allowance(bounds, hold, self.threads, check_going_on)

    async def _gather(self, query: Query, plan: Plan, selection: Selection, allowance: Allowance) -> Gathered:
        """The points of the plan's series: from summaries where they are asked for and there are some, else raw."""
        if self._summaries and (found := await self._summaries.gather(query, plan, selection, allowance)) is not None:
            return found
        gathering = Gathering(query, plan, selection, self._layout, allowance)
        await self._read(query, plan, gathering, selection)
        gathering.check()  # the index may know of series that have no row here: they are filled, too
        return await self.in_thread(max(gathering.tally.points, gathering.size), gathering.finish)

    async def _metric_name(self, plan: Plan) -> str:
        if plan.metric is None:
            return ""
        if not plan.sub.tsuids and plan.sub.metric is not None:
            return plan.sub.metric
        name = (await self._uids.names(Kind.METRIC, [plan.metric]))[plan.metric]
        return name.decode("latin-1") if isinstance(name, bytes) else plan.metric.hex().upper()

    async def _read(self, query: Query, plan: Plan, gathering: Gathering, selection: Selection) -> None:
        """All rows of the plan, by the shorter way."""
        most = self._settings.most_rows_got
        pairs: Sequence[bytes] | None = plan.pairs
        if pairs is None and self._index is not None:
            pairs = await few_series(self._index, plan, selection, most)
        if pairs is not None and len(pairs) * hours(plan) <= most:
            await read_rows(self._store, self._table, row_keys(self._layout, plan, pairs), gathering.take)
            return
        scans = self._settings.scans
        sieve = sieve_of(plan) if scans > 1 else ""  # an engine in this process reads faster than it would sift
        if (how := self.hours.how(query, plan)) is not None:
            await self.hours.read(plan, how, gathering, sieve=sieve)
            return
        ranges = key_ranges(self._layout, plan, scan_parts(self._layout, plan, scans, sieve))
        await read_ranges(self._store, self._table, ranges, gathering.take, at_once=scans, sieve=sieve)

    async def in_thread(self, points: int, work: Callable[[], T]) -> T:
        """What `work` returns; in a thread where it has many points to do."""
        if points <= SMALL:
            with self.threads.noted():
                return work()
        return await self.threads.run(work)


class Job:
    """One request at work: its queries, what is made of their answers, and what all of that holds."""

    def __init__(self, engine: Engine, running: Running | None) -> None:
        self._engine = engine
        self._running = running
        self._answers: list[Share] = []
        self._made = engine.memory.share()

    async def answer(self, query: Query) -> Answer:
        """The answer to one of its queries, held until the job is done. Raises BadQuery, StoreError."""
        share = self._engine.memory.share()
        self._answers.append(share)
        answer = await self._engine.answer(query, share)
        self._engine.note(answer)
        if self._running is not None:
            self._running.stats.update(totals(answer))
        return answer

    async def in_thread(self, size: int, work: Callable[[], T]) -> T:
        """What `work` returns; in a thread of the engine's where it has many values to do. It calls `check` often."""
        return await self._engine.in_thread(size, work)

    def check(self) -> None:
        """Raise Cancelled where the job is to end."""
        check_going_on()

    def hold(self, size: int) -> None:
        """What is made of the answers takes so many bytes more, or fewer; raises BadQuery where that is too much."""
        if trio.lowlevel.in_trio_run():
            self._made.add(size)
        else:
            trio.from_thread.run_sync(self._made.add, size)

    @property
    def held(self) -> int:
        """Bytes of everything."""
        return self._made.held + sum(share.held for share in self._answers)

    def release(self) -> None:
        """Hold nothing any more."""
        for share in (self._made, *self._answers):
            share.release()


def check_going_on() -> None:
    """In a thread of a query that has ended: raise Cancelled."""
    if not trio.lowlevel.in_trio_run():  # little work is done by the event loop itself, in one go
        trio.from_thread.check_cancelled()


def _answered(
    plan: Plan,
    groups: list[Group],
    tally: Tally,
    selection: Selection,
    *,
    table: str = "raw",
    stats: dict[str, Any],
) -> SubAnswer:
    """The groups with all that is to be told of them; `table` is where they were read."""
    return SubAnswer(
        plan.sub,
        groups,
        filter_tagks=plan.filter_tagks,
        rollup_table=table,
        warnings=[*plan.warnings, *tally.warnings, *_nameless(selection)],
        duplicates=tally.duplicates,
        stats=stats,
    )


def _counts(tally: Tally, selection: Selection) -> dict[str, Any]:
    """What was read, as answers tell it."""
    return {
        "rowsPreFilter": tally.rows_read,
        "rowsPostFilter": tally.rows_wanted,
        "dpsPreFilter": tally.points,
        "dpsPostFilter": tally.points,
        "bytesFetched": tally.size,
        "uidPairsResolved": selection.resolved,
    }


def _kept(groups: Iterable[Group]) -> int:
    """Bytes of groups in an answer."""
    return sum(len(group.points.times) * ANSWER_BYTES + GROUP_BYTES for group in groups)


def _nameless(selection: Selection) -> list[str]:
    """What to say of UIDs without a name, and of keys that are none."""
    said = [f"UID {uid.hex().upper()} of a tag has no name any more" for uid in list(selection.nameless)[:20]]
    if selection.malformed:
        said.append(f"{selection.malformed} row keys fit no series (tsd fsck)")
    return said
