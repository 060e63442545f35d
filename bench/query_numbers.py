"""CPU of a query's computation per point: downsampling and merging, without a store."""

import statistics
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import click
import numpy as np

from bench.report import machine, publish, spread, table
from tsd.codec.points import Batch, Points
from tsd.query.columns import Chosen
from tsd.query.downsample import Downsampler, PointJoiner
from tsd.query.merge import merge, rate
from tsd.query.model import PLAIN_RATE
from tsd.query.parse.times import read_downsample
from tsd.query.plan import scan_range

BASE_MS = 1_356_998_400_000
HOUR_MS = 3_600_000


class Case(NamedTuple):
    """A query of generated points."""

    name: str
    series: int
    hours: int
    function: str = ""  # of downsampling to minutes
    aggregator: str = "avg"
    groups: int = 1
    step_ms: int = 10_000
    jitter_ms: int = 0  # maximum difference between the times of two series
    integers: bool = False
    rate: bool = False

    @property
    def points(self) -> int:
        """Total number of points."""
        return self.series * self.hours * HOUR_MS // self.step_ms


CASES = (
    Case("day, 1,000 series, avg:1m-avg by 100 hosts", 1000, 24, "avg", groups=100),
    Case("the same, times of series apart", 1000, 24, "avg", groups=100, jitter_ms=9000),
    Case("the same of integers, max:1m-max", 1000, 24, "max", "max", groups=100, integers=True),
    Case("the same, sum:1m-p99", 1000, 24, "p99", "sum", groups=100),
    Case("the same, sum:1m-dev", 1000, 24, "dev", "sum", groups=100),
    Case("the same, sum:1m-sum:rate", 1000, 24, "sum", "sum", groups=100, rate=True),
    Case("hour, 100 series, sum", 100, 1, aggregator="sum"),
    Case("hour, 100 series, sum of rates", 100, 1, aggregator="sum", rate=True),
    Case("hour, 100 series, p99", 100, 1, aggregator="p99"),
    Case("hour, one series, sum", 1, 1, aggregator="sum"),
    Case("hour, one series, sum:1m-avg", 1, 1, "avg", "sum"),
    Case("day, 100 series, sum, times of series apart", 100, 24, aggregator="sum", jitter_ms=9000),
    Case("day, 100 series of integers, sum, times apart", 100, 24, aggregator="sum", jitter_ms=9000, integers=True),
    Case("hour, 10,000 series, sum", 10_000, 1, aggregator="sum", step_ms=60_000),
)


def made(case: Case) -> list[Batch]:
    """Return the points of a case as a scan does: hour by hour, one row per series."""
    random = np.random.default_rng(1)
    per_row = HOUR_MS // case.step_ms
    late = random.integers(0, case.jitter_ms // 1000 + 1, case.series) * 1000
    batches = []
    for hour in range(case.hours):
        times = (BASE_MS + hour * HOUR_MS + late[:, None] + np.arange(per_row) * case.step_ms).ravel()
        values = random.integers(0, 1000, len(times)) if case.integers else random.random(len(times)).view(np.int64)
        floats = np.full(len(times), not case.integers)
        starts = np.arange(case.series + 1) * per_row
        whole = Batch(np.arange(case.series, dtype=np.int32), starts, times, values, floats)
        batches += list(_pages(whole, per_row))
    return batches


def _pages(whole: Batch, per_row: int) -> Iterator[Batch]:
    for first in range(0, len(whole.series), 1000):
        rows = slice(first, first + 1000)
        part = slice(first * per_row, (first + 1000) * per_row)
        series = whole.series[rows]
        yield Batch(
            series, np.arange(len(series) + 1) * per_row, whole.times[part], whole.bits[part], whole.floats[part]
        )


def computed(case: Case, batches: list[Batch]) -> list[Points]:
    """Return the answer by group."""
    bounds = (BASE_MS, BASE_MS + case.hours * HOUR_MS - 1)
    downsample = read_downsample(f"1m-{case.function}") if case.function else None
    scan = scan_range(*bounds, downsample)
    taking = Downsampler(downsample, *bounds, scan) if downsample else PointJoiner()
    for batch in batches:
        taking.feed(batch)
    series = taking.finish(case.series)
    groups = [np.arange(first, case.series, case.groups) for first in range(case.groups)]
    if not case.rate:
        return [merge(Chosen(series, group), case.aggregator, scan).points for group in groups]
    rates = [[rate(series[number], PLAIN_RATE) for number in group.tolist()] for group in groups]
    return [merge(group, case.aggregator, scan).points for group in rates]


def measured(work: Callable[[], object], rounds: int) -> list[float]:
    """Return the CPU seconds of each run."""
    seconds = []
    for _ in range(rounds):
        begun = time.process_time()
        work()
        seconds.append(time.process_time() - begun)
    return seconds


@click.command("query-numbers")
@click.option("--rounds", default=5, help="Computations of each case.")
def query_numbers(rounds: int) -> None:
    """CPU of a query per point for downsampling and merging, without a store."""
    rows, figures = [], {}
    for case in CASES:
        batches = made(case)
        spent = measured(lambda: computed(case, batches), rounds)  # noqa: B023 - called before the next one
        figures[case.name] = spent
        in_ms = [seconds * 1000 for seconds in spent]
        rows.append(
            [case.name, f"{case.points:,}", spread(in_ms), f"{statistics.median(in_ms) * 1e6 / case.points:,.1f}"]
        )
    text = f"{machine()}\n\n" + table(["case", "points", "ms", "ns a point"], rows)
    publish("query-numbers", text, figures)


if __name__ == "__main__":
    query_numbers(5)
