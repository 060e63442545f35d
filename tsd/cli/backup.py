"""`tsd backup` and `tsd restore`: the embedded store and the journal of one daemon, while it runs."""

import json
import shutil
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import click
import trio

from tsd.cli.context import Access, access
from tsd.cli.options import closed_output_ignored
from tsd.cli.output import Bar, byte_columns, show_size
from tsd.codec.text import counted
from tsd.config.files import is_folder
from tsd.config.loader import Loaded, journal_folder, state_folder
from tsd.config.settings import Config
from tsd.config.state_dir import JOURNAL as JOURNAL_FOLDER
from tsd.config.state_dir import (
    RESTORATION,
    STATE,
    FolderKind,
    check_owner,
    folder_errors,
    lacking,
    lock_folder,
    private_files,
    remove_restored,
    restored_files,
    sync_folder,
    write_restoration,
)
from tsd.daemon.backup import (
    JOURNAL,
    LOCK,
    SNAPSHOT,
    STORE,
    BackupWriter,
    BrokenBackup,
    Manifest,
    check_complete,
    files_below,
    journal_lines,
    list_backups,
    missing_files,
    new_backup,
    newest_complete,
    prune,
    remove_interrupted,
    restore_files,
    restored_places,
)
from tsd.daemon.settings import now_ms
from tsd.daemon.wiring import has_local_store, store_name
from tsd.errors import TsdError
from tsd.ingest.journal.folder import identity
from tsd.store.rocksdb.verification import Contents, read_back

TARGET = FolderKind("backup folder", "FOLDER")
SNAPSHOT_TRIES = 5
IGNORED = ("lock", "lost+found")  # in a folder to restore to; the second is in the root of a file system


def backup(loaded: Loaded, folder: Path, keep: int | None, as_list: bool, as_json: bool) -> None:
    """Run `tsd backup`."""
    if as_list:
        sys.exit(_print_list(folder, as_json=as_json))
    config = loaded.config
    if not has_local_store(config):
        raise TsdError(
            f"got {store_name(config)}, wanted the embedded store: back tables up with that store's own means, such as "
            "HBase's snapshots"
        )
    if folder.resolve().is_relative_to(state := state_folder(config).resolve()):
        raise TsdError(f"backup folder {folder}: wanted one outside of the state folder {state}, which is copied")
    started_s = time.monotonic()
    with private_files(), folder_errors(folder, TARGET), _backup_lock(state_folder(config)):
        removed = remove_interrupted(folder, identity(state_folder(config))) if keep else []
        made, writer = trio.run(_make, config, folder)
        newest = newest_complete(folder, made.identity)
        is_newest = newest == writer.backup
        removed += prune(folder, keep, made.identity) if keep and is_newest else []
    report = {
        "backup": str(writer.backup),
        "files": len(made.files),
        "bytes": made.bytes,
        "linked_bytes": writer.linked_bytes,
        "copied_bytes": writer.copied_bytes,
        "seconds": round(time.monotonic() - started_s, 3),
        "removed": list(map(str, removed)),
    }
    with closed_output_ignored():
        if as_json:
            click.echo(json.dumps(report))
        else:
            click.echo(
                f"{writer.backup}: {counted(len(made.files), 'file')}, {show_size(made.bytes)}, of which "
                f"{show_size(writer.copied_bytes)} were copied, in {report['seconds']} s"
            )
            for path in removed:
                click.echo(f"removed {path}")
    if not is_newest:
        raise TsdError(
            f"the backup is complete, but {newest} has a later time: tsd restore takes that one. No earlier ones were "
            "removed. Set the clock right, or move the backup with the wrong time away"
        )


def restore(loaded: Loaded, source: Path, check: bool, as_json: bool) -> None:
    """Run `tsd restore`."""
    chosen = _chosen(source)
    manifest = check_complete(chosen)
    if check:
        contents, lines = _verify(chosen / STORE, chosen / JOURNAL)
    else:
        contents, lines = _restore(loaded.config, chosen, manifest)
    report = {
        "backup": str(chosen),
        "made": manifest.made,
        "bytes": manifest.bytes,
        "tables": contents.tables,
        "cells": contents.cells,
        "journal_lines": lines,
    }
    if as_json:
        click.echo(json.dumps(report))
        return
    done = "read" if check else f"restored to {state_folder(loaded.config)}, and read back"
    click.echo(
        f"{chosen}, made {manifest.made}: {done} {counted(contents.cells, 'cell')} in "
        f"{counted(contents.tables, 'table')}, and {counted(lines, 'line')} of the journal"
    )


def _print_list(folder: Path, *, as_json: bool) -> int:
    """Print the backups in a folder. Return the exit status."""
    complete = True
    shown = []
    texts = []
    for path, found in list_backups(folder):
        lacks = [str(found)] if isinstance(found, BrokenBackup) else missing_files(path, found)
        about: dict[str, object] = {"backup": str(path), "complete": not lacks, "lacks": lacks}
        text = f"not complete: {'; '.join(lacks[:3])}" if lacks else "complete"
        if isinstance(found, Manifest):
            about |= {"made": found.made, "bytes": found.bytes}
            text = f"{show_size(found.bytes)}, {text}"
        complete = complete and not lacks
        shown.append(about)
        texts.append(f"{path}: {text}")
    with closed_output_ignored():
        for text in [json.dumps(shown)] if as_json else texts:
            click.echo(text)
    if not shown:
        click.echo(f"{folder}: no backup", err=True)
    return 0 if shown and complete else 1


