"""Tables of entities: what they cost a point, and what reads take, next to queries of an OpenTSDB on the same HBase.

One data set is an hour of some machines with many metrics each, the other the newest values of many machines. Both are
in a past hour, so all points are in the store. A loop of additions tells how fast a core is; the same lines without
entities tell what the tables add.
"""

import http.client
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import click
import numpy as np
import trio

from bench.daemon import Daemon, serving
from bench.peers import Opentsdb, running_hbase, running_opentsdb
from bench.process_usage import Usage
from bench.report import machine, publish, spread, table
from bench.telnet import Telnet
from scripts.peers import hbase as hbase_peer
from tsd.codec.points import Columns, Int32, Int64, joined_columns
from tsd.config.loader import Given
from tsd.daemon.settings import read_config
from tsd.daemon.wiring import create_tables, opened_store
from tsd.store.rocksdb.engine import EmbeddedStore
from tsd.tables.entity.newest import NewestValues
from tsd.tables.entity.tables import EntityTables
from tsd.tables.entity.writer import EntityWriter
from tsd.tables.writing import Hours, PointWriter, SeriesKeys, SeriesLookup, SeriesText, SummaryWriter

START_S = 1_700_002_800  # the start of an hour
HOUR_S = 3600
NEWEST_METRICS = 10
BATCH_LINES = 20_000
LOADED_MACHINES = 5  # whose lines come together
ADDITIONS = 20_000_000
WARM_UPS = 5  # fewer before slow reads
QUIET_CPU = 0.2  # HBase merges its files no more below this use of a core
POLL_S, LONGEST_S = 2, 120
COMPARED_MACHINES = 100  # whose lines are also sent without entities


class Size(NamedTuple):
    """Amount of data."""

    machines: int  # with an hour of points
    metrics: int  # of each
    step_s: int  # between two points
    inventory: int  # machines with one point of each of NEWEST_METRICS

    @property
    def points(self) -> int:
        """Number of points."""
        return self.machines * self.metrics * len(range(0, HOUR_S, self.step_s)) + self.inventory * NEWEST_METRICS


def lines(size: Size) -> Iterator[bytes]:
    """Yield put lines: an hour of some machines in order of times, then that of the next ones. So a window has whole
    hours, as with a current hour, which is held in memory."""
    for first in range(0, size.machines, LOADED_MACHINES):
        hosts = range(first, min(first + LOADED_MACHINES, size.machines))
        for time_s in range(START_S, START_S + HOUR_S, size.step_s):
            for host in hosts:
                for metric in range(size.metrics):
                    yield b"put sys.m%03d %d %d.5 host=h%05d dc=eu" % (metric, time_s, (time_s + host) % 100, host)
    for host in range(size.inventory):
        for metric in range(NEWEST_METRICS):
            yield b"put inv.m%d %d %d host=n%05d" % (metric, START_S, host % 250, host)


def send(daemon: Daemon, size: Size) -> None:
    """Send all lines, and return once they are stored."""
    part: list[bytes] = []
    with Telnet(daemon.port) as telnet:
        for line in lines(size):
            part.append(line)
            if len(part) == BATCH_LINES:
                assert not telnet.request(b"\n".join(part))
                part = []
        if part:
            assert not telnet.request(b"\n".join(part))
    daemon.flush()
    daemon.await_stored(size.points)


