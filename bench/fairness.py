"""What one client costs the others: how long `sync` takes for small clients, in turn without and beside a bad one.

Clients are told apart by address, so each has one of its own on the loopback. The bad one is a process of its own.
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

import trustme

from bench.daemon import Daemon, serving
from bench.lines import START_S, series_text
from bench.report import machine, publish, spread, table

QUOTA = 2000  # lines/s of one client
TIMES = 100  # its quota, that the bad one sends
OTHERS = 20  # small clients, each of which sends ten lines and `sync` over and over
PAUSE_S = 0.03, 0.12  # of a small client, between an answer and its next lines: no two stay in step
SETTINGS = {
    "tsd.quota.lines_per_second": str(QUOTA),
    "tsd.quota.new_names_per_minute": "1000",
    "tsd.quota.exempt": "127.0.9.0/24",
}
LIMITED, EXEMPT = "127.0.8.1", "127.0.9.1"
BLOCK_LINES = 1000
PIECE_BYTES = 64 << 10


class Bad(NamedTuple):
    """A bad client."""

    kind: str  # of DEEDS
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
}


class Waits(NamedTuple):
    """Of `sync`, in ms; and what the daemon did meanwhile."""

    p50: float
    p99: float
    asked: int
    lines_per_s: float  # of all, as received


def fair(pairs: int, seconds: float, wanted: Callable[[str], bool]) -> None:
    """Measure beside every bad client and publish the report."""
    found: dict[str, list[tuple[Waits, Waits]]] = {}
    with tempfile.TemporaryDirectory(prefix="tsd-bench-", ignore_cleanup_errors=True) as folder:
        for number, (name, bad) in enumerate(CLIENTS.items()):
            if not wanted(name):
                continue
            keys = _keys(Path(folder)) if bad.kind == "handshakes" else {}
            with serving(Path(folder) / str(number), {**SETTINGS, **keys}) as daemon:
                _waits(daemon, 1.0)  # the names
                found[name] = [_pair(daemon, bad, seconds, first_bad=bool(pair % 2)) for pair in range(pairs)]
            print(f"bench: {name}: {found[name]}", file=sys.stderr)
    head = [
        "the bad client",
        "p50 without",
        "p50 beside",
        "p99 without",
        "p99 beside",
        "ratio of p99",
        "lines/s beside",
    ]
    note = (
        f"{OTHERS} small clients, `sync` in ms; embedded store, fsync every 100 ms at most; quota {QUOTA:,} lines/s; "
        f"pairs in turn, medians (least–greatest); {machine()}.\n\n"
    )
    publish("fair", note + table(head, [_row(name, some) for name, some in found.items()]), found)


def _keys(folder: Path) -> dict[str, str]:
    """Settings for a port that speaks TLS too, with the key that costs most of those in use."""
    issued = trustme.CA().issue_cert("127.0.0.1", key_type=trustme.KeyType.RSA)
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    certificate.write_bytes(b"".join(part.bytes() for part in issued.cert_chain_pems))
    key.write_bytes(issued.private_key_pem.bytes())
    return {"tsd.tls.certificate": str(certificate), "tsd.tls.key": str(key)}


def _row(name: str, pairs: list[tuple[Waits, Waits]]) -> list[str]:
    return [
        name,
        spread([quiet.p50 for quiet, _ in pairs], 0),
        spread([beside.p50 for _, beside in pairs], 0),
        spread([quiet.p99 for quiet, _ in pairs], 0),
        spread([beside.p99 for _, beside in pairs], 0),
        spread([beside.p99 / quiet.p99 for quiet, beside in pairs]),
        f"{statistics.median(beside.lines_per_s for _, beside in pairs):,.0f}",
    ]


def _pair(daemon: Daemon, bad: Bad, seconds: float, *, first_bad: bool) -> tuple[Waits, Waits]:
    """Without and beside, in this order or the other."""
    found: dict[bool, Waits] = {}
    for beside in (first_bad, not first_bad):
        if beside:
            with _misbehaving(daemon.port, bad):
                found[beside] = _waits(daemon, seconds)
        else:
            found[beside] = _waits(daemon, seconds)
    return found[False], found[True]


def _waits(daemon: Daemon, seconds: float) -> Waits:
    """What the small clients wait."""
    waits: list[float] = []
    lines, start = daemon.stats()["ledger.received"], time.monotonic()
    threads = [
        threading.Thread(target=_ask, args=(daemon.port, number, start + seconds, waits)) for number in range(OTHERS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took = time.monotonic() - start
    rate = (daemon.stats()["ledger.received"] - lines) / took
    waits.sort()
    return Waits(waits[len(waits) // 2], waits[min(len(waits) - 1, int(len(waits) * 0.99))], len(waits), rate)


def _ask(port: int, number: int, end: float, waits: list[float]) -> None:
    """A small client: lines and `sync`, a short rest, and again. Its first wait does not count: all begin at once, and
    who was first is answered at once where nobody else sends."""
    texts = [series_text(number * 10 + metric) for metric in range(10)]
    rest, chance = threading.Event(), random.Random(number)
    with _connected(port, f"127.0.1.{number + 1}") as connection:
        for at in itertools.count():
            lines = "".join(f"put {metric} {START_S + at % 3600} {at}.5 {tags}\n" for metric, tags in texts)
            asked = time.monotonic()
            if asked >= end:
                return
            connection.sendall(lines.encode() + b"sync\n")
            answer = connection.recv(PIECE_BYTES)
            assert answer.startswith(b"synced "), answer
            if at:
                waits.append((time.monotonic() - asked) * 1000)
            rest.wait(chance.uniform(*PAUSE_S))


@contextmanager
def _connected(port: int, address: str) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", port), timeout=120, source_address=(address, 0)) as connection:
        yield connection


@contextmanager
def _misbehaving(port: int, bad: Bad) -> Iterator[None]:
    """While the block runs, so does the bad client."""
    with subprocess.Popen([sys.executable, "-m", "bench.fair", json.dumps([port, bad])], stdout=subprocess.PIPE) as one:
        assert one.stdout is not None
        one.stdout.readline()
        try:
            yield
        finally:
            assert one.poll() is None, "the bad client gave up"
            one.kill()


# ---- what the bad client does


def _block(number: int, start: int) -> bytes:
    metric, tags = series_text(100_000 + number)
    return "".join(f"put {metric} {START_S + (start + n) % 3600} {n} {tags}\n" for n in range(BLOCK_LINES)).encode()


def _paced(connection: socket.socket, number: int, bad: Bad) -> None:
    """So many times its quota, as far as it is read."""
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
    """Garbage, whose answers are read."""

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
    """A tag value of its own on every line."""
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
    """One TLS connection after the other, each agreed on and closed."""
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
    """What the bad client's process does."""
    port, bad = json.loads(sys.argv[1])
    bad = Bad(*bad)
    ready = threading.Barrier(bad.connections + 1)

    def misbehave(number: int) -> None:
        with _connected(port, bad.address) as connection:
            connection.settimeout(None)
            ready.wait()
            DEEDS[bad.kind](connection, number, bad)

    for number in range(bad.connections):
        threading.Thread(target=misbehave, args=(number,), daemon=True).start()
    ready.wait()
    print("ready", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
