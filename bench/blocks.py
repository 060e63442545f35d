"""Latency of queries over hours in blocks, next to the same hours in rows.

Two daemons have the same points of a fleet, with a point every minute by default. Both answer each query in turn,
without the result cache, and their answers are compared. `dropped`: after both dropped what they had read.
"""

import shutil
import statistics
import tempfile
import time
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import quote

import click

from bench.daemon import Daemon, run_tsd, serving
from bench.day import log_progress
from bench.disk import DAYS_START_S, HOUR_S, Fleet, fleet_lines
from bench.lines import METRICS_A_HOST, series_text
from bench.report import machine, publish, table

ROWS, BLOCKS = "rows", "blocks"
NO_RESULT_CACHE = {"tsd.query.cache_memory": "0"}


@click.command()
@click.option("--hosts", default=100, help="Hosts with ten series each; fewer than 16 make no blocks.")
@click.option("--hours", default=72, help="Hours with points, 48 or more.")
@click.option("--round", "round_s", default=60, help="Seconds from one point of a series to the next.")
@click.option("--rounds", default=15, help="Times that each query is asked of each daemon.")
def blocks(hosts: int, hours: int, round_s: int, rounds: int) -> None:
    """Latency of queries over hours in blocks (tsd.storage.blocks), next to the same hours in rows."""
    fleet = Fleet(hosts, hours, round_s)
    with tempfile.TemporaryDirectory(prefix="tsd-bench-") as name, ExitStack() as stack:
        homes = _write(Path(name), fleet)
        daemons = {
            form: stack.enter_context(serving(home, {**NO_RESULT_CACHE, **_settings(form)}))
            for form, home in homes.items()
        }
        found = {
            (query, is_dropped): _latencies(daemons, requests, rounds, is_dropped=is_dropped)
            for is_dropped in (False, True)
            for query, requests in _queries(fleet).items()
        }
    head = ["query", "dropped", "rows, ms", "blocks, ms", "ratio"]
    lines = [
        [query, "yes" if is_dropped else "no", f"{ms[ROWS]:.2f}", f"{ms[BLOCKS]:.2f}", f"{ms[BLOCKS] / ms[ROWS]:.2f}"]
        for (query, is_dropped), ms in found.items()
    ]
    text = f"{fleet.points:,} points, medians of {rounds} rounds in turn; {machine()}\n\n{table(head, lines)}"
    publish("blocks", text, {f"{query}, {is_dropped}": ms for (query, is_dropped), ms in found.items()})


def _settings(form: str) -> dict[str, str]:
    return {"tsd.storage.blocks": str(form == BLOCKS).lower()}


def _write(folder: Path, fleet: Fleet) -> dict[str, Path]:
    """Write the points, once as rows and once as blocks. Return the state folder of each."""
    homes = {form: folder / form for form in (ROWS, BLOCKS)}
    lines = folder / "lines"
    with lines.open("wb") as file:
        file.writelines(fleet_lines(fleet))
    log_progress(ROWS, f"writing {fleet.points:,} points")
    run_tsd({"tsd.storage.path": str(homes[ROWS])}, "import", str(lines))
    run_tsd({"tsd.storage.path": str(homes[ROWS]), **_settings(ROWS)}, "compact")
    _index(homes[ROWS])
    shutil.copytree(homes[ROWS], homes[BLOCKS])
    log_progress(BLOCKS, "moving the points to blocks")
    run_tsd({"tsd.storage.path": str(homes[BLOCKS]), **_settings(BLOCKS)}, "compact")
    lines.unlink()
    return homes


def _index(home: Path) -> None:
    """Have a daemon complete the series index."""
    with serving(home, {}):
        while "series_index.rebuilt" not in (home / "daemon.log").read_text():
            pass


def _queries(fleet: Fleet) -> dict[str, list[str]]:
    """Return the requests of each query: one, or one for each metric of a host."""
    metric, tags = series_text(0)
    one = "{" + tags.replace(" ", ",") + "}"
    host = next(tag for tag in tags.split() if tag.startswith("host="))
    metrics = sorted({series_text(number)[0] for number in range(METRICS_A_HOST)})
    every = fleet.hours
    return {
        f"one series, {every} hours, raw": [_request(f"sum:{metric}{one}", 0, every)],
        "one series, a day, raw": [_request(f"sum:{metric}{one}", 24, 48)],
        "one series, an hour, raw": [_request(f"sum:{metric}{one}", 30, 31)],
        "each metric of a host, 8 hours, 5-minute means": [
            _request(f"sum:5m-avg:{name}{{{host}}}", 30, 38) for name in metrics
        ],
        "all series of a metric, an hour, raw, summed": [_request(f"sum:{metric}", 30, 31)],
        "all series of a metric, a day, 5-minute means, summed": [_request(f"sum:5m-avg:{metric}", 24, 48)],
        "all series of a metric, a day, maxima of hours by host": [_request(f"sum:1h-max:{metric}{{host=*}}", 24, 48)],
        f"all series of a metric, {every} hours, means of hours, summed": [_request(f"sum:1h-avg:{metric}", 0, every)],
    }


def _request(query: str, first_hour: int, end_hour: int) -> str:
    start_s, end_s = DAYS_START_S + first_hour * HOUR_S, DAYS_START_S + end_hour * HOUR_S - 1
    return f"/api/query?start={start_s}&end={end_s}&m={quote(query)}"


def _latencies(
    daemons: Mapping[str, Daemon], requests: Sequence[str], rounds: int, *, is_dropped: bool
) -> dict[str, float]:
    """Return the median latency of each daemon in ms. Compare their answers."""
    taken: dict[str, list[float]] = {form: [] for form in daemons}
    for number in range(rounds):
        answers = []
        for form in sorted(daemons, reverse=bool(number % 2)):
            if is_dropped:
                daemons[form].forget()
            begun = time.perf_counter()
            answers.append([_get(daemons[form], request) for request in requests])
            taken[form].append((time.perf_counter() - begun) * 1000)
        if answers[0] != answers[1]:
            raise SystemExit(f"the answers to {requests[0]} differ: the figures mean nothing")
    return {form: statistics.median(some) for form, some in taken.items()}


def _get(daemon: Daemon, path: str) -> bytes:
    with urllib.request.urlopen(f"http://127.0.0.1:{daemon.port}{path}") as response:
        found: bytes = response.read()
        return found
