"""The loads, and how each is run on a newly started system: measured until all points are stored; then every point is
read back, counted and summed."""

import functools
import itertools
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from bench.comparison import sender
from bench.comparison.mixes import HOUR_S, Mix, Sums, Written, apart, churn, growing, late, one_metric, steady
from bench.comparison.records import Figures
from bench.comparison.sender import Pace
from bench.comparison.systems import (
    CARBON,
    EMBEDDED,
    HBASE,
    HBASE_PLAIN,
    INFLUX,
    OPENTSDB,
    PLAIN,
    VICTORIA,
    Answer,
    Answering,
    Needs,
    Question,
    Running,
    System,
)
from bench.lines import METRICS_A_HOST, ROUND_S, series_text
from bench.telnet import Telnet

DAY_HOURS = 24
BATCH = 1000  # points per request
AGAIN = 5  # repetitions of a query
PROBES = 4  # connections that call `sync` during fast loads; one during small loads, to limit their cost
SHOWN_S = 60  # until a query finds flushed points
GROWN = 1000  # series for warming up
SETTLED_S, LOOK_S = 20, 0.5  # time after which memory no longer includes buffers of incoming lines


class Load(NamedTuple):
    """A mix, and how it is sent."""

    mix: Mix
    run: Callable[["Load", System, Running, Written], list[Figures]]
    needs: Needs = Needs()
    pace: Pace | None = None
    rounds: dict[str, int] = {}  # noqa: RUF012 (of systems that are measured several times)
    suits: Callable[[System], bool] = lambda _: True
    shares: dict[str, float] = {}  # noqa: RUF012 (fraction of the points, for systems that get a part only)

    @property
    def name(self) -> str:
        """The name on the command line."""
        return self.mix.name

    def stop(self, system: System) -> int:
        """Return the number of pieces for a system."""
        return self.mix.warm + max(2, round(self.mix.measured * self.shares.get(system.name, 1.0)))


class Size(NamedTuple):
    """Sizes of all loads."""

    series: int
    points: int
    churned: int  # rounds
    apart: int  # series
    agents: int
    seconds: float  # that agents send
    grown: tuple[int, ...]
    day_series: int
    day_hours: int
    rounds: int  # of the steady load, for compared systems


SIZES = {
    "full": Size(10_000, 500, 50, 50_000, 1000, 60.0, (10_000, 100_000, 1_000_000), 100, DAY_HOURS, 5),
    "small": Size(1000, 100, 20, 5000, 100, 4.0, (2000, 5000, 20_000), 20, 4, 2),
}


class Wrong(Exception):
    """A system does not have the points sent, so its results are invalid."""


