"""Embedded stores in a test, and in a process that is killed."""

import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO

from tsd.store import Family, Table
from tsd.store.rocksdb.engine import EmbeddedStore

CELLS = Table("cells", (Family(b"t"),))


@asynccontextmanager
async def opened(
    folder: Path, *, clock_ms: int = 1_000, memtable_bytes: int = 1 << 20, cache_bytes: int = 256 << 20
) -> AsyncIterator[EmbeddedStore]:
    """The store in a folder, with the table `cells`."""
    store = await EmbeddedStore.open(folder, lambda: clock_ms, memtable_bytes=memtable_bytes, cache_bytes=cache_bytes)
    try:
        await store.create_tables([CELLS])
        yield store
    finally:
        await store.aclose()


def child(what: str, folder: Path) -> subprocess.Popen[str]:
    """A process that runs a function of crashing.py on a folder."""
    call = f"import trio; from tests.unit.store import crashing; trio.run(crashing.{what}, {str(folder)!r})"
    return subprocess.Popen(
        [sys.executable, "-c", call],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
    )


def lines_until_killed(process: subprocess.Popen[str], count: int) -> list[int]:
    """Read `count` numbers from a process, kill it at work, and return all the numbers that it printed."""
    stream: IO[str] = process.stdout  # type: ignore[assignment]
    numbers = [int(stream.readline()) for _ in range(count)]
    process.kill()
    numbers += [int(line) for line in stream.read().splitlines(keepends=True) if line.endswith("\n")]
    process.communicate()
    return numbers
