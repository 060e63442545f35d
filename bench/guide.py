"""The three loads of Google's guide to schemas of time series, scaled, on rows of events and days (layout `tall`).

Machines send all of their metrics every five seconds, and meters a reading each quarter of an hour. Exchanges send
quotes and trades, most of a few tickers. On each engine the daemon stores the same lines as OpenTSDB's rows, too: what
counts is the ratio of both in one run. Stored rows are counted and sized, for the same loads at the guide's scale.
The newest values of all machines are read from the tables of entities, on the engines that keep versions of cells.
"""

import contextlib
import json
import math
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import click
import numpy as np
import trio

from bench.daemon import Daemon, serving
from bench.entity import ADDITIONS, Client, Taken, additions_s, timed
from bench.peers import running_hbase
from bench.report import machine, publish, spread, table
from bench.telnet import Telnet
from scripts.peers import bigtable, cassandra
from scripts.peers import hbase as hbase_peer
from tsd.config.loader import Given
from tsd.config.settings import Config
from tsd.daemon.settings import read_config
from tsd.daemon.wiring import create_tables, default_compression, has_local_store, opened_store
from tsd.store import scan
from tsd.tables.checkpoint import Checkpoint
from tsd.tables.tall.export import DayCopy, copy_day
from tsd.tables.tall.tables import TallTables, copy_name

START_S = 1_389_312_000  # 2014-01-10
STEP_S, QUARTER_S, DAY_S = 5, 900, 86_400
METRICS = 100  # of a machine
RULES = (
    "{0}QUOTE {{exchange:6}}#{{symbol:5}}#{{ts}} QUOTE.*; {0}TRADE {{exchange:6}}#{{symbol:5}}#{{ts}} TRADE.*; "
    "{0}SENSOR {{meter:010=ID}}#{{day}} meter.kwh; {0}METRIC {{host:24}}#{{ts}} *"
)
QUOTE, TRADE = ("BID", "ASK", "BIDSIZE", "ASKSIZE"), ("LASTSALE", "LASTSIZE", "VOLUME")
EXCHANGES = ("NYSE", "NASDAQ", "LSE", "AMEX")
TICKERS, HOT, HOT_SHARE, SKEW = 5000, 300, 0.9, 1.1
BATCH = 20_000  # lines
ENGINES = ("embedded", "hbase", "cassandra", "bigtable")
NODE_ROWS, NODE_BYTES = 10_000, 220e6  # a second and node of Bigtable, as its documentation has them
LAYOUTS = ("tall", "opentsdb")
TABLES = {
    **{f"tsd.storage.hbase.{name}_table": f"newest-{name}" for name in ("data", "uid", "tree", "meta")},
    "tsd.query.series_table": "newest-series",
}
ENTITIES = {**TABLES, "tsd.entity.enabled": "true"}
VERSIONED = ("embedded", "hbase", "bigtable")  # engines that have the tables of entities


class Size(NamedTuple):
    """Amount of data."""

    machines: int
    times: int  # of each machine, STEP_S apart
    meters: int
    messages: int  # of exchanges


class Load(NamedTuple):
    """Lines, and a query of some of their points."""

    name: str
    lines: Sequence[bytes]
    query: str
    series: int  # that the query finds
    points: int  # of all of them


class Stored(NamedTuple):
    """What a table has."""

    rows: int
    cells: int
    size: int  # bytes of row keys, columns and values, each row key once


class Figures(NamedTuple):
    """What one engine and layout took."""

    cpu_us: dict[str, float]  # of the daemon, a point of each load
    per_s: dict[str, float]
    queries: dict[str, Taken]


