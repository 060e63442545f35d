"""Background task of a daemon that deletes expired points once an hour, when another hour has expired."""

import logging
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Any, NamedTuple, Protocol, TypedDict, TypeVar

import numpy as np
import trio

from tsd.codec.points import Columns
from tsd.codec.putline import HOUR_S
from tsd.errors import StoreError
from tsd.lazy import LazyLogger
from tsd.tables.catalog import Stat
from tsd.tables.clock_guard import ClockGuard, Doubt
from tsd.tables.writing import OnPoints, SeriesLookup

log = LazyLogger(__name__)

FIRST_ROUND_S = 60.0  # after a start
SAFE_S, JITTER_S = 300.0, 300.0  # after a full hour, and the largest random delay after that
BUSY_S = 1.0  # pause after each step while the writer is behind
RETRY_S = 60.0  # after a StoreError
LONG_WAIT_S = 3.0 * HOUR_S  # for points: those of an hour are stored two hours after its start at the latest
TRUST = "tsd retention --trust-clock"
SAMPLED_POINTS = 1000  # of a window, for its median time


class Amount(NamedTuple):
    """Numbers of rows and points, and their size."""

    rows: int = 0
    points: int = 0
    bytes: int = 0  # of keys, columns and values, before compression

    def plus(self, other: "Amount", factor: float = 1) -> "Amount":
        """Return the sum of this and `factor` times another amount."""
        return Amount(*(round(mine + factor * more) for mine, more in zip(self, other, strict=True)))


class RoundResult(TypedDict):
    """What a round did: rows, points and bytes deleted by rule, and why nothing was deleted."""

    waiting_for: str | None
    rules: dict[str, dict[str, int]]


OnExpired = Callable[[bytes, int], Awaitable[None]]  # prefix of row keys and the first base time that is kept


class ExpiredRows(Protocol):
    """Expired rows of one metric that OpenTSDB's tables delete together."""

    @property
    def rule(self) -> str:
        """The rule, as written."""
        ...

    @property
    def prefix(self) -> bytes:
        """The prefix of their keys: salt and metric."""
        ...

    @property
    def stop_s(self) -> int:
        """The first base time that is kept."""
        ...

    @property
    def interval(self) -> object:
        """The interval of rollups; None for points."""
        ...


Rows = TypeVar("Rows", bound=ExpiredRows)


class RowRetention(Protocol[Rows]):
    """The retention of OpenTSDB's tables."""

    def expired(self, now_s: int) -> AsyncGenerator[Rows, None]:
        """Yield what has expired at `now_s`. Raise StoreError."""
        ...

    def remove(self, expired: Rows, clock_ms: Callable[[], int]) -> AsyncGenerator[Amount, None]:
        """Delete expired rows. Yield what each step deleted. Raise StoreError."""
        ...

    async def reclaim(self) -> None:
        """Free the space of what was deleted. Raise StoreError."""
        ...


class ExpiringTables(Protocol):
    """Tables from which points expire by the rules: another layout's, or those of entities."""

    def count(self, now_s: int) -> AsyncGenerator[tuple[str, Amount], None]:
        """Yield the rule and what each step of `remove` would delete. Raise StoreError."""
        ...

    def remove(self, now_s: int) -> AsyncGenerator[tuple[str, Amount], None]:
        """Delete what has expired at `now_s`. Yield the rule and what each step deleted. Raise StoreError."""
        ...


