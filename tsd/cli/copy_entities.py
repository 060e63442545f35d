"""Copies the metadata of entities, which nothing else has: the part of `tsd copy` for their tables.

Their points are those of the layout: `tsd copy` between layouts writes both, otherwise `tsd entity build` does.
"""

import numpy as np

from tsd.cli.context import Access
from tsd.codec.entity.records import metadata_time
from tsd.codec.text import counted
from tsd.config.settings import Config
from tsd.daemon.wiring import create_entities, versioned_cells
from tsd.errors import BadLine, NoTable
from tsd.store.versions import VersionColumns, Wanted, take
from tsd.tables.entity.layout import name_check
from tsd.tables.entity.newest import CheckName
from tsd.tables.entity.tables import ENTITIES

METADATA = Wanted(since_ms=metadata_time(1))
PAGE_ROWS = 20  # of one call of the store: a row may have megabytes


async def copy_metadata(source: Config, own: Access, target: Config, other: Access) -> list[str]:
    """Copy all metadata with its write times, if the target keeps entities. Return what was not copied. Raise
    StoreError."""
    if not source.entity:
        return []
    cells, left = versioned_cells(source, own.store), 0
    takes_any = target.entity and other.store.versioned_cells is not None  # Cassandra's cells keep no versions
    if takes_any:
        await create_entities(target, other.store)
    at: bytes | None = b""
    while at is not None:
        try:
            page = await cells.page_columns(ENTITIES.name, at, None, limit=PAGE_ROWS, wanted=METADATA)
        except NoTable:  # the source has kept none yet
            break
        at = page.next_start
        left += len(page.columns.places)
        if takes_any and (copied := _possible(page.columns, name_check(target))).places:
            await versioned_cells(target, other.store).put_columns(ENTITIES.name, copied)
            left -= len(copied.places)
    await other.store.sync()
    return [f"{counted(left, 'value')} of metadata of entities"] if left else []


def _possible(columns: VersionColumns, check: CheckName) -> VersionColumns:
    """Return the metadata of entities whose names the target can have."""

    def fits(name: bytes) -> bool:
        try:
            check(name)
        except BadLine:
            return False
        return True

    return take(columns, np.flatnonzero([fits(name) for name, _ in columns.places]))
