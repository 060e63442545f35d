"""What a table layout knows about series besides their points: names, metadata, trees and annotations.

Every layout has a `SeriesCatalog`. The other protocols are optional: `tsd.tables.Tables` has None for those that a
layout lacks. A series is identified by opaque bytes, which users see in hex: OpenTSDB's TSUID.

`Stat` is one number of the statistics that a daemon reports.
"""

from collections import deque
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from tsd.codec.metadata import Annotation, Branch, Leaf, Rule, Tree, TsMeta, UidMeta
from tsd.codec.names import Kind
from tsd.errors import TsdError
from tsd.tables.tree_rules import NamedSeries
from tsd.tables.writing import Admission


class SeriesSelector(NamedTuple):
    """Series by names. An empty metric, tag name or value, or `*`, matches every one.

    A series must have every tag name, with one of the values given for it. With an empty tag name, any tag may have the
    value. With `is_literal`, `*` and empty texts are ordinary names.
    """

    metric: str
    tags: Sequence[tuple[str, str]]
    is_literal: bool = False


class SeriesName(NamedTuple):
    """A series with its names."""

    series: bytes
    metric: str
    tags: Mapping[str, str]


class LastPoint(NamedTuple):
    """A series' newest point."""

    time_ms: int
    number: int | float

    def is_same(self, other: "LastPoint") -> bool:
        """Return whether both are shown alike: 1 and 1.0 are not, nor are 0.0 and -0.0.

        >>> LastPoint(0, 1).is_same(LastPoint(0, 1.0)), LastPoint(0, 1.5).is_same(LastPoint(0, 1.5))
        (False, True)
        """
        return self.time_ms == other.time_ms and repr(self.number) == repr(other.number)


class LastPoints(NamedTuple):
    """The newest points of several series, in their order."""

    points: Sequence[LastPoint | None]  # None: none within the range
    warnings: Sequence[str]  # one for each newer row that cannot be read


class SelectedSeries(Protocol):
    """The series that a selector matches."""

    def pages(self, limit: int | None = None) -> AsyncGenerator[list[bytes], None]:
        """Return the series in order of their bytes, at most `limit`, page by page. Raise StoreError."""
        ...

    def exact(self) -> bytes | None:
        """Return the one series with exactly these tags, stored or not; None unless each tag has one name and one
        value."""
        ...


class SeriesCatalog(Protocol):
    """Which names and series exist, and each series' newest point."""

    @property
    def warnings(self) -> int:
        """How many warnings `last_points` gave since the start."""
        ...

    async def suggest(self, kind: Kind, prefix: str, limit: int) -> list[str]:
        """Return the first names of a kind that begin with `prefix`, in order of their bytes. Raise StoreError."""
        ...

    async def metrics(self) -> list[str]:
        """Return all metrics in order of their bytes. Raise StoreError."""
        ...

    async def select(self, selector: SeriesSelector) -> SelectedSeries:
        """Return the series that a selector matches. Raise NoSuchName, StoreError."""
        ...

    async def describe(self, series: Sequence[bytes]) -> list[SeriesName]:
        """Return the names of series, in their order, without those that have lost a name. Raise StoreError."""
        ...

    async def metrics_of(self, series: Iterable[bytes]) -> set[bytes]:
        """Return the metrics of series, as far as they have names. Raise StoreError."""
        ...

    async def last_points(self, series: Sequence[bytes], back_h: int | None) -> LastPoints:
        """Return the newest point of each series, at most `back_h` hours before the present one (None: the configured
        range). Raise StoreError."""
        ...

    def parse_series(self, text: str) -> bytes:
        """Return the series that a text in hex names. Raise BadLine."""
        ...


class NameTaken(TsdError):
    """The new name already has a UID."""


