"""`scripts/bench NAME` runs a benchmark, verifies the results and prints a table, also written to bench/out/."""

import click

from bench.backup import backup
from bench.bigtable import bigtable
from bench.blocks import blocks
from bench.calls import calls
from bench.compact import compact
from bench.comparison.publish import publish as publish_comparison
from bench.comparison.publish import show as show_comparison
from bench.comparison.records import load as load_comparison
from bench.comparison.run import Wanted
from bench.comparison.run import run as run_comparison
from bench.copy import copy
from bench.day import day
from bench.disk import disk
from bench.entity import entity
from bench.fairness import fairness
from bench.first_point import first_point
from bench.fleet import fleet
from bench.guide import guide
from bench.idle import idle
from bench.ingest import ingest
from bench.kairosdb import kairosdb
from bench.kairosdb_pace import kairosdb_pace
from bench.mixed_load import mixed_load
from bench.outage import outage
from bench.pace import pace
from bench.page import page
from bench.put import put
from bench.query import query
from bench.query_numbers import query_numbers
from bench.reads import reads
from bench.retention import retention
from bench.rollup import rollup
from bench.series import series
from bench.sync import sync
from bench.windows import windows


@click.group(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
def bench() -> None:
    """Benchmarks. Compare ratios measured in one run: absolute figures of a shared machine mean little."""


@bench.command("all")
@click.option("--scale", type=click.Choice(["full", "small"]), default="full", help="Number of points.")
@click.option("--only", default="", help="Only systems with a name that contains one of these: 'embedded;Victoria'.")
@click.option("--load", "load_words", default="", help="Only these loads: 'steady;day'.")
@click.option("--resume", is_flag=True, help="Keep earlier measurements instead of repeating them.")
def comparison(scale: str, only: str, load_words: str, resume: bool) -> None:
    """Compare the daemon with other systems under every load; write tables and plots."""
    words, names = only.split(";"), load_words.split(";")
    wanted = Wanted(
        scale,
        lambda name: any(word in name for word in words),
        lambda name: not load_words or name in names,
        resume,
    )
    publish_comparison(run_comparison(wanted))


@bench.command()
def readme() -> None:
    """Write the latest results of `all` to README.md, docs/benchmarks.md and docs/figures/."""
    found = load_comparison()
    if found is None:
        raise click.ClickException("no results: run scripts/bench all first")
    show_comparison(found)


for command in (
    backup, bigtable, blocks, calls, compact, copy, day, disk, entity, fairness, first_point, fleet, guide, idle,
    ingest, kairosdb, kairosdb_pace, mixed_load, outage, pace, page, put, query, query_numbers, reads, retention,
    rollup, series, sync, windows,
):  # fmt: skip
    bench.add_command(command)

if __name__ == "__main__":
    bench(prog_name="scripts/bench")
