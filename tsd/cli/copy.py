"""`tsd copy`: copy all tables of one store to another, for example from one machine to HBase.

`tsd create-tables`: create OpenTSDB's four tables, or those of another layout.
"""

import json
import sys
import zlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import click
import trio

from tsd.cli.context import Access, access
from tsd.cli.copy_entities import copy_metadata
from tsd.cli.copy_points import ALL_HOURS, ALL_TIMES, PointCopyStats, Rename, Target, copy_points, parse_rename
from tsd.cli.late_rollups import changing, changing_rows
from tsd.cli.options import closed_output_ignored
from tsd.cli.output import Progress
from tsd.cli.settings import overrides
from tsd.codec.text import counted
from tsd.config.loader import Loaded, key_layout, keys, name_rules, state_folder
from tsd.config.settings import Config
from tsd.config.state_dir import STATE, FolderKind
from tsd.daemon.layouts import build_configured_tables
from tsd.daemon.settings import load_config, now_ms, read_config
from tsd.daemon.wiring import (
    check_parts,
    default_compression,
    has_local_store,
    opened_store,
    rollup_tables,
    store_name,
    store_settings,
    tables,
    uses_hbase,
)
from tsd.daemon.wiring import create_tables as make_tables
from tsd.errors import BadConfig, TsdError
from tsd.store import Store
from tsd.tables.checkpoint import Checkpoint
from tsd.tables.opentsdb.copy import CopyJob, CopyProgress, CopyStats, TablePair, copy_store
from tsd.tables.opentsdb.rollup_task import hours_of_points
from tsd.tables.opentsdb.series_index import SeriesIndex

TARGET = STATE._replace(option="--to")
COPY_LATER = "They would not be copied: copy later"


def copy(
    loaded: Loaded, to: str, to_set: Sequence[str], checkpoint: Path | None, renames: Sequence[str], as_json: bool
) -> None:
    """Run `tsd copy`."""
    target = _target(loaded.config, to, to_set)
    if not (loaded.config.has_opentsdb_tables and target.has_opentsdb_tables):
        _copy_points(loaded.config, target, checkpoint, renames, as_json=as_json)
        return
    _check(loaded.config, target)
    file = Checkpoint(
        checkpoint or _checkpoint(loaded.config, target), ["copy", store_name(loaded.config), store_name(target)]
    )
    total, left = trio.run(_copy, loaded.config, target, file)
    with closed_output_ignored():
        if as_json:
            click.echo(
                json.dumps({"rows": total.rows, "cells": total.cells, "new_cells": total.put, "hidden": total.hidden})
            )
    click.echo(f"copied {counted(total.rows, 'row')}; {total.put} of {counted(total.cells, 'cell')} were new", err=True)
    if total.hidden:
        click.echo(
            f"tsd: {counted(total.hidden, 'row')} written cannot be read back, for example "
            f"{' '.join(key.hex() for key in total.examples)}: in HBase, tombstones of earlier deletes hide them. Run "
            f"major_compact '{target.data_table}' in its shell, and copy again",
            err=True,
        )
    if left:
        click.echo(f"tsd: not copied: {', '.join(left)} of the source", err=True)
    sys.exit(1 if total.hidden or left else 0)


async def _copy(source: Config, target: Config, file: Checkpoint) -> tuple[CopyStats, list[str]]:
    """Copy the tables. Return what was copied, and what was not."""
    async with access(source, must_exist=True) as own, access(target, kind=TARGET) as other:
        await own.require_flush(COPY_LATER)
        if made := await other.store.create_tables(tables(target), compression=default_compression(target)):
            click.echo(f"created {' '.join(made)}", err=True)
        job = CopyJob(
            own.store,
            other.store,
            TablePair(source.uid_table, target.uid_table),
            TablePair(source.data_table, target.data_table),
            [
                TablePair(source.meta_table, target.meta_table),
                TablePair(source.tree_table, target.tree_table),
                *map(TablePair, rollup_tables(source), rollup_tables(target)),
            ],
            changing_rows(target, other),
        )
        marks = CopyProgress(file)
        if mark := marks.mark(source.data_table):
            click.echo(f"continuing after row {mark.last.hex()}", err=True)
        with Progress("rows") as progress:
            async with _outdated(target, other.store):
                total = await copy_store(job, marks, lambda _, rows: progress.add(rows))
        return total, await copy_metadata(source, own, target, other)


def _copy_points(
    source: Config, target: Config, checkpoint: Path | None, renames: Sequence[str], *, as_json: bool
) -> None:
    """Copy points between layouts, and report what was copied and refused."""
    if store_name(source) == store_name(target):
        raise TsdError(f"source and target are the same: {store_name(source)}")
    try:
        rules = [parse_rename(text) for text in renames]
    except ValueError as exc:
        raise click.UsageError(f"--rename: {exc}") from None
    job = ["copy points", store_name(source), store_name(target), *renames]
    file = Checkpoint(checkpoint or _checkpoint(source, target), job)
    total, left = trio.run(_run_points, source, target, rules, file)
    for text in (*total.refused, *total.warnings):
        click.echo(f"tsd: {text}", err=True)
    counts = {
        "metrics": total.metrics,
        "points": total.points,
        "refused_points": total.refused_points,
        "expiring_points": total.expiring_points,
        "texts": total.texts,
        "annotations": total.annotations,
        "histograms": total.histograms,
    }
    with closed_output_ignored():
        if as_json:
            click.echo(json.dumps(counts))
    refused = f"; {counted(total.refused_points, 'point')} refused" if total.refused_points else ""
    click.echo(f"copied {counted(total.points, 'point')} of {counted(total.metrics, 'metric')}{refused}", err=True)
    if total.expiring_points:
        points = counted(total.expiring_points, "point")
        click.echo(f"tsd: copied {points} without the time to live: in the target they do not expire", err=True)
    if left := [*total.not_copied(), *left]:
        click.echo(f"tsd: not copied: {', '.join(left)} of the source", err=True)
    sys.exit(1 if total.refused_points or total.warnings or left else 0)


