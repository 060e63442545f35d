"""RocksDB's write-ahead log is damaged: synced writes are never missing without an error."""

import random
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest
from rocksdict import Rdict  # noqa: TID251 - makes logs that EmbeddedStore leaves only after a crash
from structlog.testing import capture_logs

from tsd.codec.opentsdb.rollup import default_config
from tsd.config.loader import key_layout
from tsd.config.settings import Config
from tsd.daemon.wiring import opened_store, rollup_progress
from tsd.store import Family, Put, Table
from tsd.store.rocksdb.engine import EmbeddedStore
from tsd.store.rocksdb.keys import encode_value, row_prefix
from tsd.store.rocksdb.options import options
from tsd.store.rocksdb.recovery import SyncedRecord, WritesLost
from tsd.tables.opentsdb.rollup_sums import intervals_to_build
from tsd.tables.opentsdb.series_index import SeriesIndex

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
    shutil.copytree(running, folder, ignore=lambda _, names: not_copied(running, names))
    await store.aclose()
    return Crashed(folder, folder / log.name, synced, (folder / log.name).read_bytes())


def not_copied(running: Path, names: list[str]) -> set[str]:
    """What a copy of a running store is better without: its lock, and what RocksDB may be removing right now."""
    manifest = (running / "CURRENT").read_text().strip()
    assert manifest in names
    older = {name for name in names if name.startswith("MANIFEST-") and name != manifest}
    return {"LOCK", *older, *sorted(name for name in names if name.startswith("OPTIONS-"))[:-1]}


async def rows(folder: Path) -> int:
    store = await EmbeddedStore.open(folder, lambda: 1)
    try:
        return len((await store.page("t", b"", None, limit=1000)).rows)
    finally:
        await store.aclose()


async def test_intact_log_is_read_to_its_end(crashed: Crashed) -> None:
    with capture_logs() as logs:
        assert await rows(crashed.folder) == WRITES
    assert logs == []


async def test_damaged_synced_byte_refuses_the_opening(crashed: Crashed) -> None:
    """Regression: the store was opened without what was written after that, whose journal segments had been removed."""
    for at in (0, crashed.synced - 1, *random.Random(1).sample(range(crashed.synced), 6)):
        damaged = bytearray(crashed.text)
        damaged[at] ^= 0x10
        crashed.log.write_bytes(damaged)
        for _ in range(2):
            with pytest.raises(WritesLost):
                await EmbeddedStore.open(crashed.folder, lambda: 1)
        assert crashed.log.read_bytes() == damaged
    crashed.log.write_bytes(crashed.text)
    assert await rows(crashed.folder) == WRITES


async def test_torn_unsynced_end_is_dropped(crashed: Crashed) -> None:
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
        assert [event["event"] for event in logs] == ["store.unsynced_writes_dropped"]


@pytest.mark.parametrize("left", [0, 0.5])
async def test_truncated_synced_log_refuses_the_opening(crashed: Crashed, left: float) -> None:
    crashed.log.write_bytes(crashed.text[: int(crashed.synced * left)])
    for _ in range(2):
        with pytest.raises(WritesLost) as refused:
            await EmbeddedStore.open(crashed.folder, lambda: 1)
        assert refused.value.record == crashed.folder / "synced"
        assert str(refused.value.record) in str(refused.value)


