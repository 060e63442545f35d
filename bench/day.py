"""A day of many series in OpenTSDB's format, one cell per point, compacted with `tsd compact`.

The benchmark fails if a point differs from the lines sent, before or after. The decoder of the conformance tests reads
the points, and on HBase a real OpenTSDB does, too. It also fails if HBase's files do not shrink by a factor of four.
"""

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import click

from bench.contents import Contents, answered, stored
from bench.daemon import run_tsd
from bench.lines import Load, rounds
from bench.peers import ONE_REGION, Opentsdb, running_hbase, running_opentsdb
from bench.report import machine, publish, table
from bench.table_size import embedded_bytes, hbase_bytes, merge_embedded
from bench.verify import check
from tsd.config.loader import Given
from tsd.config.settings import Config
from tsd.daemon.settings import read_config

EMBEDDED, HBASE = "embedded", "HBase"
SINGLE_CELLS = {"tsd.storage.join_points": "false"}
LEAST_SHRINKAGE = 4.0  # of HBase's files


class Engine(NamedTuple):
    """A storage engine."""

    name: str
    settings: Mapping[str, str]
    file_bytes: Callable[[], int]  # size of the data table after merging its files
    opentsdb: Opentsdb | None

    @property
    def config(self) -> Config:
        """The configuration of commands."""
        return read_config(Given("benchmark", *item) for item in self.settings.items())[0]


class Side(NamedTuple):
    """A table before or after the pass."""

    contents: Contents
    answers: Contents | None
    file_bytes: int


class Pass(NamedTuple):
    """Results of `tsd compact`."""

    took_s: float
    cpu_s: float
    report: str


@click.command()
@click.option("--series", default=1000, help="Series, each with a point every ten seconds.")
@click.option("--hours", default=24, help="Length of the day.")
@click.option("--only", default="", help="Only engines with a name that contains this: 'embedded'.")
def day(series: int, hours: int, only: str) -> None:
    """Compact a day of one cell per point: check the points and report the reduction."""
    load = Load(series, hours * 360, 1)
    found: dict[str, tuple[Side, Pass, Side]] = {}
    with tempfile.TemporaryDirectory(prefix="tsd-bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        lines = folder / "lines"
        with lines.open("wb") as file:
            file.writelines(rounds(load, 0))
        for engine_name, running in ((EMBEDDED, _embedded), (HBASE, _hbase)):
            if only in engine_name.lower():
                with running(folder / engine_name) as engine:
                    found[engine_name] = _compacted(load, engine, lines)
    publish("day", _report(load, found), {name: _figures(load, *parts) for name, parts in found.items()})


@contextmanager
def _embedded(home: Path) -> Iterator[Engine]:
    settings = {**SINGLE_CELLS, "tsd.storage.path": str(home)}

    def file_bytes() -> int:
        merge_embedded(home, "tsdb")
        return embedded_bytes(home)

    yield Engine(EMBEDDED, settings, file_bytes, None)


@contextmanager
def _hbase(home: Path) -> Iterator[Engine]:
    with ExitStack() as stack:
        hbase = stack.enter_context(running_hbase(home / "hbase", ONE_REGION))
        settings = {**SINGLE_CELLS, **hbase.settings("day"), "tsd.storage.path": str(home / "state")}
        peer = stack.enter_context(running_opentsdb(home / "opentsdb", hbase, settings))
        yield Engine(HBASE, settings, lambda: hbase_bytes(hbase, "day-data"), peer)


def _compacted(load: Load, engine: Engine, lines: Path) -> tuple[Side, Pass, Side]:
    _log(engine, f"writing {load.lines:,} points")
    run_tsd(engine.settings, "import", str(lines))
    before = _side(load, engine)
    assert before.contents.cells == load.lines, f"{before.contents.cells} cells, {load.lines} points were sent"
    _log(engine, "compacting")
    usage, begun = os.times(), time.monotonic()
    report = run_tsd(engine.settings, "compact")
    took_s, after = time.monotonic() - begun, os.times()
    cpu_s = after.children_user + after.children_system - usage.children_user - usage.children_system
    print(report, file=sys.stderr)
    parts = before, Pass(took_s, cpu_s, report), _side(load, engine, before)
    _log(engine, str(_figures(load, *parts)))
    return parts


def _side(load: Load, engine: Engine, before: Side | None = None) -> Side:
    """Read a table; end the benchmark if it differs from `before`, or from the lines sent."""
    _log(engine, "merging files")
    file_bytes = engine.file_bytes()
    _log(engine, "reading")
    if before:  # what was sent, and so what was stored before, or the digests would not be equal
        check(engine.config, [load])
    contents = stored(engine.config)
    answers = answered(engine.opentsdb.port, load) if engine.opentsdb else None
    for reader, report, report_before in (
        ("the decoder", contents, before and before.contents),
        ("OpenTSDB", answers, before and before.answers),
    ):
        if report is not None and report.points != load.lines:
            raise SystemExit(f"{engine.name}: {reader} finds {report.points} points, {load.lines} were sent")
        if report is not None and report_before is not None and report.digests != report_before.digests:
            names = [name for name, digest in report.digests.items() if report_before.digests.get(name) != digest]
            raise SystemExit(f"{engine.name}: {reader} finds other points than before in {len(names)}: {names[:3]}")
    return Side(contents, answers, file_bytes)


def _log(engine: Engine, what: str) -> None:
    log_progress(engine.name, what)


def log_progress(name: str, what: str) -> None:
    """Print the progress of a system."""
    print(f"bench: {name}: {what}", file=sys.stderr)


def _figures(load: Load, before: Side, run: Pass, after: Side) -> dict[str, float]:
    return {
        "rows": before.contents.rows,
        "cells before": before.contents.cells,
        "cells after": after.contents.cells,
        "file bytes before": before.file_bytes,
        "file bytes after": after.file_bytes,
        "rows/s": before.contents.rows / run.took_s,
        "us/point": run.took_s / load.lines * 1e6,
        "CPU us/point": run.cpu_s / load.lines * 1e6,
    }


def _report(load: Load, found: Mapping[str, tuple[Side, Pass, Side]]) -> str:
    rows = []
    for name, parts in found.items():
        figures = _figures(load, *parts)
        before, after = figures["file bytes before"], figures["file bytes after"]
        if name == HBASE and before < LEAST_SHRINKAGE * after:
            raise SystemExit(f"HBase's files shrank from {before} to {after} bytes only")
        rows.append(
            [
                name,
                f"{figures['cells before'] / load.lines:.3g} / {figures['cells after'] / load.lines:.3g}",
                f"{before / load.lines:.1f} / {after / load.lines:.1f}",
                f"{before / after:.1f}",
                f"{figures['rows/s']:,.0f}",
                f"{figures['us/point']:.1f}",
                f"{figures['CPU us/point']:.1f}",
            ]
        )
    head = ["store", "cells a point, before / after", "bytes/point on disk, before / after", "× smaller", "rows/s"]
    return (
        f"{load.lines:,} points of {load.series:,} series, one every ten seconds; {machine()}. Files are those of the "
        "data table after a major compaction, before the pass and after it. Every point is the same before and after: "
        f"by a decoder of its own, by what was sent, and on HBase to a real OpenTSDB.\n\n"
        + table([*head, "µs a point", "the command's CPU µs a point"], rows)
    )