async def _make(config: Config, folder: Path) -> tuple[Manifest, BackupWriter]:
    """Make a backup. Raise OSError, TsdError."""
    state = state_folder(config)
    async with access(config, must_exist=True) as opened:
        own, journal = identity(state), opened.journal()
        writer = BackupWriter(new_backup(folder, now_ms(), own), newest_complete(folder, own))
        for tries_left in reversed(range(SNAPSHOT_TRIES)):
            writer.copy_journal(journal)
            writer.copy_state(state)
            async with _snapshot(opened, state / SNAPSHOT) as snapshot:
                writer.copy_later(state, journal)
                is_newer = writer.is_snapshot_newer(journal)
                if is_newer and tries_left:
                    continue
                writer.plan_store(snapshot)
                _show(writer.take_store(snapshot), sum(path.stat().st_size for path in snapshot.iterdir()), "backup")
                break
        if is_newer:
            click.echo(
                "tsd: the daemon stored its journal during each snapshot: points that were written twice or deleted "
                "meanwhile have their earlier values after a restoration",
                err=True,
            )
        return writer.finish(), writer


@asynccontextmanager
async def _snapshot(opened: Access, folder: Path) -> AsyncIterator[Path]:
    """Make a snapshot of the store for the block."""
    shutil.rmtree(folder, ignore_errors=True)  # of a backup that was killed
    try:
        assert opened.store.snapshots is not None, "the embedded store has snapshots"
        await opened.store.snapshots.snapshot(folder)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _backup_lock(state: Path) -> Iterator[None]:
    """Allow one backup at a time. Raise DaemonRuns if another is being made."""
    with folder_errors(state, STATE):
        has_store = is_folder(state / "store")
    if not has_store:  # a wrong folder, where no lock is to be left
        raise TsdError(f"no embedded store in {state}: give the state folder of your daemon with --data or --config")
    with lock_folder(state, LOCK, STATE):
        yield


def _chosen(source: Path) -> Path:
    """Return the backup to restore: `source`, or the newest complete one in it. Raise BrokenBackup."""
    backups = list_backups(source)
    if not backups:
        return source
    newest = newest_complete(source)
    if newest is None:
        check_complete(backups[-1][0])
        raise BrokenBackup(f"{source} has no complete backup")
    return newest


def _restore(config: Config, source: Path, manifest: Manifest) -> tuple[Contents, int]:
    """Restore a backup, and read the result back. Raise TsdError."""
    state, journal = state_folder(config), journal_folder(config)
    if not has_local_store(config):
        raise TsdError(f"got {store_name(config)}, wanted the embedded store, which the backup has")
    check_owner(state)
    with private_files(), lock_folder(state, "lock", STATE), folder_errors(state, STATE):
        if lacking(state) is not None:
            _check_only_restored(state, journal)
            remove_restored(state)
            shutil.rmtree(state / "store", ignore_errors=True)
            shutil.rmtree(journal, ignore_errors=True)
        else:
            _check_empty(state, journal)
        places = restored_places(manifest, state, journal)
        write_restoration(state, source, {str(path): manifest.files[name] for name, path in places.items()})
        _show(restore_files(source, manifest, state, journal), manifest.bytes, "restore")
        found = _verify(state / "store", journal)
        (state / RESTORATION).unlink()
        sync_folder(state)
        return found


def _check_empty(state: Path, journal: Path) -> None:
    """Raise TsdError if a folder to restore to has other files."""
    for folder, kind in ((state, STATE), (journal, JOURNAL_FOLDER)):
        found = [path.name for path in folder.iterdir() if path.name not in IGNORED] if is_folder(folder) else []
        _refuse(folder, kind, found)


def _check_only_restored(state: Path, journal: Path) -> None:
    """Raise TsdError if a journal's folder outside of the state folder has files that the restoration did not write,
    such as those of another daemon."""
    if not journal.resolve().is_relative_to(state.resolve()):
        others = {*files_below(journal)} - {*restored_files(state)}
        _refuse(journal, JOURNAL_FOLDER, [path.name for path in others])


def _refuse(folder: Path, kind: FolderKind, found: Sequence[str]) -> None:
    """Raise TsdError if files were found in a folder."""
    if found:
        raise TsdError(
            f"{kind.name} {folder} is not empty, it has {', '.join(sorted(found)[:5])}: give another one with "
            f"{kind.option}, or move this one away"
        )


def _verify(store: Path, journal: Path) -> tuple[Contents, int]:
    """Read a store and a journal in full. Raise TsdError for damage."""
    with Bar(None, byte_columns, description="read back") as bar:
        for contents in read_back(store):
            bar.set(contents.bytes)
    return contents, journal_lines(journal)


def _show(steps: Iterator[int], total: int, description: str) -> None:
    """Take steps that yield bytes, with a progress bar."""
    done = 0
    with Bar(total, byte_columns, description=description) as bar:
        for size in steps:
            done += size
            bar.set(done)
