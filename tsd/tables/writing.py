"""Writing: the protocols through which ingest passes series and points to a table layout.

`ingest/` numbers its series and hands a layout whole windows of points. The layout resolves names to keys once, keeps
them opaque in `SeriesKey`, and gets them back, joined, when it writes.

`RollupBodies` and `HistogramBodies` check rollups and histograms whose members are separate, as in JSON bodies.
"""

from collections.abc import Awaitable, Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from tsd.codec.names import Kind
from tsd.codec.points import Columns, Int32, Int64
from tsd.codec.putline import Tags
from tsd.errors import BadLine

try:
    from tsd.tables._composer import KeyComposer as KeyComposer
except ImportError:  # no C compiler at installation

    class KeyComposer:  # type: ignore[no-redef]
        """Replaces the compiled base class in type annotations."""


T = TypeVar("T")


class SeriesText(NamedTuple):
    """The text that identifies a line's series."""

    metric: bytes
    tags: bytes  # the words after the value, blanks included


class SeriesKey(NamedTuple):
    """A layout's own bytes of a series, at least one. In a row key they precede and follow the time."""

    head: bytes
    tail: bytes


NO_KEY = SeriesKey(b"", b"")
AHEAD_S = 60  # before the start of an hour its points are held, and may be written: clients' clocks may be fast


@dataclass(frozen=True, slots=True)
class SeriesKeys:
    """The keys of several series, joined. A series without a key has neither head nor tail."""

    joined: bytes
    bounds: Int64  # (2 × series + 1,): the ends of each head and tail in `joined`, after a 0

    @classmethod
    def of(cls, keys: Iterable[SeriesKey | None]) -> "SeriesKeys":
        """Join keys.

        >>> list(SeriesKeys.of([SeriesKey(b"a", b"b"), None]))
        [SeriesKey(head=b'a', tail=b'b'), SeriesKey(head=b'', tail=b'')]
        """
        parts = [part for key in keys for part in key or NO_KEY]
        bounds = np.zeros(len(parts) + 1, np.int64)
        np.cumsum([len(part) for part in parts], out=bounds[1:])
        return cls(b"".join(parts), bounds)

    def __len__(self) -> int:
        return len(self.bounds) // 2

    def part(self, first: int, stop: int) -> "SeriesKeys":
        """Return the keys of a range of places.

        >>> list(SeriesKeys.of([SeriesKey(b"a", b"b"), SeriesKey(b"c", b"d")]).part(1, 2))
        [SeriesKey(head=b'c', tail=b'd')]
        """
        return SeriesKeys(self.joined, self.bounds[2 * first : 2 * stop + 1])

    def at(self, places: Iterable[int]) -> "SeriesKeys":
        """Return some of the keys."""
        joined, bounds = self.joined, self.bounds
        each = [bounds[2 * place : 2 * place + 3].tolist() for place in places]
        return SeriesKeys.of(SeriesKey(joined[start:middle], joined[middle:end]) for start, middle, end in each)

    def lacking(self) -> Int64:
        """Return the places of series without a key.

        >>> SeriesKeys.of([SeriesKey(b"a", b"b"), None]).lacking()
        array([1])
        """
        return np.flatnonzero(self.bounds[2::2] == self.bounds[:-2:2])

    def tails(self, head: bytes, skipped: int) -> list[bytes | None]:
        """Return the tail of each key that has a head; None for others. The first `skipped` bytes of a key are not
        compared: its salt.

        >>> keys = SeriesKeys.of([SeriesKey(b"0a", b"x"), SeriesKey(b"1a", b"y"), SeriesKey(b"b", b"z")])
        >>> keys.tails(b"a", 1)
        [b'x', b'y', None]
        """
        starts, middles, joined = self.bounds[:-1:2], self.bounds[1::2], self.joined
        has_head = middles - starts == skipped + len(head)
        text = np.frombuffer(joined, np.uint8)
        for at, byte in enumerate(head, skipped):
            has_head[has_head] = text[starts[has_head] + at] == byte
        tails = [joined[start:end] for start, end in zip(middles.tolist(), self.bounds[2::2].tolist(), strict=True)]
        if has_head.all():
            return [*tails]
        return [tail if found else None for tail, found in zip(tails, has_head.tolist(), strict=True)]

    def __iter__(self) -> Iterator[SeriesKey]:
        bounds = self.bounds.tolist()
        for start, middle, end in zip(bounds[:-1:2], bounds[1::2], bounds[2::2], strict=True):
            yield SeriesKey(self.joined[start:middle], self.joined[middle:end])


class KnownSeries:
    """The series of one metric that have numbers, at one moment. Not changed once made."""

    def __init__(self, numbers: Int32, keys: SeriesKeys) -> None:
        """`keys` are those of the numbers, in order; a free number has none."""
        self.numbers = numbers
        self.keys = keys
        self._views: dict[Hashable, Any] = {}

    def __len__(self) -> int:
        return len(self.numbers)

    def view(self, key: Hashable, make: Callable[[SeriesKeys], T]) -> T:
        """Return what `make` returns for the keys. It is made once for each `key`, which names it."""
        if key not in self._views:
            self._views.clear()  # a layout has one; another is of a metric that has another id now
            self._views[key] = make(self.keys)
        found: T = self._views[key]
        return found


