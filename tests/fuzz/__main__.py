"""Fuzz the daemon with random malformed lines and requests, and its answers with repeated queries.

        python -m tests.fuzz lines 10000000 -j 2       compare both parsers with the slow reference
        python -m tests.fuzz requests 1000000 -j 2     send HTTP, random first bytes and TLS to one daemon per process
        python -m tests.fuzz answers 100 -j 2          compare answers of daemons on a fast clock
        python -m tests.fuzz kairosdb 100 -j 2         the same by KairosDB's API, also on KairosDB's tables
        python -m tests.fuzz changes 100               the same with deletes, imports, rollups and kills
        python -m tests.fuzz held 100                  the same for points of open hours that are partly stored

`--seed` sets the first seed. A failure prints the command that repeats it.
"""

import itertools
import json
import logging
import os
import random
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import click
import structlog
import trio
from rich.console import Console
from rich.progress import track

from tests.fuzz.answers import on_hbase, play
from tests.fuzz.changes import play_changes
from tests.fuzz.comparison import Comparison, window_by
from tests.fuzz.flood import Outcome, flood
from tests.fuzz.held import play_held
from tests.fuzz.kairos_answers import play as play_kairosdb
from tests.workers import tied_workers
from tsd.ingest import series

PART_LINES = 100_000  # per seed
PART_REQUESTS = 50_000  # per seed and daemon
PART_STEPS = 200  # per seed: writes, each followed by three queries or four
CHANGE_STEPS = 60  # per seed: changes, each followed by queries
HELD_STEPS = 50  # per seed, likewise
KAIROS_STEPS = 80  # per seed, likewise


class Part(NamedTuple):
    """Lines of one seed and parser."""

    seed: int
    lines: int
    compiled: bool


@click.group(help=__doc__)
def main() -> None:
    """Run the command; the help text is the module's."""


