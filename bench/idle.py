"""The cost of idle connections, and of short-lived, slow-reading and slow-writing ones.

Separate processes hold the connections. `sync` is measured alternately with and without them on other connections,
because the machine's load affects both.
"""

import resource
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import click
import trio

from bench.daemon import Daemon, serving
from bench.report import machine, publish, spread, table
from bench.sync import Figures, Pace, measure
from bench.telnet import Telnet

BUSY = Pace(100, 100)
PROBES = 8
SLOW = 200  # connections of each slow kind
FILES = 1000  # descriptors for other purposes
START_S = 1356998400
OPEN, TOTAL = (f"connectionmgr.connections type={which}" for which in ("open", "total"))


class Kind(NamedTuple):
    """How a connection becomes idle."""

    name: str
    first: bytes  # data sent
    answer: bytes  # end of the answer


class Opens(NamedTuple):
    """Connections that are opened, used and closed."""

    per_s: float
    p50_ms: float  # from connecting to `synced`
    p99_ms: float
    failed: int
    sync_p99_ms: float  # p99 of `sync` on an open connection
    cpu_us: float  # of the daemon per connection


KINDS = {
    kind.name: kind
    for kind in (
        Kind("said nothing", b"", b""),
        Kind("telnet", b"put bench.idle 1356998400 1 host=idle\nsync\n", b"synced 1\n"),
        Kind("HTTP", b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n", b'"}'),
    )
}


