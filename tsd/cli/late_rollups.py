"""What commands tell a daemon that builds rollups: days whose points they change, so that it builds them again."""

from collections.abc import Iterable

from tsd.cli.context import Access, has_rows
from tsd.config.loader import Config, state_folder
from tsd.daemon.wiring import rollup_tables
from tsd.errors import TsdError
from tsd.tables.opentsdb.rollup_progress import ROLLUPS_FILE, LateDay, RollupProgress


async def mark_late(config: Config, opened: Access, days: Iterable[LateDay], *, deleted: bool = False) -> None:
    """Record that points of some days are written or `deleted`. Call it before the change, and again after it, because
    a running daemon may build in between. Raise TsdError."""
    file = state_folder(config) / ROLLUPS_FILE
    try:
        progress = await RollupProgress.existing(file)
        if progress is None:
            return
        late = progress.concerned(days, deleted=deleted)
        if opened.daemon is not None:
            await opened.daemon.call("mark_rollups_late", days=[list(day) for day in late], deleted=deleted)
        elif progress.mark(late, deleted=deleted):
            await progress.save()
    except OSError as exc:
        raise TsdError(f"{file}: late points cannot be recorded for rollups: {exc}") from exc


async def are_left(config: Config, opened: Access, metric: bytes) -> bool:
    """Return whether rollups of a metric keep points that were deleted: no daemon of this state folder builds them
    again. Raise StoreError."""
    if (state_folder(config) / ROLLUPS_FILE).exists():
        return False
    existing = await opened.store.tables() if config.has_rollups else []
    return any([await has_rows(opened, table, metric) for table in rollup_tables(config) if table in existing])
