"""RocksDB's write-ahead log is damaged: what a sync had covered is never missing in silence."""

import random
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest
from structlog.testing import capture_logs

from tsd.errors import StoreError
from tsd.store import Family, Put, Table
from tsd.store.embedded import EmbeddedStore

TABLE = Table("t", (Family(b"t"),))
WRITES = 20


class Crashed(NamedTuple):
    """A store as a crash leaves it: all is in the log."""

    folder: Path
    log: Path
    synced: int  # bytes of the log that a sync had covered
    text: bytes


@pytest.fixture
async def crashed(tmp_path: Path) -> Crashed:
    running, folder = tmp_path / "running", tmp_path / "store"
    store = await EmbeddedStore.open(running, lambda: 1)
    await store.create_tables([TABLE])
    [log] = sorted(running.glob("*.log"))[-1:]
    for at in range(WRITES):
        await store.put("t", [Put(b"r%02d" % at, b"c", b"v" * 20)])
        if at == WRITES // 2:
            await store.sync()
            synced = log.stat().st_size
    shutil.copytree(running, folder, ignore=lambda _, names: {"LOCK"} & set(names))
    await store.aclose()
    return Crashed(folder, folder / log.name, synced, (folder / log.name).read_bytes())


async def rows(folder: Path) -> int:
    store = await EmbeddedStore.open(folder, lambda: 1)
    try:
        return len((await store.page("t", b"", None, limit=1000)).rows)
    finally:
        await store.aclose()


async def test_a_whole_log_is_read_to_its_end(crashed: Crashed) -> None:
    with capture_logs() as logs:
        assert await rows(crashed.folder) == WRITES
    assert logs == []


async def test_any_changed_byte_that_was_on_disk_is_told_and_nothing_is_touched(crashed: Crashed) -> None:
    """It used to be opened without what was written after that, whose journal segments had been removed."""
    for at in (0, crashed.synced - 1, *random.Random(1).sample(range(crashed.synced), 6)):
        damaged = bytearray(crashed.text)
        damaged[at] ^= 0x10
        crashed.log.write_bytes(damaged)
        for _ in range(2):
            with pytest.raises(StoreError, match=r": its write-ahead log is damaged: \d+ writes were on disk, \d+ can"):
                await EmbeddedStore.open(crashed.folder, lambda: 1)
        assert crashed.log.read_bytes() == damaged
    crashed.log.write_bytes(crashed.text)
    assert await rows(crashed.folder) == WRITES


async def test_an_end_that_no_sync_had_covered_may_be_torn(crashed: Crashed) -> None:
    """As a power loss leaves it: cut, with zeros in it, or other bytes."""
    for number, text in enumerate(
        (
            crashed.text[: crashed.synced + 5],
            crashed.text[:-40] + bytes(40),
            crashed.text[: crashed.synced + 3] + b"?" + crashed.text[crashed.synced + 4 :],
        )
    ):
        folder = crashed.folder.with_name(f"torn{number}")
        shutil.copytree(crashed.folder, folder)
        (folder / crashed.log.name).write_bytes(text)
        with capture_logs() as logs:
            assert WRITES > await rows(folder) >= WRITES // 2 + 1
        assert [event["log_level"] for event in logs] == ["warning"]


@pytest.mark.parametrize("left", [0, 0.5])
async def test_a_log_that_ends_too_early_is_told(crashed: Crashed, left: float) -> None:
    crashed.log.write_bytes(crashed.text[: int(crashed.synced * left)])
    for _ in range(2):
        with pytest.raises(StoreError, match=f"or, to go on without .* remove {crashed.folder}/synced$"):
            await EmbeddedStore.open(crashed.folder, lambda: 1)


async def test_who_gives_up_what_is_lost_goes_on_with_the_rest(crashed: Crashed) -> None:
    damaged = bytearray(crashed.text)
    damaged[crashed.synced // 2] ^= 1
    crashed.log.write_bytes(damaged)
    (crashed.folder / "synced").unlink()
    with capture_logs() as logs:
        assert 0 < await rows(crashed.folder) < WRITES // 2
    assert [event["log_level"] for event in logs] == ["error"]
    assert (crashed.folder / "damaged-wal" / crashed.log.name).read_bytes() == damaged
    store = await EmbeddedStore.open(crashed.folder, lambda: 1)
    await store.put("t", [Put(b"new", b"c", b"v")])
    await store.sync()
    await store.aclose()
    assert (crashed.folder / "synced").exists()


@pytest.mark.parametrize("text", [b"synced 000000000099 crc 00000000\n", b"x"])
async def test_a_record_that_is_damaged_is_named_and_not_believed(crashed: Crashed, text: bytes) -> None:
    (crashed.folder / "synced").write_bytes(text)
    with capture_logs() as logs:
        assert await rows(crashed.folder) == WRITES
    assert [event["event"] for event in logs] == ["how far the store had been on disk is not known"]
