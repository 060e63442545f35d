"""The agents' pace: one point of every series per round of 10 or 60 s, scaled in time, until all is quiet.

tsd's clocks run at the same speed as the lines come, so no window holds more points than in real time. The clock of
VictoriaMetrics cannot be scaled: its buffers and merges get the points of more time than in reality, which favours it.
Nor can OpenTSDB's: it gets the lines of a past hour, and compacts each row once, when it stops. That favours it, too.

HBase is used for half of the time before anything is measured. Every system but OpenTSDB is restarted halfway. All
points are read back before a figure counts.
"""

import math
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import click
import trio

from bench.agents import GROUPS, HOUR_S, METRICS, Batch, Fleet, batches
from bench.daemon import FLEET, Daemon, await_port
from bench.peers import ONE_REGION, Hbase, running_hbase, running_opentsdb
from bench.process_usage import usage, written_bytes
from bench.report import machine, publish, spread, table
from bench.scaled import Timeline, words_of
from bench.verify import stored
from bench.victoria import PROGRAM, Victoria, running_victoria
from tsd.config.loader import Given
from tsd.config.settings import Config
from tsd.daemon.settings import read_config

EMBEDDED, VICTORIA, HBASE, OPENTSDB = "tsd, embedded", "VictoriaMetrics", "tsd, HBase", "OpenTSDB, HBase"
HBASE_10S, HBASE_MINUTES = "tsd, HBase, stored every 10 s", "tsd, HBase, stored every 10 minutes"
INTERVAL = "tsd.storage.flush_interval"
ON_HBASE: dict[str, dict[str, str]] = {HBASE: {}, HBASE_10S: {INTERVAL: "10000"}, HBASE_MINUTES: {INTERVAL: "600000"}}
WINDOWS = "tsd, embedded, hour not held"  # points are stored at the end of each window
ENTITIES = "tsd, embedded, entities"  # points are also stored in the tables of entities
SYSTEMS = EMBEDDED, VICTORIA, WINDOWS, ENTITIES, HBASE, HBASE_10S, HBASE_MINUTES, OPENTSDB
QUIET_ROWS = 100  # tsd.storage.compaction.min_flush_threshold: fewer rows are left to `tsd compact`
WARM_SERIES = 50_000  # at most, while HBase is warmed up: each point is a cell then
DAEMON_IDLE_S, HBASE_IDLE_S = 3.0, 15.0  # for which CPU is measured while nothing is done
QUIET_S = 1800  # simulated time after the last hour for the first rows to be compacted
POLL_S = 0.5
ASK_S = 2.0


class Sums(NamedTuple):
    """Points that were sent, and the sums of their times and values."""

    points: int = 0
    times_s: int = 0
    cents: int = 0
    lag_s: float = 0.0  # simulated time between when a batch was due and when it was sent, at most

    def plus(self, other: "Batch | Sums", lag_s: float = 0.0) -> "Sums":
        """Return the sums with those of `other`, which was sent with a lag."""
        return Sums(
            self.points + other.points, self.times_s + other.times_s, self.cents + other.cents, max(self.lag_s, lag_s)
        )


class Figures(NamedTuple):
    """Results of one run, per point unless said otherwise."""

    cpu_us: float
    store_cpu_us: float  # HBase and its gateway
    idle_us: float  # part of `cpu_us` that a daemon without points would take in the same time
    store_idle_us: float  # the same of `store_cpu_us`
    peak_mib: float  # of the system's process while it takes lines, and while tsd stops
    written: float  # bytes that went to disks, of HBase too
    kept: float  # bytes on disk after all is quiet; 0: not measured
    most: float  # bytes on disk at the worst time
    calls_per_s: float  # to HBase, compaction included, per simulated second in which lines came
    lag_s: float  # simulated time by which lines were sent after they were due, at most; not per point

    @property
    def all_us(self) -> float:
        """CPU of the daemon and its store."""
        return self.cpu_us + self.store_cpu_us