def loads(size: Size) -> list[Load]:
    """Return all loads, the most important first. Compared systems run several rounds, because the first one on an
    HBase includes its warm-up."""
    slow = {PLAIN: 0.4, INFLUX: 0.4, CARBON: 0.1, HBASE: 0.2, OPENTSDB: 0.2, HBASE_PLAIN: 0.2}
    on_hbase = dict.fromkeys((HBASE, OPENTSDB), min(size.rounds, 3))
    rows_on_hbase = dict.fromkeys((HBASE, OPENTSDB), size.rounds)  # millions of rows: two rounds warm its Java
    warm = max(5, size.points // 25)
    span_s = (size.points + warm) * ROUND_S
    day_s = size.day_hours * HOUR_S
    few = Mix("steady", f"{size.series:,} steady series", size.series, size.points + warm, warm, 4, steady, span_s)
    some = few._replace(pieces=size.churned + 10, warm=10, span_s=(size.churned + 10) * ROUND_S)
    late_mix = some._replace(name="late", title="late and unordered points", make=late)
    batches = some._replace(name="http", title=f"HTTP, {BATCH:,} points a request")
    churned = some._replace(name="churn", title="new series in every tenth line", make=churn)
    worst = Mix("apart", f"each line of another series, of {size.apart:,}", size.apart, 11, 1, 4, apart, 11 * HOUR_S)
    day = Mix(
        "day", "a day of few series on one fast connection", size.day_series, size.day_hours, 0, 1, one_metric, day_s
    )
    grown = Mix("grow", "new series", size.grown[-1], len(size.grown) + 1, 1, 4, growing((GROWN, *size.grown)), HOUR_S)
    small = Pace(size.agents, METRICS_A_HOST, METRICS_A_HOST, 1.0, size.seconds)
    paced = Pace(
        size.agents // 10, 100 * METRICS_A_HOST, 100 * METRICS_A_HOST, float(ROUND_S), max(size.seconds, ROUND_S)
    )
    return [
        Load(few, _flat, rounds={**dict.fromkeys((EMBEDDED, VICTORIA), size.rounds), **on_hbase}, shares=slow),
        Load(
            few._replace(name="half", title="half of top speed, 4 connections"),
            _half,
            suits=lambda s: s.sync,
            shares=slow,
        ),
        Load(worst, _flat, rounds=rows_on_hbase, shares={CARBON: 0.2}),
        Load(churned, _flat),
        Load(late_mix, _flat),
        Load(batches, _batches, suits=lambda s: s.form == "put"),
        Load(_introducing("connections", f"{size.agents:,} connections, 10 lines/s each", small), _agents, pace=small),
        Load(
            _introducing("paced", f"{paced.connections} agents of 1,000 series, every 10 s", paced), _agents, pace=paced
        ),
        Load(day, _day, Needs(compacts=True)),
        Load(grown, _grow),
    ]


def _introducing(name: str, title: str, pace: Pace) -> Mix:
    """A point of each series of the agents."""
    series = pace.connections * pace.series
    ticks_s = (pace.ticks * pace.lines // pace.series + 1) * ROUND_S
    return Mix(name, title, series, 1, 1, 4, steady, ticks_s)


# ---- how loads are run


def _flat(load: Load, system: System, running: Running, written: Written) -> list[Figures]:
    """Send as fast as the system reads."""
    warm, stop = load.mix.warm, load.stop(system)
    _warm_up(running, written)
    meter = Meter(running)
    sent = sender.flat(written.parts(warm, stop), running.port, running.last)
    end = running.await_stored(written.total(0, stop).points)
    figures = meter.figures(written.total(warm, stop).points, sent.start, end)
    _check(running, written, written.total(0, stop))
    return [figures]


def _half(load: Load, system: System, running: Running, written: Written) -> list[Figures]:
    """Send at half of the top speed while other connections call `sync`."""
    warm, stop = load.mix.warm, load.stop(system)
    middle = (warm + stop) // 2
    _warm_up(running, written)
    fast = sender.flat(written.parts(warm, middle), running.port, running.last)
    seconds = (
        2 * (running.await_stored(written.total(0, middle).points) - fast.start) * (stop - middle) / (middle - warm)
    )
    points = written.total(middle, stop).points
    meter = Meter(running)
    with _probing(running.port, written.start_s, PROBES) as waits:
        sent = sender.flat(written.parts(middle, stop), running.port, running.last, seconds)
    figures = meter.figures(points, sent.start, sent.end)
    running.await_stored(written.total(0, stop).points + len(waits))
    _check(running, written, written.total(0, stop))
    return [_with_waits(figures._replace(lines_per_s=None), waits, points / (sent.end - sent.start))]


def _batches(load: Load, system: System, running: Running, written: Written) -> list[Figures]:
    """Send the next batch of a connection after the answer to the previous one."""
    del system
    _warm_up(running, written)
    meter = Meter(running)
    sent = sender.http_batches(written.parts(load.mix.warm, load.mix.pieces), running.http_port, BATCH)
    total = written.total(0, load.mix.pieces)
    end = running.await_stored(total.points)
    figures = meter.figures(written.total(load.mix.warm, load.mix.pieces).points, sent.start, end)
    _check(running, written, total)
    return [figures]


def _agents(load: Load, system: System, running: Running, written: Written) -> list[Figures]:
    """Send at a fixed rate. Points still in memory at the end are written and count."""
    assert load.pace is not None
    _warm_up(running, written)
    known = written.total(0, 1)
    meter = Meter(running)
    with _probing(running.port, written.start_s, 1 if system.sync else 0) as waits:
        sent = sender.agents(load.pace, running.port, written.start_s + ROUND_S, in_paths=system.form == "path")
    running.await_stored(known.points + sent.points + len(waits))
    figures = meter.figures(sent.points, sent.start, sent.end)._replace(lines_per_s=None)
    _check(running, written, known + Sums(sent.points, sent.values))
    return [_with_waits(figures, waits, sent.points / (sent.end - sent.start))]


def _grow(load: Load, system: System, running: Running, written: Written) -> list[Figures]:
    """Add series, with a measurement at every step."""
    _warm_up(running, written)
    base_mib = _settled_mib(running)
    found = []
    for at in range(load.mix.warm, load.mix.pieces):
        count = written.total(0, at + 1).points
        if count > system.most_series:
            break
        meter = Meter(running)
        sent = sender.flat(written.parts(at, at + 1), running.port, running.last)
        figures = meter.figures(written.total(at, at + 1).points, sent.start, running.await_stored(count))
        held_bytes = (_settled_mib(running) - base_mib) * 2**20 / (count - GROWN)
        found.append(figures._replace(series=count, held_bytes=held_bytes))
    _check(running, written, written.total(0, load.mix.warm + len(found)))
    return found


def _settled_mib(running: Running) -> float:
    """Return the minimum memory within some seconds without input."""
    end, pause = time.monotonic() + SETTLED_S, threading.Event()
    least = running.usage().now_mib
    while time.monotonic() < end:
        pause.wait(LOOK_S)
        least = min(least, running.usage().now_mib)
    return least


def _day(load: Load, system: System, running: Running, written: Written) -> list[Figures]:
    """Send a day, then run queries, then merge files."""
    (figures,) = _flat(load, system, running, written)
    if isinstance(running, Answering):  # carbon needs another program for queries
        figures = figures._replace(queries_ms={q.name: _timed_query(running, written, q) for q in questions(written)})
    return [figures._replace(disk_bytes=running.merged_bytes() / figures.points)]


def questions(written: Written) -> list[Question]:
    """Return the queries of the day."""
    metric, start_s, end_s = series_text(0)[0], written.start_s, written.end_s
    last_s = end_s - HOUR_S
    return [
        Question("one series, one hour", metric, last_s, end_s, host="web00003"),
        Question("sum of all series, one hour", metric, last_s, end_s),
        Question("all series, one day, 1-minute means", metric, start_s, end_s, step_s=60),
    ]


def _timed_query(running: Answering, written: Written, question: Question) -> list[float]:
    """Return the first and the repeated latencies of a query in ms. The answer must match the lines."""
    taken = []
    wanted = expected(written, question)
    for _ in range(1 + AGAIN):
        begun = time.perf_counter()
        answer = running.query(question)
        taken.append((time.perf_counter() - begun) * 1000)
        if answer[:2] != wanted[:2] or not math.isclose(answer.values, wanted.values, rel_tol=1e-9):
            raise Wrong(f"{question.name}: {answer}, wanted {wanted}")
    return taken


def expected(written: Written, question: Question) -> Answer:
    """Compute the answer from the lines. Means over a step are of equally many points each."""
    return _expected(tuple(path.with_suffix(".put") for path in written.paths), question)


@functools.cache
def _expected(paths: tuple[Path, ...], question: Question) -> Answer:
    values, hosts, times = [], set(), set()
    for text in itertools.chain.from_iterable(path.read_bytes().splitlines() for path in paths):
        _, _, time_s, value, host, *_ = text.split()
        name = host.removeprefix(b"host=").decode()
        if question.start_s <= int(time_s) < question.end_s and question.host in ("", name):
            values.append(float(value))
            hosts.add(name)
            times.add(int(time_s) // (question.step_s or 1))
    total = math.fsum(values)
    if question.step_s:
        return Answer(len(hosts), len(hosts) * len(times), total * ROUND_S / question.step_s)
    return Answer(1, len(times), total)


class Meter:
    """Measures resource usage from now on."""

    def __init__(self, running: Running) -> None:
        self._running = running
        self._cpu_s, self._store_cpu_s = running.usage().cpu_s, running.store_cpu_s()

    def figures(self, points: int, start: float, end: float) -> Figures:
        """Return results for points between two times of the monotonic clock."""
        used = self._running.usage()
        cpu_s, store_cpu_s = used.cpu_s - self._cpu_s, self._running.store_cpu_s() - self._store_cpu_s
        per_line = points / 1e6
        return Figures(
            points,
            points / (end - start),
            cpu_s / per_line,
            store_cpu_s / per_line or None,
            used.peak_mib,
            cpu_s / (end - start),
        )


def _warm_up(running: Running, written: Written) -> None:
    if not written.mix.warm:
        return
    sender.flat(written.parts(0, written.mix.warm), running.port, running.last)
    running.await_stored(written.total(0, written.mix.warm).points)


def _check(running: Running, written: Written, sent: Sums) -> None:
    """Read points back. Flushed points are found by a query after a moment."""
    deadline = time.monotonic() + SHOWN_S
    while not (found := running.found(written.start_s, written.end_s)).like(sent):
        if time.monotonic() > deadline:
            raise Wrong(f"{found} are stored, {sent} were sent")


def _with_waits(figures: Figures, waits: list[float], sent_per_s: float) -> Figures:
    figures = figures._replace(sent_per_s=sent_per_s)
    if not waits:
        return figures
    p50, p99 = (sorted(waits)[min(len(waits) - 1, int(len(waits) * share))] * 1000 for share in (0.5, 0.99))
    return figures._replace(sync_p50_ms=p50, sync_p99_ms=p99)


@contextmanager
def _probing(port: int, start_s: int, probes: int) -> Iterator[list[float]]:
    """While the block runs, some connections repeatedly send a line and `sync`. Yield their latencies in seconds."""
    waits: list[float] = []
    over = threading.Event()

    def probe(number: int) -> None:
        with Telnet(port) as telnet:
            for at in itertools.count():
                started = time.monotonic()
                telnet.sync(b"put bench.probe %d 1 host=probe%d" % (start_s + at % HOUR_S, number))
                waits.append(time.monotonic() - started)
                if over.is_set():
                    return

    threads = [threading.Thread(target=probe, args=(number,)) for number in range(probes)]
    for thread in threads:
        thread.start()
    try:
        yield waits
    finally:
        over.set()
        for thread in threads:
            thread.join()
