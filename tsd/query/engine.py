"""Queries → answers: plan, read, downsample, rate, group, merge (query.md §1), each step in a part of its own.

Everything that takes long happens in pages, in threads, or in slices of a few milliseconds; every wait can be
cancelled.
"""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

import trio

from tsd.codec.annotation import Annotation
from tsd.codec.rowkey import Layout, salt_of
from tsd.codec.uid import Kind
from tsd.errors import BadQuery
from tsd.query.answers import Answer, Group, SubAnswer
from tsd.query.choosing import few_series
from tsd.query.gathering import Gathering
from tsd.query.groups import CommonTags, common_tags, grouped
from tsd.query.limits import Limits, Memory, Share, timed_out
from tsd.query.merge import Merged, merge
from tsd.query.model import Query
from tsd.query.names import NONE
from tsd.query.notes import global_notes, start_ms, within
from tsd.query.plan import Plan, Planner, PlanRules
from tsd.query.points import Points
from tsd.query.rate import rate
from tsd.query.reading import hours, key_ranges, read_ranges, read_rows, row_keys
from tsd.query.removal import remove_rows
from tsd.query.running import Running
from tsd.query.selecting import Selection, by_key
from tsd.series_index import SeriesIndex
from tsd.store import Row, Store
from tsd.uids import Uids

T = TypeVar("T")

THREADS = 2  # that decode and merge: more would only wait for each other
SLICE_POINTS = 500_000  # merged in one go
SMALL = 5_000  # points that are merged at once, without a thread
Flush = Callable[[bytes], Awaitable[object]]


@dataclass(frozen=True)
class Settings:
    """How queries are run."""

    limits: Limits = field(default_factory=Limits)
    rules: PlanRules = field(default_factory=PlanRules)
    memory_bytes: int = 512 << 20  # of points, for all queries together
    at_once: int = 16  # queries; others wait
    scans: int = 1  # side by side, for one query
    most_rows_got: int = 20_000  # by their keys, instead of a scan