class Disk:
    """Largest size of a folder while lines come."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self.most = 0

    def look(self) -> int:
        """Measure."""
        size = 0
        for folder, _, files in os.walk(self._home):  # it passes over folders that are gone
            for name in files:
                with suppress(FileNotFoundError):
                    size += Path(folder, name).stat().st_blocks * 512
        self.most = max(self.most, size)
        return size


@click.command()
@click.option("--series", default=5_000, help="Series.")
@click.option("--round", "round_s", default=10, help="Seconds from point to point.")
@click.option("--hours", default=2.0, help="Simulated time with points.")
@click.option("--connections", default=4, help="That hosts of 50 series share; as many as hosts: one each.")
@click.option("--speed", default=0.0, help="Times as fast as real time; 0: 40,000 lines/s, 60 times at most.")
@click.option("--pairs", default=1, help="Runs of each system, alternating.")
@click.option("--only", default="", help="Only systems with one of these names, or parts of names: 'HBase;Victoria'.")
def pace(series: int, round_s: int, hours: float, connections: int, speed: float, pairs: int, only: str) -> None:
    """Lines at the agents' pace until all is quiet: CPU, memory and disks of tsd, VictoriaMetrics and OpenTSDB."""
    fleet = Fleet(series, round_s, hours, next_hour_s(), connections=connections)
    words = only.split(";")

    def wanted(name: str) -> bool:
        return any(word == name or (word not in SYSTEMS and word in name) for word in words)

    speed = speed or min(60.0, 40_000 * fleet.round_s / fleet.series)
    found: dict[str, list[Figures]] = {}
    with (
        tempfile.TemporaryDirectory(prefix="tsd-bench-", ignore_cleanup_errors=True) as name,
        _hbase(Path(name), needed=any(map(wanted, (*ON_HBASE, OPENTSDB)))) as hbase,
    ):
        if hbase:  # else the first system pays for its compilers: half of what a point takes
            print("bench: warming up HBase", file=sys.stderr)
            settings = hbase.settings("warm-up", **ON_HBASE[HBASE_10S])
            few = fleet._replace(series=min(fleet.series, WARM_SERIES), hours=fleet.hours / 2)
            _tsd(few, speed, Path(name) / "warm-up", settings, hbase)
        idle_share = _share_of(hbase.cpu_s, HBASE_IDLE_S) if hbase else 0.0
        for number in range(pairs):
            for system in SYSTEMS:
                if not wanted(system) or (system == VICTORIA and PROGRAM is None):
                    continue
                print(f"bench: pair {number + 1} of {pairs}: {system}", file=sys.stderr)
                home = Path(name) / f"{number}-{system.replace(' ', '').replace(',', '-')}"
                if system == VICTORIA:
                    figures = _victoria(fleet, speed, home)
                elif hbase and system == OPENTSDB:
                    figures = _opentsdb(fleet, speed, home, hbase, idle_share)
                else:
                    # Hours move to blocks while CPU is measured, not a day later. HBase has none.
                    settings = {"tsd.core.auto_create_metrics": "true", "tsd.storage.blocks_age": "0"}
                    if hbase and system in ON_HBASE:
                        settings = hbase.settings(home.name, **ON_HBASE[system])
                    elif system == WINDOWS:
                        settings |= {"tsd.storage.hold_open_hours": "false"}
                    elif system == ENTITIES:
                        settings |= {"tsd.entity.enabled": "true"}
                    figures = _tsd(fleet, speed, home, settings, hbase if "HBase" in system else None, idle_share)
                print(f"bench: {figures}", file=sys.stderr)
                found.setdefault(system, []).append(figures)
    publish("pace", _report(fleet, speed, found), found)


@contextmanager
def _hbase(folder: Path, *, needed: bool) -> Iterator[Hbase | None]:
    if not needed:
        yield None
        return
    with running_hbase(folder / "hbase", ONE_REGION) as hbase:
        yield hbase


def halves(fleet: Fleet) -> tuple[Iterator[Batch], Iterator[Batch]]:
    """Return the lines before and after the restart."""
    every = batches(fleet)
    count = fleet.rounds // 2 * min(GROUPS, fleet.hosts)
    return islice(every, count), every


