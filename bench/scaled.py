"""A daemon whose clocks run faster than real time: `python -m bench.scaled SPEED REAL_S START_S KEY=VALUE…`.

Hours pass in minutes while every window, timeout and interval keeps its length by the daemon's own clocks. The wall
clock and trio's clock run at the same speed. Waits for disks and other processes take real time, and RocksDB's threads
keep their own pace, as they depend on bytes and not on time. HBase sets real write times: rows there are compacted by
the real clock, at scaled ages.
"""

import math
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple

import trio

from bench.tied import end_with_parent
from tsd.cli.options import imported
from tsd.config import log
from tsd.config.loader import Given
from tsd.config.settings import Config
from tsd.daemon import layouts
from tsd.daemon.settings import Clock, load_config
from tsd.daemon.wiring import uses_hbase
from tsd.errors import CorruptRow
from tsd.store import Store
from tsd.tables.opentsdb.compaction.compactor import SETTLE_MS, RowCompactor

BOOT_S = 100_000.0  # a machine's uptime, so that no time is below 0


class Timeline(NamedTuple):
    """Simulated wall clock: `start_s` at `real_s` of the system's monotonic clock, then `speed` times as fast."""

    speed: float
    real_s: float
    start_s: float

    def now_s(self) -> float:
        """Return the simulated time."""
        return self.start_s + (time.monotonic() - self.real_s) * self.speed

    def real_delay_s(self, time_s: float) -> float:
        """Return the real seconds until a simulated time; 0 if it is over."""
        return max((time_s - self.now_s()) / self.speed, 0.0)

    def resumed(self) -> "Timeline":
        """Return the timeline that goes on from now."""
        return self._replace(real_s=time.monotonic(), start_s=self.now_s())


class ScaledClock(trio.abc.Clock):
    """trio's clock on a timeline. Deadlines and sleeps are in simulated seconds."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline

    def start_clock(self) -> None:
        """See trio.abc.Clock."""

    def current_time(self) -> float:
        """Return the simulated seconds since `BOOT_S` before the start of the timeline."""
        return self._timeline.now_s() - self._timeline.start_s + BOOT_S

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Return the real seconds until a deadline."""
        if math.isinf(deadline):
            return deadline
        return (deadline - self.current_time()) / self._timeline.speed


def words_of(timeline: Timeline, settings: Mapping[str, str]) -> list[str]:
    """Return the command line that starts a daemon on a timeline."""
    return [
        sys.executable, "-m", "bench.scaled", *map(repr, timeline),
        *(f"{key}={value}" for key, value in settings.items()),
    ]  # fmt: skip


def compact_in_real_time(speed: float) -> None:
    """Have rows on HBase compacted by the present clock. By a scaled one they would seem old while they are written,
    and a delete of their old cells would take what comes after the read."""
    made, real_ns = layouts.row_compactor, time.time_ns

    def compactor(
        config: Config, store: Store, now_ms: Clock, on_corrupt: Callable[[CorruptRow], None], *, settle_ms: int
    ) -> RowCompactor:
        if uses_hbase(config):
            config = replace(config, compaction_span_age_s=math.ceil(config.compaction_span_age_s / speed))
            settle_ms = max(math.ceil(settle_ms / speed), SETTLE_MS)
            return made(config, store, lambda: real_ns() // 10**6, on_corrupt, settle_ms=settle_ms)
        return made(config, store, now_ms, on_corrupt, settle_ms=settle_ms)

    vars(layouts).update(row_compactor=compactor)


def main() -> None:
    """Run the daemon until SIGTERM, or until the benchmark ends."""
    end_with_parent()
    timeline = Timeline(*map(float, sys.argv[1:4]))
    tune_collector = imported("tsd.cli.serve:tune_collector")  # without Python's cycle collector, as `tsd serve` does
    serve = imported("tsd.daemon.lifecycle:serve")
    settings = load_config(None, [Given("benchmark", *word.split("=", 1)) for word in sys.argv[4:]])
    compact_in_real_time(timeline.speed)
    vars(time).update(time=timeline.now_s, time_ns=lambda: int(timeline.now_s() * 1e9))
    log.configure(settings.config.log_level, settings.config.log_format, time.monotonic)
    trio.run(serve, settings, trio.Event(), tune_collector, clock=ScaledClock(timeline))


if __name__ == "__main__":
    main()
