"""`tsd index build`: list the series of Heroic's table again, from its rows."""

import json
from contextlib import aclosing

import click
import trio

from tsd.cli.context import access
from tsd.cli.output import Progress
from tsd.codec.text import counted
from tsd.config.loader import Config, Loaded
from tsd.errors import CorruptRow, TsdError
from tsd.tables.heroic.index import Entry, SeriesList, entry_of
from tsd.tables.heroic.tables import HeroicTables

AT_ONCE = 1000  # rows
SHOWN = 20  # rows with unreadable keys


def build(loaded: Loaded, as_json: bool) -> None:
    """Run `tsd index build`."""
    config = loaded.config
    if not config.has_heroic_tables:
        raise TsdError(
            f"this command works on Heroic's table, and tsd.storage.layout is {config.layout}. "
            "The daemon itself fills the series index of OpenTSDB's tables (tsd.query.series_index)"
        )
    rows, wrong = trio.run(_build, config)
    for text in wrong[:SHOWN]:
        click.echo(f"tsd: {text}", err=True)
    if as_json:
        click.echo(json.dumps({"rows": rows, "unreadable": len(wrong)}))
    click.echo(f"listed {counted(rows, 'row')}; {len(wrong)} unreadable", err=True)
    if wrong:
        raise click.exceptions.Exit(1)


async def _build(config: Config) -> tuple[int, list[str]]:
    """Return how many rows were listed, and what is wrong with the others."""
    rows = 0
    wrong: list[str] = []
    async with access(config, must_exist=True, any_layout=True) as opened:
        tables = HeroicTables(opened.store, config.heroic_table, config.heroic_series)
        await tables.check()
        listing = SeriesList(tables)
        progress = Progress("rows")
        entries: list[Entry] = []
        try:
            async with aclosing(tables.keys(b"")) as keys:
                async for row in keys:
                    try:
                        entries.append(entry_of(row))
                    except CorruptRow as exc:
                        wrong.append(str(exc))
                    if len(entries) == AT_ONCE:
                        await listing.ensure(entries)
                        rows += len(entries)
                        progress.add(len(entries))
                        entries = []
            await listing.ensure(entries)
        finally:
            progress.close()
        await opened.store.sync()
    return rows + len(entries), wrong