@main.command()
@click.argument("count", type=int)
@click.option("--seed", default=1, help="of the first part; each has its own")
@click.option("-j", "--jobs", default=1, help="processes")
def lines(count: int, seed: int, jobs: int) -> None:
    """Send COUNT lines to each parser."""
    begun = time.monotonic()
    ways = [True, False] if series.HAS_LOOP else [False]
    parts = [
        Part(seed + at // PART_LINES, min(PART_LINES, count - at), way)
        for at in range(0, count, PART_LINES)
        for way in ways
    ]
    totals: dict[bool, Counter[str]] = {way: Counter() for way in ways}
    with tied_workers(jobs) as pool:
        for part, verdicts in track(
            zip(parts, pool.map(run_lines, parts), strict=True), "lines", total=len(parts), console=Console(stderr=True)
        ):
            totals[part.compiled].update(verdicts)
    for way in ways:
        verdicts = ", ".join(f"{number:,} {verdict}" for verdict, number in sorted(totals[way].items()))
        click.echo(f"{'compiled' if way else 'plain'}: {totals[way].total():,} lines agree: {verdicts}")
    click.echo(f"{time.monotonic() - begun:.0f} s")


@main.command()
@click.argument("count", type=int)
@click.option("--seed", default=1, help="of the first part; each has its own")
@click.option("-j", "--jobs", default=1, help="processes")
def requests(count: int, seed: int, jobs: int) -> None:
    """Send COUNT requests, to one daemon per process."""
    begun = time.monotonic()
    parts = [(seed + at // PART_REQUESTS, min(PART_REQUESTS, count - at)) for at in range(0, count, PART_REQUESTS)]
    sent = connections = answered = grown = 0
    with tied_workers(jobs) as pool:
        for outcome in track(pool.map(run_requests, parts), "requests", total=len(parts), console=Console(stderr=True)):
            sent, connections, answered = (
                sent + outcome.requests,
                connections + outcome.connections,
                answered + outcome.answered,
            )
            grown = max(grown, outcome.grown)
    click.echo(
        f"{sent:,} requests over {connections:,} connections, {answered:,} answered; no task and no connection is "
        f"left, stored points are as before; memory {grown >> 20:+,} MiB at most; {time.monotonic() - begun:.0f} s"
    )


@main.command()
@click.argument("count", type=int)
@click.option("--seed", default=1, help="of the first part; each has its own")
@click.option("-j", "--jobs", default=1, help="processes")
@click.option("--hbase", metavar="HOST:PORT", help="two daemons on new tables, through this Thrift gateway")
def answers(count: int, seed: int, jobs: int, hbase: str | None) -> None:
    """Write to COUNT daemons, one after the other, and compare their answers."""
    _compare(partial(run_answers, hbase=hbase), range(seed, seed + count), jobs)


@main.command()
@click.argument("count", type=int)
@click.option("--seed", default=1, help="of the first daemon; each has its own")
@click.option("-j", "--jobs", default=1, help="processes, each with a daemon")
@click.option("--hbase", metavar="HOST:PORT", help="on new tables in real time, through this Thrift gateway")
def changes(count: int, seed: int, jobs: int, hbase: str | None) -> None:
    """Write to COUNT daemons, delete from them, kill them, and compare their answers."""
    _compare(partial(run_changes, hbase=hbase), range(seed, seed + count), jobs)


@main.command()
@click.argument("count", type=int)
@click.option("--seed", default=1, help="of the first daemon; each has its own")
@click.option("-j", "--jobs", default=1, help="processes")
@click.option("--hbase", metavar="HOST:PORT", help="on new tables, through this Thrift gateway")
def held(count: int, seed: int, jobs: int, hbase: str | None) -> None:
    """Write to COUNT daemons, one after the other, and compare answers that have points of open hours."""
    _compare(partial(run_held, hbase=hbase), range(seed, seed + count), jobs)


def _compare(run: Callable[[int], Counter[str]], seeds: range, jobs: int) -> None:
    begun = time.monotonic()
    done: Counter[str] = Counter()
    with tied_workers(jobs) as pool:
        for part in track(pool.map(run, seeds), "daemons", total=len(seeds), console=Console(stderr=True)):
            done.update(part)
    numbers = ", ".join(f"{number:,} {name}" for name, number in sorted(done.items()))
    click.echo(f"all answers agree: {numbers}; {time.monotonic() - begun:.0f} s")


@main.command()
@click.argument("count", type=int)
@click.option("--seed", default=1, help="of the first part; each has its own")
@click.option("-j", "--jobs", default=1, help="processes")
@click.option(
    "--cassandra", default="", help="host:port of a Cassandra for KairosDB's tables; none: the embedded store"
)
def kairosdb(count: int, seed: int, jobs: int, cassandra: str) -> None:
    """Write to COUNT daemons by KairosDB's API, one after the other, and compare their answers."""
    _compare(partial(run_kairosdb, cassandra), range(seed, seed + count), jobs)


def run_kairosdb(cassandra: str, seed: int, steps: int = KAIROS_STEPS) -> Counter[str]:
    """Run the queries of a seed."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    settings = {"tsd.storage.cassandra.hosts": cassandra} if cassandra else None
    with TemporaryDirectory(prefix="fuzz-") as folder:
        try:
            return play_kairosdb(Path(folder), seed, steps, settings)
        except BaseException as exc:
            where = f" --cassandra {cassandra}" if cassandra else ""
            exc.add_note(f"python -m tests.fuzz kairosdb 1 --seed {seed}{where}")
            raise


def run_answers(seed: int, steps: int = PART_STEPS, hbase: str | None = None) -> Counter[str]:
    """Run the queries of a seed, on the embedded store or through a gateway of HBase."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    with TemporaryDirectory(prefix="fuzz-") as folder:
        try:
            return play(Path(folder), seed, steps, on_hbase(hbase, f"fuzz{os.getpid()}-{seed}") if hbase else None)
        except BaseException as exc:
            more = f" --hbase {hbase}" if hbase else ""
            exc.add_note(f"python -m tests.fuzz answers 1 --seed {seed}{more}")
            raise


def run_held(seed: int, steps: int = HELD_STEPS, hbase: str | None = None) -> Counter[str]:
    """Run the queries of a seed about open hours, on the embedded store or through a gateway of HBase."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    with TemporaryDirectory(prefix="fuzz-") as folder:
        try:
            shared = on_hbase(hbase, f"fuzz{os.getpid()}-{seed}") if hbase else None
            return play_held(Path(folder), seed, steps, shared)
        except BaseException as exc:
            more = f" --hbase {hbase}" if hbase else ""
            exc.add_note(f"python -m tests.fuzz held 1 --seed {seed}{more}")
            raise


def run_changes(seed: int, steps: int = CHANGE_STEPS, hbase: str | None = None) -> Counter[str]:
    """Run the changes and queries of a seed, on the embedded store or through a gateway of HBase."""
    with TemporaryDirectory(prefix="fuzz-") as folder:
        try:
            numbers = itertools.count(1)
            tables = (
                (lambda: _tables(Path(folder), f"fuzz{os.getpid()}-{seed}-{next(numbers)}", hbase)) if hbase else None
            )
            return play_changes(Path(folder), seed, steps, tables)
        except BaseException as exc:
            more = f" --hbase {hbase}" if hbase else ""
            exc.add_note(f"python -m tests.fuzz changes 1 --seed {seed}{more}")
            raise


def _tables(folder: Path, prefix: str, hbase: str) -> dict[str, str]:
    """Return the settings of tables, with those of rollups."""
    file = folder / f"{prefix}.json"
    intervals = [
        {"interval": name, "table": table, "preAggregationTable": f"{prefix}-agg-{name}", "rowSpan": span}
        | {"defaultInterval": name == "1m"}
        for name, span, table in [
            ("1m", "1h", f"{prefix}-data"),
            ("1h", "1d", f"{prefix}-1h"),
            ("1d", "1n", f"{prefix}-1d"),
        ]
    ]
    ids = {"sum": 0, "count": 1, "min": 2, "max": 3}
    file.write_text(json.dumps({"aggregationIds": ids, "intervals": intervals}))
    return {**on_hbase(hbase, prefix, creates=False), "tsd.rollups.config": str(file)}


def run_requests(part: tuple[int, int]) -> Outcome:
    """Run the requests of a part."""
    seed, count = part
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    with TemporaryDirectory(prefix="fuzz-") as folder:
        try:
            return trio.run(flood, Path(folder), count, seed)
        except Exception as exc:
            exc.add_note(f"python -m tests.fuzz requests {count} --seed {seed}")
            raise


def run_lines(part: Part) -> dict[str, int]:
    """Run the lines of a part. Return the verdicts."""
    comparison = Comparison(window_by(part.compiled), random.Random(part.seed))
    try:
        comparison.run(part.lines)
    except Exception as exc:
        exc.add_note(f"python -m tests.fuzz lines {part.lines} --seed {part.seed}, compiled={part.compiled}")
        raise
    return comparison.verdicts


if __name__ == "__main__":
    main()