class Client:
    """One connection to a system."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)

    def get(self, path: str) -> bytes:
        """Return the body of an answer."""
        self._connection.request("GET", path)
        answer = self._connection.getresponse()
        body = answer.read()
        if answer.status != 200:
            raise SystemExit(f"{path}: {answer.status} {body[:500]!r}")
        return body


class Taken(NamedTuple):
    """What calls took."""

    ms: list[float]  # of each
    cpu_ms: float  # of the daemon, on average


def timed(call: Callable[[], object], usage: Callable[[], Usage], rounds: int, warm_ups: int = WARM_UPS) -> Taken:
    """Return what calls take, after some that are not counted."""
    for _ in range(warm_ups):
        call()
    taken = []
    before = usage().cpu_s
    for _ in range(rounds):
        begun = time.perf_counter()
        call()
        taken.append((time.perf_counter() - begun) * 1000)
    return Taken(taken, (usage().cpu_s - before) * 1000 / rounds)


def await_quiet(cpu_s: Callable[[], float]) -> None:
    """Return once a process is done with what it was sent, after LONGEST_S at the latest."""
    for _ in range(LONGEST_S // POLL_S):
        before = cpu_s()
        trio.run(trio.sleep, POLL_S)
        if cpu_s() - before < QUIET_CPU * POLL_S:
            return


def reads(daemon: Daemon, size: Size, rounds: int) -> dict[str, Taken]:
    """Return what reads take, after checks of the answers."""
    client = Client(daemon.port)
    one = f"/api/entity/h{size.machines // 2:05d}?start={START_S}"
    found = json.loads(client.get(one))["series"]
    assert [len(series["dps"]) for series in found] == [HOUR_S // size.step_s] * size.metrics
    newest = f"/api/entity?prefix=n&limit={size.inventory}"
    entities = json.loads(client.get(newest))["entities"]
    assert [len(entity["series"]) for entity in entities] == [NEWEST_METRICS] * size.inventory
    return {
        "all series of one machine": timed(lambda: client.get(one), daemon.usage, rounds),
        "newest values": timed(lambda: client.get(newest), daemon.usage, max(rounds // 5, 3), 1),
    }


def queries(peer: Opentsdb, size: Size, rounds: int) -> dict[str, Taken]:
    """Return what the same reads take as queries: a request for each metric, and one request with all."""
    client, few = Client(peer.port), max(rounds // 5, 3)
    host = f"{{host=h{size.machines // 2:05d}}}"
    span = f"/api/query?start={START_S}&end={START_S + HOUR_S - 1}"
    paths = [f"{span}&m=sum:sys.m{metric:03d}{host}" for metric in range(size.metrics)]
    [group] = json.loads(client.get(paths[0]))
    assert len(group["dps"]) == HOUR_S // size.step_s
    every = span + "".join(f"&m=sum:sys.m{metric:03d}{host}" for metric in range(size.metrics))
    assert len(json.loads(client.get(every))) == size.metrics
    return {
        "all series of one machine": timed(lambda: [client.get(path) for path in paths], peer.usage, few, 1),
        "the same in one request": timed(lambda: client.get(every), peer.usage, few, 1),
    }


class _Silent(PointWriter):
    """Writes nothing: what remains is the cost of entities."""

    @property
    def cells(self) -> int:
        return 0

    @property
    def summaries(self) -> SummaryWriter | None:
        return None

    async def write(self, points: Columns, series: SeriesLookup, *, hours: Hours = Hours.OPEN) -> None:
        pass

    async def record(self, points: Columns, series: SeriesLookup) -> None:
        pass

    async def sync(self) -> None:
        pass


class _Lookup:
    """Series by their numbers."""

    def __init__(self, size: Size) -> None:
        self._texts = [
            SeriesText(b"sys.m%03d" % metric, b"host=h%05d dc=eu" % host)
            for host in range(size.machines)
            for metric in range(size.metrics)
        ]

    def __len__(self) -> int:
        return len(self._texts)

    def keys(self, numbers: Int32) -> SeriesKeys:
        return SeriesKeys.of(None for _ in numbers)

    def text(self, number: int) -> SeriesText | None:
        return self._texts[number]

    def generations(self, numbers: Int32) -> Int64:
        return np.ones(len(numbers), np.int64)


async def _costs(folder: Path, size: Size) -> dict[str, float]:
    """Return the CPU time in us a point of newest values in memory, and of both tables of the embedded store."""
    store = await EmbeddedStore.open(folder, lambda: 1)
    newest, lookup = NewestValues(b"host"), _Lookup(size)
    await EntityTables(store.versioned_cells).create()
    writer = EntityWriter(_Silent(), store.versioned_cells, newest)
    chance, count = np.random.default_rng(1), len(lookup)
    windows = [
        Columns(
            np.arange(count, dtype=np.int32),
            np.full(count, time_s * 2000),
            np.full(count, 11, np.uint8),
            chance.random(count, np.float32).view(np.int32).astype(np.int64),
        )
        for time_s in range(START_S, START_S + HOUR_S, size.step_s)
    ]
    await writer.record(windows[0], lookup)
    begun = time.process_time()
    for window in windows[1:]:
        await writer.record(window, lookup)
    record_s = time.process_time() - begun
    begun = time.process_time()
    await writer.write(joined_columns(windows), lookup)
    await store.sync()
    write_s = time.process_time() - begun
    await store.aclose()
    return {
        "newest values in memory": record_s * 1e6 / (len(windows) - 1) / count,
        "both tables, whole hours": write_s * 1e6 / len(windows) / count,
    }


def additions_s() -> float:
    """Return the CPU time of a loop of additions in Python, in s."""
    begun, total = time.process_time(), 0
    for number in range(ADDITIONS):
        total += number
    return time.process_time() - begun


def _stored_us(folder: Path, settings: dict[str, str], size: Size) -> float:
    """Return the daemon's CPU time for a point, from the line to the store, in us."""
    with serving(folder, settings) as daemon:
        before = daemon.usage()
        send(daemon, size)
        return (daemon.usage().cpu_s - before.cpu_s) * 1e6 / size.points


