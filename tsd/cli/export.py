"""`tsd export`: a day's rows into a table of that day."""

import json
from collections.abc import Sequence

import click
import trio

from tsd.cli.context import access, wiring
from tsd.cli.output import Progress
from tsd.codec.tall.rules import TableRule
from tsd.codec.tall.template import RowTime
from tsd.codec.tall.times import DAY_MS, day_text, parse_day
from tsd.codec.text import counted
from tsd.config.loader import Loaded, state_folder
from tsd.config.settings import Config
from tsd.daemon.settings import now_ms
from tsd.errors import TsdError
from tsd.tables.checkpoint import Checkpoint
from tsd.tables.tall.export import DayCopy, copy_day, drop, expired_copies
from tsd.tables.tall.tables import TallTables, copy_name


def export(loaded: Loaded, day: str | None, table: str | None, keep: int | None, as_json: bool) -> None:
    """Run `tsd export`."""
    config = loaded.config
    if not config.has_tall_tables:
        raise TsdError(f"this command works on rows of days, and tsd.storage.layout is {config.layout}")
    rule = _chosen(config.tall_tables(), table)
    today_ms = now_ms() // DAY_MS * DAY_MS
    try:
        day_ms = today_ms - DAY_MS if day is None else parse_day(day.encode("ascii", "replace"))
    except ValueError as exc:
        raise click.UsageError(f"--day: {exc}") from exc
    if day_ms >= today_ms:
        raise TsdError(f"--day: got {day}, which is not over; wanted {day_text(today_ms - DAY_MS).decode()} or earlier")
    done, dropped = trio.run(_export, config, rule, day_ms, None if keep is None else today_ms - keep * DAY_MS)
    name = copy_name(rule.table, day_ms)
    if as_json:
        counts = {"rows": done.rows, "cells": done.cells, "changed": done.written, "removed": done.removed}
        click.echo(json.dumps({"table": name, **counts, "dropped": dropped}))
        return
    changes = f"{done.written} written, {done.removed} removed"
    click.echo(f"{name}: {counted(done.rows, 'row')} with {counted(done.cells, 'cell')}; {changes}")
    for each in dropped:
        click.echo(f"{each}: dropped")


def _chosen(rules: Sequence[TableRule], table: str | None) -> TableRule:
    """Return the rule of a table with rows of days. Raise TsdError."""
    days = {rule.table: rule for rule in rules if rule.template.time is RowTime.DAY}
    if table is None and len(days) == 1:
        return next(iter(days.values()))
    if table not in days:
        got = "nothing" if table is None else table
        wanted = ", ".join(days) or "none, because no template of tsd.tall.tables ends with {day}"
        raise TsdError(f"--table: got {got}, wanted one of: {wanted}")
    return days[table]


async def _export(config: Config, rule: TableRule, day_ms: int, first_ms: int | None) -> tuple[DayCopy, list[str]]:
    """Copy the day, and drop copies of days before `first_ms`. Return what was copied, and the dropped tables."""
    dropped: list[str] = []
    async with access(config, must_exist=True, any_layout=True) as opened:
        await opened.require_flush("They would not be copied: run the command later")
        tables = TallTables(opened.store, config.tall_tables(), config.tall_series)
        await tables.check()
        name = copy_name(rule.table, day_ms)
        job = ["export", wiring.store_name(config), name]
        with Progress("rows") as progress:
            done = await copy_day(
                tables,
                rule,
                day_ms,
                Checkpoint(state_folder(config) / f"export-{name}.json", job),
                compression=wiring.default_compression(config).upper(),
                pause_ratio=opened.pause_ratio,
                on_rows=progress.add,
            )
        if first_ms is not None:
            old = expired_copies(await opened.store.tables(), rule, first_ms)
            dropped = [each for each in old if await drop(opened.store, each)]
            await opened.store.sync()
    return done, dropped
