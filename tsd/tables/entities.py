"""Entities: the protocol through which endpoints and commands read them.

Most calls return columns as the store has them: the row of a place is the entity's name, the value is encoded.

An entity is the value of one tag, such as a host. `tsd.tables.entity` implements the protocol. It works with every
table layout, on engines whose cells keep versions.
"""

from collections.abc import Collection, Mapping
from typing import NamedTuple, Protocol

from tsd.codec.entity.records import YEARS_MS, EntitySeries
from tsd.codec.points import Columns, Int32, Int64
from tsd.store.versions import VersionColumns, VersionPage

POINTS_END_MS = YEARS_MS  # times of points are before it
METADATA_METRIC = b""  # stands for metadata where a window names its metrics


class Entity(NamedTuple):
    """What is known of an entity. Points are pairs of a time in Unix milliseconds and a number, in order of times."""

    name: bytes
    metadata: Mapping[str, str]
    series: Mapping[EntitySeries, list[tuple[int, int | float]]]


class OpenSeriesSource(Protocol):
    """Accepted points that the store lacks, by the numbers of their series."""

    async def open_series(self, numbers: Int32, generations: Int64) -> Columns:
        """Return the points of series, those of each in order of arrival. A number of another generation belongs to
        another series by now and has none. What memory lacks is written first. Raise StoreDown if it cannot be."""
        ...


class Entities(Protocol):
    """All data of one entity, and the newest values of all entities. Calls raise StoreError, and CorruptRow."""

    async def check(self) -> None:
        """Raise NoTable for a missing table, WrongTable for one that keeps another number of versions."""
        ...

    async def read_columns(
        self,
        name: bytes,
        start_ms: int,
        end_ms: int | None = None,
        *,
        versions: int | None = None,
        limit_bytes: int | None = None,
    ) -> VersionColumns:
        """Return the metadata of an entity and its points from `start_ms` to before `end_ms`, of each series the newest
        `versions` (None: all). Without an end this is one call of the store. Raise TooManyVersions once the points take
        more than about `limit_bytes` in the store."""
        ...

    async def scan(
        self,
        start: bytes,
        stop: bytes | None,
        start_ms: int,
        end_ms: int,
        *,
        limit: int,
        limit_bytes: int | None = None,
    ) -> VersionPage:
        """Return the points of up to `limit` entities, from the name `start` to before `stop` (None: without end), and
        of these points those from `start_ms` to before `end_ms`. One call of the store. Raise TooManyVersions as
        `read_columns`."""
        ...

    def include_open_points(self, source: OpenSeriesSource) -> None:
        """Let `read_columns` and `scan` return points that are accepted and not stored yet."""
        ...

    async def newest_columns(self, start: bytes, stop: bytes | None, *, limit: int) -> VersionPage:
        """Return the newest point of each series of up to `limit` entities, from the name `start` to before `stop`.
        Points that are accepted and not stored yet count once their window is written or held."""
        ...

    async def metadata(self, name: bytes) -> Mapping[str, str]:
        """Return the metadata of an entity, empty if there is none. One call of the store."""
        ...

    async def put_metadata(self, entity: bytes, values: Mapping[bytes, str], written_ms: int) -> None:
        """Write metadata. Values with other keys stay. Raise BadLine for an illegal key or a long value."""
        ...

    async def delete_metadata(self, entity: bytes, keys: Collection[bytes]) -> None:
        """Delete metadata."""
        ...
