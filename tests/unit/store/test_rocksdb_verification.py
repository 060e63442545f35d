"""Snapshots of the embedded store, and reading them back."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tsd.errors import StoreError
from tsd.store import Family, Put, Table
from tsd.store.rocksdb.engine import EmbeddedStore
from tsd.store.rocksdb.verification import Contents, read_back
from tsd.store.versions import UNBOUNDED, VersionPut

CELLS, OTHERS = Table("cells", (Family(b"t"),)), Table("others", (Family(b"t"),))
COUNT = 3000


async def snapshot(tmp_path: Path) -> Path:
    """Return a snapshot of a store that is written to before and afterwards."""
    store = await EmbeddedStore.open(tmp_path / "store", lambda: 1000)
    try:
        await store.create_tables([CELLS, OTHERS])
        await store.put("cells", [Put(b"row%06d" % n, b"t:q", os.urandom(100)) for n in range(COUNT)])
        await store.put("others", [Put(b"row", b"t:q", b"value")])
        await store.snapshots.snapshot(tmp_path / "snapshot")
        await store.put("cells", [Put(b"later", b"t:q", b"value")])
    finally:
        await store.aclose()
    return tmp_path / "snapshot"


def last(steps: Iterator[Contents]) -> Contents:
    return list(steps)[-1]


async def test_snapshot_has_writes_before_it_only(tmp_path: Path) -> None:
    folder = await snapshot(tmp_path)
    found = last(read_back(folder))
    assert (found.tables, found.cells) == (2, COUNT + 1)
    assert found.bytes > COUNT * 100
    reopened = await EmbeddedStore.open(folder, lambda: 1000)
    try:
        assert not reopened.may_lack_writes
        assert await reopened.get("cells", [b"later"]) == {}
        assert set(await reopened.get("cells", [b"row000000", b"row002999"])) == {b"row000000", b"row002999"}
    finally:
        await reopened.aclose()


async def test_reading_back_writes_to_no_file(tmp_path: Path) -> None:
    """Regression: a backup on a read-only file system, or of another user, could not be read back."""
    folder = await snapshot(tmp_path)
    for path in folder.iterdir():
        os.utime(path, (1, 1))
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    last(read_back(folder))
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert {path.stat().st_mtime for path in folder.iterdir()} == {1}


async def test_reading_back_needs_no_temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: with a full disk below /tmp no restoration on another disk ended."""
    folder = await snapshot(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    assert last(read_back(folder)).cells == COUNT + 1


async def test_versions_are_read_back_and_are_no_tables(tmp_path: Path) -> None:
    store = await EmbeddedStore.open(tmp_path / "store", lambda: 1000)
    try:
        await store.create_tables([CELLS])
        await store.versioned_cells.create_tables([Table("versions", (Family(b"t", UNBOUNDED),))])
        await store.versioned_cells.put("versions", [VersionPut(b"row", b"t:q%d" % n, b"value", n) for n in range(5)])
        await store.snapshots.snapshot(tmp_path / "snapshot")
    finally:
        await store.aclose()
    found = last(read_back(tmp_path / "snapshot"))
    assert (found.tables, found.cells) == (1, 5)


async def test_snapshot_into_an_existing_folder_is_refused(tmp_path: Path) -> None:
    folder = await snapshot(tmp_path)
    store = await EmbeddedStore.open(tmp_path / "store", lambda: 1000)
    try:
        with pytest.raises(StoreError):
            await store.snapshots.snapshot(folder)
    finally:
        await store.aclose()


async def test_damaged_block_is_found(tmp_path: Path) -> None:
    folder = await snapshot(tmp_path)
    file = max(folder.glob("*.sst"), key=lambda path: path.stat().st_size)
    content = bytearray(file.read_bytes())
    content[len(content) // 4] ^= 0xFF
    file.unlink()  # a hard link: the store keeps its own
    file.write_bytes(content)
    with pytest.raises(StoreError, match=f"^{folder}: .*{file.name}"):
        last(read_back(folder))


async def test_missing_file_is_found(tmp_path: Path) -> None:
    folder = await snapshot(tmp_path)
    next(folder.glob("*.sst")).unlink()
    with pytest.raises(StoreError):
        last(read_back(folder))
