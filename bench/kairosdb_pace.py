"""The agents' pace on Cassandra, next to KairosDB: a point of each series a round, each round stored on its own.

The daemon writes what it holds after each round, as at an interval of 10 s, or once at the end, as at one of ten
minutes. Its default is 30 s. What it wrote in parts is compacted before the figures count. Each system first takes an
hour of the same series that does not count, since a Java program is several times slower when it starts. Sizes are
those of the files after a clean stop of Cassandra, all tables compressed with Zstd.
"""

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import click

from bench.kairosdb import (
    System,
    cassandra_s,
    count_points,
    running_cassandra,
    running_kairosdb,
    running_tsd,
)
from bench.lines import Load, rounds
from bench.report import machine, publish, table
from scripts.peers import cassandra
from tsd.codec.putline import HOUR_S
from tsd.store.cassandra.driver import connect
from tsd.store.cassandra.session import Contact

COMPRESSION = "{'class': 'ZstdCompressor'}"
KEYSPACES = {
    "KairosDB": "pace_kairosdb",
    "KairosDB's tables": "pace_shared",
    "rows": "pace_rows",
    "compacted": "pace_rows",
    "long": "pace_long",
}
TITLES = {
    "KairosDB": "KairosDB",
    "KairosDB's tables": "tsd, KairosDB's tables",
    "rows": "tsd, OpenTSDB's rows, each round written",
    "compacted": "their compaction",
    "long": "tsd, OpenTSDB's rows, written once",
}


class Cost(NamedTuple):
    """What a point cost."""

    own_us: float  # CPU of the system, without Cassandra's
    with_us: float  # with Cassandra's
    stored_bytes: float


@click.command()
@click.option("--series", default=1_000, help="Series.")
@click.option("--rounds", "count", default=60, help="Points of each series, ten seconds apart.")
def kairosdb_pace(series: int, count: int) -> None:
    """Points at the agents' pace, and their bytes, compared with a real KairosDB on the same Cassandra."""
    load = Load(series, count, 1)
    costs: dict[str, tuple[float, float]] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tsd-bench-", ignore_cleanup_errors=True)))
        home = folder / "cassandra"
        port = stack.enter_context(running_cassandra(home))
        base = {
            "tsd.storage.backend": "cassandra",
            "tsd.storage.cassandra.hosts": f"127.0.0.1:{port}",
            "tsd.storage.enable_compaction": "false",
            "tsd.storage.flush_interval": "3600000",
        }
        shared = base | {"tsd.storage.layout": "kairosdb"}
        with running_kairosdb(folder / "kairosdb", port, KEYSPACES["KairosDB"]) as one:
            _compress(port, KEYSPACES["KairosDB"])
            costs["KairosDB"] = _measure(load, one, home, each=False)
        for name, settings in (("KairosDB's tables", shared), ("rows", base), ("long", base)):
            with running_tsd(folder / name, settings, KEYSPACES[name]) as one:
                costs[name] = _measure(load, one, home, each=name != "long")
            if name == "rows":
                costs["compacted"] = _compact(load, folder / name, settings, home)
        cassandra.stop(home)
        found = {
            name: Cost(*cost, _size(home / "data" / KEYSPACES[name]) / load.lines / 2) for name, cost in costs.items()
        }
    publish("kairosdb-pace", _report(load, found), {"costs": found})


def _measure(load: Load, one: System, home: Path, *, each: bool) -> tuple[float, float]:
    """Send a load and the next hour's, round by round. Return CPU µs a point of the second one, without and with
    Cassandra's, until all is stored and found. With `each`, each round is stored before the next one."""
    _send(load, one, each=each)
    own_s, with_s = one.cpu_s(), cassandra_s(home)
    _send(load.after, one, each=each)
    own_us = (one.cpu_s() - own_s) / load.lines * 1e6
    with_us = own_us + (cassandra_s(home) - with_s) / load.lines * 1e6
    if (found := count_points(one)) != 2 * load.lines:
        raise SystemExit(f"{2 * load.lines} points were sent, {found} are found: the figures mean nothing")
    return own_us, with_us


def _send(load: Load, one: System, *, each: bool) -> None:
    """Send a load round by round, and wait until all is stored; with `each`, after each round."""
    with socket.create_connection(("127.0.0.1", one.telnet_port), timeout=600) as connection:
        for text in rounds(load, 0):
            connection.sendall(text + one.last.encode() + b"\n")
            assert connection.recv(65536)
            if each:
                one.await_stored()
    one.await_stored()


def _compact(load: Load, folder: Path, settings: Mapping[str, str], home: Path) -> tuple[float, float]:
    """Compact the rows of both hours with the command. Return CPU µs a point of the second one, without and with
    Cassandra's. The start of the command, measured where it finds no rows, does not count: a pass takes many rows."""
    as_later = {"tsd.storage.compaction.span_age": "1", "tsd.storage.cassandra.clock_limit": "0"}  # minutes later
    own = {"tsd.storage.path": str(folder), "tsd.storage.cassandra.keyspace": KEYSPACES["rows"]}
    given = {**settings, **own, **as_later}
    words = [word for key, value in given.items() for word in ("--set", f"{key}={value}")]
    second_s = load.after.start_s
    costs = []
    rows = []
    for part in (
        ["--until", str(second_s)],
        ["--since", str(second_s), "--until", str(second_s + HOUR_S)],
        ["--since", str(second_s + 2 * HOUR_S)],
    ):
        before, node_s = os.times(), cassandra_s(home)
        done = subprocess.run(
            [sys.executable, "-m", "tsd", *words, "compact", "--json", *part], check=True, stdout=subprocess.PIPE
        )
        rows.append(json.loads(done.stdout)["compacted"])
        after = os.times()
        own_s = after.children_user + after.children_system - before.children_user - before.children_system
        costs.append((own_s, own_s + cassandra_s(home) - node_s))
    if rows != [load.series, load.series, 0]:
        raise SystemExit(f"{load.series} rows of each hour were written, {rows} compacted: the figures mean nothing")
    _, whole, start = costs
    own_us, with_us = ((all_s - start_s) / load.lines * 1e6 for all_s, start_s in zip(whole, start, strict=True))
    return own_us, with_us


def _compress(port: int, keyspace: str) -> None:
    """Compress KairosDB's points as the daemon's tables are."""
    session = connect(Contact((("127.0.0.1", port),)))
    try:
        session.command(f'ALTER TABLE "{keyspace}".data_points WITH compression = {COMPRESSION}')
    finally:
        session.close()


def _size(folder: Path) -> int:
    """Return the bytes of the data files of a keyspace."""
    return sum(path.stat().st_size for path in folder.rglob("*-Data.db"))


def _report(load: Load, found: Mapping[str, Cost]) -> str:
    base = found["KairosDB"]
    rows = [
        [
            TITLES[name],
            *(
                f"{value:.1f} = {value / other:.2f} ×" if other else f"{value:.1f}"
                for value, other in zip(cost, base, strict=True)
            ),
        ]
        for name, cost in found.items()
    ]
    head = f"{load.series:,} series, {load.points:,} rounds of a point of each; {machine()}."
    return f"{head}\n\n" + table(["system", "CPU µs a point", "with Cassandra's", "bytes a point"], rows)
