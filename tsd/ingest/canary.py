"""The canary: periodically, the daemon ingests a point of its own and reads it back from the store.

In one round a line is accepted (names, open window, journal) and synced to disk. Then its window is written to the
store, and the point is read. The canary reads the store directly: a slow query must not look like a failure that a
restart cures.
"""

import re
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import NamedTuple

import trio

from tsd.codec.putline import FIRST_MS
from tsd.errors import StoreError, TsdError, bare
from tsd.ingest.intake import Intake
from tsd.lazy import LazyLogger
from tsd.tables.reading import SeriesReader
from tsd.tables.writing import SeriesResolver, SeriesText

log = LazyLogger(__name__)

METRIC = b"tsd.canary"
_ILLEGAL = re.compile(r"[^a-zA-Z0-9\-_./]")


class Stage(Enum):
    """What a round waits for."""

    IDLE = "the next round"
    NAMES = "its names"
    DISK = "the journal's disk"
    WRITTEN = "its window to be written"
    READ = "the store to be read"


class CanaryStats(NamedTuple):
    """The canary's counters."""

    rounds: int  # completed
    missed: int  # completed without the point
    latency_ms: int  # of the latest round: from the line to the point that was read


class Canary:
    """Runs the rounds of one daemon."""

    def __init__(
        self,
        intake: Intake,
        resolver: SeriesResolver,
        reader: SeriesReader,
        write_metric: Callable[[bytes], Awaitable[bool]],
        host: str,
        daemon: str,
        now_ms: Callable[[], int],
    ) -> None:
        """`write_metric` writes a metric's points of the open window. The series has the tags `host` and `daemon`, so
        each daemon that shares the tables has its own canary series."""
        self._intake = intake
        self._resolver = resolver
        self._reader = reader
        self._write_metric = write_metric
        tags = {b"daemon": daemon, b"host": host}
        words = [b"%s=%s" % (tagk, (_ILLEGAL.sub("_", text) or "unknown").encode()) for tagk, text in tags.items()]
        self._series = SeriesText(METRIC, b" ".join(words))
        self._now_ms = now_ms
        self._rounds = self._missed = 0
        self._latency_ms = 0
        self.stage = Stage.IDLE
        self.steps = 0  # completed
        self.missing = 0  # consecutive rounds that did not find the point
        self.trouble = ""  # reason why the latest round did not complete

    async def run(self, every_s: float) -> None:
        """Run rounds until cancelled."""
        while True:
            await self.run_round()
            await trio.sleep(every_s)

    async def run_round(self) -> None:
        """Run one round. If it does not complete for a known reason, set `trouble`."""
        if reasons := self._intake.backpressure.reasons:
            self.trouble = ", ".join(sorted(reasons))
            return
        started = trio.current_time()
        try:
            found = await self._round()
        except StoreError as error:
            self.trouble = str(bare(error))
            return
        except TsdError as error:  # the operator has to act: a damaged row or UID table, or no UIDs left
            if self.trouble != str(error):
                log.warning("canary.failed", error=str(error))
            self.trouble = str(error)
            return
        finally:
            self.stage = Stage.IDLE
        self._latency_ms = round((trio.current_time() - started) * 1000)
        if found is None:
            self.trouble = "its window is not in the store"
            return
        self._rounds += 1
        self.trouble = ""
        self.missing = 0 if found else self.missing + 1
        if not found:
            self._missed += 1
            log.error("canary.point_missing", rounds=self.missing)

    async def _round(self) -> bool | None:
        """Return whether the point was found, or None if its window cannot be written now."""
        self.stage = Stage.NAMES
        key = await self._resolver.assign(self._series)
        self.steps += 1
        now_s = self._now_ms() // 1000
        if now_s >= FIRST_MS:  # a line would have milliseconds
            raise TsdError(f"the clock says {now_s} s since 1970, wanted less than {FIRST_MS}, in the year 2106")
        line = b"put %s %d 1 %s\n" % (METRIC, now_s, self._series.tags)  # a constant: the clock may go back
        taken = await self._intake.take(line)
        for _, error in taken.rejects:
            raise error
        self.stage = Stage.DISK
        await self._intake.wait_synced(taken.position)
        self.stage = Stage.WRITTEN
        if not await self._write_metric(METRIC):
            return None
        self.stage = Stage.READ
        return bool(len((await self._reader.read_series(key, now_s * 1000, now_s * 1000)).times))

    def statistics(self) -> CanaryStats:
        """Return the current counters."""
        return CanaryStats(self._rounds, self._missed, self._latency_ms)