@click.command()
@click.option("--count", default=10_000, help="Idle connections.")
@click.option("--seconds", default=15, help="Duration of each measurement of `sync`.")
@click.option("--pairs", default=5, help="Pairs of measurements without and with idle connections.")
def idle(count: int, seconds: int, pairs: int) -> None:
    """Idle, short-lived and slow connections: memory, and latency of `sync`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(count + FILES, hard)), hard))
    with tempfile.TemporaryDirectory(prefix="tsd-bench-", ignore_cleanup_errors=True) as folder:
        memory = {name: _memory(Path(folder) / name.replace(" ", "-"), count, kind) for name, kind in KINDS.items()}
        with serving(Path(folder) / "sync", {}) as daemon:
            waits = _pairs(daemon, count, seconds, pairs)
            opens = _opens(daemon, seconds)
        with serving(Path(folder) / "slow", {}) as daemon:
            slow = _slow(daemon, seconds)
    without, with_idle = ([figures.p99_ms for figures in column] for column in zip(*waits, strict=True))
    ratio = statistics.median(after / before for before, after in waits_of(waits))
    rows = [
        *([f"memory of an idle connection, {name}", f"{kib:.1f} KiB"] for name, kib in memory.items()),
        [
            f"sync p99 with {BUSY.connections} connections that send {BUSY.lines_per_s} lines/s each",
            spread(without, 0) + " ms",
        ],
        [f"the same, with {count:,} idle ones", spread(with_idle, 0) + " ms"],
        ["their ratio, of the median pair", f"{ratio:.2f}"],
        ["opened, used and closed a second, of 1,000 wanted", f"{opens.per_s:,.0f} ({opens.failed} failed)"],
        ["from the opening to `synced`, p50 / p99", f"{opens.p50_ms:.0f} / {opens.p99_ms:.0f} ms"],
        ["the daemon's CPU for one", f"{opens.cpu_us:.0f} µs"],
        ["sync p99 meanwhile", f"{opens.sync_p99_ms:.0f} ms"],
        [f"sync p99 with {SLOW} clients that read nothing and {SLOW} that send a byte a second", f"{slow[0]:.0f} ms"],
        ["memory that those take", f"{slow[1]:.0f} MiB"],
    ]
    figures = {"memory_kib": memory, "sync": waits, "opens": opens, "slow": slow}
    publish("idle", f"Embedded store; {machine()}.\n\n" + table(["", ""], rows), figures)


def waits_of(pairs: list[tuple[Figures, Figures]]) -> Iterator[tuple[float, float]]:
    """Yield the 99th percentiles of each pair."""
    for before, after in pairs:
        yield before.p99_ms, after.p99_ms


def _memory(folder: Path, count: int, kind: Kind) -> float:
    """Return the KiB of memory per idle connection of a kind."""
    with serving(folder, {}) as daemon:
        with _held(daemon.port, count // 10, kind):  # one-time allocations
            pass
        before = daemon.usage().now_mib
        with _held(daemon.port, count, kind):
            return (daemon.usage().now_mib - before) * 1024 / count


def _pairs(daemon: Daemon, count: int, seconds: int, pairs: int) -> list[tuple[Figures, Figures]]:
    """Measure `sync` alternately without and with idle connections; half of them have sent something."""
    found: list[tuple[Figures, Figures]] = []
    measure(daemon, BUSY, 2, PROBES)  # to warm up
    for _ in range(pairs):
        without = measure(daemon, BUSY, seconds, PROBES)
        with _held(daemon.port, count // 2, KINDS["said nothing"]), _held(daemon.port, count // 2, KINDS["telnet"]):
            found.append((without, measure(daemon, BUSY, seconds, PROBES)))
    return found


def _opens(daemon: Daemon, seconds: int) -> Opens:
    """Open connections at a fixed rate, use each for a line and its `sync`, and close it."""
    words = [sys.executable, "-m", "bench.idle", "open", str(daemon.port), "1000", str(seconds)]
    before_s = daemon.usage().cpu_s
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as opener:
        figures = measure(daemon, Pace(1, 1), seconds, PROBES)
        assert opener.stdout is not None
        rate, p50, p99, failed = map(float, opener.stdout.read().split())
    cpu_us = (daemon.usage().cpu_s - before_s) / (1000 * seconds) * 1e6
    return Opens(rate, p50, p99, int(failed), figures.p99_ms, cpu_us)


def _slow(daemon: Daemon, seconds: int) -> tuple[float, float]:
    """Return the p99 of `sync` with slow readers and writers, and the MiB of memory that they need."""
    before = daemon.usage().now_mib
    words = [sys.executable, "-m", "bench.idle", "slow", str(daemon.port), str(SLOW)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as slow:
        assert slow.stdout is not None
        assert slow.stdout.readline() == "ready\n"
        p99_ms = measure(daemon, BUSY, seconds, PROBES).p99_ms
        took = daemon.usage().now_mib - before
        slow.kill()
    return p99_ms, took


@contextmanager
def _held(port: int, count: int, kind: Kind) -> Iterator[None]:
    """Hold connections until the block ends, and wait until the daemon has noticed their end."""
    words = [sys.executable, "-m", "bench.idle", "hold", str(port), str(count), kind.name]
    with Telnet(port) as telnet, subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        before = telnet.stats()
        assert holder.stdin is not None
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"ready\n"
        while telnet.stats()[TOTAL] < before[TOTAL] + count:
            pass  # the kernel completes connections before the daemon accepts them
        yield
        holder.stdin.close()
        while telnet.stats()[OPEN] > before[OPEN]:
            pass


def hold(port: int, count: int, kind: Kind) -> None:
    """Run a process that holds connections."""
    held = [socket.create_connection(("127.0.0.1", port), timeout=60) for _ in range(count)]
    for connection in held:
        connection.sendall(kind.first)
    for connection in held:
        answer = b""
        while not answer.endswith(kind.answer):
            answer += connection.recv(4096)
    print("ready", flush=True)
    sys.stdin.read()


async def open_and_close(port: int, per_s: int, seconds: int) -> None:
    """Open, use and close connections at a fixed rate. Print the rate, and p50 and p99 in ms."""
    took: list[float] = []
    failed = 0

    async def one(number: int) -> None:
        nonlocal failed
        begun = trio.current_time()
        try:
            async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
                await stream.send_all(b"put bench.open %d 1 host=open\nsync\n" % (START_S + number % 3600))
                assert (await stream.receive_some()).endswith(b"synced 1\n")
        except (OSError, trio.BrokenResourceError) as error:
            failed += 1
            if failed == 1:
                print(repr(error), file=sys.stderr)
        else:
            took.append(trio.current_time() - begun)

    start = trio.current_time()
    async with trio.open_nursery() as nursery:
        for number in range(per_s * seconds):
            await trio.sleep_until(start + number / per_s)
            nursery.start_soon(one, number)
    took.sort()
    rate = len(took) / (trio.current_time() - start)
    print(rate, took[len(took) // 2] * 1000, took[len(took) * 99 // 100] * 1000, failed)


async def be_slow(port: int, count: int) -> None:
    """Run clients that never read, and clients that write a byte per second, until killed."""

    async def deaf() -> None:
        stream = await trio.open_tcp_stream("127.0.0.1", port)
        await stream.send_all(b"put oops\nstats\n" * 20_000)

    async def stammering() -> None:
        stream = await trio.open_tcp_stream("127.0.0.1", port)
        for byte in b"put bench.slow 1356998400 1 host=slow\n" * 1000:
            await stream.send_all(bytes([byte]))
            await trio.sleep(1)

    async with trio.open_nursery() as nursery:
        for _ in range(count):
            nursery.start_soon(deaf)
            nursery.start_soon(stammering)
        await trio.sleep(3)  # until the buffers are full
        print("ready", flush=True)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["hold", port, count, name]:
            hold(int(port), int(count), KINDS[name])
        case ["open", port, per_s, seconds]:
            trio.run(open_and_close, int(port), int(per_s), int(seconds))
        case ["slow", port, count]:
            trio.run(be_slow, int(port), int(count))
