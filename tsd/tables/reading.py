"""Reading: the protocols through which queries read points from a table layout, and the values they exchange.

Optional members have defaults, for layouts that subclass the protocols.

A layout resolves names and filters, finds series and rows, and decodes them. Queries identify series by numbers and
tags by opaque ids. A layout without ids for names interns them: ids of one kind have one width, and their order is the
order of groups in answers.
"""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from tsd.codec.metadata import Annotation
from tsd.codec.names import Kind, Widths
from tsd.codec.packing.points import CellBuckets
from tsd.codec.points import Batch, Bool, Histogram, Int64, Points
from tsd.codec.putline import HOUR_S
from tsd.store import StepLimit
from tsd.store.cells import CellSigner
from tsd.tables.filters import Filter
from tsd.tables.quirks import OPENTSDB, Quirks
from tsd.tables.writing import KnownSeries, SeriesKey, SeriesKeys

UNWANTED = -1  # the number of a series that does not match

T_co = TypeVar("T_co", covariant=True)
T = TypeVar("T")

Places = NDArray[np.intp]


class ScanRange(NamedTuple):
    """Hours to read, from `start_s` to before `stop_s`."""

    start_s: int
    stop_s: int

    @property
    def start_ms(self) -> int:
        """The first moment to read."""
        return self.start_s * 1000

    @property
    def stop_ms(self) -> int:
        """The end of the last hour to read."""
        return self.stop_s * 1000

    @property
    def hours(self) -> int:
        """How many hours these are."""
        return (self.stop_s - self.start_s) // HOUR_S

    @property
    def bases(self) -> range:
        """The base times of the hours."""
        return range(self.start_s, self.stop_s, HOUR_S)


class SeriesRequest(NamedTuple):
    """Which series to read: those of a metric that pass all filters, or some TSUIDs."""

    metric: str = ""
    tsuids: tuple[str, ...] = ()  # hex; if there are any, `metric` is ignored
    filters: tuple[Filter, ...] = ()
    explicit_tags: bool = False  # series have the tag names of the filters and no others
    fuzzy_filter: bool = True  # use OpenTSDB's filter for explicit tags
    quirks: Quirks = OPENTSDB
    global_annotations: bool = False  # whether the query shows these too: it determines the status of some errors
    delete: bool = False  # remember the rows read, for Selection.delete
    counts_expiring: bool = False  # count the points that expire, in tables with a time to live


class SeriesSet(Protocol):
    """The series of one metric that a request matches, numbered from 0 in the order found.

    A series is identified by its tags as one bytes object, its `pairs`: tag name id and tag value id of each, sorted.
    """

    widths: Widths  # of ids
    group_by: tuple[bytes, ...]  # ids of tag names, ascending
    numbers: dict[bytes, int]  # of every series matched so far, by its pairs; UNWANTED if it does not match
    series_pairs: list[bytes]  # of each matching series, by number
    resolved: int  # names looked up
    required_tagks: Sequence[bytes] | None = None  # a series with these tag names matches; None: names do not tell

    async def match(self, series_pairs: Iterable[bytes]) -> None:
        """Number series that are not numbered yet. Raise BadQuery, StoreError."""
        ...

    async def names(self, kind: Kind, ids: Sequence[bytes]) -> dict[bytes, str]:
        """Return the names of ids; for an id without a name, the id in hex. Raise StoreError."""
        ...

    def order(self, numbers: Iterable[int]) -> Sequence[int]:
        """Return series in the order in which OpenTSDB aggregates them: floating-point sums depend on it."""
        ...

    def tsuid(self, pairs: bytes) -> bytes:
        """Return the TSUID of a series; empty if the layout has none."""
        ...

    def warnings(self) -> list[str]:
        """Describe ids without names, and invalid stored keys."""
        return []


class SeriesAnnotation(NamedTuple):
    """An annotation of a series."""

    series: int
    annotation: Annotation


class PageRows(Protocol):
    """The rows of a decoded page, for the result cache. Rows are those of matching series, in order."""

    complete: bool  # whether all series of the page match
    plain: Bool  # whether each row holds nothing but points, each time once

    @property
    def first_s(self) -> int:
        """Hour of the page's first row, matching or not."""
        ...

    @property
    def last_s(self) -> int:
        """Hour of the page's last row."""
        ...

    @property
    def bases_s(self) -> Int64:
        """Hour of each row."""
        ...

    def series(self, rows: slice) -> list[bytes]:
        """Return the pairs of each row's series."""
        ...

    def sizes(self, rows: slice) -> Int64:
        """Return the stored bytes of each row, without its key."""
        ...

    def names_size(self, rows: slice) -> int:
        """Return the bytes of keys and columns of some rows."""
        ...

    def sign(self, rows: slice, signing: CellSigner, newest_ms: int) -> bool:
        """Add the cells of rows of one hour to signatures. Return False if a signature could miss a change, for example
        because a cell is younger than `newest_ms`."""
        ...


