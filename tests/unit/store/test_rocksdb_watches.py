"""Rewrites of rows that were read before: rows that were written to meanwhile are read again, others are not."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tsd.store import Family, Put, Rewrite, Table
from tsd.store.rocksdb.engine import EmbeddedStore
from tsd.store.rocksdb.row_cache import RowCache
from tsd.store.rocksdb.watches import Watches

TABLE = Table("rows", (Family(b"t"),))
ROWS = [b"aab1", b"aab2", b"aab3"]
MERGED, OLD = b"t:merged", b"t:old"


@asynccontextmanager
async def opened(path: Path) -> AsyncIterator[EmbeddedStore]:
    store = await EmbeddedStore.open(path, iter(range(1000, 100_000)).__next__)
    try:
        await store.create_tables([TABLE])
        await store.put("rows", [Put(row, OLD, b"old") for row in ROWS], time_ms=10)
        yield store
    finally:
        await store.aclose()


def changes() -> list[Rewrite]:
    return [Rewrite(row, [Put(row, MERGED, b"merged")], 10, [(OLD, 10)]) for row in ROWS]


async def found(store: EmbeddedStore) -> dict[bytes, dict[bytes, bytes]]:
    rows = await store.get("rows", ROWS)
    return {row: {cell.column: cell.value for cell in cells} for row, cells in rows.items()}


async def test_rows_without_writes_are_changed(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        with store.atomic_rewrites.watching("rows", ROWS) as written:
            await store.put("rows", [Put(b"other", OLD, b"")])
            await store.put("rows", [Put(row, OLD, b"") for row in ROWS[:0]])
            assert not written
            assert await store.atomic_rewrites.rewrite("rows", changes(), written=written) == [True] * 3
        assert await found(store) == {row: {MERGED: b"merged"} for row in ROWS}


@pytest.mark.parametrize("write", ["merged", "old", "delete", "create", "increment", "range", "rewrite"])
async def test_a_write_to_a_row_is_never_lost(tmp_path: Path, write: str) -> None:
    async with opened(tmp_path / "with") as store, opened(tmp_path / "without") as judge:
        with store.atomic_rewrites.watching("rows", ROWS) as written:
            for each in (store, judge):
                match write:
                    case "merged":
                        await each.put("rows", [Put(ROWS[1], MERGED, b"newer")])
                    case "old":
                        await each.put("rows", [Put(ROWS[1], OLD, b"newer")])
                    case "delete":
                        await each.delete("rows", {ROWS[1]: [OLD]}, up_to_ms=None)
                    case "create":
                        await each.create("rows", [Put(ROWS[1], MERGED, b"newer")])
                    case "increment":
                        await each.increment("rows", ROWS[1], b"t:n", 1)
                    case "range":
                        await each.range_deletes.delete_range("rows", b"aab2", b"aab3", changed=[])
                    case _:
                        change = Rewrite(ROWS[1], [Put(ROWS[1], MERGED, b"newer")], 2_000_000, [])
                        assert await each.atomic_rewrites.rewrite("rows", [change])
            assert list(written) == [ROWS[1]]
            done = await store.atomic_rewrites.rewrite("rows", changes(), written=written)
        assert done == await judge.atomic_rewrites.rewrite("rows", changes())
        assert await found(store) == await found(judge)


@pytest.mark.parametrize("write", ["nothing", "row", "delete", "range", "outside"])
async def test_a_range_is_deleted_unless_it_changed(tmp_path: Path, write: str) -> None:
    async with opened(tmp_path) as store:
        with store.watching_range("rows", b"aab1", b"aab3") as watch:
            match write:
                case "row":
                    await store.put("rows", [Put(b"aab15", OLD, b"new")])
                case "delete":
                    await store.delete("rows", {ROWS[1]: [OLD]}, up_to_ms=None)
                case "range":
                    await store.range_deletes.delete_range("rows", b"aab2", b"aab4", changed=[])
                case "outside":
                    await store.put("rows", [Put(ROWS[2], OLD, b"new"), Put(b"aab0", OLD, b"new")])
                    await store.range_deletes.delete_range("rows", b"aab3", b"aab4", changed=[])
            before = await found(store)
            is_same = write in ("nothing", "outside")
            assert watch.changed is not is_same
            done = await store.range_deletes.delete_range("rows", b"aab1", b"aab3", changed=[], unless=watch)
            assert done is is_same
        assert await found(store) == ({key: before[key] for key in before if key == ROWS[2]} if done else before)


async def test_writes_after_the_block_are_not_collected(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        with store.atomic_rewrites.watching("rows", ROWS) as written:
            pass
        await store.put("rows", [Put(ROWS[0], OLD, b"newer")])
        assert not written


def test_after_an_error_every_row_may_have_changed() -> None:
    watches = Watches(RowCache(0))
    assert not watches
    with watches.of_rows("rows", ROWS) as written, watches.of_prefix("rows", b"aab") as prefix:
        watches.note("other", ROWS)
        watches.note_range("rows", b"b", b"c")
        assert (prefix.changed, list(written)) == (False, [])
        watches.note_all()
        assert (prefix.changed, set(written)) == (True, set(ROWS))
    assert not watches


def test_writes_to_rows_with_one_of_some_prefixes_are_noticed() -> None:
    watches = Watches(RowCache(0))
    writes: list[tuple[Callable[[], None], bool]] = [
        (lambda: watches.note("rows", [b"aaa9", b"aac1"]), False),
        (lambda: watches.note("other", [b"aab1"]), False),
        (lambda: watches.note_range("rows", b"aac", b"aad"), False),
        (lambda: watches.note_range("other", b"a", b"z"), False),
        (lambda: watches.note("rows", [b"aaa9", b"aab1"]), True),
        (lambda: watches.note("rows", [b"aad"]), True),
        (lambda: watches.note_range("rows", b"aab7", b"aab8"), True),
        (watches.note_all, True),
    ]
    for write, is_noticed in writes:
        with watches.of_prefixes("rows", [b"aab", b"aad"], 3) as watch:
            write()
            assert watch.changed is is_noticed
    assert not watches
