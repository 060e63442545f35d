"""Writers beside a heavy query: what it costs them, what it costs whoever waits, and how soon it ends when it must.

One query over a day of 1,000 series is asked over and over, while lines come in as fast as they are taken. Both ways,
with the query and without, are measured in turn: what else the machine does meets both.
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

from bench.daemon import Daemon, serving
from bench.lines import START_S, Load
from bench.query import DAY_S, Size, lines
from bench.report import machine, publish, spread, table
from bench.sender import send
from bench.telnet import Telnet

RANGE = f"start={START_S}&end={START_S + DAY_S - 1}"
HEAVY = f"/api/query?{RANGE}&m=avg:1m-avg:bench.day{{host=*}}"
PROBE_S = 0.02  # from one question to the next: a small pace
LOOK_S = 0.01  # from one look at what the event loop waited to the next
SOON_S = 0.5  # the limit, of the time that a query may take, or that it is given until it is cancelled
SHORT_MS = 200  # a limit that the same query exceeds on any machine
OK, CUT = 200, 0

# What takes longest in each of a query's steps.
LONG = {
    "reading": "sum:1h-sum:bench.day",
    "merging": "p99:bench.day",
    "every point": "none:bench.day{cpu=1|2|3|4}",
}


class Speed(NamedTuple):
    """Of one load."""

    lines_per_s: float  # until stored
    given_cores: float  # the same, had the event loop never waited for a core that another process had
    query_ms: float  # of the queries asked meanwhile; 0: none


class Pair(NamedTuple):
    """Both ways."""

    alone: Speed
    beside: Speed


class Waits(NamedTuple):
    """How long a client waited, in ms."""

    p50: float
    p99: float
    longest: float


def beside(series: int, load: Load, pairs: int, seconds: float) -> None:
    """Measure all of it and publish the report."""
    with tempfile.TemporaryDirectory(prefix="tsd-bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        text = folder / "lines"
        with text.open("w") as file:
            file.writelines(lines(Size(series, 0)))
        settings = {"tsd.storage.path": str(folder / "state"), "tsd.query.memory_limit": str(2 << 30)}
        for words in (["import", str(text)], ["compact", "--until", str(START_S + 2 * DAY_S)]):
            _tsd(settings, *words)
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
                f"out of time while {step}": [_overdue_ms(daemon, m) for _ in range(pairs)] for step, m in LONG.items()
            }
    publish(
        "beside",
        _report(series, load, alone_ms, speeds, over, waits, ends),
        {"speeds": speeds, "over": over, "waits": waits, "ends": ends},
    )


def _tsd(settings: Mapping[str, str], *words: str) -> None:
    named = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    subprocess.run([sys.executable, "-m", "tsd", *words, *named], check=True, stdout=subprocess.DEVNULL)


# ---- the query, over and over


@contextmanager
def asking(port: int, path: str = HEAVY) -> Iterator[list[tuple[float, float]]]:
    """While the block runs, a process of its own asks a query again and again: the heavy one must be answered, any
    other fail. In the end it is known when each was asked and when it was answered, by the monotonic clock."""
    asked: list[tuple[float, float]] = []
    with subprocess.Popen([sys.executable, "-m", "bench.beside", str(port), path], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()  # it has its first answer
        try:
            yield asked
        finally:
            assert process.poll() is None, "the queries ended"
            process.terminate()
            asked += [tuple(json.loads(line)) for line in process.stdout if line.endswith(b"]\n")]


def main() -> None:
    """What that process does."""
    port, path = int(sys.argv[1]), sys.argv[2]
    for number in itertools.count():
        begun = time.monotonic()
        status, _ = _asked(port, path)
        assert (status == OK) == (path == HEAVY), f"{path}: {status}"
        print(json.dumps([begun, time.monotonic()]) if number else "asking", flush=True)


def _alone_ms(daemon: Daemon) -> float:
    return statistics.median(_asked(daemon.port, HEAVY)[1] * 1000 for _ in range(5))


def _asked(port: int, path: str) -> tuple[int, float]:
    """The status (CUT: of an answer that ended in the middle), and how many seconds it took until it was known."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    begun = time.monotonic()
    connection.request("GET", path)
    answer = connection.getresponse()
    took = time.monotonic() - begun
    status = answer.status
    if status == OK:  # the end of the answer is the answer's time
        try:
            answer.read()
        except http.client.IncompleteRead:  # it had begun, and was cut off
            status = CUT
        took = time.monotonic() - begun
    connection.close()
    return status, took


# ---- what it costs others


