"""Latency of `sync` for small clients, alternately without and with a misbehaving client.

Quotas are per address, so each client has its own on the loopback network. The misbehaving client is a process.
"""

import itertools
import json
import random
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import click
import trustme

from bench.daemon import Daemon, serving
from bench.heavy_requests import REQUESTS, pattern_lines, repeat
from bench.lines import START_S, series_text
from bench.report import machine, publish, spread, table

QUOTA = 2000  # lines/s per client
TIMES = 100  # times its quota that the misbehaving client sends
OTHERS = 20  # small clients, each repeatedly sending ten lines and `sync`
PAUSE_S = 0.03, 0.12  # of a small client between rounds: random, so that clients are not synchronised
SETTINGS = {
    "tsd.quota.lines_per_second": str(QUOTA),
    "tsd.quota.new_names_per_minute": "1000",
    "tsd.quota.exempt": "127.0.9.0/24",
}
LIMITED, EXEMPT = "127.0.8.1", "127.0.9.1"
BLOCK_LINES = 1000
PIECE_BYTES = 64 << 10


class Bad(NamedTuple):
    """A misbehaving client."""

    kind: str  # of DEEDS, or a request
    address: str
    connections: int


CLIENTS = {
    f"{TIMES} × its quota": Bad("paced", LIMITED, 4),
    "as fast as it is read, quota": Bad("flood", LIMITED, 16),
    "as fast as it is read, no quota, 1 connection": Bad("flood", EXEMPT, 1),
    "as fast as it is read, no quota, 16 connections": Bad("flood", EXEMPT, 16),
    "refused lines, read, quota": Bad("refused", LIMITED, 4),
    "refused lines, read, no quota": Bad("refused", EXEMPT, 4),
    "refused lines, never read, no quota": Bad("deaf", EXEMPT, 4),
    "names made up, quota": Bad("names", LIMITED, 4),
    "names made up, no quota": Bad("names", EXEMPT, 4),
    "200 connections, a byte each now and then": Bad("slow", EXEMPT, 200),
    "TLS connections, as many as it can open": Bad("handshakes", EXEMPT, 16),
    **{f"{name}, 4 at a time": Bad(name, EXEMPT, 4) for name in REQUESTS},
}


class Waits(NamedTuple):
    """Latencies of `sync` in ms, and the daemon's rate."""

    p50: float
    p99: float
    syncs: int
    lines_per_s: float  # of all clients, as received


@click.command()
@click.option("--pairs", default=5, help="Pairs of measurements without and with the misbehaving client.")
@click.option("--seconds", default=10, help="Duration of each measurement.")
@click.option("--only", default="", help="Only misbehaving clients with a description that contains this: 'quota'.")
def fairness(pairs: int, seconds: int, only: str) -> None:
    """Latency of `sync` for small clients, without and with a misbehaving client."""
    found: dict[str, list[tuple[Waits, Waits]]] = {}
    with tempfile.TemporaryDirectory(prefix="tsd-bench-", ignore_cleanup_errors=True) as folder:
        for number, (name, bad) in enumerate(CLIENTS.items()):
            if only not in name:
                continue
            keys = _keys(Path(folder)) if bad.kind == "handshakes" else {}
            with serving(Path(folder) / str(number), {**SETTINGS, **keys}) as daemon:
                _waits(daemon, 1.0)  # the names
                if bad.kind in REQUESTS:
                    with _connected(daemon.port, EXEMPT) as connection:
                        connection.sendall(pattern_lines() + b"sync\n")
                        assert connection.recv(PIECE_BYTES).startswith(b"synced ")
                found[name] = [_pair(daemon, bad, seconds, first_bad=bool(pair % 2)) for pair in range(pairs)]
            print(f"bench: {name}: {found[name]}", file=sys.stderr)
    head = [
        "the bad client",
        "p50 without",
        "p50 with",
        "p99 without",
        "p99 with",
        "ratio of p99",
        "lines/s with",
    ]
    note = (
        f"{OTHERS} small clients, `sync` in ms; embedded store, fsync every 100 ms at most; quota {QUOTA:,} lines/s; "
        f"pairs in turn, medians (minimum–maximum); {machine()}.\n\n"
    )
    publish("fair", note + table(head, [_row(name, some) for name, some in found.items()]), found)


def _keys(folder: Path) -> dict[str, str]:
    """Return settings for a port with TLS and the most expensive common kind of key."""
    issued = trustme.CA().issue_cert("127.0.0.1", key_type=trustme.KeyType.RSA)
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    certificate.write_bytes(b"".join(part.bytes() for part in issued.cert_chain_pems))
    key.write_bytes(issued.private_key_pem.bytes())
    return {"tsd.tls.certificate": str(certificate), "tsd.tls.key": str(key)}


def _row(name: str, pairs: list[tuple[Waits, Waits]]) -> list[str]:
    return [
        name,
        spread([quiet.p50 for quiet, _ in pairs], 0),
        spread([with_bad.p50 for _, with_bad in pairs], 0),
        spread([quiet.p99 for quiet, _ in pairs], 0),
        spread([with_bad.p99 for _, with_bad in pairs], 0),
        spread([with_bad.p99 / quiet.p99 for quiet, with_bad in pairs]),
        f"{statistics.median(with_bad.lines_per_s for _, with_bad in pairs):,.0f}",
    ]


def _pair(daemon: Daemon, bad: Bad, seconds: float, *, first_bad: bool) -> tuple[Waits, Waits]:
    """Measure without and with the client, in either order."""
    found: dict[bool, Waits] = {}
    for with_bad in (first_bad, not first_bad):
        if with_bad:
            with _misbehaving(daemon.port, bad):
                found[with_bad] = _waits(daemon, seconds)
        else:
            found[with_bad] = _waits(daemon, seconds)
    return found[False], found[True]


