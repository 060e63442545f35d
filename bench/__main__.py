"""`scripts/bench NAME` runs a benchmark, verifies the results and prints a table, also written to bench/out/."""

from pathlib import Path

import click

from bench import backup as backup_module
from bench import bigtable as bigtable_module
from bench import calls as calls_module
from bench import compact as compact_module
from bench import copy as copy_module
from bench import day as day_module
from bench import disk as disk_module
from bench import entity as entity_module
from bench import fairness as fairness_module
from bench import first_point as first_point_module
from bench import guide as guide_module
from bench import idle as idle_module
from bench import ingest as ingest_module
from bench import kairosdb as kairosdb_module
from bench import kairosdb_pace as kairosdb_pace_module
from bench import mixed_load as mixed_load_module
from bench import outage as outage_module
from bench import pace as pace_module
from bench import page as page_module
from bench import put as put_module
from bench import query as query_module
from bench import query_numbers as query_numbers_module
from bench import reads as reads_module
from bench import retention as retention_module
from bench import rollup as rollup_module
from bench import series as series_module
from bench import sync as sync_module
from bench import windows as windows_module
from bench.agents import Fleet
from bench.comparison.publish import publish as publish_comparison
from bench.comparison.publish import show as show_comparison
from bench.comparison.records import load as load_comparison
from bench.comparison.run import Wanted
from bench.comparison.run import run as run_comparison
from bench.lines import Load


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


@bench.command()
@click.option("--machines", default=1000, help="Machines with an hour of points.")
@click.option("--metrics", default=100, help="Metrics of each.")
@click.option("--step", default=60, help="Seconds between two points.")
@click.option("--inventory", default=10_000, help="Machines with newest values of ten metrics.")
@click.option("--hbase-machines", default=1000, help="Machines with an hour of points on HBase; 0: without HBase.")
@click.option("--rounds", default=50, help="Reads of each kind.")
def entity(machines: int, metrics: int, step: int, inventory: int, hbase_machines: int, rounds: int) -> None:
    """Measure reads of entities and newest values next to queries of OpenTSDB, and what the tables cost a point."""
    entity_module.entity(entity_module.Size(machines, metrics, step, inventory), hbase_machines, rounds)


@bench.command()
@click.option("--machines", default=10, help="Machines with 100 metrics.")
@click.option("--times", default=60, help="Times of each machine, five seconds apart.")
@click.option("--meters", default=1000, help="Meters with a reading each quarter of an hour of a day.")
@click.option("--messages", default=10_000, help="Messages of exchanges, each a quote and a trade.")
@click.option("--engines", default=",".join(guide_module.ENGINES), help="Engines, separated by commas.")
@click.option("--rounds", default=20, help="Queries of each kind.")
def guide(machines: int, times: int, meters: int, messages: int, engines: str, rounds: int) -> None:
    """Store and query the loads of Bigtable's schema guide as rows of events and days, next to OpenTSDB's rows."""
    guide_module.guide(guide_module.Size(machines, times, meters, messages), engines.split(","), rounds)


@bench.command()
@click.option("--series", default=10_000, help="Series.")
@click.option("--points", default=100, help="Points of each series per pass (two passes).")
@click.option("--connections", default=4, help="Concurrent connections.")
@click.option("--rounds", default=3, help="Rounds; all systems alternate in each.")
@click.option("--only", default="", help="Only systems with a name that contains one of these: 'embedded,Victoria'.")
def ingest(series: int, points: int, connections: int, rounds: int, only: str) -> None:
    """Put lines until they are stored: tsd on both engines, a real OpenTSDB and the parser loop."""
    words = only.split(",")
    ingest_module.ingest(Load(series, points, connections), rounds, lambda name: any(word in name for word in words))


@bench.command()
@click.option("--cells", default=50_000, help="Cells of each load.")
@click.option("--rounds", default=3, help="Rounds after a warm-up round.")
def bigtable(cells: int, rounds: int) -> None:
    """Write and read cells on Bigtable's emulator, also with google-cloud-bigtable if it is installed."""
    bigtable_module.measure(cells, rounds)