def _speeds(daemon: Daemon, load: Load, pairs: int, path: str = HEAVY) -> list[Pair]:
    """Puts alone and beside a query, in turn, first the one and then the other."""
    stored = daemon.stats()["ledger.stored"]

    def measured(busy: bool) -> Speed:
        nonlocal load, stored
        load, stored = load.after, stored + load.lines
        asked: list[tuple[float, float]] = []
        with ExitStack() as stack:
            if busy:
                asked = stack.enter_context(asking(daemon.port, path))
            waited = stack.enter_context(_waiting(daemon.pid))
            sent = send(load, daemon.port, "sync")
            daemon.flush()
            end = daemon.await_stored(stored)
        took = end - sent.start
        for_cores = [wait for at, wait in waited if sent.start <= at <= end]
        queries = [(b - a) * 1000 for a, b in asked if b > sent.start and a < end]
        return Speed(
            load.lines / took,
            load.lines / (took - (for_cores[-1] - for_cores[0])),
            statistics.median(queries) if queries else 0.0,
        )

    measured(busy=False)  # the names
    found = []
    for number in range(pairs):
        first, second = [measured(busy) for busy in (bool(number % 2), not number % 2)]
        found.append(Pair(second, first) if number % 2 else Pair(first, second))
        _say(f"{found[-1]}")
    return found


@contextmanager
def _waiting(pid: int) -> Iterator[list[tuple[float, float]]]:
    """How long the event loop has waited for a core so far, in seconds, at many moments while the block runs."""
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
    """What a client waits that asks at a small pace, alone and beside the query, in turn."""
    found = []
    for _ in range(pairs):
        alone = _probed(daemon.port, kind, seconds)
        with asking(daemon.port):
            busy = _probed(daemon.port, kind, seconds)
        found.append((alone, busy))
        _say(f"{kind}, alone and beside: {alone} {busy}")
    return found


def _probed(port: int, kind: str, seconds: float) -> Waits:
    waits: list[float] = []
    pause = threading.Event()
    with Telnet(port) as telnet:
        end = time.monotonic() + seconds
        while (asked := time.monotonic()) < end:
            if kind == "sync":
                telnet.sync(b"put bench.probe %d 1 host=probe" % (START_S + len(waits)))
            else:
                telnet.ask(b"version")
            waits.append((time.monotonic() - asked) * 1000)
            pause.wait(PROBE_S)
    waits.sort()
    return Waits(waits[len(waits) // 2], waits[min(len(waits) - 1, int(len(waits) * 0.99))], waits[-1])


# ---- how soon it ends


def _cancelled_ms(daemon: Daemon, m: str) -> float:
    """From a DELETE of the running query to the answer that says so; 0 where it was over before."""
    found: list[tuple[int, float]] = []
    begun = time.monotonic()
    asker = threading.Thread(target=lambda: found.append(_asked(daemon.port, f"/api/query?{RANGE}&m={m}")))
    asker.start()
    asker.join(SOON_S)
    connection = http.client.HTTPConnection("127.0.0.1", daemon.port, timeout=120)
    connection.request("GET", "/api/stats/query")
    cancelled = time.monotonic()
    for one in json.loads(connection.getresponse().read())["running"]:
        connection.request("DELETE", f"/api/stats/query?id={one['id']}")
        connection.getresponse().read()
    connection.close()
    asker.join()
    [(status, took)] = found
    return 0.0 if status == OK else (begun + took - cancelled) * 1000


def _overdue_ms(daemon: Daemon, m: str) -> float:
    """From the limit to the error that tells of it; 0 where the answer came before."""
    status, took = _asked(daemon.port, f"/api/query?{RANGE}&m={m}")
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
        f"avg:1m-avg by host over {series:,} series and a day, over and over, beside {load.series:,} series × "
        f"{load.points:,} points on {load.connections} connections; embedded store; {machine()}. "
        "Medians (least–greatest).\n\n"
    )
    rows = []
    for name, pairs, at in (
        ("lines/s until stored", speeds, 0),
        ("lines/s, waits for a core left out", speeds, 1),
        ("lines/s beside one that exceeds its time", over, 0),
    ):
        alone, busy = [pair.alone[at] for pair in pairs], [pair.beside[at] for pair in pairs]
        rows.append(
            [name, spread(alone, 0), spread(busy, 0), spread([b / a for a, b in zip(alone, busy, strict=True)])]
        )
    queries = [pair.beside.query_ms for pair in speeds]
    rows.append(["the query, ms", f"{alone_ms:,.0f}", spread(queries, 0), spread([ms / alone_ms for ms in queries], 1)])
    for kind, probed in waits.items():
        for at, field in enumerate(Waits._fields):
            one, other = [pair[0][at] for pair in probed], [pair[1][at] for pair in probed]
            more = [b - a for a, b in zip(one, other, strict=True)]
            rows.append([f"{kind}, {field}, ms", spread(one, 1), spread(other, 1), f"{statistics.median(more):+.1f}"])
    told = table(["", "alone", "beside the query", "ratio, or more"], rows)
    late = table(["a query that is", "ms until its error"], [[name, spread(some, 0)] for name, some in ends.items()])
    return f"{head}{told}\n{late}"


def _say(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr)


if __name__ == "__main__":
    main()
