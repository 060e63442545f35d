"""The daemon compared with a real KairosDB on one Cassandra: the same lines over telnet, then the same queries.

Each system has a keyspace of its own: KairosDB, the daemon on KairosDB's tables, and the daemon on OpenTSDB's rows. All
points are counted through KairosDB's API before a figure counts.
"""

import os
import socket
import statistics
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import click
import msgspec
import trio

from bench.daemon import Daemon, serving
from bench.lines import METRICS_A_HOST, START_S, Load
from bench.process_usage import usage
from bench.report import machine, publish, spread, table
from bench.sender import send
from scripts.peers import cassandra
from scripts.peers import kairosdb as peer
from scripts.peers.process import pid_of
from tsd.config.loader import Given
from tsd.config.settings import Config
from tsd.daemon.settings import read_config
from tsd.daemon.wiring import create_tables, default_compression, opened_store

QUIET_S, STEP_S, STORED_S = 3.0, 0.25, 600  # KairosDB has stored all when it used no CPU for QUIET_S
IDLE = 0.05  # of a core
QUERY = "/api/v1/datapoints/query"
TURNS = 15
DAY_METRIC, DAY_SERIES, DAY_STEP_S, DAY_S = "bench.day", 1_000, 300, 86_400
Figures = dict[str, list[float]]


class System(NamedTuple):
    """One system to measure."""

    telnet_port: int
    http_port: int
    last: str  # command whose answer shows that all lines were read
    cpu_s: Callable[[], float]
    await_stored: Callable[[], float]  # the time by the monotonic clock at which all points were in Cassandra


@click.command()
@click.option("--series", default=1_000, help="Series.")
@click.option("--points", default=300, help="Points of each series per round.")
@click.option("--connections", default=4, help="Concurrent connections.")
@click.option("--rounds", "times", default=3, help="Rounds after a warm-up; all systems alternate in each.")
def kairosdb(series: int, points: int, connections: int, times: int) -> None:
    """Put and query lines, compared with a real KairosDB on the same Cassandra."""
    load = Load(series, points, connections)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tsd-bench-", ignore_cleanup_errors=True)))
        port = stack.enter_context(running_cassandra(folder / "cassandra"))
        base = {"tsd.storage.backend": "cassandra", "tsd.storage.cassandra.hosts": f"127.0.0.1:{port}"}
        systems = {
            "KairosDB": stack.enter_context(running_kairosdb(folder / "kairosdb", port)),
            "tsd, KairosDB's tables": stack.enter_context(
                running_tsd(folder / "shared", base | {"tsd.storage.layout": "kairosdb"}, "bench_shared")
            ),
            "tsd, OpenTSDB's rows": stack.enter_context(running_tsd(folder / "rows", base, "bench_rows")),
        }
        home = folder / "cassandra"
        found: dict[str, Figures] = {name: {"rate": [], "own": [], "with": []} for name in systems}
        for turn in range(times + 1):  # the first one warms up
            for name, one in systems.items():
                measured = _flood(load, one, home)
                for figure, value in measured.items() if turn else ():
                    found[name][figure].append(value)
            load = load.after
        wanted = (times + 1) * load.lines
        for name, one in systems.items():
            stored = count_points(one)
            if stored != wanted:
                raise SystemExit(f"{name}: {wanted} points were sent, {stored} are found: the figures mean nothing")
        for one in systems.values():
            _send_day(one)
        queries = _time_queries(systems)
    publish("kairosdb", _report(load, times, found, queries), {"floods": found, "queries": queries})


def _flood(load: Load, one: System, home: Path) -> dict[str, float]:
    """Send a load as fast as it is taken. Return lines/s until stored, and CPU µs a line with and without Cassandra."""
    cpu_s, with_s = one.cpu_s(), cassandra_s(home)
    sent = send(load, one.telnet_port, one.last)
    end = one.await_stored()
    own_us = (one.cpu_s() - cpu_s) / load.lines * 1e6
    with_us = own_us + (cassandra_s(home) - with_s) / load.lines * 1e6
    return {"rate": load.lines / (end - sent.start), "own": own_us, "with": with_us}


def cassandra_s(home: Path) -> float:
    """Return the CPU seconds that Cassandra used since its start."""
    return usage(_pid(home, cassandra.NAME)).cpu_s


def _pid(home: Path, name: str) -> int:
    found = pid_of(home, name)
    assert found, f"{name} does not run"
    return found


@contextmanager
def running_cassandra(home: Path) -> Iterator[int]:
    """Run a Cassandra, and yield its port."""
    started = cassandra.start(home, cassandra.Options(port=0, storage_port=0, heap="1500m", owner=os.getpid()))
    try:
        yield started.port
    finally:
        cassandra.kill(home)


@contextmanager
def running_kairosdb(home: Path, cql_port: int, keyspace: str = "bench_kairosdb") -> Iterator[System]:
    """Run a KairosDB on that Cassandra."""
    options = peer.Options(cql_port=cql_port, keyspace=keyspace, port=0, telnet_port=0, owner=os.getpid())
    ports = peer.start(home, options)

    def cpu_s() -> float:
        return usage(_pid(home, peer.NAME)).cpu_s

    def await_stored() -> float:
        deadline = time.monotonic() + STORED_S
        last_busy, before = time.monotonic(), cpu_s()
        while time.monotonic() - last_busy < QUIET_S:
            assert time.monotonic() < deadline, "KairosDB is still busy"
            time.sleep(STEP_S)  # noqa: TID251 (it measures a span of time)
            now = cpu_s()
            if now - before > IDLE * STEP_S:
                last_busy = time.monotonic()
            before = now
        return last_busy

    try:
        yield System(ports.telnet_port, ports.port, "version", cpu_s, await_stored)
    finally:
        peer.kill(home)


