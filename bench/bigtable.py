"""The engine on Bigtable's emulator: cells of one point and of 100 points, UIDs, and reads.

Where google-cloud-bigtable is installed, its client writes the same cells in the same run.
"""

import importlib
import importlib.util
import os
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import click
import trio

from bench.process_usage import usage
from bench.report import machine, publish, spread, table
from scripts.peers import bigtable as emulator
from scripts.peers.process import pid_of
from tsd.daemon.settings import now_ms
from tsd.store import Family, Put, Table, cell_pages
from tsd.store.bigtable.engine import BigtableStore
from tsd.store.bigtable.session import Contact

PROJECT, INSTANCE, TABLE = "bench", "bench", "cells"
OFFICIAL = "google.cloud.bigtable.data"
BATCH = 1000
COLUMNS = 360  # of a wide row
TIMEOUT_S = 120.0  # of a call: a busy machine is slow, and its figures are as good as those of its peer in the same run


class Figure(NamedTuple):
    """What one round of a load took."""

    per_s: float
    own_us: float  # CPU of this process
    server_us: float


Figures = dict[str, list[Figure]]


class Shape(NamedTuple):
    """Cells to write."""

    title: str
    qualifier: bytes
    value: bytes
    points: int


ONE = Shape("put, one point a cell", b"\0\0", b"\7", 1)
HUNDRED = Shape("put, 100 points a cell", bytes(200), bytes(401), 100)


@click.command()
@click.option("--cells", default=50_000, help="Cells of each load.")
@click.option("--rounds", default=3, help="Rounds after a warm-up round.")
def bigtable(cells: int, rounds: int) -> None:
    """Write and read cells on Bigtable's emulator, also with google-cloud-bigtable if it is installed."""
    with tempfile.TemporaryDirectory(prefix="tsd-bench-") as folder, _emulator(Path(folder)) as address:
        home = Path(folder)
        found: Figures = {}
        for turn in range(rounds + 1):  # the first one warms up
            measured = trio.run(_round, address, home, cells)
            measured |= _official(address, home, cells)
            for title, figure in measured.items() if turn else ():
                found.setdefault(title, []).append(figure)
    publish("bigtable", _report(cells, rounds, found), {name: list(each) for name, each in found.items()})


@contextmanager
def _emulator(home: Path) -> Iterator[str]:
    started = emulator.start(home, emulator.Options(port=0, owner=os.getpid()))
    try:
        yield f"127.0.0.1:{started.port}"
    finally:
        emulator.kill(home)


def _server_s(home: Path) -> float:
    pid = pid_of(home, emulator.NAME)
    assert pid, "the emulator does not run"
    return usage(pid).cpu_s


async def _timed(home: Path, count: int, call: Callable[[], Awaitable[object]]) -> Figure:
    """Return the figures of a call that handles `count` cells or points."""
    server_s, own_s, start = _server_s(home), time.process_time(), time.perf_counter()
    await call()
    took_s = time.perf_counter() - start
    own_us = (time.process_time() - own_s) / count * 1e6
    return Figure(count / took_s, own_us, (_server_s(home) - server_s) / count * 1e6)


async def _round(address: str, home: Path, cells: int) -> dict[str, Figure]:
    """Run each load once, in a new table."""
    store = BigtableStore(Contact(PROJECT, INSTANCE, emulator=address, timeout_s=TIMEOUT_S), now_ms)
    found = {}
    try:
        for shape in (ONE, HUNDRED):
            await _new_table(store)
            puts = [Put(_key(at), b"t:" + shape.qualifier, shape.value) for at in range(cells)]
            found[shape.title] = await _timed(home, cells * shape.points, lambda puts=puts: store.put(TABLE, puts))  # type: ignore[misc]
            await _check_count(store, cells)
        new = [Put(b"uid%06d" % at, b"t:id", b"123") for at in range(cells // 20)]
        found["create (UIDs)"] = await _timed(home, len(new), lambda: store.create(TABLE, new))
        await _new_table(store)
        wide = [Put(_key(at // COLUMNS), b"t:%04d" % (at % COLUMNS), bytes(20)) for at in range(cells)]
        found["put, rows of 360 cells"] = await _timed(home, cells, lambda: store.put(TABLE, wide))
        found["scan, rows of 360 cells"] = await _timed(home, cells, lambda: _check_count(store, cells))
    finally:
        await store.drop_tables([TABLE])
        await store.aclose()
    return found


async def _new_table(store: BigtableStore) -> None:
    if TABLE in await store.tables():
        await store.drop_tables([TABLE])
    await store.create_tables([Table(TABLE, (Family(b"t"),))])


async def _check_count(store: BigtableStore, wanted: int) -> None:
    """Read all cells. Exit if some are missing."""
    count = 0
    async for page in cell_pages(store, TABLE, b"", None):
        count += len(page.keys)
    if count != wanted:
        raise SystemExit(f"{wanted} cells were put, {count} are found: the figures mean nothing")


def _key(at: int) -> bytes:
    return b"%019d" % at


def _official(address: str, home: Path, cells: int) -> dict[str, Figure]:
    """Write the same cells with google-cloud-bigtable, if it is installed."""
    try:
        there = importlib.util.find_spec(OFFICIAL) is not None
    except ModuleNotFoundError:
        there = False
    if not there:
        return {}
    os.environ["BIGTABLE_EMULATOR_HOST"] = address
    data: Any = importlib.import_module(OFFICIAL)
    mutations: Any = importlib.import_module(f"{OFFICIAL}.mutations")
    found = {}
    with data.BigtableDataClient(project=PROJECT) as client:
        for shape in (ONE, HUNDRED):
            trio.run(_prepare, address)
            target = client.get_table(INSTANCE, TABLE)

            async def put(target: Any = target, shape: Shape = shape) -> None:
                for first in range(0, cells, BATCH):
                    await trio.lowlevel.checkpoint()
                    target.bulk_mutate_rows(_entries(mutations, shape, range(first, min(first + BATCH, cells))))

            title = f"{shape.title}, google-cloud-bigtable"
            found[title] = trio.run(_timed, home, cells * shape.points, put)
            target.close()
    return found


def _entries(mutations: Any, shape: Shape, numbers: Sequence[int]) -> list[Any]:
    return [
        mutations.RowMutationEntry(_key(at), [mutations.SetCell("t", shape.qualifier, shape.value, 1_700_000_000_000)])
        for at in numbers
    ]


async def _prepare(address: str) -> None:
    store = BigtableStore(Contact(PROJECT, INSTANCE, emulator=address, timeout_s=TIMEOUT_S), now_ms)
    await _new_table(store)
    await store.aclose()


def _report(cells: int, rounds: int, found: Figures) -> str:
    rows = [
        [
            title,
            spread([one.per_s for one in each], 0),
            spread([one.own_us for one in each], 3),
            spread([one.server_us for one in each], 3),
        ]
        for title, each in found.items()
    ]
    shown = table(["load", "a second", "CPU µs each", "CPU µs each, emulator"], rows)
    return f"{cells:,} cells, {rounds} rounds; points where cells have several; {machine()}.\n\n{shown}"
