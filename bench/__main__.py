"""`scripts/bench NAME`: measures, checks what was measured, and prints a table that also goes to bench/out/."""

import click

from bench import beside as beside_module
from bench import compact as compact_module
from bench import copy as copy_module
from bench import day as day_module
from bench import disk as disk_module
from bench import fair as fair_module
from bench import idle as idle_module
from bench import ingest as ingest_module
from bench import put as put_module
from bench import query as query_module
from bench import query_numbers as query_numbers_module
from bench import series as series_module
from bench import sync as sync_module
from bench import windows as windows_module
from bench.lines import Load
from bench.together.readme import publish as publish_together
from bench.together.readme import show as show_together
from bench.together.records import load as load_together
from bench.together.run import Wanted
from bench.together.run import run as run_together


@click.group(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
def bench() -> None:
    """Benchmarks. They compare ratios measured in one run: figures of a machine that others use mean little alone."""


@bench.command("all")
@click.option("--scale", type=click.Choice(["full", "small"]), default="full", help="How much is sent.")
@click.option("--only", default="", help="Only systems whose name contains one of these: 'embedded;Victoria'.")
@click.option("--load", "load_words", default="", help="Only these loads: 'steady;day'.")
@click.option("--resume", is_flag=True, help="Leave what was measured before; otherwise it is measured anew.")
def together(scale: str, only: str, load_words: str, resume: bool) -> None:
    """The daemon and all its peers, side by side, under every load; tables and plots."""
    words, names = only.split(";"), load_words.split(";")
    wanted = Wanted(
        scale,
        lambda name: any(word in name for word in words),
        lambda name: not load_words or name in names,
        resume,
    )
    publish_together(run_together(wanted))


@bench.command()
def readme() -> None:
    """Put what `all` found last into README.md, docs/figures.md and docs/figures/."""
    found = load_together()
    if found is None:
        raise click.ClickException("nothing was measured: scripts/bench all")
    show_together(found)


@bench.command()
@click.option("--series", default=10_000, help="Series.")
@click.option("--points", default=100, help="Points of each series, in each of the two passes.")
@click.option("--connections", default=4, help="Connections that send at once.")
@click.option("--rounds", default=3, help="How often all systems are run in turn.")
@click.option("--only", default="", help="Only systems whose name contains one of these, as 'embedded,Victoria'.")
def ingest(series: int, points: int, connections: int, rounds: int, only: str) -> None:
    """Put lines until they are stored: tsd on both engines beside a real OpenTSDB and the bare loop."""
    words = only.split(",")
    ingest_module.ingest(Load(series, points, connections), rounds, lambda name: any(word in name for word in words))


@bench.command()
@click.option("--count", "counts", multiple=True, default=[100_000, 1_000_000], help="How many; may be repeated.")
@click.option("--hbase/--no-hbase", "on_hbase", default=False, help="On a real HBase too.")
def series(counts: tuple[int, ...], on_hbase: bool) -> None:
    """New series: memory held for each, and how fast they come in."""
    series_module.series(list(counts), on_hbase)


@bench.command()
@click.option("--seconds", default=15, help="How long each pace is kept up.")
def sync(seconds: int) -> None:
    """How long `sync` takes under load, and what many small senders cost."""
    sync_module.sync(seconds)


@bench.command()
@click.option("--pairs", default=5, help="How often `sync` is measured, in turn without the bad client and beside it.")
@click.option("--seconds", default=10, help="How long each time.")
@click.option("--only", default="", help="Only bad clients whose description contains this, as 'quota'.")
def fair(pairs: int, seconds: int, only: str) -> None:
    """What one bad client costs the others: `sync` of small clients beside one that is over its quota, or has none."""
    fair_module.fair(pairs, seconds, lambda name: only in name)


@bench.command()
@click.option("--count", default=10_000, help="Idle connections.")
@click.option("--seconds", default=15, help="How long `sync` is measured each time.")
@click.option("--pairs", default=5, help="How often, in turn without them and with them.")
def idle(count: int, seconds: int, pairs: int) -> None:
    """Connections that do nothing, that come and go, that read or write slowly: memory, and `sync` beside them."""
    idle_module.idle(count, seconds, pairs)


@bench.command()
@click.option("--series", "count", default=10_000, help="Series.")
@click.option("--points", default=100, help="Points of each.")
@click.option("--rounds", default=1, help="How often.")
def copy(count: int, points: int, rounds: int) -> None:
    """Move tables: embedded → HBase, HBase → embedded, and again with nothing new."""
    copy_module.copy(Load(count, points), rounds)


@bench.command()
@click.option("--series", default=1000, help="Series.")
@click.option("--points", default=1000, help="Points of each.")
@click.option("--rounds", default=1, help="How many passes are timed on each engine.")
@click.option("--pairs", default=5, help="How often sync is measured, in turn without a pass and beside one.")
@click.option("--seconds", default=15, help="How long each time.")
@click.option("--pace", default=0, help="Lines/s that are sent meanwhile; 0: half of what the daemon takes.")
@click.option("--busy-points", default=8640, help="Points of each series for the pass beside which sync is measured.")
def compact(series: int, points: int, rounds: int, pairs: int, seconds: int, pace: int, busy_points: int) -> None:
    """A pass over rows of a cell a point, on both engines; and sync beside one."""
    busy = compact_module.Busy(pairs, seconds, pace, busy_points)
    compact_module.compact(Load(series, points, 4), rounds, busy)


@bench.command()
@click.option("--series", default=1000, help="Series; each has a point every ten seconds.")
@click.option("--hours", default=24, help="How long the day is.")
@click.option("--only", default="", help="Only engines whose name contains this, as 'embedded'.")
def day(series: int, hours: int, only: str) -> None:
    """A day of a cell a point, compacted: the same points, and how much less they take."""
    day_module.day(Load(series, hours * 360, 1), lambda name: only in name.lower())


@bench.command()
@click.option("--hosts", default=30, help="Hosts of ten series each; a point of each every ten seconds.")
@click.option("--hours", default=24, help="How long the day is.")
def disk(hosts: int, hours: int) -> None:
    """Bytes a point on disk after compaction: the embedded store beside VictoriaMetrics."""
    disk_module.disk(hosts, hours)


@bench.command("query-numbers")
@click.option("--rounds", default=5, help="How often each is computed.")
def query_numbers(rounds: int) -> None:
    """What a point costs to downsample and to merge: a query without a store."""
    query_numbers_module.query_numbers(rounds)


@bench.command()
@click.option("--series", default=100, help="Series.")
@click.option("--window", "lengths_s", multiple=True, default=[1, 30, 100, 300], help="Seconds; may be repeated.")
def windows(series: int, lengths_s: tuple[int, ...]) -> None:
    """Cells and rows to be compacted, by the length of the window: an hour, played in a minute."""
    windows_module.windows(series, lengths_s)


@bench.command()
@click.option("--series", default=1000, help="Series.")
@click.option("--points", default=200, help="Points of each series, each time.")
@click.option("--batch", "batches", multiple=True, default=[1000, 100], help="Points a request; may be repeated.")
@click.option("--rounds", default=3, help="How often each way is measured, in turn.")
def put(series: int, points: int, batches: tuple[int, ...], rounds: int) -> None:
    """/api/put beside telnet: CPU of the daemon a point."""
    put_module.put(Load(series, points, 4), batches, rounds)


@bench.command()
@click.option("--series", default=1000, help="Series of the metric that is read over a day, a point every ten seconds.")
@click.option("--wide", default=100_000, help="Series of the metric of which one host is read.")
@click.option("--rounds", default=9, help="How often each question is put to each system, in turn.")
@click.option("--only", default="", help="Only questions whose name contains this, as '(c)'.")
def query(series: int, wide: int, rounds: int, only: str) -> None:
    """Queries over HTTP: tsd on both engines beside a real OpenTSDB on the same points."""
    query_module.query(query_module.Size(series, wide), rounds, lambda name: only in name)


@bench.command()
@click.option("--series", default=1000, help="Series of the query, a day with a point every ten seconds.")
@click.option("--points", default=200, help="Points of each of 10,000 series that are put, each time.")
@click.option("--pairs", default=5, help="How often all is measured, in turn without the query and beside it.")
@click.option("--seconds", default=5.0, help="How long each time a client asks at a small pace.")
def beside(series: int, points: int, pairs: int, seconds: float) -> None:
    """Puts beside a heavy query that is asked over and over, and how soon a query ends when it must."""
    beside_module.beside(series, Load(points=points), pairs, seconds)


if __name__ == "__main__":
    bench(prog_name="scripts/bench")
