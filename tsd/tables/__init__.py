"""The interface of table layouts. Each layout has a package of its own and builds a `Tables`."""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from tsd.tables.catalog import Annotations, Metadata, Names, SeriesCatalog, ServiceMetadata, Stat, Trees
from tsd.tables.entities import Entities
from tsd.tables.key_ranges import KeyRanges
from tsd.tables.open_points import OpenPointSource
from tsd.tables.reading import PointDeleter, PointReader, SeriesReader
from tsd.tables.writing import HistogramBodies, PointWriter, RollupBodies, SeriesResolver, SeriesText

Task = Callable[[], Awaitable[None]]
Operation = Callable[..., Awaitable[object]]


@dataclass(frozen=True)
class Tables:
    """The parts of a table layout. An optional part that the layout lacks is None."""

    catalog: SeriesCatalog
    reader: PointReader
    series_reader: SeriesReader
    resolver: SeriesResolver
    writer: PointWriter
    check: Callable[[], Awaitable[None]]  # reads what every query needs; raises StoreError, or CorruptRow
    drop_caches: Callable[[], None]
    statistics: Callable[[], list[Stat]]
    deleter: PointDeleter | None = None
    holds_hours: bool = False  # whether points of open hours gain from waiting: they share a cell, see `record`
    has_ttl: bool = False  # whether the tag kairos_opt.ttl of a line is the time to live of its point in seconds
    has_texts: bool = False  # whether lines of `tsd.codec.textline` are stored by the writer's summaries
    text_of: Callable[[SeriesText], SeriesText] = lambda text: text  # with the names that queries find it by
    names: Names | None = None
    metadata: Metadata | None = None
    trees: Trees | None = None
    annotations: Annotations | None = None
    services: ServiceMetadata | None = None
    entities: Entities | None = None  # None: tsd.entity.enabled is false
    rollups: RollupBodies | None = None  # None: not configured
    histograms: HistogramBodies | None = None  # None: not configured
    key_ranges: KeyRanges | None = None  # None: load is not counted by range of row keys
    on_change: Callable[[str, Collection[bytes]], None] = lambda *_: None  # after a command changed rows
    include_open_points: Callable[[OpenPointSource], None] = lambda _: None  # for newest points of the catalog
    required: Sequence[str] = ()  # names of the tables without which points cannot be stored
    tasks: Mapping[str, Task] = field(default_factory=dict)  # by name; run while the daemon serves, restarted on errors
    fatal_tasks: Sequence[Task] = ()  # run while the daemon serves; an unexpected error ends it
    operations: Mapping[str, Operation] = field(default_factory=dict)  # of the control socket, by name
    connection_operations: Callable[[AsyncExitStack], Mapping[str, Operation]] = lambda _: {}  # those of a connection
