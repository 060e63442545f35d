"""`tsd uid prune`: delete names that nothing uses any more, and the records of series without rows."""

import json
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

import click
import trio

from tsd.cli.context import Access, access, flush_pending, wiring
from tsd.cli.output import Progress
from tsd.codec.names import Kind
from tsd.codec.text import counted
from tsd.config.loader import Loaded, key_layout
from tsd.config.retention import parse_age
from tsd.config.settings import Config
from tsd.daemon.settings import now_ms
from tsd.errors import TsdError
from tsd.tables.opentsdb.prune import Ages, KindNames, NamePruner, Pruned, PrunedTables

_NO_AGE = re.compile("0+[hdwny]?")


def prune_uids(
    loaded: Loaded, dry_run: bool, older_than: str, words: Sequence[str], all_stopped: bool, as_json: bool
) -> None:
    """Run `tsd uid prune`."""
    config = loaded.config
    kinds = [Kind(word) for word in words] or _created_kinds(config)
    if not kinds:
        raise click.UsageError("daemons create no names with these settings: name the kinds with --kind")
    if config.random_metrics:
        kinds = [kind for kind in kinds if kind is not Kind.METRIC]  # their UIDs could be drawn again
    done = trio.run(_run, config, kinds, _ages(config, older_than), dry_run, all_stopped)
    shown = {kind: done.names[kind] for kind in kinds}
    click.echo(_json(shown, done, dry_run) if as_json else "\n".join(_plain(shown, done, dry_run, older_than)))


def _created_kinds(config: Config) -> list[Kind]:
    """Return the kinds of names that a daemon assigns when it first receives them."""
    allowed = wiring.auto_create(config)
    chosen = {Kind.METRIC: allowed.metrics, Kind.TAGK: allowed.tagks, Kind.TAGV: allowed.tagvs}
    return [kind for kind in Kind if chosen[kind]]


def _ages(config: Config, older_than: str) -> Ages:
    """Return up to which times something may be deleted. Raise UsageError."""
    now = now_ms()
    names_ms = now - _least_age_s(older_than) * 1000
    if not config.retention_series:
        return Ages(names_ms, names_ms)
    series_s = parse_age(config.retention_series)
    return Ages(names_ms, None if series_s is None else now - series_s * 1000)


def _least_age_s(older_than: str) -> int:
    """Return the seconds of an age such as 7d; 0 for 0, in any unit. Raise UsageError."""
    if _NO_AGE.fullmatch(older_than):
        return 0
    with suppress(ValueError):
        age_s = parse_age(older_than)
        if age_s is not None:
            return age_s
    wanted = "wanted 0, or a number of h, d, w, n (30 d) or y (365 d), as 7d"
    raise click.UsageError(f"--older-than: got {older_than!r}, {wanted}")


async def _run(config: Config, kinds: Collection[Kind], ages: Ages, dry_run: bool, all_stopped: bool) -> Pruned:
    async with access(config, must_exist=True) as opened:
        if dry_run:
            await flush_pending(opened, delete=False)
        else:
            await _check_stopped(config, opened, all_stopped)
        tables = await _tables(config, opened)
        with Progress("cells") as progress:
            pruner = NamePruner(
                opened.store, tables, key_layout(config), ages, pause_ratio=opened.pause_ratio, on_cells=progress.add
            )
            return await pruner.run(kinds, delete=not dry_run)


async def _check_stopped(config: Config, opened: Access, all_stopped: bool) -> None:
    """Raise TsdError if a daemon may hold UIDs of names, or points that are not stored."""
    if opened.daemon is not None:
        raise TsdError(
            "got a running daemon, wanted none: it may write points of unused names. Stop it, or add --dry-run"
        )
    if not wiring.has_local_store(config) and not all_stopped:
        raise TsdError(
            "other daemons and OpenTSDBs may write to these tables with UIDs that they have cached. Stop all of them, "
            "then add --all-stopped; or add --dry-run"
        )
    if reason := await opened.flush_daemon():
        raise TsdError(f"{reason}: these points may have names that look unused. Nothing deleted")


async def _tables(config: Config, opened: Access) -> PrunedTables:
    """Return the tables that use names. Raise TsdError if the embedded store has others."""
    stored = await opened.store.tables()
    if config.data_table not in stored:
        raise TsdError(f"there is no table {config.data_table} (tsd.storage.hbase.data_table)")
    # also if rollups are off in this configuration: their rows have names
    rollups = wiring.configured_rollups(replace(config, rollups_enable=True))
    rows = list(dict.fromkeys([config.data_table, *(rollups.tables() if rollups else ())]))
    others = config.series_table, config.meta_table, config.tree_table
    if wiring.has_local_store(config) and (unknown := set(stored) - {*rows, *others, config.uid_table}):
        raise TsdError(
            f"got tables that these settings do not name, and that may use names: {', '.join(sorted(unknown))}. "
            "Wanted the settings of the daemon that wrote them (tsd.rollups.config)"
        )
    index, meta, tree = (table if table in stored else None for table in others)
    return PrunedTables([table for table in rows if table in stored], config.uid_table, index, meta, tree)


def _json(names: dict[Kind, KindNames], done: Pruned, dry_run: bool) -> str:
    return json.dumps(
        {
            "dry_run": dry_run,
            "names": {
                kind.value: {
                    "deleted": [name.decode("latin-1") for name in sorted(found.unused)],
                    "leftover": len(found.leftover),
                    "young": found.young,
                    "described": found.described,
                    "inconsistent": found.inconsistent,
                }
                for kind, found in names.items()
            },
            "series": {"indexed": done.indexed, "described": done.described, "kept": done.kept},
            "cells": done.cells,
        }
    )


def _plain(names: dict[Kind, KindNames], done: Pruned, dry_run: bool, older_than: str) -> Iterator[str]:
    verb = "would delete" if dry_run else "deleted"
    for kind, found in names.items():
        kept = [
            f"{found.young} younger than {older_than}" if found.young else "",
            f"{found.described} with metadata" if found.described else "",
            f"{found.inconsistent} that tsd uid fsck reports" if found.inconsistent else "",
        ]
        left = ", ".join(filter(None, kept))
        more = f" and {counted(len(found.leftover), 'UID')} without a name" if found.leftover else ""
        yield (
            f"{kind.value}: {verb} {counted(len(found.unused), 'name')}{more}"
            f"{f'; unused but kept: {left}' if left else ''}"
        )
    names_too = f"; kept {done.kept}, and their names" if done.kept else ""
    yield f"series without rows: {verb} {done.indexed} from the index, {done.described} from the meta table{names_too}"
