"""Latency of `sync` under load, and the CPU of many small senders.

One process sends put lines at a fixed rate over many connections, as agents do. Another connection repeatedly sends a
line and `sync`, and waits for the answer.
"""

import json
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import click

from bench.daemon import Daemon, serving
from bench.lines import START_S, series_text
from bench.report import machine, publish, spread, table
from bench.telnet import Telnet

HOUR_S = 3600
PIECE_BYTES = 64 << 10
LEAST_REST_S = 0.001  # pause of the sender: packets due within it are sent together


class Pace(NamedTuple):
    """Rate of all senders."""

    connections: int
    lines_per_s: int  # per connection
    packets_per_s: int = 1  # per connection

    @property
    def name(self) -> str:
        """The label in the table."""
        apart = f", in {self.packets_per_s} packets" if self.packets_per_s > 1 else ""
        return f"{self.connections:,} × {self.lines_per_s:,}{apart}"


class Figures(NamedTuple):
    """Results of one rate."""

    lines_per_s: float  # measured total
    cpu_share: float  # of one core
    cpu_us: float  # per line
    p50_ms: float
    p99_ms: float


PACES = [Pace(4, 0), Pace(4, 50_000), Pace(1000, 10), Pace(1000, 10, 10), Pace(1000, 100)]


@click.command()
@click.option("--seconds", default=15, help="Duration of each send rate.")
def sync(seconds: int) -> None:
    """Latency of `sync` under load, and CPU of many small senders."""
    found = {}
    with tempfile.TemporaryDirectory(prefix="tsd-bench-", ignore_cleanup_errors=True) as folder:
        for number, pace in enumerate(PACES):
            with serving(Path(folder) / str(number), {}) as daemon:
                found[pace.name] = measure(daemon, pace, seconds)
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
    setup = "Embedded store, fsync every 100 ms at most; each connection sends once a second where nothing else is said"
    note = f"{setup}; {machine()}.\n\n"
    publish("sync", note + table(head, rows), found)


def measure(daemon: Daemon, pace: Pace, seconds: float, probes: int = 1) -> Figures:
    """Send at a fixed rate while some connections repeatedly call `sync`."""
    with sending(daemon.port, pace):
        daemon.flush()  # ends one-time work per series
        with Telnet(daemon.port) as telnet:
            cpu, lines, start = daemon.usage().cpu_s, telnet.stats()["ledger.received"], time.monotonic()
            waits = _probe(daemon.port, start + seconds, probes)
            took, count = time.monotonic() - start, telnet.stats()["ledger.received"] - lines
            spent = daemon.usage().cpu_s - cpu
    waits.sort()
    p50, p99 = (waits[min(len(waits) - 1, int(len(waits) * share))] * 1000 for share in (0.5, 0.99))
    sent = count - len(waits)
    return Figures(sent / took, spent / took, spent / sent * 1e6 if sent else 0.0, p50, p99)


@contextmanager
def sending(port: int, pace: Pace) -> Iterator[None]:
    """Send at a fixed rate from another process, once all its connections have sent their series."""
    words = [sys.executable, "-m", "bench.sync", json.dumps([port, pace])]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as sender:
        try:
            assert sender.stdout is not None
            sender.stdout.readline()
            yield
        finally:
            sender.kill()


def _probe(port: int, end: float, probes: int) -> list[float]:
    """Repeat `sync` until `end`. Return the latencies in seconds."""
    waits: list[float] = []

    def probe(number: int) -> None:
        with Telnet(port) as telnet:
            while (started := time.monotonic()) < end:
                telnet.sync(b"put bench.probe %d 1 host=probe%d" % (START_S + len(waits) % HOUR_S, number))
                waits.append(time.monotonic() - started)

    threads = [threading.Thread(target=probe, args=(number,)) for number in range(probes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return waits


def _send(port: int, pace: Pace) -> None:
    """Run the sending process. Its connections start their ticks at different times."""
    agents = [_Agent(port, number, pace) for number in range(pace.connections)]
    for agent in agents:
        agent.connection.recv(PIECE_BYTES)  # its names are assigned
    print("ready", flush=True)
    rest, start, packets_per_s = threading.Event(), time.monotonic(), pace.connections * pace.packets_per_s
    sent = 0
    while True:
        due = int((time.monotonic() - start) * packets_per_s)
        for number in range(sent, due):
            agents[number % pace.connections].send()
        sent = max(sent, due)
        rest.wait(LEAST_REST_S)


class _Agent:
    """An agent that repeatedly sends the same series, each time a second later."""

    def __init__(self, port: int, number: int, pace: Pace) -> None:
        self.connection = socket.create_connection(("127.0.0.1", port), timeout=60)
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._hosts = [series_text(number * 10 + metric) for metric in range(10)]
        self._lines = pace.lines_per_s // pace.packets_per_s
        self._sent = 0
        self.connection.sendall(b"".join(_line(host, START_S) for host in self._hosts) + b"sync\n")

    def send(self) -> None:
        """Return its next packet."""
        numbers = range(self._sent, self._sent + self._lines)
        self.connection.sendall(b"".join([_line(self._hosts[n % 10], START_S + 1 + n // 10) for n in numbers]))
        self._sent += self._lines


def _line(host: tuple[str, str], at: int) -> bytes:
    return f"put {host[0]} {at} {at % 1000}.5 {host[1]}\n".encode()


if __name__ == "__main__":
    arguments = json.loads(sys.argv[1])
    _send(arguments[0], Pace(*arguments[1]))