class PointPage(NamedTuple):
    """Decoded rows of points, those of one series in order of time."""

    batch: Batch  # one row for each stored row of a matching series
    rows_read: int  # also of series that do not match
    size: int  # stored bytes of the matching rows
    annotations: Sequence[SeriesAnnotation]
    warnings: Sequence[str]  # about rows that could not be read
    duplicates: int  # points dropped in favour of others with the same time
    rows: PageRows | None  # None if `Selection.hours` is None, and for pages with open points
    expiring: int = 0  # points with a time to live, if the request has `counts_expiring`


class EncodedPage(Protocol[T_co]):
    """Rows as stored. The caller numbers their series (SeriesSet.match) before it decodes them."""

    cells: int  # approximate number, a measure of the work to decode them

    def series(self) -> Iterable[bytes]:
        """Return the distinct series of the page, by their pairs."""
        ...

    def decode(self) -> T_co:
        """Decode the rows of matching series. May be called in a thread."""
        ...


Take: TypeAlias = Callable[[EncodedPage[T]], Awaitable[None]]  # gets the next page; may raise an exception


class HourTable(NamedTuple):
    """Rows of one hour that all have the same times."""

    base_s: int
    numbers: NDArray[np.int32]  # (rows,): of their series
    offsets_ms: Int64  # (times,): after the base time, ascending
    bits: Int64  # (rows, times): see `tsd.codec.points`
    floats: Bool  # (rows, times)

    @classmethod
    def of(cls, batch: Batch, base_s: int) -> "HourTable":
        """Return rows that have points at the same times."""
        shape = len(batch.series), int(batch.starts[1])
        offsets_ms = batch.times[: shape[1]] - base_s * 1000
        return cls(base_s, batch.series, offsets_ms, batch.bits.reshape(shape), batch.floats.reshape(shape))


class TablePage(NamedTuple):
    """Decoded rows of points, those of one hour together."""

    hours: Sequence[HourTable]
    rows_read: int  # also of series that do not match
    size: int  # stored bytes of the matching rows
    held: int  # stored bytes that the page holds, also of series that do not match


class BucketPage(NamedTuple):
    """Downsampled rows of points, of matching series."""

    series: NDArray[np.int32]  # of each row
    buckets: CellBuckets  # of each row
    rows_read: int  # also of series that do not match
    size: int  # stored bytes of the matching rows
    rows: PageRows | None  # None for pages with open points


class NumberingPage(ABC):
    """An EncodedPage that numbers most series itself, and whose rows may have a shorter form than a batch."""

    cells: int

    @abstractmethod
    def series(self) -> Iterable[bytes]:
        """See EncodedPage."""

    @abstractmethod
    def decode(self) -> PointPage:
        """See EncodedPage."""

    @abstractmethod
    def new_series(self) -> Sequence[bytes]:
        """Number the series that match by their tag names. Return those that the caller has to number."""

    @abstractmethod
    def decode_tables(self) -> TablePage | None:
        """Decode the rows of matching series, if all of one hour have the same times, and hold nothing but points. All
        series have a number. May be called in a thread."""

    def decode_buckets(self, interval_ms: int, function: int) -> list[BucketPage] | None:  # noqa: ARG002
        """Decode and downsample the rows of matching series, in parts, if they hold nothing but points, see
        `tsd.codec.packing.points.downsample_points`. All series have a number. May be called in a thread."""
        return None


class StoredPage(NumberingPage):
    """A NumberingPage of stored rows, to which open points may be added."""

    @property
    @abstractmethod
    def held(self) -> int:
        """Stored bytes that the page holds, also of series that do not match."""

    @abstractmethod
    def numbers(self) -> NDArray[np.int32]:
        """Return the number of each row's series, negative if it does not match. All series have a number."""


class RollupPage(NamedTuple):
    """Decoded rollup cells."""

    batches: Sequence[Batch]  # for each aggregator that is read
    rows_read: int
    size: int  # stored bytes of the cells used
    duplicates: int
    warnings: Sequence[str]


class RollupInterval(Protocol):
    """A rollup interval."""

    @property
    def name(self) -> str:
        """As configured, such as 1h."""
        ...

    @property
    def seconds(self) -> int:
        """Its length."""
        ...

    @property
    def is_default(self) -> bool:
        """Whether raw points are used instead of rollups."""
        ...

    @property
    def row_s(self) -> int:
        """Seconds that one row covers."""
        ...

    def row_start(self, time_s: int) -> int:
        """Return the start of the row that holds a time."""
        ...