async def test_opening_without_record_keeps_readable_writes(crashed: Crashed) -> None:
    damaged = bytearray(crashed.text)
    damaged[crashed.synced // 2] ^= 1
    crashed.log.write_bytes(damaged)
    (crashed.folder / "synced").unlink()
    with capture_logs() as logs:
        assert 0 < await rows(crashed.folder) < WRITES // 2
    assert [event["event"] for event in logs] == ["store.writes_lost"]
    assert (crashed.folder / "damaged-wal" / crashed.log.name).read_bytes() == damaged
    store = await EmbeddedStore.open(crashed.folder, lambda: 1)
    await store.put("t", [Put(b"new", b"c", b"v")])
    await store.sync()
    await store.aclose()
    assert (crashed.folder / "synced").exists()


@pytest.mark.parametrize("text", [b"synced 000000000099 crc 00000000\n", b"x"])
async def test_damaged_record_is_logged_and_ignored(crashed: Crashed, text: bytes) -> None:
    (crashed.folder / "synced").write_bytes(text)
    with capture_logs() as logs:
        assert await rows(crashed.folder) == WRITES
    assert [event["event"] for event in logs] == ["store.sync_record_damaged"]


class Older(NamedTuple):
    """A store as a crash leaves it: one table is in files up to the newest log, the other only in the log before."""

    folder: Path
    log: Path  # that one; all of it was synced


def crash_between(running: Path, folder: Path) -> Older:
    settings, table_settings = options(1 << 20, 1 << 20)
    database = Rdict(str(running), settings)
    tables = [database.create_column_family(name, table_settings) for name in ("t", "flushed")]
    [log] = sorted(running.glob("*.log"))[-1:]
    for at in range(WRITES):
        for table in tables:
            table[row_prefix(b"r%02d" % at) + b"c"] = encode_value(1, b"v" * 20)
    database.flush_wal(True)
    tables[1].flush()
    tables[1][row_prefix(b"new") + b"c"] = encode_value(1, b"v")
    database.flush_wal(True)
    SyncedRecord(running).save(database.latest_sequence_number())
    shutil.copytree(running, folder, ignore=lambda _, names: not_copied(running, names))
    for table in tables:
        table.close()
    database.close()
    return Older(folder, folder / log.name)


@pytest.fixture
def older(tmp_path: Path) -> Older:
    return crash_between(tmp_path / "running", tmp_path / "store")


def first_records(text: bytes, most: int) -> bytes:
    """The whole records of a log, which fit in one block, up to `most` bytes: checksum, length, kind, content."""
    end = 0
    while (after := end + 7 + int.from_bytes(text[end + 4 : end + 6], "little")) <= most:
        end = after
    return text[:end]


def changed_within(text: bytes) -> bytes:
    return text[: len(text) // 2] + bytes([text[len(text) // 2] ^ 0xFF]) + text[len(text) // 2 + 1 :]


async def test_two_intact_logs_are_read(older: Older) -> None:
    with capture_logs() as logs:
        assert await rows(older.folder) == WRITES
    assert logs == []


@pytest.mark.parametrize("harm", ["missing", "cut", "changed"])
async def test_damaged_older_log_refuses_until_record_is_removed(older: Older, harm: str) -> None:
    """The sequence number does not show this damage: the newest log has it. Once it was opened without a warning, or
    refused without a way to continue."""
    text = older.log.read_bytes()
    if harm == "missing":
        older.log.unlink()
    else:
        older.log.write_bytes(first_records(text, len(text) // 2) if harm == "cut" else changed_within(text))
    there = {log.name: log.read_bytes() for log in older.folder.glob("*.log")}
    for _ in range(2):
        with pytest.raises(WritesLost) as refused:
            await EmbeddedStore.open(older.folder, lambda: 1)
        assert refused.value.record == older.folder / "synced"
    assert {log.name: log.read_bytes() for log in older.folder.glob("*.log")} == there
    (older.folder / "synced").unlink()
    with capture_logs() as logs:
        left = await rows(older.folder)
    assert left == 0 if harm == "missing" else 0 < left < WRITES
    assert [(event["event"], event["next_step"]) for event in logs] == [("store.writes_lost", "tsd fsck")]
    assert {log.name: log.read_bytes() for log in (older.folder / "damaged-wal").iterdir()} == there
    with capture_logs() as logs:
        assert await rows(older.folder) == left
    assert logs == []


async def test_series_index_is_rebuilt_after_possible_loss(tmp_path: Path) -> None:
    config = Config(path=str(tmp_path))

    async def complete(*, rebuilt: bool = False) -> bool:
        async with opened_store(config) as store:
            index = SeriesIndex(store, config.series_table, key_layout(config))
            if rebuilt:
                await index.rebuild(config.data_table)
            await store.sync()
            return await index.complete()

    assert await complete(rebuilt=True)
    assert await complete()
    (tmp_path / "store" / "synced").unlink()
    assert not await complete()


async def test_rollups_are_built_again_after_possible_loss(tmp_path: Path) -> None:
    """Regression: queries read rollups that were lost, and found nothing for times whose points are stored."""
    config = Config(path=str(tmp_path), rollups_build=True)

    async def complete_s() -> set[int]:
        async with opened_store(config) as store:
            await store.sync()
        progress = rollup_progress(config, intervals_to_build(default_config(config.data_table)))
        await progress.load()
        return set(progress.complete_s.values())

    progress = rollup_progress(config, intervals_to_build(default_config(config.data_table)))
    progress.complete_s = dict.fromkeys(progress.complete_s, 86_400)
    await complete_s()
    await progress.save()
    assert await complete_s() == {86_400}
    (tmp_path / "store" / "synced").unlink()
    assert await complete_s() == {0}


async def test_store_without_a_series_index_opens_after_possible_loss(tmp_path: Path) -> None:
    """Regression: the missing table of the index ended the start."""
    config = Config(path=str(tmp_path), series_index=False)
    for _ in range(2):
        async with opened_store(config) as store:
            assert config.series_table not in await store.tables()
        (tmp_path / "store" / "synced").unlink()