def _waits(daemon: Daemon, seconds: float) -> Waits:
    """Measure the latencies of the small clients."""
    waits: list[float] = []
    lines, start = daemon.stats()["ledger.received"], time.monotonic()
    threads = [
        threading.Thread(target=_measure_sync, args=(daemon.port, number, start + seconds, waits))
        for number in range(OTHERS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took = time.monotonic() - start
    rate = (daemon.stats()["ledger.received"] - lines) / took
    waits.sort()
    return Waits(waits[len(waits) // 2], waits[min(len(waits) - 1, int(len(waits) * 0.99))], len(waits), rate)


def _measure_sync(port: int, number: int, end: float, waits: list[float]) -> None:
    """Run a small client: lines and `sync`, a short pause, and again. Its first latency is ignored, because all clients
    start at the same time."""
    texts = [series_text(number * 10 + metric) for metric in range(10)]
    rest, chance = threading.Event(), random.Random(number)
    with _connected(port, f"127.0.1.{number + 1}") as connection:
        for at in itertools.count():
            lines = "".join(f"put {metric} {START_S + at % 3600} {at}.5 {tags}\n" for metric, tags in texts)
            syncs = time.monotonic()
            if syncs >= end and at > 1:  # it has measured at least one
                return
            connection.sendall(lines.encode() + b"sync\n")
            answer = connection.recv(PIECE_BYTES)
            assert answer.startswith(b"synced "), answer
            if at:
                waits.append((time.monotonic() - syncs) * 1000)
            rest.wait(chance.uniform(*PAUSE_S))


@contextmanager
def _connected(port: int, address: str) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", port), timeout=120, source_address=(address, 0)) as connection:
        yield connection


@contextmanager
def _misbehaving(port: int, bad: Bad) -> Iterator[None]:
    """Run the misbehaving client during the block."""
    with subprocess.Popen(
        [sys.executable, "-m", "bench.fairness", json.dumps([port, bad])], stdout=subprocess.PIPE
    ) as one:
        assert one.stdout is not None
        one.stdout.readline()
        try:
            yield
        finally:
            assert one.poll() is None, "the misbehaving client exited"
            one.kill()


# ---- the misbehaving client


def _block(number: int, start: int) -> bytes:
    metric, tags = series_text(100_000 + number)
    return "".join(f"put {metric} {START_S + (start + n) % 3600} {n} {tags}\n" for n in range(BLOCK_LINES)).encode()


def _paced(connection: socket.socket, number: int, bad: Bad) -> None:
    """Send a multiple of the quota, as far as it is read."""
    block, rest = _block(number, 0), threading.Event()
    due = time.monotonic()
    while True:
        connection.sendall(block)
        due += BLOCK_LINES * bad.connections / (QUOTA * TIMES)
        rest.wait(max(0.0, due - time.monotonic()))


def _flood(connection: socket.socket, number: int, bad: Bad) -> None:
    del bad
    block = _block(number, 0) * 5
    while True:
        connection.sendall(block)


def _refused(connection: socket.socket, number: int, bad: Bad) -> None:
    """Send invalid lines and read the replies."""

    def read() -> None:
        while connection.recv(PIECE_BYTES):
            pass

    threading.Thread(target=read, daemon=True).start()
    _deaf(connection, number, bad)


def _deaf(connection: socket.socket, number: int, bad: Bad) -> None:
    del number, bad
    block = b"put bench.bad 1700000000 x host=a\n" * BLOCK_LINES
    while True:
        connection.sendall(block)


def _names(connection: socket.socket, number: int, bad: Bad) -> None:
    """Send a new tag value on every line."""
    del bad
    for at in itertools.count():
        names = range(at * BLOCK_LINES, (at + 1) * BLOCK_LINES)
        connection.sendall(b"".join(b"put bench.bad 1700000000 1 id=%d.%d\n" % (number, name) for name in names))


def _slow(connection: socket.socket, number: int, bad: Bad) -> None:
    del bad
    rest = threading.Event()
    for byte in itertools.cycle(_block(number, 0)):
        connection.sendall(bytes([byte]))
        rest.wait(0.2 + number % 10 / 20)


def _handshakes(connection: socket.socket, number: int, bad: Bad) -> None:
    """Open TLS connections one after the other, and close each after the handshake."""
    del number
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    port = connection.getpeername()[1]
    while True:
        with _connected(port, bad.address) as plain, context.wrap_socket(plain) as encrypted:
            encrypted.version()


DEEDS: dict[str, Callable[[socket.socket, int, Bad], None]] = {
    "paced": _paced,
    "flood": _flood,
    "refused": _refused,
    "deaf": _deaf,
    "names": _names,
    "slow": _slow,
    "handshakes": _handshakes,
}


def main() -> None:
    """Run the misbehaving client's process."""
    port, bad = json.loads(sys.argv[1])
    bad = Bad(*bad)
    ready = threading.Barrier(bad.connections + 1)

    def misbehave(number: int) -> None:
        with _connected(port, bad.address) as connection:
            connection.settimeout(None)
            ready.wait()
            if bad.kind in REQUESTS:
                repeat(connection, bad.kind)
            else:
                DEEDS[bad.kind](connection, number, bad)

    for number in range(bad.connections):
        threading.Thread(target=misbehave, args=(number,), daemon=True).start()
    ready.wait()
    print("ready", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
