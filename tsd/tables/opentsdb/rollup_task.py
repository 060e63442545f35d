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
from tsd.tables.opentsdb.rollup_progress import BuildRange, LateDay, RollupPass, RollupProgress
from tsd.tables.opentsdb.rollup_sums import DAY_S
from tsd.tables.reading import ScanRange
from tsd.tables.writing import OnPoints, SeriesLookup

log = LazyLogger(__name__)

CLOSED_S = 300  # after the end of an interval: most of its points are stored by then
FIRST_ROUND_S = 2.0  # after a start: a crash may have left rollups that are due
ROUND_S = 60.0  # between two rounds; also after an error
SAVE_S = 10.0  # shortest interval between saves of the position of a pass
DAEMON_PAUSE_RATIO = 1.0  # a pause after each part of a build, as long as it took
# After a day was built again it is left alone, for this many times as long as the build took. With agents that are
# always late it would be built each minute. Queries read its points meanwhile.
REST_RATIO = 10.0


def log_unread_rollups(warning: str) -> None:
    """Log that points could not be read, so that rollups lack them."""
    log.warning("rollups.points_not_read", reason=warning, next_step="tsd fsck")


def days_of_points(columns: Columns, series: SeriesLookup, salt_width: int) -> set[LateDay]:
    """Return the days of metrics that have points in some columns."""
    days_s = columns.instants // (2000 * DAY_S) * DAY_S
    pairs = np.unique(np.stack((columns.series.astype(np.int64), days_s)), axis=1)
    numbers = np.unique(columns.series)
    metric_of = {
        number: metric
        for metric, some in series_by_metric(numbers, series, salt_width).items()
        for number in some.numbers
    }
    return {LateDay(metric_of[number], day_s) for number, day_s in pairs.T.tolist()}


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
                await self.mark(days_of_points(columns.at(late), series, self._salt_width))
            await on_points(columns, series)

        return observed

    async def mark(self, days: Iterable[LateDay], *, deleted: bool = False) -> None:
        """Record on disk that points of some days came late, or were `deleted`. Raise StoreError."""
        await self._load()
        await self._record(await self._kept(self.progress.concerned(days, deleted=deleted)), deleted=deleted)

    @asynccontextmanager
    async def changing(self, days: Collection[LateDay], *, deleted: bool = False) -> AsyncIterator[None]:
        """Record that points of some days change in the block, or are `deleted`, and build these days again after it.
        A process that ends within the block leaves them recorded. Raise StoreError."""
        await self._load()
        kept = await self._kept(list(days))
        self.progress.hold(kept)
        try:
            await self._record(self.progress.concerned(kept, deleted=deleted), deleted=deleted)
            yield
            await self._record(self.progress.concerned(kept, deleted=deleted), deleted=deleted)
        finally:
            self.progress.release(kept)

    async def _record(self, late: Iterable[LateDay], *, deleted: bool) -> None:
        try:
            if self.progress.mark(late, deleted=deleted):
                await self.progress.save()
        except OSError as exc:
            raise StoreError(f"late points cannot be recorded for rollups: {exc}") from exc

    async def _kept(self, days: Sequence[LateDay]) -> list[LateDay]:
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
        """Build the days again that got late points."""
        now = trio.current_time()
        self._rests = {day: until for day, until in self._rests.items() if until > now}
        late = {day: change for day, change in self.progress.late().items() if day not in self._rests}
        limit_s = self.progress.limit_s
        for day, change in sorted(late.items()):
            begun = trio.current_time()
            span = BuildRange(day.day_s, min(day.day_s + DAY_S, limit_s), (day.metric,))
            builder = self._builder(tuple(self._intervals))
            if self.progress.is_emptied(day):
                await builder.clear(day.metric, ScanRange(day.day_s, day.day_s + DAY_S))
            async with aclosing(builder.run(span)) as steps:
                async for step in steps:
                    self._count(step.points, step.cells)
            self.progress.built(day, change)
            rest_s = (trio.current_time() - begun) * REST_RATIO
            if rest_s > ROUND_S:
                self._rests[day] = trio.current_time() + rest_s
        if late:
            await self.progress.save()
            log.debug("rollups.built_again", days=len(late))

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