async def _run_points(
    source: Config, target: Config, rules: Sequence[Rename], file: Checkpoint
) -> tuple[PointCopyStats, list[str]]:
    """Copy points. Return what was copied, and what else was not."""
    async with _opened(source, must_exist=True) as own, _opened(target, kind=TARGET) as other:
        await make_tables(target, other.store, default_compression(target).upper())
        read = build_configured_tables(replace(source, rollups_build=False), own.store, now_ms)
        writes = replace(target, auto_create_metrics=True, rollups_build=False)  # a daemon builds them
        where = Target(build_configured_tables(writes, other.store, now_ms), name_rules(target), rules)
        if target.has_opentsdb_tables:
            where = where._replace(
                changing=lambda columns, series: changing(
                    target, other, hours_of_points(columns, series, target.salt_width)
                )
            )
        with Progress("points") as progress:
            async with _outdated(target, other.store):
                span = ALL_TIMES if source.has_kairosdb_tables else ALL_HOURS
                total = await copy_points(read, where, file, progress.add, span)
        return total, await copy_metadata(source, own, target, other)


@asynccontextmanager
async def _opened(config: Config, *, must_exist: bool = False, kind: FolderKind = STATE) -> AsyncIterator[Access]:
    """Open a store of any layout. Have its daemon write its pending points."""
    async with access(config, must_exist=must_exist, any_layout=True, kind=kind) as opened:
        await opened.require_flush(COPY_LATER)
        yield opened


@asynccontextmanager
async def _outdated(target: Config, store: Store) -> AsyncIterator[None]:
    """Mark the series index as outdated around puts that do not update it: the next daemon that keeps one rebuilds it.

    Mark it again at the end: a running daemon may have rebuilt it meanwhile.
    """
    if not target.has_opentsdb_tables:
        yield
        return
    index = SeriesIndex(store, target.series_table, key_layout(target))
    await index.outdate()
    try:
        yield
    finally:
        with trio.CancelScope(shield=True):
            await index.outdate()


def _target(source: Config, to: str, to_set: Sequence[str]) -> Config:
    """Return the target's configuration: the source's with another engine, or a file's. Raise BadConfig."""
    given, malformed = overrides(None, to_set, "--to-set")
    if malformed:
        raise BadConfig(malformed)
    named = store_settings(to, "--to")
    given = [*(named or ()), *given]
    try:
        if named is None:
            loaded = load_config(Path(to), given)
            with loaded.placed_problems():
                check_parts(loaded.config)
            return loaded.config
        read, _ = read_config(given)
        check_parts(read)
    except BadConfig as exc:
        # Without the place of a setting, it is the default, and the engine that --to names contradicts it.
        raise BadConfig([f"--to {to}: {text}" if text.startswith("tsd.") else text for text in exc.problems]) from exc
    known = keys()
    return replace(source, **{known[g.key].name: getattr(read, known[g.key].name) for g in given if g.key in known})


def _check(source: Config, target: Config) -> None:
    """Raise TsdError if one of the stores cannot be copied to the other."""
    if key_layout(source) != key_layout(target):
        raise TsdError(
            f"the source's row keys are built as {key_layout(source)}, the target's as {key_layout(target)}: copy "
            "requires the same tsd.storage.uid.width.* and tsd.storage.salt.* on both sides"
        )
    if store_name(source) == store_name(target):
        raise TsdError(f"source and target are the same: {store_name(source)}")


def _checkpoint(source: Config, target: Config) -> Path:
    """Return the default checkpoint file: in the state folder of the embedded side, one for each pair of stores."""
    side = target if has_local_store(target) and not has_local_store(source) else source
    pair = zlib.crc32(f"{store_name(source)} > {store_name(target)}".encode())
    return state_folder(side) / f"copy-{pair:08x}.json"


def create_tables(loaded: Loaded, compression: str | None, as_json: bool) -> None:
    """Run `tsd create-tables`."""

    async def run() -> None:
        config = loaded.config
        wanted = (compression or default_compression(config)).upper()
        if not config.has_opentsdb_tables:
            async with opened_store(config) as store:
                made = await make_tables(config, store, wanted)
        else:
            async with access(config) as opened:
                made = await make_tables(config, opened.store, wanted)
        if as_json:
            created = [name for name, is_new in made.items() if is_new]
            click.echo(json.dumps({"created": created, "existing": [name for name in made if name not in created]}))
            return
        for name, is_new in made.items():
            click.echo(f"{name}: {'created' if is_new else 'exists'}")
        if not uses_hbase(config):
            return
        commands = [
            f"  alter '{table.name}', {{NAME => '{family.name.decode()}', DATA_BLOCK_ENCODING => 'DIFF'}}"
            for table in tables(config)
            for family in table.families
            if made[table.name]
        ]
        if commands:
            click.echo(
                "The Thrift gateway cannot set DATA_BLOCK_ENCODING. For OpenTSDB's setting, run in HBase's shell:\n"
                + "\n".join(commands)
            )

    trio.run(run)
