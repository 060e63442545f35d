"""Backups of a state folder, made and restored step by step; each step may be the last one before a kill."""

import errno
import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import trio
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from tests.running import running
from tsd.cli import tsd
from tsd.config.state_dir import lock_state, write_restoration
from tsd.daemon.backup import (
    MANIFEST,
    BackupWriter,
    BrokenBackup,
    Manifest,
    check_complete,
    copy_segment,
    files_below,
    journal_lines,
    list_backups,
    missing_files,
    new_backup,
    newest_complete,
    prune,
    read_manifest,
    remove_interrupted,
    restore_files,
    restored_places,
    write_manifest,
)
from tsd.errors import TsdError
from tsd.ingest.journal.frames import FrameMaker
from tsd.ingest.journal.segment import HEADER_BYTES, Damage, block_of, header
from tsd.store.rocksdb.engine import EmbeddedStore

OWNER = "0123456789abcdef" * 2
DAY_MS = 86_400_000


def segment(groups: Sequence[bytes], *, synced: int | None = None) -> bytes:
    """Return a journal segment with a line for each group; `synced` groups are on disk for sure, by default all."""
    text = b""
    ends = [HEADER_BYTES]
    for line in groups:
        text += b"".join(block_of(FrameMaker().frame_of([line], 0), 1, HEADER_BYTES + len(text), OWNER))
        ends.append(HEADER_BYTES + len(text))
    return header(ends[len(groups) if synced is None else synced], OWNER) + text


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A state folder, with a file of each kind."""
    folder = tmp_path / "state"
    for name, content in {
        "id": OWNER.encode(), "format": b"1\n", "refused/1.lines": b"put x\n", "control.sock": b"", "lock": b"1",
        "journal/0000000000000001.journal": segment([b"put a 1 1 b=c\n"]),
        "journal/0000000000000002.journal": segment([b"put a 2 1 b=c\n", b"put a 3 1 b=c\n"], synced=1),
    }.items():  # fmt: skip
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


@pytest.fixture
def snapshot(state: Path) -> Path:
    return fill_snapshot(state, {"000001.sst": b"one", "000002.sst": b"two", "CURRENT": b"MANIFEST"})


def fill_snapshot(state: Path, files: dict[str, bytes]) -> Path:
    folder = state / "snapshot.tmp"
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)
        os.utime(folder / name, ns=(1, len(content)))
    return folder


def make(folder: Path, state: Path, snapshot: Path, *, now_ms: int = DAY_MS) -> Path:
    """Make a complete backup."""
    writer = BackupWriter(new_backup(folder, now_ms, OWNER), newest_complete(folder))
    writer.copy_journal(state / "journal")
    writer.copy_state(state)
    writer.plan_store(snapshot)
    list(writer.take_store(snapshot))
    writer.finish()
    return writer.backup


def test_backup_is_restored_to_the_same_files(tmp_path: Path, state: Path, snapshot: Path) -> None:
    backup = make(tmp_path / "backups", state, snapshot)
    manifest = check_complete(backup)
    assert manifest.bytes == sum(path.stat().st_size for path in backup.rglob("*") if path.is_file()) - (
        (backup / MANIFEST).stat().st_size
    )
    target = tmp_path / "restored"
    list(restore_files(backup, manifest, target, target / "journal"))
    assert {str(path.relative_to(target)) for path in target.rglob("*") if path.is_file()} == {
        "id", "format", "refused/1.lines", "store/000001.sst", "store/000002.sst", "store/CURRENT",
        "journal/0000000000000001.journal", "journal/0000000000000002.journal",
    }  # fmt: skip
    assert (target / "store/000002.sst").read_bytes() == b"two"
    assert (target / "refused/1.lines").read_bytes() == b"put x\n"
    assert journal_lines(target / "journal") == 2  # the third was not on disk for sure


@pytest.mark.parametrize("stored", [(1,), (1, 2), (1, 2, 3)])
def test_segments_that_are_stored_meanwhile_are_left_out(
    tmp_path: Path, state: Path, monkeypatch: pytest.MonkeyPatch, stored: Sequence[int]
) -> None:
    """A segment without those after it would be replayed over their newer values."""
    journal = state / "journal"
    paths = [journal / f"{number:016d}.journal" for number in (1, 2, 3)]
    paths[2].write_bytes(segment([b"put a 1 3 b=c\n"]))

    def copy_while_stored(source: Path, target: Path) -> int:
        copied = copy_segment(source, target)
        for number in stored:
            paths[number - 1].unlink(missing_ok=True)
        return copied

    monkeypatch.setattr("tsd.daemon.backup.copy_segment", copy_while_stored)
    writer = BackupWriter(new_backup(tmp_path / "backups", DAY_MS, OWNER), None)
    writer.copy_journal(journal)
    writer.plan_store(fill_snapshot(state, {"000001.sst": b"one"}))
    left = [f"journal/{path.name}" for path in paths if path.exists()]
    assert [name for name in read_manifest(writer.backup).files if name.startswith("journal/")] == left
    assert sorted(f"journal/{path.name}" for path in (writer.backup / "journal").iterdir()) == left
    assert writer.copied_bytes == sum(path.stat().st_size for path in (writer.backup / "journal").iterdir())


def progress(
    complete_s: int, late: Sequence[int], *, hours: Sequence[int] = (), position: Sequence[object] | None = None
) -> bytes:
    """Return a file about rollups that are complete up to a time, apart from late days, or some hours of these."""
    days: list[list[object]] = [["000001", day_s, *([hours] if hours else [])] for day_s in late]
    about = {"tables": {"1h": "t"}, "complete_s": {"1h": complete_s}, "pass": position, "late": days, "emptied": []}
    return json.dumps(about).encode()


@pytest.mark.parametrize(
    ("first", "second", "wanted"),
    [
        (progress(900, []), progress(900, [400]), progress(900, [400])),
        (progress(900, [300]), progress(990, [300, 400]), progress(900, [300, 400])),
        (progress(900, [300], position=[["1h"], 900, 990, "", 0]), progress(500, []), progress(500, [300])),
        (progress(900, [300], hours=[7]), progress(900, [300], hours=[1, 7]), progress(900, [300], hours=[1, 7])),
        (progress(900, [300], hours=[7]), progress(900, [300]), progress(900, [300])),
        (progress(900, []), b"{", progress(900, [])),
    ],
)
def test_late_points_of_a_snapshot_are_known(
    tmp_path: Path, state: Path, first: bytes, second: bytes, wanted: bytes
) -> None:
    """A late point that is stored while the backup is made is in the snapshot, and not in the rollups."""
    file = state / "rollup-progress.json"
    file.write_bytes(first)
    writer = BackupWriter(new_backup(tmp_path / "backups", DAY_MS, OWNER), None)
    writer.copy_journal(state / "journal")
    writer.copy_state(state)
    file.write_bytes(second)
    writer.copy_later(state, state / "journal")
    writer.plan_store(fill_snapshot(state, {"000001.sst": b"one"}))
    copy = writer.backup / "state/rollup-progress.json"
    assert json.loads(copy.read_bytes()) == json.loads(wanted)
    assert read_manifest(writer.backup).files["state/rollup-progress.json"] == copy.stat().st_size


def test_lines_that_come_during_the_snapshot_are_added(tmp_path: Path, state: Path) -> None:
    journal = state / "journal"
    first, second, third = (journal / f"{number:016d}.journal" for number in (1, 2, 3))
    writer = BackupWriter(new_backup(tmp_path / "backups", DAY_MS, OWNER), None)
    writer.copy_journal(journal)
    first.unlink()  # it may not be in the snapshot
    second.write_bytes(segment([b"put a 2 1 b=c\n", b"put a 3 1 b=c\n"]))
    third.write_bytes(segment([b"put a 4 1 b=c\n"]))
    writer.copy_later(state, journal)
    assert journal_lines(writer.backup / "journal") == 4
    assert writer.copied_bytes == sum(path.stat().st_size for path in (writer.backup / "journal").iterdir())


@pytest.mark.parametrize("is_always_flushed", [False, True])
async def test_values_that_are_stored_before_the_snapshot_are_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_always_flushed: bool
) -> None:
    """Regression: a restoration replayed copied lines over newer values of the snapshot."""
    settings = {"tsd.core.auto_create_metrics": "true"}
    snapshot, taken = EmbeddedStore.snapshot, 0
    async with running(tmp_path / "state", settings) as served:
        await served.send_lines(b"put m 1700000000 1 a=b\n")

        async def snapshot_later(store: EmbeddedStore, folder: Path) -> None:
            nonlocal taken
            taken += 1
            if is_always_flushed or taken == 1:
                await served.send_lines(b"put m 1700000000 2 a=b\n")
                assert await served.daemon.ingest.writer.flush()
            await snapshot(store, folder)
            await served.send_lines(b"put n 1700000000 1 a=b\n")

        monkeypatch.setattr(EmbeddedStore, "snapshot", snapshot_later)
        said = await command(tmp_path / "state", "backup", str(tmp_path / "backups"))
    assert ("earlier values" in said.stderr) == is_always_flushed
    await command(tmp_path / "restored", "restore", str(tmp_path / "backups"))
    async with running(tmp_path / "restored", settings):
        found = await command(tmp_path / "restored", "scan", "--import", "1", "sum", "m")
    assert found.stdout == "m 1700000000 2 a=b\n"


async def command(state: Path, *words: str) -> Result:
    """Run a command of `tsd`, and return what it printed."""
    done = await trio.to_thread.run_sync(CliRunner().invoke, tsd, ["--data", str(state), *words])
    assert done.exit_code == 0, done.output
    return done


@pytest.mark.parametrize("steps", range(5))
def test_backup_that_ended_early_says_what_it_lacks(tmp_path: Path, state: Path, snapshot: Path, steps: int) -> None:
    folder = tmp_path / "backups"
    writer = BackupWriter(new_backup(folder, DAY_MS, OWNER), None)
    taken = writer.take_store(snapshot)
    for step in (
        lambda: writer.copy_journal(state / "journal"),
        lambda: writer.copy_state(state),
        lambda: writer.plan_store(snapshot),
        lambda: next(taken),
    )[:steps]:  # fmt: skip
        step()
    lacks = missing_files(writer.backup, read_manifest(writer.backup))
    assert len(lacks) == (2 if steps == 4 else 3 if steps == 3 else 1)
    with pytest.raises(BrokenBackup):
        check_complete(writer.backup)
    assert newest_complete(folder) is None


@pytest.mark.parametrize("harm", ["removed", "cut"])
def test_backup_with_a_damaged_file_is_refused(tmp_path: Path, state: Path, snapshot: Path, harm: str) -> None:
    backup = make(tmp_path / "backups", state, snapshot)
    file = backup / "store/000001.sst"
    if harm == "removed":
        file.unlink()
    else:
        file.write_bytes(b"on")
    with pytest.raises(BrokenBackup, match=r"store/000001\.sst"):
        check_complete(backup)


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"format": 99, "files": {}}'])
def test_damaged_manifest_is_refused(tmp_path: Path, content: bytes) -> None:
    backup = new_backup(tmp_path / "backups", DAY_MS, OWNER)
    (backup / MANIFEST).write_bytes(content)
    with pytest.raises(BrokenBackup, match=MANIFEST):
        read_manifest(backup)
    [(path, found)] = list_backups(tmp_path / "backups")
    assert path == backup
    assert isinstance(found, BrokenBackup)


@pytest.mark.parametrize("name", ["state/../../evil", "/etc/evil", "evil", "state", "other/evil", "journal/..", ""])
def test_manifest_with_a_file_outside_the_backup_is_refused(tmp_path: Path, name: str) -> None:
    backup = new_backup(tmp_path / "backups", DAY_MS, OWNER)
    (backup / MANIFEST).write_text(json.dumps({**json.loads((backup / MANIFEST).read_text()), "files": {name: 1}}))
    with pytest.raises(BrokenBackup, match=MANIFEST) as refused:
        read_manifest(backup)
    assert repr(name) in str(refused.value)


def test_second_backup_links_files_that_are_the_same(tmp_path: Path, state: Path, snapshot: Path) -> None:
    folder = tmp_path / "backups"
    first = make(folder, state, snapshot)
    shutil.rmtree(snapshot)
    later = fill_snapshot(state, {"000001.sst": b"one", "000002.sst": b"other", "000003.sst": b"new"})
    second = make(folder, state, later, now_ms=2 * DAY_MS)
    assert (second / "store/000001.sst").samefile(first / "store/000001.sst")
    assert (second / "store/000002.sst").read_bytes() == b"other"
    assert (first / "store/000002.sst").read_bytes() == b"two"
    check_complete(first)
    check_complete(second)


def make_on_days(folder: Path, state: Path, *days: int) -> list[Path]:
    """Make a complete backup on each day."""
    made = []
    for day in days:
        snapshot = fill_snapshot(state, {"000001.sst": b"one"})
        made.append(make(folder, state, snapshot, now_ms=day * DAY_MS))
        shutil.rmtree(snapshot)
    return made


def test_pruning_keeps_the_newest_complete_ones(tmp_path: Path, state: Path) -> None:
    folder = tmp_path / "backups"
    made = make_on_days(folder, state, 1, 2, 3, 4)
    early = new_backup(folder, 2 * DAY_MS + 1000, OWNER)
    late = new_backup(folder, 9 * DAY_MS, OWNER)
    (folder / "something else").mkdir()
    assert prune(folder, 2, OWNER) == [made[0], made[1], early]
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        [made[2].name, made[3].name, late.name, "something else"]
    )
    check_complete(made[2])
    check_complete(made[3])


def test_backups_of_other_state_folders_are_kept(tmp_path: Path, state: Path) -> None:
    """Regression: each of two daemons that shared a folder removed the other's backups."""
    folder = tmp_path / "backups"
    own = make_on_days(folder, state, 1, 3, 5)
    begun = new_backup(folder, 2 * DAY_MS, "f" * 32)
    other = new_backup(folder, 4 * DAY_MS, "f" * 32)
    write_manifest(other, read_manifest(other)._replace(complete=True))
    assert newest_complete(folder, "f" * 32) == other
    assert newest_complete(folder, OWNER) == newest_complete(folder) == own[2]
    assert prune(folder, 1, OWNER) == own[:2]
    assert [path for path, _ in list_backups(folder)] == [begun, other, own[2]]


