"""What commands tell a daemon that builds rollups: days whose points they change, so that it builds them again."""

from collections.abc import AsyncIterator, Collection
from contextlib import AsyncExitStack, asynccontextmanager

import click

from tsd.cli.context import Access, connect, metric_uids
from tsd.config.loader import Config, layout, state_folder
from tsd.daemon.wiring import rollup_tables
from tsd.errors import TsdError
from tsd.tables.opentsdb.changes import Changing
from tsd.tables.opentsdb.kept_rollups import build_again, has_rows
from tsd.tables.opentsdb.rollup_progress import ROLLUPS_FILE, LateDay, RollupProgress, days_of
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
        if daemon is not None and await daemon.call("change_days", days=[list(day) for day in days], deleted=deleted):
            yield
            await daemon.call("end_changes")
        else:
            await _record(config, days, deleted=deleted)
            yield
            await _record(config, days, deleted=deleted)


def changing_rows(config: Config, opened: Access, *, deleted: bool = False) -> Changing:
    """Return `changing` for the days of rows, by their keys."""
    return lambda rows: changing(config, opened, days_of(layout(config), rows), deleted=deleted)


async def _record(config: Config, days: Collection[LateDay], *, deleted: bool) -> None:
    """Record changed days for the next daemon of the state folder. Raise TsdError."""
    file = state_folder(config) / ROLLUPS_FILE
    try:
        progress = await RollupProgress.existing(file)
        if progress is not None and progress.mark(progress.concerned(days, deleted=deleted), deleted=deleted):
            await progress.save()
    except OSError as exc:
        raise TsdError(f"{file}: late points cannot be recorded for rollups: {exc}") from exc


async def are_left(config: Config, opened: Access, metric: bytes) -> bool:
    """Return whether rollups of a metric keep points that were deleted: no daemon of this state folder builds them
    again. Raise StoreError."""
    if not config.has_rollups or (state_folder(config) / ROLLUPS_FILE).exists():
        return False
    existing, form = await opened.store.tables(), layout(config)
    tables = [table for table in rollup_tables(config) if table in existing]
    return any([await has_rows(opened.store, form, table, metric) for table in tables])


async def names_left(config: Config, opened: Access, metrics: Collection[str]) -> list[str]:
    """Return the metrics of which `are_left` is true. Raise StoreError, NoSuchName."""
    return [name for name in metrics if await are_left(config, opened, *await metric_uids(opened, [name]))]


def show_left(metric: str, start_ms: int, end_ms: int) -> None:
    """Print how rollups of a metric lose the points that were deleted between two times."""
    again = build_again(metric, start_ms // DAY_MS * DAY_S, -(-end_ms // DAY_MS) * DAY_S)
    click.echo(f"tsd: rollups keep the deleted points until you run: {again}", err=True)