class Names(Protocol):
    """Names and the UIDs that a layout gives them."""

    def width(self, kind: Kind) -> int:
        """Return the bytes of a UID of a kind."""
        ...

    async def find(self, kind: Kind, names: Iterable[bytes]) -> Mapping[bytes, bytes | TsdError]:
        """Return the UID of each name, or NoSuchName. Raise StoreError."""
        ...

    async def find_or_assign(
        self, kind: Kind, names: Iterable[bytes], admission: Admission
    ) -> Mapping[bytes, bytes | TsdError]:
        """Return the UID of each name, assigned where it has none; or UidsExhausted, or the error of `admission`. Raise
        StoreError."""
        ...

    async def rename(self, kind: Kind, old: bytes, new: bytes) -> None:
        """Give the UID of `old` the name `new`. Raise NoSuchName, NameTaken in OpenTSDB's words, StoreError, and
        TsdError where another process changes the same names."""
        ...


class NamedUid(NamedTuple):
    """A UID with its name and metadata."""

    uid: bytes
    name: str
    meta: UidMeta


class SeriesMetadata(NamedTuple):
    """The metadata of a series and of its names."""

    series: bytes
    metric: NamedUid
    tags: Sequence[NamedUid]  # tag name and value in turn
    meta: TsMeta
    points: int = 0  # 1 while points are not counted
    last_received_s: int = 0  # when the last point was recorded, Unix seconds; 0: never


class NoSuchMetadata(TsdError):
    """A series without metadata."""


class ServiceMetadata(Protocol):
    """Texts that clients of KairosDB keep by service, service key and key. Methods raise StoreError."""

    async def get(self, service: str, service_key: str, key: str) -> str | None:
        """Return a text, None if there is none."""
        ...

    async def put(self, service: str, service_key: str, key: str, value: str) -> None:
        """Store a text. It is in the store when this returns."""
        ...

    async def delete(self, service: str, service_key: str, key: str) -> None:
        """Delete a text, if there is one."""
        ...

    async def keys(self, service: str, service_key: str, limit: int) -> list[str]:
        """Return the first keys below a service key, in order."""
        ...

    async def service_keys(self, service: str, limit: int) -> list[str]:
        """Return service keys of a service, in order, at most `limit`."""
        ...


class Metadata(Protocol):
    """Metadata of names and series. Methods raise StoreError, and CorruptRow for what cannot be decoded."""

    async def get_uid(self, kind: Kind, uid: bytes) -> NamedUid:
        """Return the metadata of a UID. Raise NoSuchName."""
        ...

    async def edit_uid(self, kind: Kind, uid: bytes, change: Callable[[UidMeta], UidMeta]) -> NamedUid:
        """Change the metadata of a UID, and return it. Raise NoSuchName."""
        ...

    async def delete_uid(self, kind: Kind, uid: bytes) -> None:
        """Delete the metadata of a UID."""
        ...

    async def has_series(self, series: bytes) -> bool:
        """Return whether a series has metadata."""
        ...

    async def get_series(self, series: bytes) -> SeriesMetadata | None:
        """Return the metadata of a series. Raise NoSuchName."""
        ...

    def find_series(self, selector: SeriesSelector) -> AsyncGenerator[SeriesMetadata, None]:
        """Return the metadata of the series that a selector matches, in order. Raise NoSuchName."""
        ...

    async def edit_series(self, series: bytes, change: Callable[[TsMeta], TsMeta], *, create: bool) -> SeriesMetadata:
        """Change the metadata of a series, and return it. Raise NoSuchName, and NoSuchMetadata where there is none
        unless `create` is set."""
        ...

    async def delete_series(self, series: bytes) -> None:
        """Delete the metadata of a series."""
        ...


class NoSuchTree(TsdError):
    """A tree, rule or branch that does not exist."""


class TreeDefinition(NamedTuple):
    """A tree with its rules."""

    tree_id: int
    tree: Tree
    rules: Sequence[Rule]  # by level and order