def test_interrupted_backups_are_removed_before_the_next(tmp_path: Path, state: Path, snapshot: Path) -> None:
    """Regression: after a full disk they took the space of the next backup, which failed as well."""
    folder = tmp_path / "backups"
    whole = make(folder, state, snapshot)
    begun = [new_backup(folder, day * DAY_MS, OWNER) for day in (2, 3)]
    other = new_backup(folder, 4 * DAY_MS, "f" * 32)
    assert remove_interrupted(folder, OWNER) == begun
    assert [path for path, _ in list_backups(folder)] == [whole, other]


def test_backups_that_cannot_be_read_now_are_kept(tmp_path: Path, state: Path) -> None:
    folder = tmp_path / "backups"
    made = make_on_days(folder, state, 1, 2, 3)
    manifest = made[0] / "backup.json"
    manifest.write_text(manifest.read_text().replace('"format": 1', '"format": 99'))
    (made[1] / "backup.json").unlink()  # as a removal does first
    assert prune(folder, 1, OWNER) == [made[1]]


def test_two_backups_of_one_second_have_own_folders(tmp_path: Path) -> None:
    found = [new_backup(tmp_path / "backups", DAY_MS, OWNER) for _ in range(3)]
    assert len(set(found)) == 3
    assert [path for path, _ in list_backups(tmp_path / "backups")] == found