class RollupSource(Protocol):
    """The rollups and pre-aggregates of a selection's series."""

    intervals: Sequence[RollupInterval]
    tag_key: str  # the tag name that marks pre-aggregates
    raw_value: str  # its value on points that are not pre-aggregated

    def has(self, aggregator: str) -> bool:
        """Return whether an aggregator has cells."""
        ...

    def complete_until_s(self, interval: RollupInterval) -> int | None:
        """Return the time before which an interval's rollups agree with the points; None if that is not known."""
        ...

    async def read(
        self,
        interval: RollupInterval,
        aggregators: Sequence[str],
        span: ScanRange,
        take: Take[RollupPage],
        *,
        pre_aggregated: bool,
    ) -> None:
        """Read the cells of some aggregators, page by page. Raise StoreError and what `take` raises."""
        ...

    async def read_pre_aggregated(self, span: ScanRange, take: Take[PointPage], *, annotations: bool) -> None:
        """Read pre-aggregates that are stored like raw points. Raise StoreError and what `take` raises."""
        ...


class HistogramPoint(NamedTuple):
    """A histogram of a series at a time."""

    series: int
    time_ms: int
    histogram: Histogram


class HistogramPage(NamedTuple):
    """Decoded histogram cells, in order of their rows."""

    histograms: Sequence[HistogramPoint]
    rows_read: int
    rows_wanted: int  # of matching series
    size: int  # stored bytes of the matching rows
    warnings: Sequence[str]


class HistogramSource(Protocol):
    """The histograms of a selection's series."""

    async def read(self, span: ScanRange, take: Take[HistogramPage]) -> None:
        """Read histograms, page by page. Raise StoreError and what `take` raises."""
        ...


class TextPoint(NamedTuple):
    """A text of a series at a time."""

    series: int
    time_ms: int
    text: str


class TextPage(NamedTuple):
    """Decoded texts, those of one series in order of time."""

    texts: Sequence[TextPoint]
    rows_read: int
    size: int  # stored bytes
    warnings: Sequence[str]


class TextSource(Protocol):
    """The texts of a selection's series, for layouts whose points may be texts."""

    async def read(self, span: ScanRange, take: Take[TextPage]) -> None:
        """Read texts, page by page. Raise StoreError and what `take` raises."""
        ...


class SignedHour(NamedTuple):
    """A cached hour whose signatures are compared."""

    base_s: int
    rows: int
    names_size: int  # bytes of keys and columns


Signatures = Mapping[bytes, bytes]  # of one hour


class SignatureSource(Protocol):
    """Signatures of stored hours: equal ones mean that nothing changed."""

    def signing(self) -> CellSigner:
        """Start the signatures of rows that are about to be read."""
        ...

    def by_hour(self, signing: CellSigner, bases: Iterable[int]) -> Mapping[int, Signatures]:
        """Return the signatures of the rows added, for each of some hours."""
        ...

    async def read(self, hours: Sequence[SignedHour]) -> Mapping[int, Signatures]:
        """Return the signatures of stored hours as of now. Raise StoreError."""
        ...


class HourSource(Protocol):
    """The hours of a selection's metric, for the result cache."""

    reads_all: bool  # whether pages contain all series of the metric, so that whole hours can be cached
    signatures: SignatureSource | None  # None: PointReader.changes reports every write

    def keys(self, span: ScanRange) -> Sequence[bytes]:
        """Return for each hour of a span what identifies it, with the metric, in notifications."""
        ...


class JointSource(Protocol):
    """Rows that hold points of several selections of one query, such as all metrics of a host."""

    def key(self) -> Hashable:
        """Return what is equal for selections that can be read together."""
        ...

    async def read(
        self,
        span: ScanRange,
        takes: Sequence[tuple["Selection", Take[PointPage]]],
    ) -> None:
        """Read raw rows of some selections with equal keys, each row once, page by page: `Selection.read` for all of
        them. Raise StoreError and what a `take` raises."""
        ...


class SeriesSpan(NamedTuple):
    """Rows of series in a span."""

    span: ScanRange
    numbers: Sequence[int] | None = None  # of the series; None: all


