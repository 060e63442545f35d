"""What test_rocksdb.py runs in processes of their own, to kill or to starve."""

import os
import resource
import signal
import sys
from itertools import count as count_up
from pathlib import Path

import numpy as np
import trio
from trio.testing import wait_all_tasks_blocked

from tsd.errors import DaemonRuns, StoreError
from tsd.store import CellMatrix, Family, Put, Table, scan
from tsd.store.rocksdb.database import Batch, Database
from tsd.store.rocksdb.engine import EmbeddedStore
from tsd.store.rocksdb.reopening import REOPEN_S

NOW_MS = 1_700_000_000_000
ROWS, COLUMNS = 20, 7
FILE_BYTES = 1 << 20
POINTS = b"t:\0\0\0\x10", b"\1\2\0"  # column and value of two points


async def _open(folder: str) -> EmbeddedStore:
    store = await EmbeddedStore.open(folder, lambda: NOW_MS, on_loss=lambda loss: _log(f"lost: {loss}"))
    await store.create_tables([Table("cells", (Family(b"t"),))])
    return store


def _log(word: object) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


async def try_to_open(folder: str) -> None:
    """Say why that cannot be."""
    try:
        await _open(folder)
    except DaemonRuns as exc:
        _log(exc)


async def count(folder: str) -> None:
    """Say each number that was handed out, until it is killed."""
    store = await _open(folder)
    while True:
        _log(await store.increment("cells", b"counter", b"t:", 1))


async def put(folder: str) -> None:
    """Put rows of several cells, and say how many lots were synced, until it is killed."""
    store = await _open(folder)
    lot = 0
    while True:
        rows = [b"%d-%d" % (lot, row) for row in range(ROWS)]
        await store.put("cells", [Put(row, b"t:%d" % column, b"v") for row in rows for column in range(COLUMNS)])
        await store.sync()
        lot += 1
        _log(lot)


async def fold(folder: str) -> None:
    """Put hours of points, move each to blocks, and say how many hours were synced, until it is killed."""
    store = await _open(folder)
    hour = 0
    while True:
        rows = [b"%08d%02d" % (hour, row) for row in range(ROWS)]
        await store.put("cells", [Put(row, *POINTS) for row in rows])
        await store.sync()
        _log(hour)
        await store.column_blocks.fold("cells", b"%08d" % hour)
        hour += 1


async def write_blocks(folder: str) -> None:
    """Write hours of points straight to blocks, a part of the rows after others, and say how many hours were synced,
    until it is killed."""
    store = await _open(folder)
    hour = 0
    while True:
        prefix = b"%08d" % hour
        puts = [Put(prefix + b"%02d" % row, *POINTS) for row in range(ROWS)]
        assert not await store.column_blocks.write("cells", puts[::2], width=len(prefix))
        assert not await store.column_blocks.write("cells", puts[1::2], width=len(prefix))
        await store.sync()
        _log(hour)
        hour += 1


RUN_ROWS, RUN_COLUMNS, FIRST, SECOND, THIRD = 40, 250, 1, 2, 3
EACH = 3  # of the second cells, one of so many columns is replaced
REPLACED = len(range(0, RUN_COLUMNS, EACH))  # of a row


def _part(prefix: bytes, rows: range, value: int, step: int = 1) -> CellMatrix:
    """Cells of some rows, all with one value; with a step not in all columns."""
    columns = [b"t:%04d" % column for column in range(0, RUN_COLUMNS, step)]
    shape = len(rows), len(columns)
    keys = [prefix + b"%02d" % row for row in rows]
    return CellMatrix(keys, columns, np.full(shape, value, np.uint64), np.ones(shape, np.bool_))


async def put_runs(folder: str) -> None:
    """Put cells in runs, replace some in runs of other bounds, then all, with values derived from all cells. Say how
    often it has done one of the three. After as many writes as stdin says, it kills itself."""
    store = await _open(folder)
    writes, write = count_up(), Database.write
    last = int(sys.stdin.readline())

    def write_or_die(self: Database, batch: Batch) -> None:
        if next(writes) == last:
            os.kill(os.getpid(), signal.SIGKILL)
        write(self, batch)

    Database.write = write_or_die  # type: ignore[method-assign]
    done = 0
    while True:
        prefix = b"%08d" % done
        for value, size, step in ((FIRST, 4, 1), (SECOND, 5, EACH), (THIRD, 8, 1)):
            parts = [_part(prefix, range(at, at + size), value, step) for at in range(0, RUN_ROWS, size)]
            await store.derived_values.put_new("cells", prefix, iter(parts), {b"\1": b"%d" % value})
            await store.sync()
            done += 1
            _log(done)


class _SmallDisk:
    """A store whose files may not grow beyond FILE_BYTES, as on a full disk, until there is `room`."""

    def __init__(self, store: EmbeddedStore) -> None:
        self.store = store
        self.taken = 0
        _, self._hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES, self._hard))

    def room(self) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (self._hard, self._hard))

    async def put_one(self) -> None:
        await self.store.put("cells", [Put(b"%d" % self.taken, b"t:", os.urandom(10_000))])
        self.taken += 1

    async def put_until_refused(self) -> None:
        try:
            while self.taken * 10_000 < 2 * FILE_BYTES:
                await self.put_one()
        except StoreError:
            _log("refused")

    async def put_until_taken(self) -> None:
        before = self.taken
        while self.taken == before:
            try:
                await self.put_one()
            except StoreError as exc:
                if "was reopened without its last writes" in str(exc):
                    raise
                await trio.sleep(0.05)


async def fill_disk(folder: str) -> None:
    """Put until the disk is full, then until it is not any more; see that nothing is lost."""
    disk = _SmallDisk(await _open(folder))
    await disk.put_until_refused()
    if len(await disk.store.get("cells", [b"0"])) == 1:
        _log("readable")
    await disk.put_until_refused()
    disk.room()
    await disk.put_until_taken()
    _log("taken again")
    await disk.store.sync()
    found = {row.key async for rows in scan(disk.store, "cells") for row in rows}
    if found == {b"%d" % number for number in range(disk.taken)} and disk.store.statistics()["reopened"] == 1:
        _log("all there")
    await disk.store.aclose()


async def close_while_reopening(folder: str) -> None:
    """Put until the disk is full, and close the store while a sync reopens its database."""
    disk = _SmallDisk(await _open(folder))
    await disk.put_until_refused()
    disk.room()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(disk.store.sync)
        await wait_all_tasks_blocked()
        await disk.store.aclose()
    _log("synced and closed")


async def lose_log(folder: str) -> None:
    """Put until the disk is full, which then also forgets the last of what it took: a failed sync may end so."""
    disk = _SmallDisk(await _open(folder))
    await disk.put_until_refused()
    log = max(Path(folder).glob("*.log"))
    os.truncate(log, log.stat().st_size // 2)
    disk.room()
    for _ in range(2):
        try:
            await disk.put_until_taken()
        except StoreError as exc:
            _log(exc)
        await trio.sleep(REOPEN_S)