def loads(size: Size) -> list[Load]:
    """Return the loads."""
    chance = np.random.default_rng(1)
    host = f"server{size.machines // 2:04d}.bbb.com"
    metrics = [f"{('CPU', 'IO', 'NET', 'MEM')[number % 4]}/M{number:02d}" for number in range(METRICS)]
    server = [
        b"put %s %d %s host=server%04d.bbb.com"
        % (
            metric.encode(),
            START_S + at * STEP_S,
            b"%.2f" % chance.uniform(0, 100) if number % 5 == 0 else b"%d" % at,
            one,
        )
        for at in range(size.times)
        for one in range(size.machines)
        for number, metric in enumerate(metrics)
    ]
    meters = [
        b"put meter.kwh %d %.2f meter=%d" % (START_S + at * QUARTER_S, chance.uniform(0, 5), one)
        for at in range(DAY_S // QUARTER_S)
        for one in range(size.meters)
    ]
    one = size.meters // 2
    ticks, counts = _ticks(size, chance)
    hot = max(counts, key=lambda ticker: counts[ticker])
    sums = "".join(f"&m=none:{metric}{{host={host}}}" for metric in metrics)
    quotes = "".join(f"&m=none:QUOTE.{field}{{exchange={hot[0]},symbol={hot[1]}}}" for field in QUOTE)
    end_s = START_S + size.times * STEP_S
    return [
        Load("machines", server, f"start={START_S}&end={end_s}{sums}", METRICS, METRICS * size.times),
        Load("meters", meters, f"start={START_S}&end={START_S + DAY_S - 1}&m=none:meter.kwh{{meter={one}}}", 1, 96),
        Load("ticks", ticks, f"start={START_S}&end={START_S + DAY_S}&ms=true{quotes}", len(QUOTE), 4 * counts[hot]),
    ]


def _ticks(size: Size, chance: np.random.Generator) -> tuple[list[bytes], dict[tuple[str, str], int]]:
    """Return the lines of messages, and the messages of each ticker that have a time of their own."""
    weights = np.arange(1, HOT + 1) ** -SKEW
    hot = chance.choice(HOT, size.messages, p=weights / weights.sum())
    cold = chance.integers(HOT, TICKERS, size.messages)
    tickers = np.where(chance.random(size.messages) < HOT_SHARE, hot, cold).tolist()
    lines: list[bytes] = []
    times: dict[tuple[str, str], set[int]] = {}
    for number, ticker in enumerate(tickers):
        exchange, symbol, time_ms = EXCHANGES[ticker % 4], f"T{ticker:04d}", START_S * 1000 + number
        tags = f"exchange={exchange} symbol={symbol}"
        times.setdefault((exchange, symbol), set()).add(time_ms)
        for metric in (*(f"QUOTE.{field}" for field in QUOTE), *(f"TRADE.{field}" for field in TRADE)):
            value = (
                f"{600 + number % 100 / 100:.2f}" if metric.endswith(("BID", "ASK", "SALE")) else f"{number % 900 + 1}"
            )
            lines.append(f"put {metric} {time_ms} {value} {tags}".encode())
    return lines, {ticker: len(found) for ticker, found in times.items()}


def _store(daemon: Daemon, load: Load, already: int) -> tuple[float, float]:
    """Send a load. Return its CPU time in us a point, and points/s, until all are in the store."""
    before, begun = daemon.usage().cpu_s, time.monotonic()
    with Telnet(daemon.port) as telnet:
        for at in range(0, len(load.lines), BATCH):
            answer = telnet.request(b"\n".join(load.lines[at : at + BATCH]))
            assert not answer, answer[:500]
    daemon.flush()
    end = daemon.await_stored(already + len(load.lines))
    return (daemon.usage().cpu_s - before) * 1e6 / len(load.lines), len(load.lines) / (end - begun)


def _measure(folder: Path, settings: Mapping[str, str], every: Sequence[Load], rounds: int) -> Figures:
    """Store and query all loads."""
    found = Figures({}, {}, {})
    with serving(folder, settings) as daemon:
        already = 0
        for load in every:
            found.cpu_us[load.name], found.per_s[load.name] = _store(daemon, load, already)
            already += len(load.lines)
        client = Client(daemon.port)
        for load in every:
            path = f"/api/query?{load.query}"
            groups = json.loads(client.get(path))
            got = len(groups), sum(len(group["dps"]) for group in groups)
            if got != (load.series, load.points):
                raise SystemExit(f"{load.name}: got {got} series and points, wanted {load.series, load.points}")
            found.queries[load.name] = timed(lambda path=path: client.get(path), daemon.usage, rounds, 1)  # type: ignore[misc]
    return found


def _newest(folder: Path, settings: Mapping[str, str], machines: Load, size: Size, rounds: int) -> Taken:
    """Store the load of machines as OpenTSDB's rows and entities, and read the newest values of all machines."""
    with serving(folder, settings) as daemon:
        _store(daemon, machines, 0)
        client, path = Client(daemon.port), f"/api/entity?limit={size.machines}"
        found = [len(entity["series"]) for entity in json.loads(client.get(path))["entities"]]
        if found != [METRICS] * size.machines:
            raise SystemExit(f"got {found} newest values, wanted {METRICS} of {size.machines} machines")
        return timed(lambda: client.get(path), daemon.usage, rounds, 1)


async def _day(config: Config, folder: Path) -> tuple[DayCopy, float, float, dict[str, Stored]]:
    """Copy the day of the meters, and scan the copy. Return both times, and what all tables have."""
    async with opened_store(config) as store:
        rules = config.tall_tables()
        [rule] = [each for each in rules if "meter" in each.metrics]
        begun = time.monotonic()
        tables = TallTables(store, rules, config.tall_series)
        checkpoint = Checkpoint(folder / "export.json", ["guide"])
        compression = default_compression(config).upper()
        done = await copy_day(tables, rule, START_S * 1000, checkpoint, compression=compression)
        copied = time.monotonic()
        day = [row async for page in scan(store, copy_name(rule.table, START_S * 1000)) for row in page]
        scanned = time.monotonic()
        assert len(day) == done.rows, (len(day), done)
        found: dict[str, Stored] = {}
        for each in rules:
            rows = [row async for page in scan(store, each.table) for row in page]
            cells = [cell for row in rows for cell in row.cells]
            size = sum(len(row.key) for row in rows) + sum(len(cell.column) + len(cell.value) for cell in cells)
            found[each.table] = Stored(len(rows), len(cells), size)
        return done, copied - begun, scanned - copied, found


@contextlib.contextmanager
def _engine(name: str, home: Path) -> Iterator[dict[str, str]]:
    """Start the servers of an engine. Yield the settings of its store."""
    with ExitStack() as stack:
        if name == "hbase":
            base = stack.enter_context(running_hbase(home))
            second = f"127.0.0.1:{hbase_peer.read(home).thrift2_port}"
            yield {**base.settings("guide"), "tsd.storage.hbase.thrift2": second}
        elif name == "cassandra":
            port = cassandra.start(home, cassandra.Options(port=0, storage_port=0, heap="1g", owner=os.getpid())).port
            stack.callback(cassandra.kill, home)
            yield {"tsd.storage.backend": name, "tsd.storage.cassandra.hosts": f"127.0.0.1:{port}"}
        elif name == "bigtable":
            port = bigtable.start(home, bigtable.Options(port=0, owner=os.getpid())).port
            stack.callback(bigtable.kill, home)
            place = {"emulator": f"127.0.0.1:{port}", "project": "bench", "instance": "bench"}
            yield {"tsd.storage.backend": name, **{f"tsd.storage.bigtable.{key}": each for key, each in place.items()}}
        else:
            yield {}


def _prepared(state: Path, settings: Mapping[str, str]) -> Config:
    """Return the configuration of a daemon, whose tables are there."""
    given = {**settings, "tsd.storage.path": str(state)}
    config, _ = read_config(Given("benchmark", key, value) for key, value in given.items())
    if not has_local_store(config):  # which makes its tables itself
        trio.run(_create, config)
    return config


async def _create(config: Config) -> None:
    async with opened_store(config) as store:
        await create_tables(config, store, default_compression(config).upper())


@click.command()
@click.option("--machines", default=10, help="Machines with 100 metrics.")
@click.option("--times", default=60, help="Times of each machine, five seconds apart.")
@click.option("--meters", default=1000, help="Meters with a reading each quarter of an hour of a day.")
@click.option("--messages", default=10_000, help="Messages of exchanges, each a quote and a trade.")
@click.option("--engines", "engine_names", default=",".join(ENGINES), help="Engines, separated by commas.")
@click.option("--rounds", default=20, help="Queries of each kind.")
def guide(machines: int, times: int, meters: int, messages: int, engine_names: str, rounds: int) -> None:
    """Store and query the loads of Bigtable's schema guide as rows of events and days, next to OpenTSDB's rows."""
    size = Size(machines, times, meters, messages)
    every = loads(size)
    speed_s = additions_s()
    found: dict[str, dict[str, Figures]] = {}
    days: dict[str, tuple[DayCopy, float, float]] = {}
    newest: dict[str, Taken] = {}
    stored: dict[str, Stored] = {}
    with tempfile.TemporaryDirectory(prefix="tsd-bench-", ignore_cleanup_errors=True) as name:
        for engine in engine_names.split(","):
            folder = Path(name) / engine
            with _engine(engine, folder / "server") as place:
                common = {**place, "tsd.core.auto_create_metrics": "true", "tsd.storage.enable_compaction": "false"}
                for layout in LAYOUTS:
                    settings = {**common, "tsd.storage.layout": layout, "tsd.tall.tables": RULES.format("")}
                    state = folder / layout
                    config = _prepared(state, settings)
                    found.setdefault(engine, {})[layout] = _measure(state, settings, every, rounds)
                    if layout == "tall":
                        done, copy_s, scan_s, sizes = trio.run(_day, config, folder)
                        days[engine] = done, copy_s, scan_s
                        stored = stored or sizes
                if engine in VERSIONED:
                    settings = {**common, **ENTITIES}
                    _prepared(folder / "newest", settings)
                    newest[engine] = _newest(folder / "newest", settings, every[0], size, rounds)
    shown = {name: (vars(each[0]), *each[1:]) for name, each in days.items()}
    figures = {"found": found, "days": shown, "newest": newest, "stored": stored, "additions_s": speed_s}
    publish("guide", _report(size, every, found, days, newest, stored, speed_s), figures)


def _report(
    size: Size,
    every: Sequence[Load],
    found: Mapping[str, Mapping[str, Figures]],
    days: Mapping[str, tuple[DayCopy, float, float]],
    newest: Mapping[str, Taken],
    stored: Mapping[str, Stored],
    speed_s: float,
) -> str:
    rows = []
    for engine, both in found.items():
        for load in every:
            tall, rest = (both[layout] for layout in LAYOUTS)
            ours, theirs = (each.queries[load.name] for each in (tall, rest))
            rows.append([
                engine, load.name, f"{tall.cpu_us[load.name]:.1f}", f"{rest.cpu_us[load.name]:.1f}",
                f"{tall.per_s[load.name] / rest.per_s[load.name]:.2f}", spread(ours.ms, 1), spread(theirs.ms, 1),
                f"{ours.cpu_ms:.1f}", f"{theirs.cpu_ms:.1f}",
            ])  # fmt: skip
    head = [
        "engine",
        "load",
        "µs of CPU a point",
        "OpenTSDB's rows",
        "points/s, ratio",
        "query, ms",
        "OpenTSDB's rows",
        "query, ms of CPU",
        "OpenTSDB's rows",
    ]
    text = table(head, rows) + "\n"
    copies = [
        [name, f"{done.rows:,}", f"{copy_s:.2f}", f"{scan_s:.2f}"] for name, (done, copy_s, scan_s) in days.items()
    ]
    text += table(["engine", "rows of the day", "tsd export, s", "scan of the copy, s"], copies) + "\n"
    values = [[name, spread(taken.ms, 1), f"{taken.cpu_ms:.1f}"] for name, taken in newest.items()]
    text += table(["engine", f"newest values of {size.machines:,} machines, ms", "ms of CPU"], values) + "\n"
    sizes = [
        [name, f"{each.rows:,}", f"{each.cells:,}", f"{each.size / each.rows:.0f}", f"{each.size / each.cells:.1f}"]
        for name, each in stored.items()
    ]
    text += table(["table", "rows", "cells", "bytes a row", "bytes a cell"], sizes) + "\n" + _paper(stored)
    return (
        f"{size.machines:,} machines × {METRICS} metrics × {size.times} times, {size.meters:,} meters × 96 readings, "
        f"{size.messages:,} messages of {TICKERS:,} tickers; {machine()}; {ADDITIONS:,} additions in Python take "
        f"{speed_s:.1f} s of CPU.\n\n{text}"
    )


def _paper(stored: Mapping[str, Stored]) -> str:
    """Return rows, bytes and nodes at the guide's scale, from the measured sizes of rows."""
    scales: list[tuple[str, str, float, float]] = [  # table, load, writes a second, rows a day
        ("METRIC", "100,000 machines each 5 s", 20_000, 1.728e9),
        ("SENSOR", "10,000,000 meters each 15 min", 11_111, 1e7),
        ("QUOTE", "5,000 messages/s, 6.5 h", 5_000, 1.17e8),
        ("TRADE", "5,000 messages/s, 6.5 h", 5_000, 1.17e8),
    ]
    rows = []
    for name, load, per_s, a_day in scales:
        each = stored[name].size / stored[name].rows
        rows.append([
            name, load, f"{per_s:,.0f}", f"{a_day:,.0f}", f"{a_day * each / 1e9:,.1f}",
            f"{max(math.ceil(per_s / NODE_ROWS), 1)}", f"{a_day * each / NODE_BYTES:,.0f}",
        ])  # fmt: skip
    head = ["table", "load", "row writes/s", "rows a day", "GB a day", "nodes to write", "s of one node to scan a day"]
    return f"At {NODE_ROWS:,} row writes/s and {NODE_BYTES / 1e6:.0f} MB/s of scans a node:\n\n{table(head, rows)}"