class BranchContents(NamedTuple):
    """A branch with its leaves and its direct children."""

    branch_id: bytes
    branch: Branch
    leaves: Sequence[Leaf]
    branches: Sequence[tuple[bytes, Branch]]  # by their ids


class Trees(Protocol):
    """Trees of series. Methods raise StoreError, and CorruptRow for what cannot be decoded."""

    async def ids(self) -> list[int]:
        """Return the ids of all trees."""
        ...

    async def get(self, tree_id: int) -> TreeDefinition:
        """Return a tree. Raise NoSuchTree."""
        ...

    async def create(self, tree: Tree) -> int:
        """Create a tree, and return its id. Raise TsdError where every id is taken."""
        ...

    async def edit(self, tree_id: int, change: Callable[[Tree], Tree]) -> bool:
        """Change a tree, and return whether it differs. Raise NoSuchTree."""
        ...

    async def edit_rule(self, tree_id: int, level: int, order: int, change: Callable[[Rule | None], Rule]) -> bool:
        """Change or create a rule, and return whether it differs. Raise what `change` raises."""
        ...

    async def delete_rules(self, tree_id: int, places: Iterable[tuple[int, int]] | None = None) -> None:
        """Delete some rules, by level and order, or all."""
        ...

    async def delete(self, tree_id: int, *, definition: bool) -> None:
        """Delete the contents of a tree, and with `definition` the tree."""
        ...

    def branch_id(self, tree_id: int, names: Iterable[str] = ()) -> bytes:
        """Return the id of a branch, by the names below the root. The first two bytes are the tree's id."""
        ...

    async def open(self, branch_id: bytes) -> BranchContents:
        """Return a branch with its contents. Raise NoSuchTree."""
        ...

    async def failures(self, tree_id: int, series: Sequence[bytes], *, collisions: bool) -> Mapping[bytes, str]:
        """Return why series are not in a tree: of all, or of some. `collisions` selects those whose leaf is
        another's."""
        ...

    async def describe(self, series: bytes) -> NamedSeries:
        """Return the names of a series and their custom metadata, to which rules are applied. Raise NoSuchName."""
        ...


class AnnotationChange(NamedTuple):
    """An annotation to store."""

    annotation: Annotation
    series: bytes  # empty for a global one
    fields: Collection[str] | None = None  # of a stored annotation only these change; None: all


class Annotations(Protocol):
    """Annotations on series, or global ones. A series of no bytes means global.

    Times are timestamps as sent: Unix seconds, or milliseconds from 2^32 up. Methods raise StoreError.
    """

    async def get(self, start_time: int, series: bytes) -> Annotation | None:
        """Return the annotation that starts then. Raise CorruptRow."""
        ...

    async def put(self, annotation: Annotation, series: bytes, fields: Collection[str] | None = None) -> Annotation:
        """Store an annotation, and return what is stored. If there is one, only `fields` of it change (None: all). The
        lower start time of one place wins. Raise CorruptRow."""
        ...

    async def put_many(self, changes: deque[AnnotationChange]) -> deque[Annotation]:
        """Store annotations as `put` does, and return what is stored. Changes of one place are made in order. `changes`
        is emptied: to free thousands of objects at once would hold the event loop. Raise CorruptRow."""
        ...

    async def delete(self, start_time: int, series: bytes) -> None:
        """Delete the annotation that starts then, if there is one."""
        ...

    async def global_between(self, start_ms: int, end_ms: int) -> list[Annotation]:
        """Return the global annotations that start and end between two times, in order."""
        ...

    async def delete_between(self, start_ms: int, end_ms: int, series: Sequence[bytes], *, global_: bool) -> int:
        """Delete the annotations that start between two times, and return how many."""
        ...


class Stat(NamedTuple):
    """One line of `stats`: `name` without the prefix `tsd.`, an integer, and up to two tags besides the host's."""

    name: str
    value: int
    tag: str = ""  # before the host's
    last_tag: str = ""  # after the host's
