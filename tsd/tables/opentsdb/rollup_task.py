"""Background task of a daemon that writes rollups of hours and days that are over, and again where late points came.

It reads the stored points of an hour back, and does not add them up as they are stored. After a crash only the store
has all of them, with those of other writers and imports. A time that was sent twice, in two windows, counts once there.
So there is one way for new, late and past points. Of the CPU of a build, reading and decoding are about half.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from uuid import uuid4

import numpy as np
import trio

from tsd.codec.opentsdb.rollup import Interval
from tsd.codec.points import Columns
from tsd.codec.putline import HOUR_S
from tsd.errors import StoreError
from tsd.lazy import LazyLogger
from tsd.tables.catalog import Stat
from tsd.tables.opentsdb.encode import series_by_metric
from tsd.tables.opentsdb.rollup_builder import RollupBuilder
from tsd.tables.opentsdb.rollup_progress import BuildRange, LateDay, LateHours, RollupPass, RollupProgress, whole
from tsd.tables.opentsdb.rollup_sums import DAY_S
from tsd.tables.reading import ScanRange
from tsd.tables.writing import OnPoints, SeriesLookup

log = LazyLogger(__name__)

CLOSED_S = 300  # after the end of an interval: most of its points are stored by then
FIRST_ROUND_S = 2.0  # after a start: a crash may have left rollups that are due
ROUND_S = 60.0  # between two rounds; also after an error
SAVE_S = 10.0  # shortest interval between saves of the position of a pass
DAEMON_PAUSE_RATIO = 1.0  # a pause after each part of a build, as long as it took
# After days were built again they are left alone, for this many times as long as all of it took. With agents that are
# always late they would be built each minute. Queries read their points meanwhile.
REST_RATIO = 10.0


def log_unread_rollups(warning: str) -> None:
    """Log that points could not be read, so that rollups lack them."""
    log.warning("rollups.points_not_read", reason=warning, next_step="tsd fsck")


def hours_of_points(columns: Columns, series: SeriesLookup, salt_width: int) -> dict[LateDay, set[int]]:
    """Return the hours of metrics that have points in some columns, by day."""
    numbers, places = np.unique(columns.series, return_inverse=True)
    by_metric = series_by_metric(numbers, series, salt_width)
    metric_of = np.full(len(numbers), -1, np.int64)
    for at, some in enumerate(by_metric.values()):
        metric_of[np.searchsorted(numbers, some.numbers)] = at
    hours_s = columns.instants // (2000 * HOUR_S) * HOUR_S
    metrics, found = list(by_metric), dict[LateDay, set[int]]()
    for at, hour_s in np.unique(np.stack((metric_of[places], hours_s)), axis=1).T.tolist():
        if at >= 0:
            found.setdefault(LateDay(metrics[at], hour_s // DAY_S * DAY_S), set()).add(hour_s)
    return found


def spans_to_build(hours: Iterable[int], lengths_s: Iterable[int], end_s: int) -> list[ScanRange]:
    """Return what to build again for some hours, in order. With each hour these are the intervals of some lengths that
    it is in, unless they end after `end_s`."""
    spans: list[ScanRange] = []
    units_s = [HOUR_S, *(length_s for length_s in lengths_s if length_s > HOUR_S)]
    for hour in sorted(hours):
        around = [
            ScanRange(start, start + unit_s)
            for unit_s in units_s
            if (start := hour // unit_s * unit_s) + unit_s <= end_s
        ]
        if not around:
            break
        first_s, stop_s = min(one.start_s for one in around), max(one.stop_s for one in around)
        while spans and spans[-1].stop_s >= first_s:
            first_s, stop_s = min(first_s, spans[-1].start_s), max(stop_s, spans.pop().stop_s)
        spans.append(ScanRange(first_s, stop_s))
    return spans


class RollupTask:
    """Builds the rollups of all metrics, and counts what it does."""

    def __init__(
        self,
        builder: Callable[[Sequence[str]], RollupBuilder],
        intervals: Sequence[Interval],
        progress: RollupProgress,
        salt_width: int,
        now_s: Callable[[], int],
    ) -> None:
        """`builder` returns what builds the intervals of some names. `now_s` is the wall clock."""
        self._builder = builder
        self._intervals = {one.name: one for one in intervals}
        self.progress = progress
        self._salt_width = salt_width
        self._now_s = now_s
        self._loading = trio.Lock()
        self._is_loaded = False
        self._rests: dict[LateDay, float] = {}  # days that were built again, until when they are left alone
        self.points = 0
        self.cells = 0

    def observing(self, on_points: OnPoints) -> OnPoints:
        """Return `on_points`, which then also records late points. It returns when they are recorded on disk."""

        async def observed(columns: Columns, series: SeriesLookup) -> None:
            await self._load()
            late = columns.instants < self.progress.limit_s * 2000
            if late.any():
                await self._mark(hours_of_points(columns.at(late), series, self._salt_width))
            await on_points(columns, series)

        return observed

    async def _mark(self, late: LateHours) -> None:
        kept = await self._kept(late)
        await self._record({day: late[day] for day in kept}, deleted=False)

    @asynccontextmanager
    async def changing(self, days: Collection[LateDay], *, deleted: bool = False) -> AsyncIterator[None]:
        """Record that points of some days change in the block, or are `deleted`, and build these days again after it.
        A process that ends within the block leaves them recorded. Raise StoreError."""
        await self._load()
        kept = await self._kept(days)
        self.progress.hold(kept)
        try:
            await self._record(whole(self.progress.concerned(kept, deleted=deleted)), deleted=deleted)
            yield
            await self._record(whole(self.progress.concerned(kept, deleted=deleted)), deleted=deleted)
        finally:
            self.progress.release(kept)

    async def _record(self, late: LateHours, *, deleted: bool) -> None:
        try:
            if self.progress.mark(late, deleted=deleted):
                await self.progress.save()
        except OSError as exc:
            raise StoreError(f"late points cannot be recorded for rollups: {exc}") from exc

    async def _kept(self, days: Collection[LateDay]) -> list[LateDay]:
        """Return the days that have not expired. Rollups of others are not built again: they may outlive their points,
        and queries would lack them until the next round."""
        builder = self._builder(tuple(self._intervals))
        first_s = {metric: await builder.kept_from_s(metric) for metric in {day.metric for day in days}}
        return [day for day in days if first_s[day.metric] < day.day_s + DAY_S]

    def operations(self, connection: AsyncExitStack) -> dict[str, Callable[..., Awaitable[str | bool]]]:
        """Return the operations of one connection of the control socket."""
        changes: dict[str, AsyncExitStack] = {}

        @connection.push_async_callback
        async def end_all() -> None:  # those of a command that is killed
            async with AsyncExitStack() as ended:
                for change in changes.values():
                    ended.push_async_exit(change)

        async def change_days(days: list[tuple[bytes, int]], deleted: bool) -> str:
            """Begin a change of points of days, given by the metrics' UIDs and the days' first seconds. Return its
            name."""
            async with AsyncExitStack() as stack:
                await stack.enter_async_context(self.changing([LateDay(*day) for day in days], deleted=deleted))
                change = uuid4().hex
                changes[change] = stack.pop_all()
            return change

        async def end_change(change: str) -> bool:
            """End a change. Return whether this connection has begun it and not ended it."""
            stack = changes.pop(change, None)
            if stack is not None:
                await stack.aclose()
            return stack is not None

        return {"change_days": change_days, "end_change": end_change}

    async def _load(self) -> None:
        async with self._loading:
            if not self._is_loaded:
                await self.progress.load()
                self._is_loaded = True

    async def run(self) -> None:
        """Build what is due, each minute, until cancelled."""
        await trio.sleep(FIRST_ROUND_S)
        while True:
            try:
                await self.round()
            except (StoreError, OSError) as error:
                log.warning("rollups.delayed", error=str(error))
            await trio.sleep(ROUND_S)

    async def round(self) -> None:
        """Build what is due. Raise StoreError, OSError."""
        await self._load()
        await self.progress.take_recorded()
        await self._heed_clock()
        await self._build_late()
        while (due := self.progress.current or self._due()) is not None:
            if not await self._build(due):
                return
            await self._build_late()

    async def _heed_clock(self) -> None:
        """Go back if the clock did: what was built ahead of it lacks points."""
        over_s = (self._now_s() // DAY_S + 1) * DAY_S
        if self.progress.limit_s > over_s:
            self.progress.rewind(over_s - DAY_S)
            await self.progress.save()

    def _target_s(self, name: str) -> int:
        """Return up to when the rollups of an interval can be built now."""
        unit_s = max(self._intervals[name].seconds, HOUR_S)
        return (self._now_s() - CLOSED_S) // unit_s * unit_s

    def _due(self) -> RollupPass | None:
        """Return what to build next: intervals that are complete up to the same time, the earliest."""
        complete_s = self.progress.complete_s
        due = [name for name in self._intervals if self._target_s(name) > complete_s[name]]
        if not due:
            return None
        first_s = min(complete_s[name] for name in due)
        names = tuple(name for name in due if complete_s[name] == first_s)
        return RollupPass(names, BuildRange(first_s, max(map(self._target_s, names))))

    async def _build(self, due: RollupPass) -> bool:
        """Build a pass from its position on. Return False if points came that are older than all that is complete."""
        progress, rewinds = self.progress, self.progress.rewinds
        progress.current = due  # from now on its points are late
        await progress.save()
        save_s = trio.current_time() + SAVE_S
        async with aclosing(self._builder(due.intervals).run(due.range, due.position)) as steps:
            async for step in steps:
                self._count(step.points, step.cells)
                if progress.rewinds != rewinds:
                    return False
                progress.current = due._replace(position=step.position)
                if trio.current_time() >= save_s:
                    await progress.save()
                    save_s = trio.current_time() + SAVE_S
        if progress.rewinds != rewinds:
            return False
        for name in due.intervals:
            unit_s = max(self._intervals[name].seconds, HOUR_S)
            progress.complete_s[name] = max(progress.complete_s[name], due.range.end_s // unit_s * unit_s)
        progress.current = None
        await progress.save()
        return True

    async def _build_late(self) -> None:
        """Build the hours again that got late points, and the intervals that they are in."""
        begun = trio.current_time()
        self._rests = {day: until for day, until in self._rests.items() if until > begun}
        late = {day: changes for day, changes in self.progress.late().items() if day not in self._rests}
        for day, changes in sorted(late.items()):
            await self._build_hours(day, changes)
            self.progress.built(day, changes)
        if late:
            rest_s = (trio.current_time() - begun) * REST_RATIO
            if rest_s > ROUND_S:
                self._rests |= dict.fromkeys(late, trio.current_time() + rest_s)
            await self.progress.save()
            log.debug("rollups.built_again", days=len(late))

    async def _build_hours(self, day: LateDay, hours: Iterable[int]) -> None:
        """Build some hours of a day again."""
        limit_s, builder = self.progress.limit_s, self._builder(tuple(self._intervals))
        spans = spans_to_build(hours, [one.seconds for one in self._intervals.values()], limit_s)
        if self.progress.is_emptied(day):
            await builder.clear(day.metric, ScanRange(day.day_s, day.day_s + DAY_S))
            spans = [ScanRange(day.day_s, min(day.day_s + DAY_S, limit_s))]
        for start_s, stop_s in spans:
            async with aclosing(builder.run(BuildRange(start_s, stop_s, (day.metric,), limit_s))) as steps:
                async for step in steps:
                    self._count(step.points, step.cells)

    def _count(self, points: int, cells: int) -> None:
        self.points += points
        self.cells += cells

    def statistics(self) -> list[Stat]:
        """Return what was built since the start, and up to when rollups are complete."""
        return [
            Stat("rollups.points", self.points),
            Stat("rollups.cells", self.cells),
            Stat("rollups.late", self.progress.late_days),
            *(
                Stat("rollups.complete", until_s, f"interval={name}")
                for name, until_s in self.progress.complete_s.items()
            ),
        ]