class RetentionTask:
    """Runs rounds of retention, and counts what they delete."""

    def __init__(
        self,
        retention: RowRetention[Any] | None,
        guard: ClockGuard,
        now_ms: Callable[[], int],
        is_writer_behind: Callable[[], bool],
        further: Sequence[ExpiringTables] = (),
        on_expired: OnExpired | None = None,
    ) -> None:
        """`retention` is of OpenTSDB's tables, and None for other layouts. Nothing is deleted while `is_writer_behind`
        returns True; `now_ms` is the wall clock. `on_expired` is called after points of a prefix were deleted."""
        self._retention = retention
        self._further = further
        self._on_expired = on_expired
        self._guard = guard
        self._now_ms = now_ms
        self._is_writer_behind = is_writer_behind
        self._jitter_s = random.uniform(0, JITTER_S)  # noqa: S311 - no secret
        self._round = trio.Lock()
        self._is_done = trio.Event()  # a round, whose space is not freed yet
        self.deleted = Amount()
        self._doubt: Doubt | None = None  # why nothing is deleted
        self._waits_since_s: float | None = None
        self._logged = 0  # highest level since then

    def observing(self, on_points: OnPoints) -> OnPoints:
        """Return `on_points`, which then also shows the guard the median time of each window."""

        async def observed(columns: Columns, series: SeriesLookup) -> None:
            self.observe(columns)
            await on_points(columns, series)

        return observed

    def observe(self, points: Columns) -> None:
        """Show the guard the median time of a window."""
        count = len(points.instants)
        if count:
            sample = points.instants[:: max(count // SAMPLED_POINTS, 1)]
            self._guard.observe(float(np.median(sample)) / 2)

    async def run(self) -> None:
        """Delete what has expired, each hour, and then free its space, until cancelled."""
        async with trio.open_nursery() as nursery:
            if self._retention is not None:
                nursery.start_soon(self._reclaim, self._retention)
            await self._rounds()

    async def _reclaim(self, retention: RowRetention[Any]) -> None:
        """Free the space after each round. No caller waits for it, because it may take minutes."""
        while True:
            await self._is_done.wait()
            self._is_done = trio.Event()
            try:
                await retention.reclaim()
            except StoreError as error:
                log.warning("retention.delayed", error=str(error))
                await trio.sleep(RETRY_S)
                self._is_done.set()

    async def _rounds(self) -> None:
        await trio.sleep(FIRST_ROUND_S)
        while True:
            try:
                await self.run_now()
                pause_s = HOUR_S - self._now_ms() / 1000 % HOUR_S + SAFE_S + self._jitter_s
            except StoreError as error:
                log.warning("retention.delayed", error=str(error))
                pause_s = RETRY_S
            await trio.sleep(RETRY_S if self._doubt else pause_s)

    async def run_now(self, trust_clock: bool = False) -> dict[str, object]:
        """Do a round and log what it did. Raise StoreError."""
        result = await self.round(trust_clock)
        self._log(self._doubt)
        for rule, amount in result["rules"].items():
            log.info("retention.deleted", rule=rule, **amount)
        return dict(result)

    def _log(self, doubt: Doubt | None) -> None:
        """Log why nothing is deleted, once for each level. That no points have come in yet is no error."""
        if doubt is None:
            self._waits_since_s, self._logged = None, 0
            return
        if self._waits_since_s is None:
            self._waits_since_s = trio.current_time()
        is_long = trio.current_time() - self._waits_since_s >= LONG_WAIT_S
        level = logging.ERROR if doubt.is_contradicted else logging.WARNING if is_long else logging.INFO
        if level <= self._logged:
            return
        self._logged = level
        if level == logging.ERROR:
            log.error("retention.clock_not_trusted", reason=doubt.reason, next_step=TRUST)
        elif level == logging.WARNING:
            log.warning("retention.waiting_for_points", reason=doubt.reason, next_step=TRUST)
        else:
            log.info("retention.waiting_for_points", reason=doubt.reason, next_step=TRUST)

    async def round(self, trust_clock: bool = False) -> RoundResult:
        """Delete what has expired. `run` frees the space later. Raise StoreError."""
        async with self._round:
            now_ms = self._now_ms()  # read once: the clock may jump during the round
            self._doubt = None if trust_clock else self._guard.doubt(now_ms)
            deleted: dict[str, Amount] = {}
            if self._doubt is None:
                await trio.to_thread.run_sync(self._guard.trust, now_ms)
                async with aclosing(self._delete(now_ms // 1000, deleted)) as steps:
                    async for _ in steps:
                        await self._pause()
                self._is_done.set()
            return {
                "waiting_for": self._doubt.reason if self._doubt else None,
                "rules": {rule: amount._asdict() for rule, amount in deleted.items()},
            }

    async def _delete(self, now_s: int, deleted: dict[str, Amount]) -> AsyncGenerator[None, None]:
        """Delete what has expired at `now_s`. Yield after each step."""
        async with aclosing(self._steps(now_s)) as steps:
            async for rule, amount in steps:
                self.deleted = self.deleted.plus(amount)
                deleted[rule] = deleted.get(rule, Amount()).plus(amount)
                yield

    async def _steps(self, now_s: int) -> AsyncGenerator[tuple[str, Amount], None]:
        """Delete what has expired at `now_s`. Yield the rule and what each step deleted."""
        if self._retention is not None:
            async with aclosing(self._retention.expired(now_s)) as ranges:
                async for expired in ranges:
                    async with aclosing(self._retention.remove(expired, self._now_ms)) as amounts:
                        async for amount in amounts:
                            yield expired.rule, amount
                    if self._on_expired is not None and expired.interval is None:
                        await self._on_expired(expired.prefix, expired.stop_s)
        for tables in self._further:
            async with aclosing(tables.remove(now_s)) as steps:
                async for step in steps:
                    yield step

    async def _pause(self) -> None:
        """Let others use the store."""
        await trio.lowlevel.checkpoint()
        if self._is_writer_behind():
            await trio.sleep(BUSY_S)

    def statistics(self) -> list[Stat]:
        """Return the counters since the start."""
        return [
            Stat("retention.rows", self.deleted.rows),
            Stat("retention.points", self.deleted.points),
            Stat("retention.bytes", self.deleted.bytes),
            Stat("retention.waiting", int(self._doubt is not None)),
        ]
