"""Parts of layouts that store names as they are, without ids: their tests of series, and ids for one selection.

Each selection gives its names ids of four bytes in the order in which they are found.
"""

from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
import trio

from tsd.codec.names import Kind, Widths, parse_uid
from tsd.codec.points import NO_POINTS, Batch, Int64, Points, starts_of
from tsd.codec.putline import HOUR_MS
from tsd.errors import BadLine, BadQuery, CorruptRow
from tsd.tables import reading
from tsd.tables.catalog import SeriesSelector
from tsd.tables.filters import matcher_of
from tsd.tables.reading import SeriesRequest

ID_BYTES = 4
PAGE_SERIES = 1000
FEW = 200  # series or cells that are handled without a thread
T = TypeVar("T")
Passes = Callable[[Mapping[str, str]], bool]


async def in_thread(count: int, work: Callable[[], T]) -> T:
    """Return what `work` returns; in a thread if it handles many series or cells."""
    if count <= FEW:
        return work()
    return await trio.to_thread.run_sync(work)


class Resolved(NamedTuple):
    """A request with its test of series."""

    metric: str
    passes: Passes
    tagks: Sequence[str]  # of the filters
    names_tags: bool  # whether there may be series of the metric that do not pass


def resolve(
    request: SeriesRequest,
    series_id: Callable[[str, Mapping[str, str]], bytes],
    names_of: Callable[[bytes], tuple[str, Mapping[str, str]]],
) -> Resolved:
    """Return the metric of a request, and the test of its series. Raise BadQuery.

    `series_id` returns what identifies a series of a metric to users, `names_of` its metric and tags; it raises
    CorruptRow or UnicodeDecodeError.
    """
    tests = [(one.tagk, matcher_of(one, loose_wildcards=request.quirks.loose_wildcards)) for one in request.filters]
    metric, wanted = request.metric, frozenset[bytes]()
    if request.tsuids:
        try:
            wanted = frozenset(map(parse_uid, request.tsuids))
            metrics = {names_of(series)[0] for series in wanted}
        except (BadLine, CorruptRow, UnicodeDecodeError) as exc:
            raise BadQuery(str(exc)) from exc
        if len(metrics) > 1:
            raise BadQuery(f"got TSUIDs of the metrics {', '.join(sorted(metrics))}, wanted those of one metric")
        [metric] = metrics
    tagks = frozenset(tagk for tagk, _ in tests)

    def passes(tags: Mapping[str, str]) -> bool:
        if wanted and series_id(metric, tags) not in wanted:
            return False
        if request.explicit_tags and tests and not tags.keys() <= tagks:
            return False
        return all(test.matches(tags[tagk]) if tagk in tags else test.wants_no_key for tagk, test in tests)

    return Resolved(metric, passes, sorted(tagks), bool(wanted or tests))


def selector_test(selector: SeriesSelector) -> Passes:
    """Return whether tags are those of a selector."""
    any_name = set[str]() if selector.is_literal else {"*", ""}
    wanted = {tagk: {value for name, value in selector.tags if name == tagk} for tagk, _ in selector.tags}

    def passes(tags: Mapping[str, str]) -> bool:
        for tagk, values in wanted.items():
            found = set(tags.values()) if tagk in any_name else {tags[tagk]} if tagk in tags else set()
            if not found or not values & (found | any_name):
                return False
        return True

    return passes


def exact_tags(selector: SeriesSelector) -> dict[str, str] | None:
    """Return the tags of a selector for one metric if each has one name and one value, otherwise None."""
    any_name = set[str]() if selector.is_literal else {"*", ""}
    tags = dict(selector.tags)
    names = {selector.metric, *tags, *tags.values()}
    return tags if tags and len(tags) == len(selector.tags) and not any_name & names else None


class SelectedKeys:
    """The series that a selector matches."""

    def __init__(self, keys: Sequence[bytes], exact: bytes | None) -> None:
        self._keys = keys
        self._exact = exact

    async def pages(self, limit: int | None = None) -> AsyncGenerator[list[bytes], None]:
        """Return the series in order of their bytes, page by page."""
        keys = self._keys[:limit]
        for at in range(0, len(keys), PAGE_SERIES):
            yield list(keys[at : at + PAGE_SERIES])

    def exact(self) -> bytes | None:
        """Return the one series with exactly the selector's tags, stored or not."""
        return self._exact


