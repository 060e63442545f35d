"""A store without optional calls, for stores of tests."""

from tsd.store import (
    AtomicRewrites,
    CellGets,
    CellReader,
    CellSignatures,
    ChangeFeed,
    ColumnBlocks,
    DerivedValues,
    RangeDeletes,
    Snapshots,
    StampedCells,
    VersionedCells,
    WideRows,
)
from tsd.store.cassandra.session import Connector


class PlainStore:
    """The optional properties of `tsd.store.Store`. A subclass sets those that it has."""

    atomic_rewrites: AtomicRewrites | None = None
    cell_gets: CellGets | None = None
    cell_reader: CellReader | None = None
    cell_signatures: CellSignatures | None = None
    change_feed: ChangeFeed | None = None
    column_blocks: ColumnBlocks | None = None
    derived_values: DerivedValues | None = None
    range_deletes: RangeDeletes | None = None
    snapshots: Snapshots | None = None
    stamped_cells: StampedCells | None = None
    versioned_cells: VersionedCells | None = None
    wide_rows: WideRows | None = None
    cql: Connector | None = None