@pytest.mark.parametrize("steps", range(6))
def test_unfinished_restoration_is_refused_at_start(tmp_path: Path, state: Path, snapshot: Path, steps: int) -> None:
    backup = make(tmp_path / "backups", state, snapshot)
    manifest = check_complete(backup)
    target = tmp_path / "restored"
    target.mkdir()
    places = restored_places(manifest, target, target / "journal")
    write_restoration(target, backup, {str(path): manifest.files[name] for name, path in places.items()})
    for _ in zip(range(steps), restore_files(backup, manifest, target, target / "journal"), strict=False):
        pass
    with pytest.raises(TsdError, match=str(backup)), lock_state(target):
        pass


@given(st.lists(st.binary(min_size=1, max_size=40).map(lambda line: line + b"\n"), max_size=5), st.data())
def test_segment_is_copied_as_far_as_it_is_on_disk(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], data: st.DataObject
) -> None:
    synced = data.draw(st.integers(0, len(lines)))
    folder = tmp_path_factory.mktemp("segments")
    source, target = folder / "0000000000000001.journal", folder / "copy" / "0000000000000001.journal"
    torn = data.draw(st.binary(max_size=30))
    source.write_bytes(segment(lines, synced=synced) + torn)
    assert copy_segment(source, target) == target.stat().st_size
    assert target.read_bytes() == segment(lines[:synced])
    assert journal_lines(target.parent) == synced


