"""Writes during a heavy query: cost for writers, latency for other clients, and how fast the query can be ended.

One query over a day of 1,000 series is repeated while lines arrive as fast as they are read. Runs with and without the
query alternate, so that other load of the machine affects both.
"""

import http.client
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import click

from bench.daemon import Daemon, run_tsd, serving
from bench.lines import START_S, Load
from bench.query import DAY_S, Size, lines
from bench.report import machine, publish, spread, table
from bench.sender import send
from bench.telnet import Telnet

RANGE = f"start={START_S}&end={START_S + DAY_S - 1}"
HEAVY = f"/api/query?{RANGE}&m=avg:1m-avg:bench.day{{host=*}}"
PROBE_S = 0.02  # interval of a slow sender's requests
LOOK_S = 0.01  # sampling interval of the event loop's waiting time
SOON_S = 0.5  # a query's time limit, or the time until it is cancelled
SHORT_MS = 200  # a limit that the query of 1,000 series exceeds on any machine
OK, CUT = 200, 0

# Queries with one expensive step each.
LONG = {
    "reading": "sum:1h-sum:bench.day",
    "merging": "p99:bench.day",
    "every point": "none:bench.day{cpu=1|2|3|4}",
}


class Speed(NamedTuple):
    """Results of one load."""

    lines_per_s: float  # until stored
    given_cores: float  # the same rate if the event loop had never waited for a core
    query_ms: float  # latency of the concurrent queries; 0: none


class Pair(NamedTuple):
    """Results without and with the query."""

    alone: Speed
    busy: Speed


class Waits(NamedTuple):
    """Latencies of a client in ms."""

    p50: float
    p99: float
    longest: float


