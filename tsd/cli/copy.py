"""`tsd copy`: all tables of one store into another, so that a user who outgrows one machine moves in one command."""

import os
import sys
import zlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import click
import trio

from tsd.assembly import rollup_tables, tables
from tsd.cli.access import access
from tsd.cli.options import overrides, with_config
from tsd.cli.progress import Progress
from tsd.config import Backend, Config, Given, Loaded, gateways, keys, layout, load, read_settings, state_folder
from tsd.copying.checkpoint import Checkpoint
from tsd.copying.house import House, Pair, copy_house
from tsd.copying.rows import Copied
from tsd.errors import BadConfig, StoreError, TsdError
from tsd.query.configured import make_index
from tsd.series_index import SeriesIndex


@click.command()
@click.option(
    "--to", required=True, metavar="TARGET",
    help="embedded:FOLDER (a state folder), hbase:HOST:PORT[,HOST:PORT] (Thrift gateways), or a configuration file.",
)  # fmt: skip
@click.option(
    "--to-set", multiple=True, metavar="KEY=VALUE", help="Set any key of the target, the name of a table say."
)
@click.option(
    "--checkpoint", type=click.Path(path_type=Path),
    help="Where to keep how far it is (default: a file in the state folder of the embedded side).",
)  # fmt: skip
@with_config
def copy(loaded: Loaded, to: str, to_set: Sequence[str], checkpoint: Path | None) -> None:
    """Copy names and rows of this store into another, with their write times, and read back what was put.

    Interrupted, it goes on where it was when it is run again. Run after that, it copies what is new: so copy once while
    the daemon runs, stop the daemon, and copy again. Nothing is deleted in the target, and a target that has other
    names under the same UIDs is refused. Exit status 1 where something cannot be read back.
    """
    target = _target(loaded.config, to, to_set)
    _check(loaded.config, target)
    note = Checkpoint(checkpoint or _checkpoint(loaded.config, target), _shown(loaded.config), _shown(target))
    total = trio.run(_copy, loaded.config, target, note)
    click.echo(f"copied {total.rows} rows; {total.put} of {total.cells} cells were new", err=True)
    if total.hidden:
        click.echo(
            f"tsd: {total.hidden} rows were put and do not show, {' '.join(key.hex() for key in total.examples)} and "
            "so on: in HBase, marks of earlier deletes hide them. Have it remove these (major_compact "
            f"'{target.data_table}' in its shell), and copy again",
            err=True,
        )
    sys.exit(1 if total.hidden else 0)


async def _copy(source: Config, target: Config, note: Checkpoint) -> Copied:
    async with access(source, must_exist=True, writes=False) as ours, access(target) as theirs:
        if why := await ours.unwritten():
            raise StoreError(f"{why}. They would not be copied: copy after that")
        if made := await theirs.store.create_tables(tables(target)):
            click.echo(f"made {' '.join(made)}", err=True)
        house = House(
            ours.store,
            theirs.store,
            Pair(source.uid_table, target.uid_table),
            Pair(source.data_table, target.data_table),
            [
                Pair(source.meta_table, target.meta_table),
                Pair(source.tree_table, target.tree_table),
                *map(Pair, rollup_tables(source), rollup_tables(target)),
            ],
        )
        if mark := note.mark(source.data_table):
            click.echo(f"going on after row {mark.last.hex()}", err=True)
        progress = Progress("rows")
        try:
            async with _outdated(make_index(target, theirs.store)):
                return await copy_house(house, note, lambda _, rows: progress.add(rows))
        finally:
            progress.close()


@asynccontextmanager
async def _outdated(index: SeriesIndex | None) -> AsyncIterator[None]:
    """Around what puts rows that the index of their series is not told of: the next daemon reads all of them. Said at
    the end too, as one that runs may have read what was there by then."""
    if index is None:
        yield
        return
    await index.outdate()
    try:
        yield
    finally:
        with trio.CancelScope(shield=True):
            await index.outdate()


def _target(source: Config, to: str, to_set: Sequence[str]) -> Config:
    """The target's configuration: the source's with another engine, or a file's; raises BadConfig."""
    given, malformed = overrides(None, to_set)
    if malformed:
        raise BadConfig([problem.replace("--set", "--to-set") for problem in malformed])
    kind, colon, where = to.partition(":")
    if kind in (Backend.EMBEDDED.value, Backend.HBASE.value) and not where:
        raise BadConfig([f"--to {to}: wanted embedded:FOLDER, hbase:HOST:PORT or a configuration file"])
    if kind == Backend.EMBEDDED.value and colon:
        given = [Given("--to", "tsd.storage.path", where), *given]
    elif kind == Backend.HBASE.value and colon:
        given = [Given("--to", "tsd.storage.hbase.thrift", where), *given]
    else:
        return load(Path(to), given).config
    given = [Given("--to", "tsd.storage.backend", kind), *given]
    read, _ = read_settings(given)
    known = keys()
    return replace(source, **{known[g.key].name: getattr(read, known[g.key].name) for g in given if g.key in known})


def _check(source: Config, target: Config) -> None:
    """Raise TsdError for two stores that no copy makes sense between."""
    if layout(source) != layout(target):
        raise TsdError(
            f"the source's row keys are built as {layout(source)}, the target's as {layout(target)}: copy "
            "wants the same tsd.storage.uid.width.* and tsd.storage.salt.* on both sides"
        )
    if _shown(source) == _shown(target):
        raise TsdError(f"source and target are the same: {_shown(source)}")


def _shown(config: Config) -> str:
    """Which store a configuration means."""
    if config.backend is Backend.EMBEDDED:
        return f"embedded:{os.path.realpath(state_folder(config))}"
    places = ",".join(f"{host}:{port}" for host, port in sorted(gateways(config)))
    return f"hbase:{places} {config.data_table} {config.uid_table}"


def _checkpoint(source: Config, target: Config) -> Path:
    """The file where nobody names one: on the side that has a folder here, and another for each pair."""
    side = target if target.backend is Backend.EMBEDDED and source.backend is Backend.HBASE else source
    pair = zlib.crc32(f"{_shown(source)} > {_shown(target)}".encode())
    return state_folder(side) / f"copy-{pair:08x}.json"
