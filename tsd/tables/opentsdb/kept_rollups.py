"""Rollups that keep deleted points, since no daemon builds them again: which metrics have some, and what to do."""

from collections.abc import Collection, Sequence
from contextlib import aclosing

from tsd.codec.names import Kind
from tsd.codec.opentsdb.rowkey import KeyLayout, salts
from tsd.errors import NoTable, StoreError
from tsd.lazy import LazyLogger
from tsd.store import Store, scan
from tsd.store.cells import prefix_end
from tsd.tables.opentsdb.rollup_progress import LateDay
from tsd.tables.opentsdb.rollup_sums import DAY_S
from tsd.tables.opentsdb.uids import Uids

log = LazyLogger(__name__)


def build_again(metric: str, start_s: int, end_s: int) -> str:
    """Return the command that builds the rollups of a metric again, without its deleted points."""
    return f"tsd rollup build {metric} --start {start_s} --end {end_s} --clear"


async def has_rows(store: Store, layout: KeyLayout, table: str, metric: bytes) -> bool:
    """Return whether a table has rows of a metric, by its UID. Raise StoreError."""
    for salt in salts(layout):
        async with aclosing(scan(store, table, salt + metric, prefix_end(salt + metric), limit=1)) as pages:
            async for _ in pages:
                return True
    return False


async def report_kept(
    store: Store, layout: KeyLayout, tables: Sequence[str], uids: Uids, days: Collection[LateDay]
) -> None:
    """Log which metrics have rollups in some tables, which may keep points that were deleted from some days."""
    for metric in sorted({day.metric for day in days}):
        try:
            if not any([await _has_rollups(store, layout, table, metric) for table in tables]):
                continue
            name = (await uids.names(Kind.METRIC, [metric]))[metric]
        except StoreError as error:
            log.warning("rollups.deleted_points_unknown", error=str(error))
            return
        shown = name.decode("latin-1") if isinstance(name, bytes) else metric.hex()
        of_metric = [day.day_s for day in days if day.metric == metric]
        log.warning(
            "rollups.deleted_points_kept",
            metric=shown,
            next_step=build_again(shown, min(of_metric), max(of_metric) + DAY_S),
        )


async def _has_rollups(store: Store, layout: KeyLayout, table: str, metric: bytes) -> bool:
    try:
        return await has_rows(store, layout, table, metric)
    except NoTable:
        return False
