"""Send the same lines to the daemon on both engines, a real OpenTSDB and a real VictoriaMetrics until every point is
stored.

Each system gets the lines twice: first with new names, which need UIDs, then with the next points of the same series. A
run ends when all points are in the store: the daemon writes its open window on request (as for `tsd scan`), and an
OpenTSDB has no request to HBase left. Then the tables are compared with the lines sent.
"""

import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

import click

from bench.daemon import Daemon, serving
from bench.lines import Load
from bench.parser_loop import parser_loop_us
from bench.peers import Hbase, running_hbase, running_opentsdb
from bench.report import machine, publish, spread, table
from bench.sender import send
from bench.verify import check
from bench.victoria import PROGRAM, running_victoria
from tsd.config.loader import Given
from tsd.daemon.settings import read_config

EMBEDDED, PLAIN, VICTORIA, JOINED, SINGLE, OPENTSDB = (
    "tsd, embedded",
    "tsd, embedded, pure Python",
    "VictoriaMetrics",
    "tsd, HBase",
    "tsd, HBase, a cell a point",
    "OpenTSDB 2.4.1, HBase",
)
PASSES = ("new names", "known names")
WARM_UP = Load(2000, 20)  # the first load on an HBase needs several times the CPU for compiling


class Figures(NamedTuple):
    """Results of one pass of one system."""

    lines_per_s: float
    cpu_us: float  # of the daemon, per line
    store_cpu_us: float  # of HBase and its gateway, per line
    peak_mib: float  # of the daemon, since its start
    loop_us: float  # of the parser loop in the same round


Passes = list[tuple[float, float, float, float]]  # all but the last value of each pass
System = Callable[[Load, Path], Passes]


@click.command()
@click.option("--series", default=10_000, help="Series.")
@click.option("--points", default=100, help="Points of each series per pass (two passes).")
@click.option("--connections", default=4, help="Concurrent connections.")
@click.option("--rounds", default=3, help="Rounds; all systems alternate in each.")
@click.option("--only", default="", help="Only systems with a name that contains one of these: 'embedded,Victoria'.")
def ingest(series: int, points: int, connections: int, rounds: int, only: str) -> None:
    """Put lines until they are stored: tsd on both engines, a real OpenTSDB and the parser loop."""
    load, words = Load(series, points, connections), only.split(",")

    def wanted(name: str) -> bool:
        return any(word in name for word in words)

    found: dict[tuple[str, str], list[Figures]] = {}
    with tempfile.TemporaryDirectory(prefix="tsd-bench-", ignore_cleanup_errors=True) as folder:
        for number, systems in enumerate(_rounds(Path(folder), rounds, wanted)):
            loop_us = parser_loop_us(load)
            passes: dict[str, Passes] = {}
            for name, run in systems.items():
                _log(f"round {number + 1} of {rounds}: {name}")
                passes[name] = run(load, Path(folder) / f"{number}-{len(passes)}")
                loop_us = min(loop_us, parser_loop_us(load))
            for name, figures in passes.items():
                for which, figure in zip(PASSES, figures, strict=True):
                    found.setdefault((name, which), []).append(Figures(*figure, loop_us))
    publish("ingest", _report(load, found), {f"{name}, {which}": f for (name, which), f in found.items()})


def _rounds(folder: Path, rounds: int, wanted: Callable[[str], bool]) -> Iterator[Mapping[str, System]]:
    """Yield the systems of each round; all rounds share one HBase."""
    if not any(map(wanted, (JOINED, SINGLE, OPENTSDB))):
        yield from [{name: run for name, run in _ALONE.items() if wanted(name)}] * rounds
        return
    _log("starting HBase")
    with running_hbase(folder / "hbase") as hbase:
        _on_hbase(hbase, "warm-up", "false", WARM_UP, folder / "warm-up")
        for number in range(rounds):
            systems: dict[str, System] = {
                **_ALONE,
                JOINED: lambda load, home, n=number: _on_hbase(hbase, f"joined{n}", "true", load, home),  # type: ignore[misc]
                SINGLE: lambda load, home, n=number: _on_hbase(hbase, f"single{n}", "false", load, home),  # type: ignore[misc]
                OPENTSDB: lambda load, home, n=number: _opentsdb(hbase, f"opentsdb{n}", load, home),  # type: ignore[misc]
            }
            yield {name: run for name, run in systems.items() if wanted(name)}