@bench.command()
@click.option("--series", default=1_000, help="Series.")
@click.option("--points", default=300, help="Points of each series per round.")
@click.option("--connections", default=4, help="Concurrent connections.")
@click.option("--rounds", default=3, help="Rounds after a warm-up; all systems alternate in each.")
def kairosdb(series: int, points: int, connections: int, rounds: int) -> None:
    """Put and query lines, compared with a real KairosDB on the same Cassandra."""
    kairosdb_module.compare(Load(series, points, connections), rounds)


@bench.command()
@click.option("--series", default=1_000, help="Series.")
@click.option("--rounds", default=60, help="Points of each series, ten seconds apart.")
def kairosdb_pace(series: int, rounds: int) -> None:
    """Points at the agents' pace, and their bytes, compared with a real KairosDB on the same Cassandra."""
    kairosdb_pace_module.pace(Load(series, rounds, 1))


@bench.command()
@click.option(
    "--count",
    "counts",
    type=click.IntRange(min=2000),  # more than the warm-up has
    multiple=True,
    default=[100_000, 1_000_000],
    help="Series; may be repeated.",
)
@click.option("--hbase/--no-hbase", "on_hbase", default=False, help="Also on a real HBase.")
def series(counts: tuple[int, ...], on_hbase: bool) -> None:
    """New series: memory per series, and rate."""
    series_module.series(list(counts), on_hbase)


@bench.command()
@click.option("--seconds", default=15, help="Duration of each send rate.")
def sync(seconds: int) -> None:
    """Latency of `sync` under load, and CPU of many small senders."""
    sync_module.sync(seconds)


@bench.command()
@click.option("--pairs", default=5, help="Pairs of measurements without and with the misbehaving client.")
@click.option("--seconds", default=10, help="Duration of each measurement.")
@click.option("--only", default="", help="Only misbehaving clients with a description that contains this: 'quota'.")
def fairness(pairs: int, seconds: int, only: str) -> None:
    """Latency of `sync` for small clients, without and with a misbehaving client."""
    fairness_module.fairness(pairs, seconds, lambda name: only in name)


@bench.command()
@click.option("--pairs", default=1, help="Outages of each kind.")
@click.option("--rate", default=100_000, help="Lines a second.")
@click.option("--seconds", default=40, help="Duration of an outage.")
@click.option("--only", default="", help="Only outages with a name that contains this: 'loses'.")
@click.option("--hbase", "running", type=click.Path(path_type=Path), help="Folder of an HBase that scripts/hbase runs.")
def outage(pairs: int, rate: int, seconds: int, only: str, running: Path | None) -> None:
    """Memory while HBase is away, and how soon points are stored after its return. Takes six minutes."""
    outage_module.outage(pairs, rate, seconds, only, running)


@bench.command("first-point")
@click.option("--rounds", default=1, help="Rounds.")
def first_point(rounds: int) -> None:
    """Run `scripts/run` in fresh clones until a query finds a point: without and with a cache."""
    first_point_module.first_point(rounds)


@bench.command()
@click.option("--count", default=10_000, help="Idle connections.")
@click.option("--seconds", default=15, help="Duration of each measurement of `sync`.")
@click.option("--pairs", default=5, help="Pairs of measurements without and with idle connections.")
def idle(count: int, seconds: int, pairs: int) -> None:
    """Idle, short-lived and slow connections: memory, and latency of `sync`."""
    idle_module.idle(count, seconds, pairs)


@bench.command()
@click.option("--series", default=1000, help="Series.")
@click.option("--days", default=40, help="Days in the store.")
@click.option("--expired", default=10, help="Days that expire.")
@click.option("--step", default=10, help="Seconds between two points of a series.")
@click.option("--rounds", default=1, help="Rounds.")
def retention(series: int, days: int, expired: int, step: int, rounds: int) -> None:
    """Delete expired points: dry run, speed, and the speed of puts meanwhile."""
    retention_module.retention(series, days, expired, step, rounds)


@bench.command()
@click.option("--series", default=300, help="Series of the build.")
@click.option("--days", default=10, help="Days of the build.")
@click.option("--rounds", default=3, help="Rounds.")
def rollup(series: int, days: int, rounds: int) -> None:
    """Build rollups: CPU of a raw point and of a cell; and query a year of 1,000 series by day."""
    rollup_module.rollup(series, days, rounds)