class MatchedSeries(Protocol):
    """The series that a request matches, read again without another look for series."""

    by_key: bool  # whether rows are read by their keys: those of other series are not touched
    is_remote: bool  # whether `fetch` reads the rows, not `read`

    def are_all(self) -> bool:
        """Return whether no other series can match by now."""
        ...

    def read(self, span: ScanRange, limit: StepLimit, *, annotations: bool) -> EncodedPage[PointPage] | None:
        """Return the rows in a span, without a wait; all series have a number. None: other series may match by now, the
        rows are over the limit, or they cannot be read. The page's `decode` raises StoreError."""
        ...

    async def fetch(
        self, spans: Sequence[SeriesSpan], limit: StepLimit, *, annotations: bool
    ) -> EncodedPage[PointPage] | None:
        """Return the rows in spans, which have no row in common, with a wait for the store. None as from `read`; of the
        limit only the number of rows counts. Raise StoreError."""
        ...


class Selection(Protocol):
    """One request, resolved: reads the rows of its series. Optional parts are None where they do not apply."""

    metric: str  # its name; empty if a TSUID's metric does not exist
    filter_tagks: tuple[bytes, ...] | None  # ids of the filters' tag names, for the echo of a query
    series: SeriesSet
    rollups: RollupSource | None = None
    histograms: HistogramSource | None = None
    texts: TextSource | None = None
    hours: HourSource | None = None  # None: results of this selection cannot be cached
    reads_beyond: bool = False  # whether a query also reads the hour after those that it merges
    reads_hours_in_parts: bool = False  # whether `read` may return an hour of a series in several pages
    joint: JointSource | None = None  # None: rows of this selection hold no points of others

    def pairs_of(self, keys: SeriesKeys) -> Sequence[bytes | None]:
        """Return the pairs of series, each None if the request cannot match it, or if it has no key."""
        ...

    async def find_known(self, series: KnownSeries) -> Places | None:  # noqa: ARG002
        """Return the places of the matching ones among some series of the request's metric, without looking at each of
        them. None: that is not faster, or not possible. Raise BadQuery, StoreError."""
        return None

    async def read(self, span: ScanRange, take: Take[PointPage], *, annotations: bool) -> None:
        """Read raw rows, page by page: those of one series in order of time. Raise StoreError and what `take`
        raises."""
        ...

    async def read_few(
        self,
        span: ScanRange,  # noqa: ARG002
        take: Take[PointPage],  # noqa: ARG002
        *,
        annotations: bool,  # noqa: ARG002
    ) -> bool:
        """Read by row keys if the request is known to match few series. Return False if nothing was read."""
        return False

    async def find_few(self, span: ScanRange) -> bool:  # noqa: ARG002
        """Number the matching series, without their rows, if `read_few` would read the rows of a span by keys without a
        wait for a store. Return False if it would not, or if it is not known. Raise BadQuery, StoreError."""
        return False

    def matched_series(self) -> MatchedSeries | None:
        """Return the matching series once all rows of a span were read, or after `find_few`; None if others may match,
        or if their rows cannot be read again without a look for series."""
        return None

    async def delete(self, read_ms: int) -> None:
        """Delete the cells read for a request with `delete`, unless they changed after `read_ms`, when reading began.
        Raise StoreError."""
        ...


HourKeys = Callable[[], set[bytes]]  # computed when called: a write costs nothing if the cache is empty
OnChange = Callable[[HourKeys | None], None]


class ChangeSource(Protocol):
    """Notifications about changed hours, or none where selections have signatures."""

    def on_change(self, callback: OnChange) -> None:
        """Call `callback` on each write with the keys of the changed hours; None: any hour may have changed."""
        ...


class PointDeleter(Protocol):
    """Deletes points by metric, filters and time, whatever their type."""

    async def delete(self, request: SeriesRequest, first_ms: int, last_ms: int) -> None:
        """Delete the points of matching series, both ends included; there may be none. Raise BadQuery, StoreError."""
        ...

    async def delete_metric(self, metric: str) -> None:
        """Delete all points of a metric, and its name. An unknown metric is no error. Raise StoreError."""
        ...


class SeriesReader(Protocol):
    """Reads series without a query."""

    async def read_series(self, key: SeriesKey, start_ms: int, end_ms: int) -> Points:
        """Return the points of a series from `start_ms` to `end_ms`, inclusive. Raise StoreError, or CorruptRow."""


class PointReader(Protocol):
    """Reads points, by metric, filters and time."""

    changes: ChangeSource | None = None  # None: changes cannot be detected, so nothing may be cached
    selects_together: bool = False  # whether to resolve the requests of one query at once, as each asks the store

    async def select(self, request: SeriesRequest) -> Selection:
        """Resolve a request. Raise BadQuery in OpenTSDB's words, StoreError."""
        ...

    async def global_annotations(self, first_s: int, last_s: int) -> list[Annotation]:  # noqa: ARG002
        """Return the global annotations of all hours from one time to another, unordered. Raise StoreError."""
        return []
