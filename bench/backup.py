"""Backups of a store of some GiB while the daemon runs: with hard links, to another file system, and again.

The copy to another file system is compared with `cp -r` of the same files, followed by `sync -f`: both are on disk
then. A client asks for `sync` all the time: its longest wait shows what a backup costs the senders.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import trio

from bench.daemon import Daemon, serving
from bench.report import machine, publish, spread, table
from bench.telnet import Telnet
from tsd.store import Family, Put, Table
from tsd.store.rocksdb.engine import EmbeddedStore

VALUE_BYTES, PUT_CELLS = 64 << 10, 64
GIB = 1 << 30


@click.command()
@click.option("--gib", default=10.0, help="GiB in the store.")
@click.option("--rounds", "count", default=3, help="Rounds.")
@click.option("--other", type=click.Path(path_type=Path, exists=True), help="Folder on another file system.")
def backup(gib: float, count: int, other: Path | None) -> None:
    """Back up a store while the daemon runs: hard links, and another file system next to cp."""
    seconds: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="tsd-bench-", ignore_cleanup_errors=True) as name:
        state = Path(name, "state")
        trio.run(_fill, state / "store", int(gib * GIB))
        size = sum(path.stat().st_size for path in (state / "store").iterdir())
        with serving(state, {"tsd.core.auto_create_metrics": "true"}) as daemon:
            for _ in range(count):
                _round(daemon, state, Path(name), other, seconds)
    publish("backup", _report(size, seconds), {"bytes": size, "seconds": seconds})


async def _fill(folder: Path, size: int) -> None:
    """Make a store of values that do not compress."""
    store = await EmbeddedStore.open(folder, lambda: int(time.monotonic() * 1000))
    try:
        await store.create_tables([Table("filler", (Family(b"t"),))])
        for number in range(size // (VALUE_BYTES * PUT_CELLS)):
            rows = [
                Put(b"%012d" % (number * PUT_CELLS + at), b"t:q", os.urandom(VALUE_BYTES)) for at in range(PUT_CELLS)
            ]
            await store.put("filler", rows)
        await store.sync()
    finally:
        await store.aclose()


def _round(daemon: Daemon, state: Path, same: Path, other: Path | None, seconds: dict[str, list[float]]) -> None:
    def timed(title: str, *words: str) -> None:
        with _longest_sync(daemon) as waits:
            begun = time.monotonic()
            subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
            took = time.monotonic() - begun
        seconds.setdefault(title, []).append(took)
        seconds.setdefault(f"longest `sync` meanwhile: {title}", []).append(max(waits))
        print(f"bench: {title}: {took:.2f} s, longest sync {max(waits) * 1000:.0f} ms", file=sys.stderr)

    command = [str(Path(sys.executable).with_name("tsd")), "backup", "--data", str(state)]
    timed("hard links", *command, str(same / "backups"))
    timed("hard links, again", *command, str(same / "backups"))
    shutil.rmtree(same / "backups")
    if other is None:
        return

    def with_tsd() -> None:
        with tempfile.TemporaryDirectory(dir=other, prefix="tsd-bench-") as target:
            timed("other file system", *command, f"{target}/backups")
            timed("other file system, again", *command, f"{target}/backups")

    def with_cp() -> None:
        with tempfile.TemporaryDirectory(dir=other, prefix="tsd-bench-") as target:
            copy = 'cp -r "$0" "$1" && sync -f "$1"'
            timed("cp -r and sync -f", "sh", "-c", copy, str(state / "store"), f"{target}/store")

    steps = [with_tsd, with_cp]
    for step in reversed(steps) if len(seconds["hard links"]) % 2 else steps:  # the second finds more in the page cache
        step()


@contextmanager
def _longest_sync(daemon: Daemon) -> Iterator[list[float]]:
    """Ask for `sync` after each line during the block; collect the waits in seconds."""
    waits: list[float] = []
    stop = threading.Event()

    def run() -> None:
        with Telnet(daemon.port) as telnet:
            while not stop.is_set() or not waits:
                begun = time.monotonic()
                telnet.sync(b"put bench.backup %d 1 host=a" % (1_700_000_000 + len(waits)))
                waits.append(time.monotonic() - begun)

    client = threading.Thread(target=run)
    client.start()
    try:
        yield waits
    finally:
        stop.set()
        client.join()


def _report(size: int, seconds: dict[str, list[float]]) -> str:
    rows = [
        [title, spread(found), f"{size / GIB / (sum(found) / len(found)):.1f}"]
        for title, found in seconds.items()
        if not title.startswith("longest")
    ]
    waits = [[title, spread(found, 3)] for title, found in seconds.items() if title.startswith("longest")]
    text = f"Backup of {size / GIB:.1f} GiB while the daemon runs. {machine()}.\n\n"
    text += table(["what", "seconds", "GiB/s"], rows) + "\n" + table(["client", "seconds"], waits)
    if "other file system" in seconds:
        ratios = [
            plain / own for plain, own in zip(seconds["cp -r and sync -f"], seconds["other file system"], strict=True)
        ]
        text += f"\nSpeed to another file system: {spread(ratios)} × that of `cp -r` and `sync -f`.\n"
    return text