@bench.command()
@click.option("--rounds", default=5, help="Rounds.")
def page(rounds: int) -> None:
    """Open the page in Chromium: first paint, and a graph of 20 series over a day."""
    page_module.page(rounds)


@bench.command()
@click.option("--gib", default=10.0, help="GiB in the store.")
@click.option("--rounds", default=3, help="Rounds.")
@click.option("--other", type=click.Path(path_type=Path, exists=True), help="Folder on another file system.")
def backup(gib: float, rounds: int, other: Path | None) -> None:
    """Back up a store while the daemon runs: hard links, and another file system next to cp."""
    backup_module.backup(gib, rounds, other)


@bench.command()
@click.option("--series", "count", default=10_000, help="Series.")
@click.option("--points", default=100, help="Points of each.")
@click.option("--rounds", default=1, help="Rounds.")
def copy(count: int, points: int, rounds: int) -> None:
    """Copy tables: embedded → HBase, HBase → embedded, and again without changes."""
    copy_module.copy(Load(count, points), rounds)


@bench.command()
@click.option("--series", default=1000, help="Series.")
@click.option("--points", default=1000, help="Points of each.")
@click.option("--rounds", default=1, help="Timed passes on each engine.")
@click.option("--pairs", default=5, help="Pairs of measurements of `sync` without and during a pass.")
@click.option("--seconds", default=15, help="Duration of each measurement.")
@click.option("--pace", default=0, help="Lines/s sent meanwhile; 0: half of the daemon's top speed.")
@click.option("--busy-points", default=8640, help="Points of each series for the pass during which sync is measured.")
def compact(series: int, points: int, rounds: int, pairs: int, seconds: int, pace: int, busy_points: int) -> None:
    """Compact rows with one cell per point on both engines; latency of sync meanwhile."""
    busy = compact_module.Busy(pairs, seconds, pace, busy_points)
    compact_module.compact(Load(series, points, 4), rounds, busy)


@bench.command()
@click.option("--series", default=1000, help="Series, each with a point every ten seconds.")
@click.option("--hours", default=24, help="Length of the day.")
@click.option("--only", default="", help="Only engines with a name that contains this: 'embedded'.")
def day(series: int, hours: int, only: str) -> None:
    """Compact a day of one cell per point: check the points and report the reduction."""
    day_module.day(Load(series, hours * 360, 1), lambda name: only in name.lower())


@bench.command()
@click.option("--hosts", default=30, help="Hosts with ten series each, a point every ten seconds.")
@click.option("--hours", default=24, help="Length of the day.")
def disk(hosts: int, hours: int) -> None:
    """Bytes per point on disk after compaction: the embedded store and VictoriaMetrics."""
    disk_module.disk(hosts, hours)


@bench.command("query-numbers")
@click.option("--rounds", default=5, help="Computations of each case.")
def query_numbers(rounds: int) -> None:
    """CPU of a query per point for downsampling and merging, without a store."""
    query_numbers_module.query_numbers(rounds)


@bench.command()
@click.option("--series", default=100, help="Series.")
@click.option("--window", "lengths_s", multiple=True, default=[1, 30, 100, 300], help="Seconds; may be repeated.")
def windows(series: int, lengths_s: tuple[int, ...]) -> None:
    """Cells and rows to compact by the length of the window: an hour simulated in a minute."""
    windows_module.windows(series, lengths_s)


@bench.command()
@click.option("--series", default=1000, help="Series.")
@click.option("--points", default=200, help="Points of each series per measurement.")
@click.option("--batch", "batches", multiple=True, default=[1000, 100], help="Points per request; may be repeated.")
@click.option("--rounds", default=3, help="Measurements of each way, alternating.")
def put(series: int, points: int, batches: tuple[int, ...], rounds: int) -> None:
    """CPU of the daemon per point with /api/put and with telnet."""
    put_module.put(Load(series, points, 4), batches, rounds)


