"""Downsampled hours that are remembered from one query to the next: what the rows of an hour came to, for all series of
a metric, before any filter, group or fill.

Only what is over is remembered, and only while it is known to be as it was: an engine that is the only way to its rows
tells of each write (`told`), from another the signatures of an hour's cells are asked for anew with each query. Which
of them it is, and what can be remembered at all, is `tsd.query.hours`' to know.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tsd.codec.rowkey import Layout, base_bytes
from tsd.query.bucketed import Bucketed

LARGEST_SHARE = 2  # one part in so many of the memory is the most that one query fills
PAIRS_BYTES = 60  # of a row's tag pairs, beside their text
HOUR_BYTES = 1000  # of an hour, beside its arrays
_NONE: Mapping[bytes, bytes] = {}


class How(NamedTuple):
    """What makes two folds of the same points alike."""

    interval_ms: int
    function: str
    corrected: bool


class Hour(NamedTuple):
    """The rows of one hour of a metric."""

    base_s: int
    pairs: tuple[bytes, ...]  # joined, of each row
    points: NDArray[np.int32]  # that each row had
    sizes: NDArray[np.int64]  # bytes of each row's cells
    buckets: Bucketed  # stamps of uneven ones as offsets from the base time, in 32 bits
    names_size: int  # bytes of keys and columns
    signatures: Mapping[bytes, bytes] = _NONE  # of its cells, by what keys start with

    def unpacked(self) -> Bucketed:
        """The buckets with their stamps."""
        starts, stamps, values = self.buckets
        return Bucketed(starts.astype(np.int64), stamps.astype(np.int64) + self.base_s * 1000, values)

    @property
    def size(self) -> int:
        """About how many bytes it takes, with pairs of its own."""
        arrays = (self.points, self.sizes, *self.buckets)
        pairs = len(self.pairs) * PAIRS_BYTES + sum(map(len, self.pairs))
        signatures = sum(map(len, self.signatures.values()))
        return sum(array.nbytes for array in arrays) + pairs + signatures + HOUR_BYTES


class Reading:
    """Hours of a metric while they are read: those that are written to meanwhile are spoilt."""

    def __init__(self, hours: Iterable[bytes]) -> None:
        self.hours = frozenset(hours)
        self.spoilt: set[bytes] = set()


class Remembered:
    """The hours of one data table. Not for threads: it is asked and told by the event loop."""

    def __init__(self, limit: int, layout: Layout) -> None:
        """`limit`: bytes that all of them take together."""
        self.limit = limit
        self._layout = layout
        self._hours: OrderedDict[tuple[bytes, How], Hour] = OrderedDict()  # least recently used first
        self._ways: dict[bytes, set[How]] = {}  # of each hour that is held
        self._readings: set[Reading] = set()
        self._size = 0
        self._count: Counter[str] = Counter()

    @property
    def most_of_one(self) -> int:
        """Bytes that one query may fill: it is not to push out what all others left."""
        return self.limit // LARGEST_SHARE

    def prefix(self, metric: bytes, base_s: int) -> bytes:
        """What names an hour: a key's part between salt and tag pairs."""
        return metric + base_bytes(base_s)

    def held(self, metric: bytes, bases: Iterable[int], how: How) -> dict[int, Hour]:
        """Those of some hours that are remembered, by base time."""
        found = {}
        for base_s in bases:
            hour = self._hours.get(key := (self.prefix(metric, base_s), how))
            if hour is not None:
                self._hours.move_to_end(key)
                found[base_s] = hour
        return found

    def count(self, *, hits: int, misses: int) -> None:
        """Take note of how many hours a query took from here, and how many it read."""
        self._count["hits"] += hits
        self._count["misses"] += misses

    @contextmanager
    def reading(self, metric: bytes, bases: Iterable[int]) -> Iterator[Reading]:
        """While hours are read that may be kept then."""
        reading = Reading(self.prefix(metric, base_s) for base_s in bases)
        self._readings.add(reading)
        try:
            yield reading
        finally:
            self._readings.discard(reading)

    def keep(self, reading: Reading, metric: bytes, how: How, hours: Sequence[Hour]) -> None:
        """Remember what was read, but for hours that are spoilt; to be called before the reading ends."""
        assert reading in self._readings
        room = self.most_of_one
        for hour in hours:
            prefix = self.prefix(metric, hour.base_s)
            if prefix in reading.spoilt:
                continue
            room -= hour.size
            if room < 0:
                break
            self._drop((prefix, how))
            self._hours[prefix, how] = hour
            self._ways.setdefault(prefix, set()).add(how)
            self._size += hour.size
        while self._size > self.limit:
            self._drop(next(iter(self._hours)))

    def outdated(self, metric: bytes, how: How, bases: Iterable[int]) -> None:
        """Forget hours that are not as they were."""
        for base_s in bases:
            if self._drop((self.prefix(metric, base_s), how)):
                self._count["invalidated"] += 1

    def told(self, rows: Iterable[bytes] | None) -> None:
        """Rows that are written to, or None: any may have changed. Called with every write: where nothing is held it
        costs nothing, and else little."""
        if rows is None:
            for reading in self._readings:
                reading.spoilt |= reading.hours
            self.forget()
        elif self._ways or self._readings:
            first, end = self._layout.salt_width, self._layout.pairs_start
            touched = {row[first:end] for row in rows}
            for reading in self._readings:
                reading.spoilt |= touched & reading.hours
            for prefix in touched & self._ways.keys():
                self._count["invalidated"] += len(self._ways[prefix])
                for how in list(self._ways[prefix]):
                    self._drop((prefix, how))

    def forget(self) -> None:
        """Forget everything."""
        self._hours.clear()
        self._ways.clear()
        self._size = 0

    def _drop(self, key: tuple[bytes, How]) -> bool:
        """Forget one; whether it was there."""
        hour = self._hours.pop(key, None)
        if hour is None:
            return False
        self._size -= hour.size
        prefix, how = key
        self._ways[prefix].discard(how)
        if not self._ways[prefix]:
            del self._ways[prefix]
        return True

    def statistics(self) -> Mapping[str, int]:
        """The numbers of this moment."""
        counted = {name: self._count[name] for name in ("hits", "misses", "invalidated")}
        return {**counted, "hours": len(self._hours), "bytes": self._size}
