"""Names, series and newest points of layouts that list their series: what their `SeriesCatalog`s share.

A layout gives what lists its names, the names of a metric's series, and how it reads the newest points.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from tsd.codec.names import Kind, parse_uid
from tsd.codec.putline import HOUR_MS
from tsd.errors import CorruptRow, NoSuchName
from tsd.tables.catalog import LastPoint, LastPoints, SeriesName, SeriesSelector
from tsd.tables.interned import SelectedKeys, exact_tags, selector_test

MOST_METRICS = 10_000  # that one request looks at
MOST_NAMES = 1 << 30
CONCURRENT = 16  # series whose newest points are read
GROWTH = 4  # of the time that is read next, if there was no point


class Names(NamedTuple):
    """Metric and tags of a series."""

    metric: str
    tags: Mapping[str, str]


class NameIndex(Protocol):
    """Lists names. Calls raise StoreError."""

    async def has_metric(self, metric: str) -> bool:
        """Return whether a metric is listed."""
        ...

    async def names(self, kind: Kind, prefix: str, limit: int) -> list[str]:
        """Return listed names of a kind with a prefix, in order of their bytes, at most `limit`."""
        ...


class SeriesIds(NamedTuple):
    """What identifies series to users."""

    of: Callable[[str, Mapping[str, str]], bytes]
    parse: Callable[[bytes], Names]  # raises CorruptRow
    charset: str  # of names


class ListedCatalog(ABC):
    """Names, series and their newest points."""

    def __init__(self, index: NameIndex, ids: SeriesIds, now_ms: Callable[[], int]) -> None:
        self.now_ms = now_ms
        self.warnings = 0
        self._index = index
        self._ids = ids

    @abstractmethod
    async def names_of(self, metric: str) -> Iterable[Names]:
        """Return the names of the listed series of a metric. Raise StoreError."""

    @abstractmethod
    async def newest(
        self, series: Mapping[bytes, Names], first_ms: int, warnings: list[str]
    ) -> Mapping[bytes, LastPoint | None]:
        """Return the newest point of each series from a time on, CONCURRENT at a time. Raise StoreError."""

    async def suggest(self, kind: Kind, prefix: str, limit: int) -> list[str]:
        """Return the first names of a kind with a prefix."""
        return await self._index.names(kind, prefix, limit)

    async def metrics(self) -> list[str]:
        """Return all metrics in order of their bytes."""
        return await self.suggest(Kind.METRIC, "", MOST_NAMES)

    async def select(self, selector: SeriesSelector) -> SelectedKeys:
        """Return the series that a selector matches, see `SeriesCatalog`."""
        if not selector.is_literal and selector.metric in ("*", ""):
            metrics = await self._index.names(Kind.METRIC, "", MOST_METRICS)
        elif await self._index.has_metric(selector.metric):
            metrics = [selector.metric]
        else:
            raise NoSuchName(f"No such name for '{Kind.METRIC.value}': '{selector.metric}'")
        passes = selector_test(selector)
        keys: set[bytes] = set()
        for metric in metrics:
            keys.update(self._ids.of(*names) for names in await self.names_of(metric) if passes(names[1]))
        exact = exact_tags(selector)
        return SelectedKeys(sorted(keys), None if exact is None else self._ids.of(selector.metric, exact))

    async def describe(self, series: Sequence[bytes]) -> list[SeriesName]:
        """Return the names of series, in their order."""
        return [SeriesName(one, *names) for one, names in self._named(series)]

    async def metrics_of(self, series: Iterable[bytes]) -> set[bytes]:
        """Return the metrics of series."""
        return {metric.encode(self._ids.charset) for _, (metric, _) in self._named(series)}

    async def last_points(self, series: Sequence[bytes], back_h: int | None) -> LastPoints:
        """Return the newest point of each series."""
        first_ms = 0 if back_h is None else (self.now_ms() // HOUR_MS - back_h) * HOUR_MS
        warnings: list[str] = []
        found = await self.newest(dict(self._named(dict.fromkeys(series))), first_ms, warnings)
        self.warnings += len(warnings)
        return LastPoints([found.get(one) for one in series], warnings)

    def parse_series(self, text: str) -> bytes:
        """Return the series that a text in hex names. Raise BadLine."""
        return parse_uid(text)

    def _named(self, series: Iterable[bytes]) -> Iterator[tuple[bytes, Names]]:
        """Yield series with their names, without those that have none."""
        for one in series:
            try:
                yield one, self._ids.parse(one)
            except CorruptRow:
                continue


def look_back(start_ms: int, first_ms: int, last_ms: int) -> Iterator[tuple[int, int]]:
    """Yield spans of time, both ends included, from the newest to the oldest: what is from `start_ms` on, then an hour,
    then longer ones.

    >>> list(look_back(7_200_000, 0, 9_000_000))
    [(7200000, 9000000), (3600000, 7199999), (0, 3599999)]
    """
    width = HOUR_MS
    while last_ms >= first_ms:
        start_ms = max(start_ms, first_ms)
        yield start_ms, last_ms
        last_ms, start_ms, width = start_ms - 1, start_ms - width, width * GROWTH
