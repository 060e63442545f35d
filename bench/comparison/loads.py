"""The loads, and how each is put on a system that was just started: measured until all points are stored, and then
every point is read back and counted, and values are added up."""

import functools
import itertools
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from bench.lines import METRICS_A_HOST, ROUND_S, series_text
from bench.telnet import Telnet
from bench.together import deliver
from bench.together.deliver import Pace
from bench.together.mixes import HOUR_S, Mix, Sums, Written, apart, churn, growing, late, one_metric, steady
from bench.together.records import Figures
from bench.together.systems import (
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

DAY_HOURS = 24
BATCH = 1000  # points of a request
AGAIN = 5  # times a query is asked again
PROBES = 4  # connections that ask for `sync` beside fast senders; beside small ones it is one, lest it costs more
SHOWN_S = 60  # until what was flushed is found by a query
GROWN = 1000  # series that warm up
SETTLED_S, LOOK_S = 20, 0.5  # after which a system holds what it holds for its series, and not what taking them in took


class Load(NamedTuple):
    """A mix, and what is done with it."""

    mix: Mix
    run: Callable[["Load", System, Running, Written], list[Figures]]
    needs: Needs = Needs()
    pace: Pace | None = None
    rounds: dict[str, int] = {}  # noqa: RUF012 (of systems that are measured more than once)
    suits: Callable[[System], bool] = lambda _: True
    shares: dict[str, float] = {}  # noqa: RUF012 (of the points, for systems that get a part only)

    @property
    def name(self) -> str:
        """As it is asked for."""
        return self.mix.name

    def stop(self, system: System) -> int:
        """How many pieces that system is given."""
        return self.mix.warm + max(2, round(self.mix.measured * self.shares.get(system.name, 1.0)))


class Size(NamedTuple):
    """Of all loads."""

    series: int
    points: int
    churned: int  # rounds
    apart: int  # series
    agents: int
    seconds: float  # that agents send
    grown: tuple[int, ...]
    day_series: int
    day_hours: int
    rounds: int  # of the steady load, of those that are compared


SIZES = {
    "full": Size(10_000, 500, 50, 50_000, 1000, 15.0, (10_000, 100_000, 1_000_000), 100, DAY_HOURS, 5),
    "small": Size(1000, 100, 20, 5000, 100, 4.0, (2000, 5000, 20_000), 20, 4, 2),
}


class Wrong(Exception):
    """A system does not hold what it was sent: its figures mean nothing."""


def loads(size: Size) -> list[Load]:
    """All of them, the most important first. Those that are compared most are run several times: the first one that
    comes to an HBase pays for its start."""
    slow = {PLAIN: 0.4, INFLUX: 0.4, CARBON: 0.1, HBASE: 0.2, OPENTSDB: 0.2, HBASE_PLAIN: 0.2}
    on_hbase = dict.fromkeys((HBASE, OPENTSDB), min(size.rounds, 3))
    rows_on_hbase = dict.fromkeys((HBASE, OPENTSDB), size.rounds)  # rows by the million: two rounds warm its Java
    warm = max(5, size.points // 25)
    span_s = (size.points + warm) * ROUND_S
    day_s = size.day_hours * HOUR_S
    few = Mix("steady", f"{size.series:,} steady series", size.series, size.points + warm, warm, 4, steady, span_s)
    some = few._replace(pieces=size.churned + 10, warm=10, span_s=(size.churned + 10) * ROUND_S)
    late_mix = some._replace(name="late", title="late and unordered points", make=late)
    batches = some._replace(name="http", title=f"HTTP, {BATCH:,} points a request")
    churned = some._replace(name="churn", title="new series in every tenth line", make=churn)
    worst = Mix("apart", f"every line another series, of {size.apart:,}", size.apart, 11, 1, 4, apart, 11 * HOUR_S)
    day = Mix(
        "day", "a day of few series, one fat connection", size.day_series, size.day_hours, 0, 1, one_metric, day_s
    )
    grown = Mix("grow", "new series", size.grown[-1], len(size.grown) + 1, 1, 4, growing((GROWN, *size.grown)), HOUR_S)
    small = Pace(size.agents, METRICS_A_HOST, METRICS_A_HOST, 1.0, size.seconds)
    paced = Pace(size.agents // 10, 100 * METRICS_A_HOST, 100 * METRICS_A_HOST, float(ROUND_S), float(ROUND_S))
    return [
        Load(few, _flat, rounds={**dict.fromkeys((EMBEDDED, VICTORIA), size.rounds), **on_hbase}, shares=slow),
        Load(
            few._replace(name="half", title="half of its speed, 4 connections"),
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
    """A point of each series that agents have."""
    series = pace.connections * pace.series
    ticks_s = (pace.ticks * pace.lines // pace.series + 1) * ROUND_S
    return Mix(name, title, series, 1, 1, 4, steady, ticks_s)


# ---- how they are run


def _flat(load: Load, system: System, running: Running, written: Written) -> list[Figures]:
    """As fast as they are read."""
    warm, stop = load.mix.warm, load.stop(system)
    _warm_up(running, written)
    meter = Meter(running)
    sent = deliver.flat(written.parts(warm, stop), running.port, running.last)
    end = running.await_stored(written.total(0, stop).points)
    figures = meter.figures(written.total(warm, stop).points, sent.start, end)
    _check(running, written, written.total(0, stop))
    return [figures]


def _half(load: Load, system: System, running: Running, written: Written) -> list[Figures]:
    """At half the speed that it has without a pace, while others wait for `sync`."""
    warm, stop = load.mix.warm, load.stop(system)
    middle = (warm + stop) // 2
    _warm_up(running, written)
    fast = deliver.flat(written.parts(warm, middle), running.port, running.last)
    seconds = (
        2 * (running.await_stored(written.total(0, middle).points) - fast.start) * (stop - middle) / (middle - warm)
    )
    points = written.total(middle, stop).points
    meter = Meter(running)
    with _probing(running.port, written.start_s, PROBES) as waits:
        sent = deliver.flat(written.parts(middle, stop), running.port, running.last, seconds)
    figures = meter.figures(points, sent.start, sent.end)
    running.await_stored(written.total(0, stop).points + len(waits))
    _check(running, written, written.total(0, stop))
    return [_with_waits(figures._replace(lines_per_s=None), waits, points / (sent.end - sent.start))]


def _batches(load: Load, system: System, running: Running, written: Written) -> list[Figures]:
    """The next batch of a connection when the last was answered."""
    del system
    _warm_up(running, written)
    meter = Meter(running)
    sent = deliver.http_batches(written.parts(load.mix.warm, load.mix.pieces), running.http_port, BATCH)
    total = written.total(0, load.mix.pieces)
    end = running.await_stored(total.points)
    figures = meter.figures(written.total(load.mix.warm, load.mix.pieces).points, sent.start, end)
    _check(running, written, total)
    return [figures]


def _agents(load: Load, system: System, running: Running, written: Written) -> list[Figures]:
    """At their own pace; what is still in memory at the end is written and counts."""
    assert load.pace is not None
    _warm_up(running, written)
    known = written.total(0, 1)
    meter = Meter(running)
    with _probing(running.port, written.start_s, 1 if system.sync else 0) as waits:
        sent = deliver.agents(load.pace, running.port, written.start_s + ROUND_S, in_paths=system.form == "path")
    running.await_stored(known.points + sent.points + len(waits))
    figures = meter.figures(sent.points, sent.start, sent.end)._replace(lines_per_s=None)
    _check(running, written, known + Sums(sent.points, sent.values))
    return [_with_waits(figures, waits, sent.points / (sent.end - sent.start))]


def _grow(load: Load, system: System, running: Running, written: Written) -> list[Figures]:
    """Series by series, measured at every step."""
    _warm_up(running, written)
    base_mib = _settled_mib(running)
    found = []
    for at in range(load.mix.warm, load.mix.pieces):
        count = written.total(0, at + 1).points
        if count > system.most_series:
            break
        meter = Meter(running)
        sent = deliver.flat(written.parts(at, at + 1), running.port, running.last)
        figures = meter.figures(written.total(at, at + 1).points, sent.start, running.await_stored(count))
        held_bytes = (_settled_mib(running) - base_mib) * 2**20 / (count - GROWN)
        found.append(figures._replace(series=count, held_bytes=held_bytes))
    _check(running, written, written.total(0, load.mix.warm + len(found)))
    return found


def _settled_mib(running: Running) -> float:
    """The least that it held within some seconds in which nothing came in."""
    end, pause = time.monotonic() + SETTLED_S, threading.Event()
    least = running.usage().now_mib
    while time.monotonic() < end:
        pause.wait(LOOK_S)
        least = min(least, running.usage().now_mib)
    return least


def _day(load: Load, system: System, running: Running, written: Written) -> list[Figures]:
    """Then it is asked, and then its files are merged."""
    (figures,) = _flat(load, system, running, written)
    if isinstance(running, Answering):  # carbon does not: that is another program's
        figures = figures._replace(queries_ms={q.name: _asked(running, written, q) for q in questions(written)})
    return [figures._replace(disk_bytes=running.merged_bytes() / figures.points)]


def questions(written: Written) -> list[Question]:
    """What is asked of the day."""
    metric, start_s, end_s = series_text(0)[0], written.start_s, written.end_s
    last_s = end_s - HOUR_S
    return [
        Question("one series, an hour", metric, last_s, end_s, host="web00003"),
        Question("all summed, an hour", metric, last_s, end_s),
        Question("all, a day, means of minutes", metric, start_s, end_s, step_s=60),
    ]


def _asked(running: Answering, written: Written, question: Question) -> list[float]:
    """How long it took at first, and again and again, in ms. The answer must be what was sent."""
    taken = []
    wanted = expected(written, question)
    for _ in range(1 + AGAIN):
        begun = time.perf_counter()
        answer = running.ask(question)
        taken.append((time.perf_counter() - begun) * 1000)
        if answer[:2] != wanted[:2] or not math.isclose(answer.values, wanted.values, rel_tol=1e-9):
            raise Wrong(f"{question.name}: {answer}, wanted {wanted}")
    return taken


def expected(written: Written, question: Question) -> Answer:
    """The answer to a question, from the lines. Means over a step are of equally many points each."""
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
    """What a system uses from now on."""

    def __init__(self, running: Running) -> None:
        self._running = running
        self._cpu_s, self._store_cpu_s = running.usage().cpu_s, running.store_cpu_s()

    def figures(self, points: int, start: float, end: float) -> Figures:
        """For so many points between these times of the monotonic clock."""
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
    deliver.flat(written.parts(0, written.mix.warm), running.port, running.last)
    running.await_stored(written.total(0, written.mix.warm).points)


def _check(running: Running, written: Written, sent: Sums) -> None:
    """Points are read back: what was flushed is found by a query a moment later."""
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
    """While the block runs, some connections send a line and `sync`, and wait, over and over: how many seconds."""
    waits: list[float] = []
    over = threading.Event()

    def probe(number: int) -> None:
        with Telnet(port) as telnet:
            for at in itertools.count():
                asked = time.monotonic()
                telnet.sync(b"put bench.probe %d 1 host=probe%d" % (start_s + at % HOUR_S, number))
                waits.append(time.monotonic() - asked)
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