@click.command("mixed-load")
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
    load = Load(points=points)
    with tempfile.TemporaryDirectory(prefix="tsd-bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        text = folder / "lines"
        with text.open("w") as file:
            file.writelines(lines(Size(series, 0)))
        settings = {"tsd.storage.path": str(folder / "state"), "tsd.query.memory_limit": str(2 << 30)}
        for words in (["import", str(text)], ["compact", "--until", str(START_S + 2 * DAY_S)]):
            run_tsd(settings, *words)
        text.unlink()
        with serving(folder / "state", settings) as daemon:
            alone_ms = _alone_ms(daemon)
            speeds = _speeds(daemon, load, pairs)
            waits = {kind: _waits(daemon, kind, pairs, seconds) for kind in ("version", "sync")}
            ends = {
                f"cancelled while {step}": [_cancelled_ms(daemon, m) for _ in range(pairs)] for step, m in LONG.items()
            }
        with serving(folder / "state", settings | {"tsd.query.timeout": str(SHORT_MS)}) as daemon:
            later = load._replace(seed=load.seed + 100, start_s=load.start_s + 30 * DAY_S)
            over = _speeds(daemon, later, pairs, f"/api/query?{RANGE}&m={LONG['merging']}")
        limited = settings | {"tsd.query.timeout": str(round(SOON_S * 1000))}
        with serving(folder / "state", limited) as daemon:
            ends |= {
                f"out of time while {step}": [_timeout_ms(daemon, m) for _ in range(pairs)] for step, m in LONG.items()
            }
    publish(
        "with the query",
        _report(series, load, alone_ms, speeds, over, waits, ends),
        {"speeds": speeds, "over": over, "waits": waits, "ends": ends},
    )


# ---- the repeated query


@contextmanager
def repeated_query(port: int, path: str = HEAVY) -> Iterator[list[tuple[float, float]]]:
    """Repeat a query in a separate process during the block. The heavy one must be answered, others must fail. Yields
    start and end of each by the monotonic clock."""
    spans: list[tuple[float, float]] = []
    with subprocess.Popen(
        [sys.executable, "-m", "bench.mixed_load", str(port), path], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()  # the first answer has arrived
        try:
            yield spans
        finally:
            assert process.poll() is None, "the queries ended"
            process.terminate()
            spans += [tuple(json.loads(line)) for line in process.stdout if line.endswith(b"]\n")]


def main() -> None:
    """Run that process."""
    port, path = int(sys.argv[1]), sys.argv[2]
    for number in itertools.count():
        begun = time.monotonic()
        status, _ = _timed_query(port, path)
        assert (status == OK) == (path == HEAVY), f"{path}: {status}"
        print(json.dumps([begun, time.monotonic()]) if number else "repeating", flush=True)


def _alone_ms(daemon: Daemon) -> float:
    return statistics.median(_timed_query(daemon.port, HEAVY)[1] * 1000 for _ in range(5))


def _timed_query(port: int, path: str) -> tuple[int, float]:
    """Return the status (CUT: of an incomplete answer) and the seconds until it was known."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    begun = time.monotonic()
    connection.request("GET", path)
    answer = connection.getresponse()
    took = time.monotonic() - begun
    status = answer.status
    if status == OK:  # measured to the end of the answer
        try:
            answer.read()
        except http.client.IncompleteRead:  # the answer was cut off
            status = CUT
        took = time.monotonic() - begun
    connection.close()
    return status, took


# ---- cost for others


def _speeds(daemon: Daemon, load: Load, pairs: int, path: str = HEAVY) -> list[Pair]:
    """Measure puts without and with the query, alternately, in changing order."""
    stored = daemon.stats()["ledger.stored"]

    def measured(busy: bool) -> Speed:
        nonlocal load, stored
        load, stored = load.after, stored + load.lines
        spans: list[tuple[float, float]] = []
        with ExitStack() as stack:
            if busy:
                spans = stack.enter_context(repeated_query(daemon.port, path))
            waited = stack.enter_context(_waiting(daemon.pid))
            sent = send(load, daemon.port, "sync")
            daemon.flush()
            end = daemon.await_stored(stored)
        took = end - sent.start
        for_cores = [wait for at, wait in waited if sent.start <= at <= end]
        queries = [(b - a) * 1000 for a, b in spans if b > sent.start and a < end]
        return Speed(
            load.lines / took,
            load.lines / (took - (for_cores[-1] - for_cores[0])),
            statistics.median(queries) if queries else 0.0,
        )

    measured(busy=False)  # assigns UIDs
    found = []
    for number in range(pairs):
        first, second = [measured(busy) for busy in (bool(number % 2), not number % 2)]
        found.append(Pair(second, first) if number % 2 else Pair(first, second))
        _log(f"{found[-1]}")
    return found


@contextmanager
def _waiting(pid: int) -> Iterator[list[tuple[float, float]]]:
    """Sample the seconds that the event loop has waited for a core so far, during the block."""
    found: list[tuple[float, float]] = []
    over = threading.Event()

    def look() -> None:
        while not over.wait(LOOK_S):
            waited_ns = Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[1]
            found.append((time.monotonic(), int(waited_ns) / 1e9))

    looking = threading.Thread(target=look)
    looking.start()
    try:
        yield found
    finally:
        over.set()
        looking.join()


def _waits(daemon: Daemon, kind: str, pairs: int, seconds: float) -> list[tuple[Waits, Waits]]:
    """Measure the latency of a slow sender's requests, alternately without and with the query."""
    found = []
    for _ in range(pairs):
        alone = _probed(daemon.port, kind, seconds)
        with repeated_query(daemon.port):
            busy = _probed(daemon.port, kind, seconds)
        found.append((alone, busy))
        _log(f"{kind}, without and with the query: {alone} {busy}")
    return found


def _probed(port: int, kind: str, seconds: float) -> Waits:
    waits: list[float] = []
    pause = threading.Event()
    with Telnet(port) as telnet:
        end = time.monotonic() + seconds
        while (spans := time.monotonic()) < end:
            if kind == "sync":
                telnet.sync(b"put bench.probe %d 1 host=probe" % (START_S + len(waits)))
            else:
                telnet.request(b"version")
            waits.append((time.monotonic() - spans) * 1000)
            pause.wait(PROBE_S)
    waits.sort()
    return Waits(waits[len(waits) // 2], waits[min(len(waits) - 1, int(len(waits) * 0.99))], waits[-1])


# ---- how fast it ends


def _cancelled_ms(daemon: Daemon, m: str) -> float:
    """Return the time from a DELETE of the running query to its answer; 0 if the query was already over."""
    found: list[tuple[int, float]] = []
    begun = time.monotonic()
    client = threading.Thread(target=lambda: found.append(_timed_query(daemon.port, f"/api/query?{RANGE}&m={m}")))
    client.start()
    client.join(SOON_S)
    connection = http.client.HTTPConnection("127.0.0.1", daemon.port, timeout=120)
    connection.request("GET", "/api/stats/query")
    cancelled = time.monotonic()
    for one in json.loads(connection.getresponse().read())["running"]:
        connection.request("DELETE", f"/api/stats/query?id={one['id']}")
        connection.getresponse().read()
    connection.close()
    client.join()
    [(status, took)] = found
    return 0.0 if status == OK else (begun + took - cancelled) * 1000


def _timeout_ms(daemon: Daemon, m: str) -> float:
    """Return the time from the limit to its error; 0 if the answer was earlier."""
    status, took = _timed_query(daemon.port, f"/api/query?{RANGE}&m={m}")
    return 0.0 if status == OK else (took - SOON_S) * 1000


def _report(
    series: int,
    load: Load,
    alone_ms: float,
    speeds: list[Pair],
    over: list[Pair],
    waits: Mapping[str, list[tuple[Waits, Waits]]],
    ends: Mapping[str, list[float]],
) -> str:
    head = (
        f"avg:1m-avg by host over {series:,} series and a day, repeated, during puts of {load.series:,} series × "
        f"{load.points:,} points on {load.connections} connections; embedded store; {machine()}. "
        "Medians (minimum–maximum).\n\n"
    )
    rows = []
    for name, pairs, at in (
        ("lines/s until stored", speeds, 0),
        ("lines/s, waits for a core left out", speeds, 1),
        ("lines/s with a query over its time limit", over, 0),
    ):
        alone, busy = [pair.alone[at] for pair in pairs], [pair.busy[at] for pair in pairs]
        rows.append(
            [name, spread(alone, 0), spread(busy, 0), spread([b / a for a, b in zip(alone, busy, strict=True)])]
        )
    queries = [pair.busy.query_ms for pair in speeds]
    rows.append(["the query, ms", f"{alone_ms:,.0f}", spread(queries, 0), spread([ms / alone_ms for ms in queries], 1)])
    for kind, probed in waits.items():
        for at, field in enumerate(Waits._fields):
            one, other = [pair[0][at] for pair in probed], [pair[1][at] for pair in probed]
            more = [b - a for a, b in zip(one, other, strict=True)]
            rows.append([f"{kind}, {field}, ms", spread(one, 1), spread(other, 1), f"{statistics.median(more):+.1f}"])
    shown = table(["", "alone", "with the query", "ratio or further values"], rows)
    late = table(["a query that is", "ms until its error"], [[name, spread(some, 0)] for name, some in ends.items()])
    return f"{head}{shown}\n{late}"


def _log(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr)


if __name__ == "__main__":
    main()