async def play(
    lines: Iterator[Batch],
    connections: int,
    timeline: Timeline,
    port: int,
    end: bytes,
    on_wait: Callable[[], object],
    answered: bytes = b"synced ",
) -> Sums:
    """Send lines at their times. Then send `end` on each connection and wait for an answer with `answered` in it."""
    sums = Sums()
    streams = [await trio.open_tcp_stream("127.0.0.1", port) for _ in range(connections)]
    looked = 0.0
    for batch in lines:
        if (delay_s := timeline.real_delay_s(batch.due_s)) > 0:
            if trio.current_time() - looked > POLL_S:
                on_wait()
                looked = trio.current_time()
            await trio.sleep(delay_s)
        for number, text in batch.shares(connections):
            await streams[number].send_all(text)
        sums = sums.plus(batch, max(timeline.now_s() - batch.due_s, 0.0))
    for stream in streams:  # all at once: each answer may take seconds of the timeline
        await stream.send_all(end)
    for stream in streams:
        if end:
            assert answered in (answer := await stream.receive_some()), answer
        await stream.aclose()
    return sums


class Spent:
    """Resources of the processes of one run."""

    def __init__(self, hbase: Hbase | None, idle_share: float = 0.0) -> None:
        """`idle_share`: CPU seconds a second of an HBase with nothing to do."""
        self._hbase = hbase
        self._idle_share = idle_share
        self._began_s = time.monotonic()
        self._store_s = hbase.cpu_s() if hbase else 0.0
        self._store_bytes = hbase.written_bytes() if hbase else 0
        self._ended_s = _ended_s()
        self.peak_mib = 0.0
        self.written = 0

    def cpu_s(self) -> float:
        """Return the CPU of processes that have ended since the start."""
        return _ended_s() - self._ended_s

    def store_cpu_s(self) -> float:
        """Return the CPU of HBase since the start."""
        return self._hbase.cpu_s() - self._store_s if self._hbase else 0.0

    def store_idle_s(self) -> float:
        """Return the CPU that an idle HBase would have taken since the start."""
        return self._idle_share * (time.monotonic() - self._began_s) if self._hbase else 0.0

    def store_bytes(self) -> int:
        """Return what HBase has written since the start."""
        return self._hbase.written_bytes() - self._store_bytes if self._hbase else 0

    def add(self, pid: int) -> None:
        """Note the peak of a process's memory."""
        self.peak_mib = max(self.peak_mib, usage(pid).peak_mib)


def _ended_s() -> float:
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return ended.ru_utime + ended.ru_stime


@contextmanager
def scaled(home: Path, settings: dict[str, str], timeline: Timeline, spent: Spent) -> Iterator[Daemon]:
    """Run a daemon on a timeline, stop it cleanly, and note what it took."""
    given = {
        "tsd.network.port": "0", "tsd.storage.path": str(home), "tsd.log.format": "json",
        "tsd.core.drain_timeout": str(round(600_000 * timeline.speed)), **FLEET, **settings,
    }  # fmt: skip
    config, _ = read_config(Given("benchmark", key, value) for key, value in given.items())
    home.mkdir(parents=True, exist_ok=True)
    log = home.with_suffix(".log")
    with log.open("wb") as stream:
        process = subprocess.Popen(words_of(timeline, given), stderr=stream)
    written = 0
    try:
        yield Daemon(process, config, await_port(process, log))
    finally:
        process.terminate()
        while process.poll() is None:
            with suppress(OSError, ValueError, KeyError):  # it may be gone
                written = written_bytes(process.pid)
                spent.add(process.pid)
            with suppress(subprocess.TimeoutExpired):
                process.wait(0.01)
        spent.written += written
    if process.returncode:
        raise SystemExit(f"the daemon ended with status {process.returncode}:\n{log.read_text()[-4000:]}")


