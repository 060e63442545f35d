"""Reads series as they are stored, in whole hours, and deletes their points: what KairosDB's queries need."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from tsd.codec.putline import HOUR_S
from tsd.errors import BadQuery, StoreDown
from tsd.query.collect import SERIES_BYTES, Collected, SeriesPoints
from tsd.query.joint import joint_groups
from tsd.query.limits import MemoryShare
from tsd.query.model import Query
from tsd.query.plan import Plan
from tsd.query.plan_reader import CONCURRENT_SELECTS, PlanReader, request_of
from tsd.query.texts import SeriesTexts, TextCollector
from tsd.store.retry import run_bounded
from tsd.tables.open_points import split_span
from tsd.tables.reading import EncodedPage, PointDeleter, ScanRange, SeriesSet, Take
from tsd.tables.stored_windows import named_tags

Approve = Callable[[Sequence[SeriesPoints]], None]


class StoredSeries:
    """Reads the series of one request. Their memory is held until its job ends.

    Queries have one metric, or several in the methods `…_together`. All methods raise BadQuery and StoreError.
    """

    def __init__(
        self,
        reader: PlanReader,
        new_share: Callable[[], MemoryShare],
        report: Callable[[Sequence[str]], None],
        now_ms: Callable[[], int],
    ) -> None:
        """`new_share` returns a share of the memory for queries, and `report` gets warnings."""
        self._reader = reader
        self._new_share = new_share
        self._report = report
        self._now_ms = now_ms

    async def series(self, query: Query, approve: Approve = lambda _: None) -> list[SeriesPoints]:
        """Return the series with numbers in the hours of a query of one metric, as stored. If the query deletes,
        `approve` raises an exception if they must not be deleted."""
        plan = await self._plan_hours(query)
        read_ms = self._now_ms()
        found = await self._numbers(query, plan, self._new_share())
        if query.delete:
            approve(found)
            await plan.selection.delete(read_ms)
        return found

    async def series_and_texts(self, query: Query) -> tuple[list[SeriesPoints], list[SeriesTexts]]:
        """Return the series with numbers in the hours of a query of one metric, as stored, and those with texts."""
        share = self._new_share()
        plan = await self._plan_hours(query)
        return await self._numbers(query, plan, share), await self._texts(query, plan, share)

    async def series_together(self, query: Query) -> dict[int, list[SeriesPoints]]:
        """Return the series with numbers in the hours of a query, as stored, of those sub queries whose rows are read
        together, by their numbers. Others are left out, those that are refused as well."""
        plans = await self._joint_plans(query)
        joint, _ = await self._reader.read_together(query, plans, self._new_share())
        found: dict[int, list[SeriesPoints]] = {}
        for number, read in joint.items():
            collected = read.collected
            self._report(collected.read.warnings)
            found[number] = await self._series_points(plans[number], collected)
        return found

    async def tags(self, query: Query) -> Sequence[Mapping[str, str]]:
        """Return the tags of the series with rows in the hours of a query of one metric."""
        plan = await self._plan_hours(query)
        series = plan.selection.series
        share = self._new_share()
        take = _take_series(series, lambda: share.resize(len(series.series_pairs) * SERIES_BYTES))
        for span, _ in split_span(plan.rows, plan.open_hours):
            await plan.selection.read(span, take, annotations=False)
        if plan.selection.texts is not None:
            await plan.selection.texts.read(plan.scan, take)
        return await self._names(series)

    async def tags_together(self, query: Query) -> dict[int, Sequence[Mapping[str, str]]]:
        """Return the tags of the series with rows in the hours of a query, of those sub queries whose rows are read
        together, by their numbers. Others are left out, those that are refused as well."""
        plans = await self._joint_plans(query)
        share = self._new_share()
        sets = {number: plan.selection.series for number, plan in plans.items()}

        def resize() -> None:
            share.resize(sum(len(one.series_pairs) for one in sets.values()) * SERIES_BYTES)

        found: dict[int, Sequence[Mapping[str, str]]] = {}
        for source, numbers in joint_groups(plans):
            takes = [(plans[number].selection, _take_series(sets[number], resize)) for number in numbers]
            await source.read(_hours(query), takes)
            found |= {number: await self._names(sets[number]) for number in numbers}
        return found

    async def delete(self, query: Query, deleter: PointDeleter, span_ms: tuple[int, int]) -> None:
        """Delete the points of a query of one metric at some times, both ends included, those in memory too. Raise
        StoreDown if these cannot be written first: they would come back."""
        [sub] = query.queries
        if not await self._reader.flush(sub.metric or ""):
            raise StoreDown("accepted points cannot be written to the store now, and would come back")
        await deleter.delete(request_of(query, sub), *span_ms)

    async def _plan_hours(self, query: Query) -> Plan:
        """Plan the only sub query for whole hours."""
        plan = (await self._reader.plan(query, query.queries[0]))._replace(scan=_hours(query))
        return await self._reader.with_open_points(query, plan, set())

    async def _joint_plans(self, query: Query) -> dict[int, Plan]:
        """Plan those sub queries for whole hours that may share rows, by their numbers; none that is refused."""
        found: dict[int, Plan] = {}
        if not self._reader.selects_together or len(query.queries) < 2:
            return found

        async def plan(number: int) -> None:
            with suppress(BadQuery):  # it is raised where the sub query is asked for alone
                found[number] = (await self._reader.plan(query, query.queries[number]))._replace(scan=_hours(query))

        await run_bounded(range(len(query.queries)), plan, limit=CONCURRENT_SELECTS)
        flushed: set[bytes] = set()
        together = sorted(number for group in joint_groups(found) for number in group.numbers)
        return {number: await self._reader.with_open_points(query, found[number], flushed) for number in together}

    async def _numbers(self, query: Query, plan: Plan, share: MemoryShare) -> list[SeriesPoints]:
        collected = await self._reader.collect(
            query, plan, self._reader.budget(query, plan.selection.metric, share.resize)
        )
        self._report(collected.read.warnings)
        return await self._series_points(plan, collected)

    async def _texts(self, query: Query, plan: Plan, share: MemoryShare) -> list[SeriesTexts]:
        selection, held = plan.selection, share.held
        if selection.texts is None:
            return []
        budget = self._reader.budget(query, selection.metric, lambda size: share.resize(held + size))
        collector = TextCollector(selection.series, budget)
        await selection.texts.read(plan.scan, collector.take)
        self._report(collector.warnings)
        found = list(collector.series())
        tags = await self._names(selection.series) if found else []
        return [SeriesTexts(tags[number], times, texts) for number, times, texts in found]

    async def _series_points(self, plan: Plan, collected: Collected) -> list[SeriesPoints]:
        """Return the series that have points."""
        tags = await self._names(plan.selection.series)
        return [
            SeriesPoints(tags[number], points)
            for number, points in enumerate(collected.series)
            if collected.counts[number]
        ]

    async def _names(self, series: SeriesSet) -> Sequence[Mapping[str, str]]:
        """Return the tags of series, by number."""
        each = await self._reader.workers.run_sized(
            len(series.series_pairs), lambda: [series.widths.tags(pairs) for pairs in series.series_pairs]
        )
        return await named_tags(series, each)


def _hours(query: Query) -> ScanRange:
    """Return the hours that hold the times of a query."""
    return ScanRange(query.start_ms // 1000 // HOUR_S * HOUR_S, (query.end_ms // 1000 // HOUR_S + 1) * HOUR_S)


def _take_series(series: SeriesSet, seen: Callable[[], None]) -> Take[object]:
    """Return what numbers the series of each page, without its points, and calls `seen`."""

    async def take(page: EncodedPage[object]) -> None:
        await series.match(page.series())
        seen()

    return take