class SeriesLookup(Protocol):
    """Series by their numbers, which are small, dense and reused."""

    def keys(self, numbers: Int32) -> SeriesKeys:
        """Return the keys of series. Safe to call in a thread."""

    def text(self, number: int) -> SeriesText | None:
        """Return the text of a series, None if the number is free. Safe to call in a thread."""

    def generations(self, numbers: Int32) -> Int64:
        """Return a positive generation of each number, 0 of a free one: it changes when the number is reused for
        another series."""


OnPoints = Callable[[Columns, SeriesLookup], Awaitable[None]]


class Admission(Protocol):
    """Decides whether lines may add new names."""

    def admit_name(self, kind: Kind, name: bytes) -> BadLine | None:
        """Count a name that is about to be assigned, or return why it is refused."""


class ResolvedSeries(NamedTuple):
    """What a layout knows of series."""

    keys: SeriesKeys  # of each series, in order; NO_KEY for a refused one
    refused: Mapping[int, BadLine]  # by index


class SeriesResolver(Protocol):
    """Series texts → keys."""

    @property
    def composer(self) -> KeyComposer | None:
        """Composes keys of new series whose names are cached, for the compiled parser; None: not available."""

    async def resolve(self, series: Sequence[SeriesText], admission: Admission | None = None) -> ResolvedSeries:
        """Resolve well-formed series, and assign ids to new names where that is allowed. Raise StoreError, or
        CorruptRow if the tables are damaged; part of the names may be assigned then."""

    async def assign(self, series: SeriesText) -> SeriesKey:
        """Return the key of a well-formed series and assign its names, whatever the configuration allows. Raise
        TsdError."""


class Summary(Protocol):
    """A rollup or a histogram: what one line stores in one cell. Or metadata of an entity, which is of no series."""

    @property
    def metric(self) -> bytes:
        """Its metric, empty if it is of no series."""

    @property
    def tags(self) -> Tags:
        """Its tags, including those that the layout adds."""


class SummaryBatch(Protocol):
    """Rollups, histograms, texts and metadata of one window. Of several for one cell the last one counts."""

    @property
    def lines(self) -> int:
        """Number of lines added."""

    @property
    def metrics(self) -> set[bytes]:
        """Their metrics."""

    @property
    def size(self) -> int:
        """Bytes of memory, roughly."""

    def add(self, summary: Summary, key: SeriesKey) -> None:
        """Add a summary that this layout parsed."""


class SummaryWriter(Protocol):
    """Writes rollups and histograms."""

    def parse(self, line: bytes) -> Summary:
        """Parse a line of a rollup or a histogram. Raise BadLine."""

    def new_batch(self) -> SummaryBatch:
        """Return an empty batch."""

    async def write(self, batch: SummaryBatch) -> None:
        """Put the cells of a batch. May be repeated without harm. Raise StoreError."""


class Hours(Enum):
    """What is known of the hours of points that are written."""

    OPEN = auto()  # more points may follow
    OVER = auto()  # they are over, and few late points may follow
    WHOLE = auto()  # the same, and the points are all that their series have of one hour, but for earlier calls


class PointWriter(Protocol):
    """Writes points and summaries. Every call may be repeated without harm, and raise StoreError."""

    @property
    def cells(self) -> int:
        """Number of cells written since the start. It increases during a call."""

    @property
    def summaries(self) -> SummaryWriter | None:
        """Writes rollups and histograms; None if the layout cannot store them."""

    async def write(self, points: Columns, series: SeriesLookup, *, hours: Hours = Hours.OPEN) -> None:
        """Put points, in order of arrival, of series that all have keys. Of those for one time the last one counts.
        `hours`: what is known of the hours of all these points."""

    async def record(self, points: Columns, series: SeriesLookup) -> None:
        """Make series and newest points known to the catalog, for points of one hour that are written later. Called
        on layouts with `Tables.holds_hours`."""

    async def sync(self) -> None:
        """Return when all that was put survives a crash."""


class RollupKind(NamedTuple):
    """What a rollup is made of: `1h-sum:max` is the sums of an hour of the maxima of a group."""

    interval: str | None
    aggregator: str | None
    group_by: str | None


class RollupBodies(Protocol):
    """Checks rollups."""

    @property
    def tag_key(self) -> str:
        """The tag that says how a group was aggregated."""
        ...

    def check(self, kind: RollupKind, metric: bytes, tags: Tags, time: int, number: bytes) -> None:
        """Raise BadLine unless a rollup can be stored."""
        ...


class HistogramBodies(Protocol):
    """Checks and encodes histograms."""

    @property
    def codec_id(self) -> int:
        """The id of the only codec."""
        ...

    def encode(self, buckets: Mapping[str, int], underflow: int, overflow: int) -> bytes:
        """Return the payload of a histogram, its buckets by `lower,upper`. Raise BadLine."""
        ...

    def decode_text(self, codec_id: int, text: bytes) -> bytes:
        """Return the payload in base64. Raise BadLine."""
        ...

    def check(self, metric: bytes, tags: Tags, time: int, payload: bytes) -> None:
        """Raise BadLine unless a histogram can be stored."""
        ...