def _tsd(
    fleet: Fleet, speed: float, home: Path, settings: dict[str, str], hbase: Hbase | None, store_idle_share: float = 0.0
) -> Figures:
    spent, disk, sums = Spent(hbase, store_idle_share), Disk(home), Sums()
    timeline = Timeline(speed, time.monotonic() + 3, fleet.start_s)
    first, second = halves(fleet)
    calls = calls_s = idle_s = 0.0
    for number, lines in enumerate((first, second)):
        with scaled(home, settings, timeline, spent) as daemon:
            began_s = timeline.now_s()
            got = trio.run(play, lines, fleet.connections, timeline, daemon.port, b"sync\n", disk.look)
            sums = sums.plus(got, got.lag_s)
            calls_s += timeline.now_s() - began_s
            if number == 1:
                _log_calls(daemon, "until the last line")
                trio.run(_await_quiet, daemon, timeline, fleet, disk)
                _log_calls(daemon, "until all was quiet")
                idle_share = _share_of(lambda: daemon.usage().cpu_s, DAEMON_IDLE_S)
                idle_s = idle_share * (timeline.now_s() - fleet.start_s) / speed
            calls += daemon.stats().get("store.requests", 0)
        timeline = timeline.resumed()
    config = daemon.config
    kept = disk.look() if not hbase else 0
    n = sums.points
    figures = Figures(
        spent.cpu_s() / n * 1e6, spent.store_cpu_s() / n * 1e6, idle_s / n * 1e6, spent.store_idle_s() / n * 1e6,
        spent.peak_mib, (spent.written + spent.store_bytes()) / n, kept / n, disk.most / n, calls / calls_s,
        sums.lag_s,
    )  # fmt: skip
    _check(home.name, sums, config)  # which HBase has to read them for
    return figures


def _log_calls(daemon: Daemon, when: str) -> None:
    """Print the calls of a store by name."""
    calls = {name: count for name, count in daemon.stats().items() if name.startswith("store.")}
    print(f"bench: since the restart {when}: {calls}", file=sys.stderr)


async def _await_quiet(daemon: Daemon, timeline: Timeline, fleet: Fleet, disk: Disk) -> None:
    """Wait until all hours are over, all points are stored, no row waits for compaction and hours are in blocks."""
    while timeline.now_s() <= fleet.end_s + QUIET_S:  # the daemon is not asked meanwhile: that would be a load
        disk.look()
        await trio.sleep(POLL_S)
    folded = -1
    while True:
        stats = daemon.stats()
        disk.look()
        is_stored = stats["ledger.stored"] == stats["ledger.received"]
        before, folded = folded, stats.get("compactor.folded-points", 0)
        if is_stored and folded == before and stats.get("compaction.queue.size", 0) <= QUIET_ROWS:
            return
        await trio.sleep(ASK_S)


def _share_of(cpu_s: Callable[[], float], seconds: float) -> float:
    """Return the CPU seconds a second of something that has nothing to do."""
    before = cpu_s()
    trio.run(trio.sleep, seconds)
    return (cpu_s() - before) / seconds


def _check(name: str, sent: Sums, config: Config) -> None:
    """End the benchmark unless the tables have exactly the points sent."""
    found = stored(config)
    same = math.isclose(found.values, sent.cents / 100, rel_tol=1e-9)
    if (found.points, found.times_s) != (sent.points, sent.times_s) or not same:
        raise SystemExit(f"{name}: {sent} were sent, {found} are stored: the figures mean nothing")


def _victoria(fleet: Fleet, speed: float, home: Path) -> Figures:
    spent, disk, sums = Spent(None), Disk(home), Sums()
    timeline = Timeline(speed, time.monotonic() + 1, fleet.start_s)
    for number, lines in enumerate(halves(fleet)):
        with running_victoria(home) as peer:
            got = trio.run(play, lines, fleet.connections, timeline, peer.port, b"", disk.look)
            sums = sums.plus(got, got.lag_s)
            peer.await_stored(got.points)
            spent.add(peer.pid)  # before the query that reads all points: tsd's are read back by another process
            if number == 1:
                _check_victoria(peer, fleet, sums)
                peer.await_merged()
                disk.look()
            spent.written += written_bytes(peer.pid)
            peer.stop()
        timeline = timeline.resumed()
    kept, n = disk.look(), sums.points
    return Figures(
        spent.cpu_s() / n * 1e6, 0, 0, 0, spent.peak_mib, spent.written / n, kept / n, disk.most / n, 0, sums.lag_s
    )


