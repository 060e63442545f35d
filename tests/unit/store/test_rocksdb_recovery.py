"""RocksDB's write-ahead log is damaged: what a sync had covered is never missing in silence."""

import random
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest
from rocksdict import Options  # noqa: TID251 - as versions before had them
from structlog.testing import capture_logs

from tsd.assembly import opened_store
from tsd.config import Config, layout
from tsd.errors import StoreError
from tsd.series_index import SeriesIndex
from tsd.store import Family, Put, Table, rocks_options
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
    shutil.copytree(running, folder, ignore=lambda _, names: left_behind(running, names))
    await store.aclose()
    return Crashed(folder, folder / log.name, synced, (folder / log.name).read_bytes())


def left_behind(running: Path, names: list[str]) -> set[str]:
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


class Older(NamedTuple):
    """A store as a crash leaves it: one table is in files up to the newest log, the other only in the log before."""

    folder: Path
    log: Path  # that one; all of it was synced


async def crash_between(running: Path, folder: Path) -> Older:
    store = await EmbeddedStore.open(running, lambda: 1)
    await store.create_tables([TABLE, Table("flushed", (Family(b"t"),))])
    [log] = sorted(running.glob("*.log"))[-1:]
    for at in range(WRITES):
        for table in ("t", "flushed"):
            await store.put(table, [Put(b"r%02d" % at, b"c", b"v" * 20)])
    await store.sync()
    store._database._families["flushed"].rows.flush()
    await store.put("flushed", [Put(b"new", b"c", b"v")])
    await store.sync()
    shutil.copytree(running, folder, ignore=lambda _, names: left_behind(running, names))
    await store.aclose()
    return Older(folder, folder / log.name)


@pytest.fixture
async def older(tmp_path: Path) -> Older:
    return await crash_between(tmp_path / "running", tmp_path / "store")


def first_records(text: bytes, most: int) -> bytes:
    """The whole records of a log, which fit in one block, up to `most` bytes: checksum, length, kind, content."""
    end = 0
    while (after := end + 7 + int.from_bytes(text[end + 4 : end + 6], "little")) <= most:
        end = after
    return text[:end]


def changed_within(text: bytes) -> bytes:
    return text[: len(text) // 2] + bytes([text[len(text) // 2] ^ 0xFF]) + text[len(text) // 2 + 1 :]


async def test_two_logs_that_are_whole_are_read(older: Older) -> None:
    with capture_logs() as logs:
        assert await rows(older.folder) == WRITES
    assert logs == []


@pytest.mark.parametrize("harm", ["missing", "cut", "changed"])
async def test_an_older_log_that_is_not_whole_is_told_and_can_be_given_up(older: Older, harm: str) -> None:
    """The number of the last write tells nothing of it: the newest log has that. It used to be opened without a word,
    or refused without a way out."""
    text = older.log.read_bytes()
    if harm == "missing":
        older.log.unlink()
    else:
        older.log.write_bytes(first_records(text, len(text) // 2) if harm == "cut" else changed_within(text))
    there = {log.name: log.read_bytes() for log in older.folder.glob("*.log")}
    for _ in range(2):
        with pytest.raises(
            StoreError,
            match=f": its write-ahead log is damaged: Corruption: .*[^.]. Rest.* remove {older.folder}/synced$",
        ):
            await EmbeddedStore.open(older.folder, lambda: 1)
    assert {log.name: log.read_bytes() for log in older.folder.glob("*.log")} == there
    (older.folder / "synced").unlink()
    with capture_logs() as logs:
        left = await rows(older.folder)
    assert left == 0 if harm == "missing" else 0 < left < WRITES
    assert [event["log_level"] for event in logs] == ["error"]
    assert "tsd fsck" in logs[0]["event"]
    assert {log.name: log.read_bytes() for log in (older.folder / "damaged-wal").iterdir()} == there
    with capture_logs() as logs:
        assert await rows(older.folder) == left
    assert logs == []


async def test_a_store_that_kept_no_sizes_of_logs_is_taken_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as before:
        before.setattr(rocks_options, "_tracked", lambda: Options(raw_mode=True))
        left = await crash_between(tmp_path / "running", tmp_path / "store")
    for _ in range(2):
        with capture_logs() as logs:
            assert await rows(left.folder) == WRITES
        assert logs == []


async def test_where_writes_may_be_gone_the_index_of_series_is_filled_anew(tmp_path: Path) -> None:
    config = Config(path=str(tmp_path))

    async def complete(*, rebuilt: bool = False) -> bool:
        async with opened_store(config) as store:
            index = SeriesIndex(store, config.series_table, layout(config))
            if rebuilt:
                await index.rebuild(config.data_table)
            await store.sync()
            return await index.complete()

    assert await complete(rebuilt=True)
    assert await complete()
    (tmp_path / "store" / "synced").unlink()
    assert not await complete()