async def _create(settings: dict[str, str]) -> None:
    config, _ = read_config(Given("benchmark", key, value) for key, value in settings.items())
    async with opened_store(config) as store:
        await create_tables(config, store, "NONE")


@click.command()
@click.option("--machines", default=1000, help="Machines with an hour of points.")
@click.option("--metrics", default=100, help="Metrics of each.")
@click.option("--step", default=60, help="Seconds between two points.")
@click.option("--inventory", default=10_000, help="Machines with newest values of ten metrics.")
@click.option("--hbase-machines", default=1000, help="Machines with an hour of points on HBase; 0: without HBase.")
@click.option("--rounds", default=50, help="Reads of each kind.")
def entity(machines: int, metrics: int, step: int, inventory: int, hbase_machines: int, rounds: int) -> None:
    """Measure reads of entities and newest values next to queries of OpenTSDB, and what the tables cost a point."""
    size = Size(machines, metrics, step, inventory)
    entities = {"tsd.entity.enabled": "true", "tsd.core.auto_create_metrics": "true"}
    taken: dict[str, dict[str, Taken]] = {}
    with tempfile.TemporaryDirectory(prefix="tsd-bench-", ignore_cleanup_errors=True) as name, ExitStack() as stack:
        folder = Path(name)
        speed_s = additions_s()
        costs = trio.run(_costs, folder / "costs", size._replace(machines=min(size.machines, 200)))
        compared = size._replace(machines=min(size.machines, COMPARED_MACHINES), inventory=0)
        without = {"tsd.core.auto_create_metrics": "true"}
        costs["line to store, without entities"] = _stored_us(folder / "without", without, compared)
        costs["line to store, with entities"] = _stored_us(folder / "with", entities, compared)
        with serving(folder / "embedded", entities) as daemon:
            send(daemon, size)
            taken["tsd, embedded"] = reads(daemon, size, rounds)
        if hbase_machines:
            few = size._replace(machines=hbase_machines)
            base = stack.enter_context(running_hbase(folder / "hbase"))
            second = f"127.0.0.1:{hbase_peer.read(folder / 'hbase').thrift2_port}"
            settings = {**base.settings("entity"), **entities, "tsd.storage.hbase.thrift2": second}
            trio.run(_create, settings)
            with serving(folder / "on-hbase", settings) as daemon:
                begun = base.cpu_s()
                send(daemon, few)
                costs["HBase's CPU time, all tables"] = (base.cpu_s() - begun) * 1e6 / few.points
                await_quiet(base.cpu_s)
                taken["tsd, HBase"] = reads(daemon, few, rounds)
            peer = stack.enter_context(running_opentsdb(folder / "opentsdb", base, settings))
            taken["OpenTSDB, HBase"] = queries(peer, few, rounds)
    figures = {"costs": costs, "taken": taken, "additions_s": speed_s}
    publish("entity", _report(size, hbase_machines, costs, taken, speed_s), figures)


def _shown(taken: Taken) -> str:
    return f"{spread(taken.ms, 1)}, {taken.cpu_ms:.1f}"


def _report(size: Size, few: int, costs: dict[str, float], taken: dict[str, dict[str, Taken]], speed_s: float) -> str:
    names = list(dict.fromkeys(name for found in taken.values() for name in found))
    rows: list[Sequence[str]] = [
        [name, *(_shown(found[name]) if name in found else "" for found in taken.values())] for name in names
    ]
    text = table(["ms, of CPU", *taken], rows)
    if few:
        ours = statistics.median(taken["tsd, HBase"]["all series of one machine"].ms)
        theirs = [statistics.median(found.ms) for found in taken["OpenTSDB, HBase"].values()]
        text += f"\nOne read is {theirs[0] / ours:.1f} times as fast as {size.metrics} queries of OpenTSDB, "
        text += f"{theirs[1] / ours:.1f} times as one request with all of them.\n"
    shown = table(["µs of CPU a point", ""], [[name, f"{cost:.2f}"] for name, cost in costs.items()])
    return (
        f"{size.machines:,} machines (on HBase {few}) with {size.metrics} metrics, a point every {size.step_s} s for "
        f"an hour; {size.inventory:,} machines with {NEWEST_METRICS} newest values, warm; {machine()}; "
        f"{ADDITIONS:,} additions in Python take {speed_s:.1f} s of CPU.\n\n"
        f"{text}\n{shown}"
    )
