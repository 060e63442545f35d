"""What test_embedded.py runs in processes of their own, to kill or to starve."""

import os
import resource
import sys

import trio

from tsd.errors import DaemonRuns, StoreError
from tsd.store import Family, Put, Table, scan
from tsd.store.embedded import EmbeddedStore

NOW_MS = 1_700_000_000_000
ROWS, COLUMNS = 20, 7
FILE_BYTES = 1 << 20


async def _open(folder: str) -> EmbeddedStore:
    store = await EmbeddedStore.open(folder, lambda: NOW_MS)
    await store.create_tables([Table("cells", (Family(b"t"),))])
    return store


def _say(word: object) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


async def try_to_open(folder: str) -> None:
    """Say why that cannot be."""
    try:
        await _open(folder)
    except DaemonRuns as exc:
        _say(exc)


async def count(folder: str) -> None:
    """Say each number that was handed out, for ever."""
    store = await _open(folder)
    while True:
        _say(await store.increment("cells", b"counter", b"t:", 1))


async def put(folder: str) -> None:
    """Put rows of several cells, and say how many lots were synced, for ever."""
    store = await _open(folder)
    lot = 0
    while True:
        rows = [b"%d-%d" % (lot, row) for row in range(ROWS)]
        await store.put("cells", [Put(row, b"t:%d" % column, b"v") for row in rows for column in range(COLUMNS)])
        await store.sync()
        lot += 1
        _say(lot)


async def fill_disk(folder: str) -> None:
    """Put until a file may not grow any more, as on a full disk, then until it may again; see that nothing is lost."""
    store = await _open(folder)
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES, hard))
    taken = 0

    async def put_one() -> None:
        nonlocal taken
        await store.put("cells", [Put(b"%d" % taken, b"t:", os.urandom(10_000))])
        taken += 1

    async def refused() -> None:
        try:
            while taken * 10_000 < 2 * FILE_BYTES:
                await put_one()
        except StoreError:
            _say("refused")

    await refused()
    if len(await store.get("cells", [b"0"])) == 1:
        _say("readable")
    await refused()
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    before = taken
    while taken == before:
        try:
            await put_one()
        except StoreError:
            await trio.sleep(0.05)
    _say("taken again")
    await store.sync()
    found = {row.key async for rows in scan(store, "cells") for row in rows}
    if found == {b"%d" % number for number in range(taken)} and store.statistics()["reopened"] == 1:
        _say("all there")
    await store.aclose()