def _embedded(load: Load, home: Path, *, plain: bool = False) -> Passes:
    with serving(home, {}, plain=plain) as daemon:
        passes = [_pass(daemon, load, load.lines), _pass(daemon, load.after, 2 * load.lines)]
    check(daemon.config, [load, load.after])
    shutil.rmtree(home)
    return passes


def _victoria(load: Load, home: Path) -> Passes:
    passes = []
    with running_victoria(home) as peer:
        for number, part in enumerate((load, load.after), 1):
            before = peer.usage().cpu_s
            sent = send(part, peer.port, "")
            end = peer.await_stored(number * load.lines)
            after = peer.usage()
            cpu_us = (after.cpu_s - before) / load.lines * 1e6
            passes.append((load.lines / (end - sent.start), cpu_us, 0.0, after.peak_mib))
            peer.check(part.start_s, part.after.start_s, part.lines)
    shutil.rmtree(home)
    return passes


_ALONE: dict[str, System] = {EMBEDDED: _embedded, PLAIN: partial(_embedded, plain=True)}
if PROGRAM is not None:
    _ALONE[VICTORIA] = _victoria


def _on_hbase(hbase: Hbase, prefix: str, join_points: str, load: Load, home: Path) -> Passes:
    settings = {**hbase.settings(prefix), "tsd.storage.join_points": join_points}
    with serving(home, settings) as daemon:
        passes = [_pass(daemon, part, n * load.lines, hbase) for n, part in enumerate((load, load.after), 1)]
    check(daemon.config, [load, load.after])
    return passes


def _pass(daemon: Daemon, load: Load, stored: int, hbase: Hbase | None = None) -> tuple[float, float, float, float]:
    before, store_before = daemon.usage().cpu_s, hbase.cpu_s() if hbase else 0.0
    sent = send(load, daemon.port, "sync")
    synced = sum(int(answer.split()[1]) for answer in sent.answers)
    assert synced == load.lines, sent.answers
    daemon.flush()
    end = daemon.await_stored(stored)
    after = daemon.usage()
    store_us = (hbase.cpu_s() - store_before) / load.lines * 1e6 if hbase else 0.0
    return load.lines / (end - sent.start), (after.cpu_s - before) / load.lines * 1e6, store_us, after.peak_mib


def _opentsdb(hbase: Hbase, prefix: str, load: Load, home: Path) -> Passes:
    settings = hbase.settings(prefix)
    passes = []
    with running_opentsdb(home, hbase, settings) as peer:
        for part in (load, load.after):
            before, store_before = peer.usage().cpu_s, hbase.cpu_s()
            sent = send(part, peer.port, "version")
            end = peer.await_idle()
            after = peer.usage()
            store_us = (hbase.cpu_s() - store_before) / load.lines * 1e6
            cpu_us = (after.cpu_s - before) / load.lines * 1e6
            passes.append((load.lines / (end - sent.start), cpu_us, store_us, after.peak_mib))
    check(read_config(Given("benchmark", *item) for item in settings.items())[0], [load, load.after])
    return passes


def _report(load: Load, found: dict[tuple[str, str], list[Figures]]) -> str:
    peer = {which: found.get((OPENTSDB, which), []) for which in PASSES}
    fastest = {which: found.get((VICTORIA, which), []) for which in PASSES}
    rows = []
    for (name, which), figures in found.items():
        times = [f.lines_per_s / p.lines_per_s for f, p in zip(figures, peer[which], strict=False)]
        of_victoria = [f.cpu_us / v.cpu_us for f, v in zip(figures, fastest[which], strict=False)]
        rows.append(
            [
                name,
                which,
                spread([f.lines_per_s for f in figures], 0),
                spread(times, 1) if times else "",
                spread([f.cpu_us for f in figures]),
                spread([f.cpu_us / f.loop_us for f in figures]),
                spread([f.store_cpu_us for f in figures]) if any(f.store_cpu_us for f in figures) else "",
                spread([f.peak_mib for f in figures], 0),
                spread(of_victoria) if of_victoria else "",
            ]
        )
    head = ["system", "pass", "lines/s until stored", "× OpenTSDB", "CPU µs/line", "× parser loop", "HBase CPU µs/line"]
    loop = spread([f.loop_us for f in next(iter(found.values()))])
    return (
        f"{load.series:,} series × {load.points:,} points, {load.connections} connections, a pass; {machine()}; "
        f"parser loop {loop} µs a line. Medians (minimum–maximum); every point verified in the tables.\n\n"
        + table([*head, "peak MiB", "× VictoriaMetrics' CPU"], rows)
    )


def _log(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr)