@contextmanager
def running_tsd(folder: Path, base: Mapping[str, str], keyspace: str) -> Iterator[System]:
    """Run a daemon with tables of its own on that Cassandra."""
    settings = {
        **base,
        "tsd.storage.cassandra.keyspace": keyspace,
        "tsd.kairosdb.enabled": "true",
        "tsd.core.auto_create_metrics": "true",
    }
    trio.run(_create_tables, read_config(Given("benchmark", key, value) for key, value in settings.items())[0])
    with serving(folder, settings) as daemon:
        yield System(daemon.port, daemon.port, "sync", lambda: daemon.usage().cpu_s, lambda: _flushed(daemon))


async def _create_tables(config: Config) -> None:
    async with opened_store(config) as store:
        await create_tables(config, store, default_compression(config).upper())


def _flushed(daemon: Daemon) -> float:
    daemon.flush()
    return daemon.await_stored(daemon.stats()["ledger.received"])


def _ask(one: System, *metrics: Mapping[str, Any]) -> Any:
    body = msgspec.json.encode({"start_absolute": 0, "time_zone": "UTC", "metrics": metrics})
    with urllib.request.urlopen(f"http://127.0.0.1:{one.http_port}{QUERY}", body, timeout=STORED_S) as answer:
        return msgspec.json.decode(answer.read())["queries"]


def count_points(one: System) -> int:
    """Return how many points a system finds."""
    counting = {"name": "count", "sampling": {"value": 10, "unit": "years"}}
    metrics = [{"name": f"bench.host.metric{at}", "aggregators": [counting]} for at in range(METRICS_A_HOST)]
    return sum(query["sample_size"] for query in _ask(one, *metrics))


def _send_day(one: System) -> None:
    """Send a day of DAY_SERIES series of one metric, and return when it is stored."""
    with socket.create_connection(("127.0.0.1", one.telnet_port), timeout=STORED_S) as connection:
        for at_s in range(START_S, START_S + DAY_S, DAY_STEP_S):
            lines = [
                b"put %s %d %d.%d host=web%05d dc=fra%d\n"
                % (DAY_METRIC.encode(), at_s, (n * 7 + at_s // DAY_STEP_S) % 100, n % 10, n, n % 3)
                for n in range(DAY_SERIES)
            ]
            connection.sendall(b"".join(lines))
        connection.sendall(one.last.encode() + b"\n")
        assert connection.recv(65536)
    one.await_stored()


def _step(name: str, value: int, unit: str) -> dict[str, Any]:
    return {"name": name, "sampling": {"value": value, "unit": unit}}


QUERIES: Mapping[str, Mapping[str, Any]] = {
    "one series, all points": {"tags": {"host": ["web00003"]}},
    "a tag's third of the series, average of 10 min": {
        "tags": {"dc": ["fra1"]},
        "aggregators": [_step("avg", 10, "minutes")],
    },
    "all series, sum of a minute": {"aggregators": [_step("sum", 1, "minutes")]},
    "all series by host, maximum of an hour": {
        "group_by": [{"name": "tag", "tags": ["host"]}],
        "aggregators": [_step("max", 1, "hours")],
    },
    "1,000 series over a day, sum of 10 min": {"name": DAY_METRIC, "aggregators": [_step("sum", 10, "minutes")]},
    "1,000 series over a day by host, maximum of an hour": {
        "name": DAY_METRIC,
        "group_by": [{"name": "tag", "tags": ["host"]}],
        "aggregators": [_step("max", 1, "hours")],
    },
}


def _time_queries(systems: Mapping[str, System]) -> dict[str, dict[str, float]]:
    """Return the median duration of each query in ms by system, asked in turn, after a warm-up. Answers must agree in
    their numbers of points."""
    found: dict[str, dict[str, float]] = {}
    for title, query in QUERIES.items():
        wanted = {"name": "bench.host.metric1", **query}
        times: dict[str, list[float]] = {name: [] for name in systems}
        sizes = set()
        for turn in range(2 * TURNS):
            for name, one in systems.items():
                start = time.perf_counter()
                [answer] = _ask(one, wanted)
                if turn >= TURNS:
                    times[name].append((time.perf_counter() - start) * 1000)
                sizes.add((answer["sample_size"], len(answer["results"])))
        assert len(sizes) == 1, f"{title}: answers of different sizes: {sizes}"
        found[title] = {name: statistics.median(each) for name, each in times.items()}
    return found


def _report(load: Load, times: int, found: Mapping[str, Figures], queries: Mapping[str, Mapping[str, float]]) -> str:
    base = {figure: statistics.median(values) for figure, values in found["KairosDB"].items()}
    rows = []
    for name, figures in found.items():
        ratios = [f"{statistics.median(figures[figure]) / base[figure]:.2f}" for figure in ("rate", "own", "with")]
        shown = [spread(figures["rate"], 0), spread(figures["own"], 1), spread(figures["with"], 1)]
        rows.append([name, *(f"{value} = {ratio} ×" for value, ratio in zip(shown, ratios, strict=True))])
    asked = [
        [title, *(f"{ms:,.1f} = {medians['KairosDB'] / ms:.1f} ×" for ms in medians.values())]
        for title, medians in queries.items()
    ]
    head = (
        f"{load.series:,} series × {load.points:,} points, {load.connections} connections, {times} rounds; {machine()}."
    )
    flood = table(["flood", "lines/s until stored", "CPU µs a line", "with Cassandra's"], rows)
    return f"{head}\n\n{flood}\n" + table(["query, ms (and KairosDB's ms / these)", *found], asked)
