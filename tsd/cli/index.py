"""`tsd index build`: list the series of Heroic's table, or of rows of events and days, again, from their rows."""

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing

import click
import trio

from tsd.cli.context import access
from tsd.cli.options import closed_output_ignored
from tsd.cli.output import Progress
from tsd.codec.text import counted
from tsd.config.loader import Loaded
from tsd.config.settings import Config
from tsd.errors import CorruptRow, TsdError
from tsd.store import Store
from tsd.tables.heroic.index import Entry, SeriesList, entry_of
from tsd.tables.heroic.tables import HeroicTables
from tsd.tables.tall.listing import list_rows

AT_ONCE = 1000  # rows
SHOWN = 20  # rows with unreadable keys


def build(loaded: Loaded, as_json: bool) -> None:
    """Run `tsd index build`."""
    config = loaded.config
    if not (config.has_heroic_tables or config.has_tall_tables):
        raise TsdError(
            f"this command works on Heroic's table and on rows of events and days, and tsd.storage.layout is "
            f"{config.layout}. The daemon itself fills the series index of OpenTSDB's tables (tsd.query.series_index)"
        )
    rows, wrong = trio.run(_build, config)
    for text in wrong[:SHOWN]:
        click.echo(f"tsd: {text}", err=True)
    with closed_output_ignored():
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
        found = _list_heroic(config, opened.store, wrong)
        if config.has_tall_tables:
            found = list_rows(opened.store, config.tall_tables(), config.tall_series, wrong)
        with Progress("rows") as progress:
            async with aclosing(found) as counts:
                async for count in counts:
                    rows += count
                    progress.add(count)
        await opened.store.sync()
    return rows, wrong


async def _list_heroic(config: Config, store: Store, wrong: list[str]) -> AsyncGenerator[int, None]:
    """List the series of Heroic's rows, and yield how many rows have been listed since. Add what is wrong with others
    to `wrong`. Raise StoreError."""
    tables = HeroicTables(store, config.heroic_table, config.heroic_series)
    await tables.check()
    listing = SeriesList(tables)
    entries: list[Entry] = []
    async with aclosing(tables.keys(b"")) as keys:
        async for row in keys:
            try:
                entries.append(entry_of(row))
            except CorruptRow as exc:
                wrong.append(str(exc))
            if len(entries) == AT_ONCE:
                await listing.ensure(entries)
                yield len(entries)
                entries = []
    await listing.ensure(entries)
    yield len(entries)
