"""What commands tell a daemon that builds rollups: days whose points they change, so that it builds them again."""

from collections.abc import AsyncIterator, Collection
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from functools import partial

import click
import trio

from tsd.cli.context import Access, connect, metric_uids
from tsd.config.files import exists
from tsd.config.loader import key_layout, state_folder
from tsd.config.settings import Config
from tsd.daemon.wiring import rollup_tables
from tsd.errors import StoreDown, TsdError
from tsd.store.remote import ControlClient
from tsd.tables.opentsdb.kept_rollups import build_again, has_rows
from tsd.tables.opentsdb.rollup_progress import ROLLUPS_FILE, Changing, LateDay, days_of, record_late
from tsd.tables.opentsdb.rollup_sums import DAY_S

DAY_MS = DAY_S * 1000


@asynccontextmanager
async def changing(
    config: Config, opened: Access, days: Collection[LateDay], *, deleted: bool = False
) -> AsyncIterator[None]:
    """Record that points of some days are written or `deleted` in the block. A running daemon builds their rollups
    after it, or after the end of this process. Raise TsdError."""
    async with AsyncExitStack() as stack:
        daemon = opened.daemon
        if daemon is None and (daemon := await connect(config)) is not None:  # it has started since
            stack.push_async_callback(daemon.aclose)

        change = await _begin(daemon, config, days, deleted=deleted)
        try:
            yield
        finally:  # also after an error: some points have changed
            if daemon is None or not change:
                await _record(config, days, deleted=deleted)
            while daemon is not None and change and not await _end(daemon, change):  # it may have built them meanwhile
                change = await _begin(daemon, config, days, deleted=deleted)


async def _begin(daemon: ControlClient | None, config: Config, days: Collection[LateDay], *, deleted: bool) -> str:
    """Begin a change, and return its name. Without a daemon that builds rollups record the days, and return an empty
    name. Raise TsdError."""
    if daemon is not None:
        with suppress(StoreDown):
            arguments = {"days": [list(day) for day in days], "deleted": deleted}
            if change := await daemon.call("change_days", **arguments):
                return str(change)
    await _record(config, days, deleted=deleted)
    return ""


async def _end(daemon: ControlClient, change: str) -> bool:
    """End a change. Return False if the daemon does not know it: it was restarted. Raise TsdError."""
    try:
        return bool(await daemon.call("end_change", change=change))
    except StoreDown:
        return False


def changing_rows(config: Config, opened: Access, *, deleted: bool = False) -> Changing:
    """Return `changing` for the days of rows, by their keys."""
    return lambda rows: changing(config, opened, days_of(key_layout(config), rows), deleted=deleted)


async def _record(config: Config, days: Collection[LateDay], *, deleted: bool) -> None:
    """Record changed days for the next daemon of the state folder. Raise TsdError."""
    file = state_folder(config) / ROLLUPS_FILE
    try:
        await trio.to_thread.run_sync(partial(record_late, file, days, deleted=deleted))
    except OSError as exc:
        raise TsdError(f"{file}: late points cannot be recorded for rollups: {exc}") from exc


async def are_left(config: Config, opened: Access, metric: bytes) -> bool:
    """Return whether rollups of a metric keep points that were deleted: no daemon of this state folder builds them
    again. Raise StoreError."""
    if config.rollups_build and exists(state_folder(config) / ROLLUPS_FILE):
        return False
    existing, layout = await opened.store.tables(), key_layout(config)
    enabled = replace(config, rollups_enable=True)  # they answer again once rollups are on
    tables = [table for table in rollup_tables(enabled) if table in existing]
    return any([await has_rows(opened.store, layout, table, metric) for table in tables])


async def names_left(config: Config, opened: Access, metrics: Collection[str]) -> list[str]:
    """Return the metrics of which `are_left` is true. Raise StoreError, NoSuchName."""
    return [name for name in metrics if await are_left(config, opened, *await metric_uids(opened, [name]))]


def show_left(config: Config, metric: str, start_ms: int, end_ms: int) -> None:
    """Print how rollups of a metric lose the points that were deleted between two times."""
    again = build_again(metric, start_ms // DAY_MS * DAY_S, -(-end_ms // DAY_MS) * DAY_S)
    if not config.has_rollups:
        again += " --set tsd.rollups.enable=true"
    click.echo(f"tsd: rollups keep the deleted points until you run: {again}", err=True)
