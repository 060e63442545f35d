"""How long `sync` takes while others send, and what many small senders cost.

One process sends put lines at a steady pace over many connections, as agents do; another connection sends a line and
`sync` over and over, and waits for each answer.
"""

import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import NamedTuple

import trio

from bench.daemon import Daemon, serving
from bench.lines import START_S, series_text
from bench.report import machine, publish, spread, table
from bench.telnet import Telnet

HOUR_S = 3600
TICK_S = 1.0  # each connection sends this often


class Pace(NamedTuple):
    """Of all senders."""

    connections: int
    lines_per_s: int  # of each connection


class Figures(NamedTuple):
    """Of one pace."""

    lines_per_s: float  # in all, as measured
    cpu_share: float  # of one core
    cpu_us: float  # a line
    p50_ms: float
    p99_ms: float


PACES = [Pace(4, 0), Pace(4, 50_000), Pace(1000, 10), Pace(1000, 100)]


def sync(seconds: int) -> None:
    """Run every pace for so long and publish the report."""
    found = {}
    with tempfile.TemporaryDirectory(prefix="tsd-bench-", ignore_cleanup_errors=True) as folder:
        for number, pace in enumerate(PACES):
            with serving(Path(folder) / str(number), {}) as daemon:
                found[f"{pace.connections:,} × {pace.lines_per_s:,}"] = measure(daemon, pace, seconds)
    rows = [
        [
            name,
            spread([f.lines_per_s], 0),
            f"{f.cpu_share:.0%}",
            spread([f.cpu_us]) if f.cpu_us else "",
            spread([f.p50_ms], 0),
            spread([f.p99_ms], 0),
        ]
        for name, f in found.items()
    ]
    head = ["connections × lines/s", "lines/s in all", "CPU of one core", "CPU µs/line", "sync p50 ms", "sync p99 ms"]
    note = f"Embedded store, fsync every 100 ms at most; each connection sends once a second; {machine()}.\n\n"
    publish("sync", note + table(head, rows), found)


def measure(daemon: Daemon, pace: Pace, seconds: float, probes: int = 1) -> Figures:
    """Have agents send at a pace, and so many connections wait for `sync` over and over meanwhile."""
    with subprocess.Popen(
        [sys.executable, "-m", "bench.sync", json.dumps([daemon.port, pace])],
        stdout=subprocess.PIPE,
    ) as sender:
        assert sender.stdout is not None
        sender.stdout.readline()  # all are connected, and have introduced their series
        with Telnet(daemon.port) as telnet:
            cpu, lines, start = daemon.usage().cpu_s, telnet.stats()["ledger.received"], time.monotonic()
            waits = _probe(daemon.port, start + seconds, probes)
            took, count = time.monotonic() - start, telnet.stats()["ledger.received"] - lines
            spent = daemon.usage().cpu_s - cpu
        sender.terminate()
    waits.sort()
    p50, p99 = (waits[min(len(waits) - 1, int(len(waits) * share))] * 1000 for share in (0.5, 0.99))
    sent = count - len(waits)
    return Figures(sent / took, spent / took, spent / sent * 1e6 if sent else 0.0, p50, p99)


def _probe(port: int, end: float, probes: int) -> list[float]:
    """How long each `sync` took until `end`, in seconds."""
    waits: list[float] = []

    def probe(number: int) -> None:
        with Telnet(port) as telnet:
            while (asked := time.monotonic()) < end:
                telnet.sync(b"put bench.probe %d 1 host=probe%d" % (START_S + len(waits) % HOUR_S, number))
                waits.append(time.monotonic() - asked)

    threads = [threading.Thread(target=probe, args=(number,)) for number in range(probes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return waits


async def _send(port: int, pace: Pace) -> None:
    """What the sending process does: it staggers its connections over the tick, so that nobody sends in step."""
    introduced = 0

    async def agent(number: int) -> None:
        nonlocal introduced
        hosts = [series_text(number * 10 + metric) for metric in range(10)]
        at = START_S
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            await stream.send_all(b"".join(_line(host, at) for host in hosts) + b"sync\n")
            await stream.receive_some()
            introduced += 1
            if introduced == pace.connections:
                print("ready", flush=True)
            first = trio.current_time() + TICK_S * number / pace.connections
            for tick in range(1_000_000):
                await trio.sleep_until(first + tick * TICK_S)
                lines = []
                for n in range(pace.lines_per_s):
                    at += n % 10 == 0
                    lines.append(_line(hosts[n % 10], at))
                await stream.send_all(b"".join(lines))

    async with trio.open_nursery() as nursery:
        for number in range(pace.connections):
            nursery.start_soon(agent, number)


def _line(host: tuple[str, str], at: int) -> bytes:
    return f"put {host[0]} {at} {at % 1000}.5 {host[1]}\n".encode()


if __name__ == "__main__":
    arguments = json.loads(sys.argv[1])
    trio.run(_send, arguments[0], Pace(*arguments[1]))