class InternedSeries(reading.SeriesSet):
    """The series of a selection, with ids for their names."""

    widths = Widths(ID_BYTES, ID_BYTES, ID_BYTES)
    resolved = 0

    def __init__(self, group_by: Iterable[str], series_id: Callable[[bytes], bytes]) -> None:
        """`series_id` returns what identifies a series to users, from its encoded tags."""
        self._series_id = series_id
        self._ids: dict[Kind, dict[str, bytes]] = {kind: {} for kind in Kind}
        self._names: dict[Kind, dict[bytes, str]] = {kind: {} for kind in Kind}
        self._tags: dict[tuple[str, str], bytes] = {}  # ids of each tag
        self._pairs_of: dict[bytes, bytes] = {}  # ids of the tags of each series, by its encoded tags
        self._tags_of: dict[bytes, bytes] = {}  # the other way round
        self.numbers: dict[bytes, int] = {}
        self.series_pairs: list[bytes] = []
        self.group_by = tuple(sorted(self.id_of(Kind.TAGK, tagk) for tagk in group_by))

    def id_of(self, kind: Kind, name: str) -> bytes:
        """Return the id of a name, a new one if it has none."""
        ids = self._ids[kind]
        found = ids.get(name)
        if found is None:
            found = ids[name] = (len(ids) + 1).to_bytes(ID_BYTES, "big")
            self._names[kind][found] = name
        return found

    def pairs_of(self, encoded: bytes, tags: Mapping[str, str]) -> bytes:
        """Return the ids of a series' tags. `encoded` is how row keys have them."""
        found = self._pairs_of.get(encoded)
        if found is None:
            found = self._pairs_of[encoded] = b"".join(sorted(map(self._pair_of, tags.items())))
            self._tags_of[found] = encoded
        return found

    def _pair_of(self, tag: tuple[str, str]) -> bytes:
        found = self._tags.get(tag)
        if found is None:
            found = self._tags[tag] = self.id_of(Kind.TAGK, tag[0]) + self.id_of(Kind.TAGV, tag[1])
        return found

    async def match(self, series_pairs: Iterable[bytes]) -> None:
        """Number series; only matching ones are found."""
        for one in series_pairs:
            if one not in self.numbers:
                self.numbers[one] = len(self.series_pairs)
                self.series_pairs.append(one)

    async def names(self, kind: Kind, ids: Sequence[bytes]) -> dict[bytes, str]:
        """Return the names of ids."""
        names = self._names[kind]
        return {one: names[one] if one in names else one.hex() for one in ids}

    def order(self, numbers: Iterable[int]) -> list[int]:
        """Return series in the order of their tags."""
        return sorted(numbers, key=lambda number: self._tags_of[self.series_pairs[number]])

    def tsuid(self, pairs: bytes) -> bytes:
        """Return what identifies a series to users."""
        return self._series_id(self._tags_of[pairs])


def batch_of(series: Sequence[tuple[int, Points]]) -> Batch:
    """Return the points of several series as a batch, whose rows are hours."""
    numbers = np.array([number for number, _ in series], np.int64)
    starts = starts_of([len(points.times) for _, points in series])
    joined = Points(*map(np.concatenate, zip(NO_POINTS, *(points for _, points in series), strict=True)))
    return hourly_batch(numbers, starts, joined)


def hourly_batch(numbers: Int64, starts: Int64, points: Points) -> Batch:
    """Return the points of several series as a batch, whose rows are hours. `starts` is the index of the first point of
    each series, then their number. A series without points gets a row without points.

    >>> times = np.array([1, 2, 3_600_000, 1])
    >>> batch = hourly_batch(np.array([5, 6, 7]), np.array([0, 3, 3, 4]), Points(times, times, times > 0))
    >>> batch.series.tolist(), batch.starts.tolist()
    ([5, 5, 7, 6], [0, 2, 3, 4, 4])
    """
    lengths = np.diff(starts)
    empty = numbers[lengths == 0]
    hours = points.times // HOUR_MS
    is_first = np.ones(len(hours), np.bool_)
    is_first[1:] = hours[1:] != hours[:-1]
    is_first[starts[:-1][lengths > 0]] = True
    firsts = np.flatnonzero(is_first)
    series = np.append(np.repeat(numbers, lengths)[firsts], empty).astype(np.int32)
    return Batch(series, np.append(firsts, np.full(len(empty) + 1, len(hours))), *points)