def test_segment_with_a_damaged_header_is_copied_whole(tmp_path: Path) -> None:
    source = tmp_path / "0000000000000001.journal"
    source.write_bytes(b"x" + segment([b"put a 1 1 b=c\n"])[1:])
    copy_segment(source, tmp_path / "copy" / source.name)
    assert (tmp_path / "copy" / source.name).read_bytes() == source.read_bytes()
    with pytest.raises(Damage):
        journal_lines(tmp_path / "copy")


def test_manifest_of_another_state_folder_is_not_linked_to(tmp_path: Path, state: Path, snapshot: Path) -> None:
    folder = tmp_path / "backups"
    first = make(folder, state, snapshot)
    other = new_backup(folder, 3 * DAY_MS, "f" * 32)
    writer = BackupWriter(other, first)
    copied = fill_snapshot(tmp_path, {"000001.sst": b"one"})
    writer.plan_store(copied)
    list(writer.take_store(copied))
    assert not (other / "store/000001.sst").samefile(first / "store/000001.sst")
    assert isinstance(read_manifest(other), Manifest)


def test_folder_that_cannot_be_listed_fails_the_backup(
    tmp_path: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: its files were left out, and the backup counted as complete."""
    writer = BackupWriter(new_backup(tmp_path / "backups", 0, OWNER), None)
    closed = [state / "closed", state / "lost+found"]
    scandir = os.scandir

    def guarded(folder: str) -> Any:
        if Path(folder) in closed:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), folder)
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", guarded)
    (state / "lost+found").mkdir()
    writer.copy_state(state)
    writer.copy_journal(tmp_path / "without quarantine")
    (state / "closed").mkdir()
    with pytest.raises(PermissionError, match=str(state / "closed")):
        writer.copy_state(state)


def test_links_are_not_copied(tmp_path: Path) -> None:
    """Not even one that leads nowhere, or to itself."""
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "loop").symlink_to("loop")
    assert list(files_below(tmp_path)) == [tmp_path / "file"]
