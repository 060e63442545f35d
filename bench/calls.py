"""Requests to HBase's gateway while agents send at their pace in real time, with the default settings or others.

Rows are not compacted meanwhile, as their hour is not over. `scripts/bench pace` counts these requests, too.
"""

import tempfile
import time
from itertools import islice
from pathlib import Path

import click
import trio

from bench.agents import GROUPS, METRICS, Fleet, batches
from bench.daemon import serving
from bench.pace import Sums, play
from bench.peers import running_hbase
from bench.report import machine, publish, table
from bench.scaled import Timeline
from bench.verify import stored

NEW_ROUNDS = 2  # with the first points of all series: names and series are new


@click.command()
@click.option("--series", default=130_000, help="Series.")
@click.option("--round", "round_s", default=10, help="Seconds from point to point.")
@click.option("--rounds", default=6, help="Rounds of points, after two with the first points of all series.")
@click.option("--set", "words", multiple=True, metavar="KEY=VALUE", help="A setting of the daemon; may be repeated.")
def calls(series: int, round_s: int, rounds: int, words: tuple[str, ...]) -> None:
    """Requests to HBase's gateway while agents send at their pace in real time."""
    settings = dict(word.split("=", 1) for word in words)
    start_s = int(time.time()) // round_s * round_s  # noqa: TID251 (the benchmark's own clock)
    fleet = Fleet(series, round_s, (NEW_ROUNDS + rounds) * round_s / 3600, start_s, late=0)
    lines = batches(fleet)
    with tempfile.TemporaryDirectory(prefix="tsd-bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        with running_hbase(folder / "hbase") as hbase:
            with serving(folder / "state", hbase.settings("calls", **settings)) as daemon:

                def send(some: int, timeline: Timeline) -> Sums:
                    count = some * min(GROUPS, fleet.hosts)
                    return trio.run(
                        play, islice(lines, count), fleet.connections, timeline, daemon.port, b"sync\n", lambda: None
                    )

                first = send(NEW_ROUNDS, Timeline(1, time.monotonic() - fleet.hours * 3600, start_s))
                daemon.forget()  # it writes what is held for a long interval
                daemon.await_stored(first.points)
                before, cpu_s, store_s = daemon.stats(), daemon.usage().cpu_s, hbase.cpu_s()
                began = time.monotonic()
                rest = send(rounds, Timeline(1, began, start_s + NEW_ROUNDS * round_s))
                daemon.forget()
                daemon.await_stored(first.points + rest.points)
                took_s = time.monotonic() - began
                after = daemon.stats()
                cpu_s, store_s = daemon.usage().cpu_s - cpu_s, hbase.cpu_s() - store_s
            found = stored(daemon.config)
    if found.points != first.points + rest.points:
        raise SystemExit(f"{first} and {rest} were sent, {found} are stored: the figures mean nothing")
    made = {key: count - before.get(key, 0) for key, count in after.items() if key.startswith("store.")}
    points = rest.points
    figures = {
        "points/s": points / took_s,
        "requests/s": made["store.requests"] / took_s,
        "cells/request": made["store.cells_put"] / made["store.requests"],
        "cells/point": made["store.cells_put"] / points,
        "CPU µs/point": cpu_s / points * 1e6,
        "HBase CPU µs/point": store_s / points * 1e6,
    }
    text = (
        f"{points:,} points of {fleet.hosts * METRICS:,} series, one per {round_s} s, in real time; {machine()}; "
        f"settings: {' '.join(f'{key}={value}' for key, value in settings.items()) or 'the defaults'}. All points were "
        "read back.\n\n" + table(list(figures), [[f"{figure:,.1f}" for figure in figures.values()]])
    )
    publish("calls", text, {"figures": figures, "store": made})
