"""Values that the embedded store derives from rows: they are gone with the first write to one of the rows."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tsd.errors import StoreError
from tsd.store import Family, Put, Rewrite, Table, scan
from tsd.store.rocksdb.engine import EmbeddedStore
from tsd.store.rocksdb.verification import read_back

TABLE = Table("rows", (Family(b"t"),))
ROW = Put(b"aab1", b"t:q", b"v")
NONE: Mapping[bytes, bytes] = {}


@asynccontextmanager
async def opened(path: Path) -> AsyncIterator[EmbeddedStore]:
    store = await EmbeddedStore.open(path, lambda: 1_000_000)
    try:
        await store.create_tables([TABLE])
        yield store
    finally:
        await store.aclose()


async def derive(store: EmbeddedStore, prefix: bytes, values: Mapping[bytes, bytes]) -> bool:
    async def compute() -> Mapping[bytes, bytes]:
        return values

    return await store.derived_values.derive("rows", prefix, compute)


async def derived(store: EmbeddedStore, *prefixes: bytes, kinds: bytes = b"\1\2") -> dict[bytes, dict[bytes, bytes]]:
    return await store.derived_values.derived("rows", prefixes, kinds)


async def test_values_are_read_by_kind_and_survive(tmp_path: Path) -> None:
    async with opened(tmp_path / "store") as store:
        await store.put("rows", [ROW])
        assert await derived(store, b"aab") == {}
        assert await derive(store, b"aab", {b"\1x": b"one", b"\1y": b"two", b"\2x": b"", b"\3": b"three"})
        assert await derive(store, b"aac", NONE)
    async with opened(tmp_path / "store") as store:
        assert await store.tables() == ["rows"]
        assert await derived(store, b"aaa", b"aab", b"aac", kinds=b"\1") == {
            b"aab": {b"\1x": b"one", b"\1y": b"two"},
            b"aac": {},
        }
        assert [row.cells for rows in [part async for part in scan(store, "rows")] for row in rows]
    *_, contents = read_back(tmp_path / "store")
    assert contents.tables == 1


@pytest.mark.parametrize(
    "write", ["put", "delete", "create", "check_and_put", "increment", "rewrite", "range", "range inside"]
)
async def test_any_write_to_a_row_drops_the_values_of_its_prefix(tmp_path: Path, write: str) -> None:
    async with opened(tmp_path / "store") as store:
        await store.put("rows", [ROW])
        for prefix in (b"aab", b"aac"):
            assert await derive(store, prefix, {b"\1": b"old", b"\1left": b"over"})
        match write:
            case "put":
                await store.put("rows", [Put(b"aab2", b"t:q", b"")])
            case "delete":
                await store.delete("rows", {ROW.row: [ROW.column]}, up_to_ms=None)
            case "create":
                await store.create("rows", [Put(b"aab9", b"t:q", b"v")])
            case "check_and_put":
                await store.check_and_put("rows", *ROW[:2], b"w", expected=b"v")
            case "increment":
                await store.increment("rows", b"aab3", b"t:n", 1)
            case "rewrite":
                change = Rewrite(ROW.row, [ROW._replace(value=b"w")], 2_000_000, [])
                await store.atomic_rewrites.rewrite("rows", [change])
            case "range":
                await store.range_deletes.delete_range("rows", b"aa", b"aac", changed=[])
            case _:
                await store.range_deletes.delete_range("rows", b"aab1", b"aab2", changed=[])
        assert await derived(store, b"aab", b"aac") == {b"aac": {b"\1": b"old", b"\1left": b"over"}}
        assert await derive(store, b"aab", {b"\1": b"new"})
        assert await derived(store, b"aab") == {b"aab": {b"\1": b"new"}}


async def test_values_of_rows_that_change_meanwhile_are_not_stored(tmp_path: Path) -> None:
    async with opened(tmp_path / "store") as store:

        async def compute() -> Mapping[bytes, bytes]:
            await store.put("rows", [ROW])
            return {b"\1": b"old"}

        assert not await store.derived_values.derive("rows", b"aab", compute)
        assert await derived(store, b"aab") == {}


async def test_prefixes_have_one_width(tmp_path: Path) -> None:
    async with opened(tmp_path / "store") as store:
        assert await derive(store, b"aab", NONE)
        with pytest.raises(StoreError):
            await derive(store, b"aa", NONE)
        assert await derived(store, b"aab") == {b"aab": {}}


async def put_new(store: EmbeddedStore, prefix: bytes, *parts: list[Put]) -> bool:
    async def every() -> AsyncIterator[list[Put]]:
        for part in parts:
            yield part

    return await store.derived_values.put_new("rows", prefix, every(), {b"\1": b"new"})


async def test_values_of_new_rows_are_stored_with_their_cells(tmp_path: Path) -> None:
    async with opened(tmp_path / "store") as store:
        assert await put_new(store, b"aab", [ROW], [Put(b"aab2", b"t:q", b"w")])
        assert await derived(store, b"aab") == {b"aab": {b"\1": b"new"}}
        assert sorted(await store.get("rows", [ROW.row, b"aab2"])) == [ROW.row, b"aab2"]
        await store.put("rows", [Put(b"aab3", b"t:q", b"")])
        assert await derived(store, b"aab") == {}


async def test_rows_that_exist_get_cells_but_no_values_of_the_new_ones(tmp_path: Path) -> None:
    async with opened(tmp_path / "store") as store:
        await store.put("rows", [ROW])
        assert not await put_new(store, b"aab", [Put(b"aab2", b"t:q", b"w")])
        assert sorted(await store.get("rows", [ROW.row, b"aab2"])) == [ROW.row, b"aab2"]
        assert await derived(store, b"aab") == {}


@pytest.mark.parametrize("row", [b"aab1", b"aab9"])
async def test_values_are_not_stored_if_another_writes_among_new_rows(tmp_path: Path, row: bytes) -> None:
    async with opened(tmp_path / "store") as store:

        async def parts() -> AsyncIterator[list[Put]]:
            yield [ROW]
            await store.put("rows", [Put(row, b"t:other", b"")])
            yield [Put(b"aab2", b"t:q", b"w")]

        assert not await store.derived_values.put_new("rows", b"aab", parts(), {b"\1": b"new"})
        assert await derived(store, b"aab") == {}
        assert sorted(await store.get("rows", [b"aab1", b"aab2"])) == [b"aab1", b"aab2"]