@dataclass
class _Found:
    """A group, before its tags have names."""

    members: list[bytes]  # tag pairs of its series with points, in order
    common: CommonTags
    merged: Merged
    notes: list[Annotation] | None


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
        self._settings = settings
        self._flush = flush
        self._now_ms = now_ms
        self._planner = Planner(uids, layout, settings.rules)
        self._slots = trio.CapacityLimiter(settings.at_once)
        self._threads = trio.CapacityLimiter(THREADS)
        self.memory = Memory(settings.memory_bytes)

    async def run(self, query: Query, *, running: Running | None = None) -> Answer:
        """The answer. Raises BadQuery where it cannot be answered as it was asked, takes too long or is cancelled by
        way of `running`, and StoreError."""
        async with self._slots:
            started = trio.current_time()
            share = self.memory.share()
            try:
                with self._bounded(running) as scope:
                    return await self._answer(query, share)
            finally:
                share.release()
        if running is not None and running.cancelled:
            raise BadQuery("The query was cancelled", status=503)
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

    async def _answer(self, query: Query, share: Share) -> Answer:
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
        started = trio.current_time()
        metric = await self._metric_name(plan)
        bounds = self._settings.limits.bounds(
            metric, override_size=query.override_byte_limit, override_points=query.override_point_limit
        )
        selection = Selection(plan, self._layout, self._uids)
        gathering = Gathering(
            query, plan, selection, self._layout, bounds, lambda size: share.hold(held + size), self._threads
        )
        await self._read(plan, gathering, selection)
        read = trio.current_time()
        series = await self._in_thread(gathering.tally.points, gathering.finish)
        found = await self._groups(query, plan, selection, gathering, series)
        merged = trio.current_time()
        groups = await self._named(query, plan, metric, found, selection)
        tally = gathering.tally
        answer = SubAnswer(
            plan.sub,
            groups,
            filter_tagks=plan.filter_tagks,
            warnings=[*plan.warnings, *tally.warnings, *_nameless(selection)],
            duplicates=tally.duplicates,
            stats={
                "rowsPreFilter": tally.rows_read,
                "rowsPostFilter": tally.rows_wanted,
                "dpsPreFilter": tally.points,
                "dpsPostFilter": tally.points,
                "bytesFetched": tally.size,
                "uidPairsResolved": selection.resolved,
                "queryScanTime": (read - started) * 1000,
                "aggregationTime": (merged - read) * 1000,
                "uidToStringTime": (trio.current_time() - merged) * 1000,
            },
        )
        kept = sum(len(group.points.times) for group in groups) * 17
        return answer, gathering.rows, kept

    async def _metric_name(self, plan: Plan) -> str:
        if plan.metric is None:
            return ""
        if not plan.sub.tsuids and plan.sub.metric is not None:
            return plan.sub.metric
        name = (await self._uids.names(Kind.METRIC, [plan.metric]))[plan.metric]
        return name.decode("latin-1") if isinstance(name, bytes) else plan.metric.hex().upper()

    async def _read(self, plan: Plan, gathering: Gathering, selection: Selection) -> None:
        """All rows of the plan, by the shorter way."""
        most = self._settings.most_rows_got
        pairs: Sequence[bytes] | None = plan.pairs
        if pairs is None and self._index is not None:
            pairs = await few_series(self._index, plan, selection, most)
        if pairs is not None and len(pairs) * hours(plan) <= most:
            await read_rows(self._store, self._table, row_keys(self._layout, plan, pairs), gathering.take)
            return
        scans = self._settings.scans
        ranges = key_ranges(self._layout, plan, 1 if self._layout.salt_width else scans)
        await read_ranges(self._store, self._table, ranges, gathering.take, at_once=scans)

    async def _groups(
        self, query: Query, plan: Plan, selection: Selection, gathering: Gathering, series: Sequence[Points]
    ) -> list[_Found]:
        """The groups in order, merged a slice at a time."""
        layout, wanted = self._layout, selection.wanted
        salts = (
            [salt_of(plan.metric or b"", pairs, layout.salt_width, layout.salt_buckets) for pairs in wanted]
            if (layout.salt_width)
            else [b""] * len(wanted)
        )
        order = by_key(wanted, salts)
        places = grouped(
            [wanted[number] for number in order], layout.widths, plan.group_by, each=plan.sub.aggregator == NONE
        )
        groups = [[order[place] for place in group] for group in places]
        counts = gathering.counts()
        found: list[_Found] = []
        for part in _slices(groups, counts):
            size = sum(counts[number] for group in part for number in group)

            def work(part: list[list[int]] = part) -> list[_Found]:
                return [
                    one for group in part if (one := self._found(query, plan, group, wanted, gathering, counts, series))
                ]

            found += await self._in_thread(size, work)
        return found

    def _found(
        self,
        query: Query,
        plan: Plan,
        group: Sequence[int],
        wanted: Sequence[bytes],
        gathering: Gathering,
        counts: Sequence[int],
        series: Sequence[Points],
    ) -> _Found | None:
        """A group, merged; None where its rows held neither points nor notes."""
        alive = [number for number in group if counts[number]]
        notes = [note for number in group for note in gathering.notes.get(number, ())] if gathering.notes else []
        if not alive and not notes:
            return None
        members = [wanted[number] for number in alive]
        sub, points = plan.sub, [series[number] for number in alive]
        rates = [rate(one, sub.rate_options, corrected=query.corrected) for one in points] if sub.rate else None
        merged = merge(rates or points, sub.aggregator, plan.scan, rate=sub.rate, corrected=query.corrected)
        common = common_tags(members, self._layout.widths)
        shown = within(sorted(notes, key=start_ms), query.start_ms, query.end_ms) if notes else None
        return _Found(members, common, merged, shown)

    async def _named(
        self, query: Query, plan: Plan, metric: str, found: Sequence[_Found], selection: Selection
    ) -> list[Group]:
        """Groups with the names of their tags."""
        tagks = dict.fromkeys(uid for one in found for uid in (*one.common.tags, *one.common.aggregated))
        tagvs = dict.fromkeys(uid for one in found for uid in one.common.tags.values())
        key_names = await self._names(Kind.TAGK, list(tagks), selection)
        value_names = await self._names(Kind.TAGV, list(tagvs), selection)
        selection.resolved += len(tagks) + len(tagvs)
        return [
            Group(
                metric if one.members else "",
                {key_names[tagk]: value_names[tagv] for tagk, tagv in one.common.tags.items()},
                [key_names[tagk] for tagk in one.common.aggregated],
                tsuids=[(plan.metric or b"") + pairs for pairs in one.members] if query.show_tsuids else (),
                points=one.merged.points,
                annotations=one.notes,
                tag_uids=one.common.tags,
                aggregate_tag_uids=one.common.aggregated,
                interpolated=one.merged.interpolated,
            )
            for one in found
        ]

    async def _names(self, kind: Kind, uids: Sequence[bytes], selection: Selection) -> dict[bytes, str]:
        """The name of each UID; of one without name the UID itself in hex, and it is noted."""
        found: dict[bytes, str] = {}
        for uid, name in (await self._uids.names(kind, uids)).items():
            if isinstance(name, bytes):
                found[uid] = name.decode("latin-1")
            else:
                found[uid] = uid.hex().upper()
                selection.nameless[uid] = None
        return found

    async def _in_thread(self, points: int, work: Callable[[], T]) -> T:
        """What `work` returns; in a thread where it has many points to do."""
        if points <= SMALL:
            return work()
        return await trio.to_thread.run_sync(work, limiter=self._threads)


def _slices(groups: Sequence[list[int]], counts: Sequence[int]) -> Iterator[list[list[int]]]:
    """Groups in parts of about SLICE_POINTS points."""
    part: list[list[int]] = []
    size = 0
    for group in groups:
        part.append(group)
        size += sum(counts[number] for number in group)
        if size >= SLICE_POINTS:
            yield part
            part, size = [], 0
    if part:
        yield part


def _nameless(selection: Selection) -> list[str]:
    """What to say of UIDs without a name, and of keys that are none."""
    said = [f"UID {uid.hex().upper()} of a tag has no name any more" for uid in list(selection.nameless)[:20]]
    if selection.malformed:
        said.append(f"{selection.malformed} row keys fit no series (tsd fsck)")
    return said