@bench.command()
@click.option("--series", default=130_000, help="Series.")
@click.option("--round", "round_s", default=10, help="Seconds from point to point.")
@click.option("--rounds", default=6, help="Rounds of points, after two with the first points of all series.")
@click.option("--set", "words", multiple=True, metavar="KEY=VALUE", help="A setting of the daemon; may be repeated.")
def calls(series: int, round_s: int, rounds: int, words: tuple[str, ...]) -> None:
    """Requests to HBase's gateway while agents send at their pace in real time."""
    calls_module.calls(series, round_s, rounds, dict(word.split("=", 1) for word in words))


@bench.command()
@click.option("--series", default=5_000, help="Series.")
@click.option("--round", "round_s", default=10, help="Seconds from point to point.")
@click.option("--hours", default=2.0, help="Simulated time with points.")
@click.option("--connections", default=4, help="That hosts of 50 series share; as many as hosts: one each.")
@click.option("--speed", default=0.0, help="Times as fast as real time; 0: 40,000 lines/s, 60 times at most.")
@click.option("--pairs", default=1, help="Runs of each system, alternating.")
@click.option("--only", default="", help="Only systems with one of these names, or parts of names: 'HBase;Victoria'.")
def pace(series: int, round_s: int, hours: float, connections: int, speed: float, pairs: int, only: str) -> None:
    """Lines at the agents' pace until all is quiet: CPU, memory and disks of tsd, VictoriaMetrics and OpenTSDB."""
    words = only.split(";")
    fleet = Fleet(series, round_s, hours, pace_module.next_hour_s(), connections=connections)

    def is_wanted(name: str) -> bool:
        return any(word == name or (word not in pace_module.SYSTEMS and word in name) for word in words)

    pace_module.pace(fleet, speed, pairs, is_wanted)


@bench.command()
@click.option("--series", default=1000, help="Series of the metric queried over a day, a point every ten seconds.")
@click.option("--wide", default=100_000, help="Series of the metric of which one host is queried.")
@click.option("--rounds", default=9, help="Repetitions of each query on each system, alternating.")
@click.option("--only", default="", help="Only queries with a name that contains this: '(c)'.")
def query(series: int, wide: int, rounds: int, only: str) -> None:
    """Queries over HTTP: tsd on both engines and a real OpenTSDB with the same points."""
    query_module.query(query_module.Size(series, wide), rounds, lambda name: only in name)


@bench.command()
@click.option("--series", default=100_000, help="Series of an hour at 60 s.")
@click.option("--day-series", default=1_000, help="Series of a day at 60 s.")
@click.option("--days", default=30, help="Days of one series at 10 s.")
@click.option("--open-series", default=20_000, help="Series with 30 points in the open hour.")
@click.option("--recent", multiple=True, type=int, help="Series of a metric with points up to now; may be repeated.")
@click.option("--half-stored", is_flag=True, help="Store half of the points of the present hour early.")
@click.option("--once", default=0, help="Hosts of 8 series, each asked about once: the first load of a dashboard.")
@click.option("--rounds", default=7, help="Repetitions of each query on each system, alternating.")
@click.option("--only", default="", help="Only queries with a name that contains this: 'regexp'.")
def reads(
    series: int,
    day_series: int,
    days: int,
    open_series: int,
    recent: tuple[int, ...],
    half_stored: bool,
    once: int,
    rounds: int,
    only: str,
) -> None:
    """Latency of queries: tsd with and without its cache, and VictoriaMetrics with the same points."""
    some = recent or reads_module.Size().recent
    size = reads_module.Size(series, day_series, days, open_series, some, half_stored, once)
    reads_module.reads(size, rounds, lambda name: only in name)


@bench.command("mixed-load")
@click.option(
    "--series",
    type=click.IntRange(min=1000),  # with fewer the query ends before its time limit
    default=1000,
    help="Series of the query, a day with a point every ten seconds.",
)
@click.option("--points", default=200, help="Points of each of 10,000 series per measurement.")
@click.option("--pairs", default=5, help="Pairs of measurements without and with the query.")
@click.option("--seconds", default=5.0, help="Duration of each measurement of a slow sender.")
def mixed_load(series: int, points: int, pairs: int, seconds: float) -> None:
    """Puts during a repeated heavy query, and how fast a query ends when cancelled."""
    mixed_load_module.mixed_load(series, Load(points=points), pairs, seconds)


if __name__ == "__main__":
    bench(prog_name="scripts/bench")