def _opentsdb(fleet: Fleet, speed: float, home: Path, hbase: Hbase, idle_share: float) -> Figures:
    spent = Spent(hbase, idle_share)
    settings = hbase.settings(home.name)
    past = fleet._replace(start_s=next_hour_s() - (math.ceil(fleet.hours) + 3) * HOUR_S)
    with running_opentsdb(home, hbase, settings, compacts=True) as peer:
        timeline = Timeline(speed, time.monotonic() + 1, past.start_s)
        sums = trio.run(
            play, batches(past), fleet.connections, timeline, peer.port, b"version\n", lambda: None, b"net.opentsdb"
        )
        peer.await_idle()
        ended = peer.stop()
    config, _ = read_config(Given("benchmark", key, value) for key, value in settings.items())
    n = sums.points
    written = (ended.written + spent.store_bytes()) / n
    figures = Figures(
        ended.cpu_s / n * 1e6, spent.store_cpu_s() / n * 1e6, 0, spent.store_idle_s() / n * 1e6, ended.peak_mib,
        written, 0, 0, 0, sums.lag_s,
    )  # fmt: skip
    _check(home.name, sums, config)
    return figures


def _check_victoria(peer: Victoria, fleet: Fleet, sent: Sums) -> None:
    peer.check(fleet.start_s, fleet.end_s, sent.points)
    query = f'sum(sum_over_time({{__name__=~".+"}}[{fleet.end_s - fleet.start_s}s]))'
    found = float(peer.query("query", {"query": query, "time": fleet.end_s - 1, "nocache": 1})[0]["value"][1])
    if not math.isclose(found, sent.cents / 100, rel_tol=1e-9):
        raise SystemExit(f"VictoriaMetrics: the sum is {found}, sent {sent}: the figures mean nothing")


def _report(fleet: Fleet, speed: float, found: dict[str, list[Figures]]) -> str:
    rows = []
    for name, figures in found.items():
        peers = found.get(OPENTSDB if name in ON_HBASE else VICTORIA, [])
        ratios = [a.all_us / b.all_us for a, b in zip(figures, peers, strict=False)]
        rows.append(
            [
                name,
                spread([f.cpu_us for f in figures]),
                spread(ratios) if ratios else "",
                spread([f.idle_us for f in figures]) if name not in (VICTORIA, OPENTSDB) else "",
                spread([f.store_cpu_us for f in figures]) if any(f.store_cpu_us for f in figures) else "",
                spread([f.store_idle_us for f in figures]) if any(f.store_cpu_us for f in figures) else "",
                spread([f.peak_mib for f in figures], 0),
                spread([f.written for f in figures], 1),
                spread([f.kept for f in figures]) if any(f.kept for f in figures) else "",
                spread([f.most for f in figures]) if any(f.kept for f in figures) else "",
                spread([f.calls_per_s for f in figures], 0) if any(f.calls_per_s for f in figures) else "",
                spread([f.lag_s for f in figures], 0),
            ]
        )
    head = [
        "system", "CPU µs/point", "× peer", "of it when idle", "HBase CPU µs/point", "of it when idle", "peak MiB",
        "bytes written/point", "bytes kept/point", "most bytes/point", "HBase calls/s", "lag s",
    ]  # fmt: skip
    return (
        f"{fleet.points:,} points of {fleet.hosts * METRICS:,} series, one per {fleet.round_s} s for "
        f"{fleet.hours:g} h, {fleet.late:.0%} of them late, {fleet.churn:.0%} of the hosts replaced per hour, "
        f"{fleet.connections} connections, a restart halfway; {speed:g} times as fast as in reality; {machine()}. "
        "All points were read back. "
        "Lag: simulated time by which lines were sent late, at most; more than some rounds is not the agents' pace. "
        "The peer of what is on HBase is OpenTSDB, HBase's CPU included; that of the others is VictoriaMetrics.\n\n"
        + table(head, rows)
    )


def next_hour_s() -> int:
    """Return the start of the next full hour: no daemon has seen a part of it, and no peer refuses its points."""
    return (int(time.time()) // HOUR_S + 1) * HOUR_S  # noqa: TID251 (the benchmark's own clock)
