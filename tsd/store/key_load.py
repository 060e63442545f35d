"""Load by range of row keys: how many cells were written and read where, for the last hours.

A range is the rows of a table whose keys start with a prefix. `SplitKey` says which prefixes of a key are counted. Of
each call a few cells are counted, each for its share of the call. So the cost of a call does not grow with its cells.
Each minute has counters of its own. Memory has a bound: counters of ranges with little load are dropped. Their load
stays in the wider range.
"""

import heapq
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import trio

from tsd.store.cells import Put

MINUTE_MS = 60_000
MINUTES = 180  # with counters
SAMPLES = 8  # counted cells of a call
STRIDE = 7919  # between the first samples of two calls; a prime
MOST_RANGES = 512  # of a width, in the current minute
KEPT_RANGES = 128  # of these, when there are more
MOST_KEYS = 512  # whose counters are found without their prefixes
PAST_RANGES = 32  # most written ones, and as many most read ones, of a past minute
STEP_MINUTES = 5  # added up in one step of the event loop
MOST_SUMS, KEPT_SUMS = 1024, 256  # ranges of a width in a sum of minutes, and those kept when there are more

SplitKey = Callable[[str, bytes], Sequence[bytes]]
"""Returns the counted prefixes of a table's row key, shorter ones first."""


class Load:
    """What was written and read in one range. Sampled: the numbers are estimates."""

    __slots__ = ("bytes_written", "cells_read", "cells_written", "parent")

    def __init__(self, parent: bytes) -> None:
        """`parent` is the prefix of the next wider range; empty: the whole table."""
        self.parent = parent
        self.cells_written = 0.0
        self.bytes_written = 0.0
        self.cells_read = 0.0

    def add(self, cells_written: float, bytes_written: float, cells_read: float) -> None:
        """Add load."""
        self.cells_written += cells_written
        self.bytes_written += bytes_written
        self.cells_read += cells_read


Place = tuple[str, bytes]  # table and prefix


class HotRange(NamedTuple):
    """Load of a range, without that of the narrower ranges that are listed as well."""

    table: str
    prefix: bytes  # empty: the rest of the table
    cells_written: float
    bytes_written: float
    cells_read: float


class HotRanges(NamedTuple):
    """Ranges with load, and the sums of all ranges."""

    ranges: list[HotRange]
    cells_written: float
    bytes_written: float
    cells_read: float
    since_ms: int
    until_ms: int


class _Counters:
    """Counters of a time. `levels` has one dictionary for each width of prefixes; the first is that of tables."""

    def __init__(self, number: int) -> None:
        self.number = number  # of the minute
        self.levels: list[dict[Place, Load]] = [{}]
        self._of_keys: dict[Place, list[Load]] = {}  # of keys that were read: repeated queries read the same rows

    def read(self, table: str, key: bytes, cells: float, split: SplitKey) -> None:
        """Count read cells of a row in the table, and in its ranges."""
        loads = self._of_keys.get((table, key))
        if loads is None:
            loads = self.add(table, split(table, key), 0, 0, cells)
            if len(self._of_keys) >= MOST_KEYS:
                self._of_keys.clear()
            self._of_keys[table, key] = loads
            return
        for load in loads:
            load.cells_read += cells

    def add(
        self, table: str, prefixes: Sequence[bytes], cells_written: float, bytes_written: float, cells_read: float
    ) -> list[Load]:
        """Count in the table, and in the range of each prefix. Return their counters."""
        parent = b""
        loads: list[Load] = []
        for level, prefix in enumerate((b"", *prefixes)):
            place = table, prefix
            load = self.levels[level].get(place) if level < len(self.levels) else None
            if load is None:
                load = self._counter(level, place, parent)
            load.cells_written += cells_written
            load.bytes_written += bytes_written
            load.cells_read += cells_read
            loads.append(load)
            parent = prefix
        return loads

    def _counter(self, level: int, place: Place, parent: bytes) -> Load:
        """Return a new counter."""
        self._of_keys.clear()  # others may be dropped
        while level >= len(self.levels):
            self.levels.append({})
        counters = self.levels[level]
        if level and len(counters) >= MOST_RANGES:
            counters = self.levels[level] = _hottest(counters, KEPT_RANGES)
        load = counters[place] = Load(parent)
        return load

    def trim(self) -> None:
        """Keep the counters of a past minute."""
        self.levels[1:] = [_hottest(counters, PAST_RANGES) for counters in self.levels[1:]]

    def merge(self, other: "_Counters") -> None:
        """Add the load of another time."""
        for level, counters in enumerate(other.levels):
            while level >= len(self.levels):
                self.levels.append({})
            mine = self.levels[level]
            for place, load in counters.items():
                if (sum_ := mine.get(place)) is None:
                    sum_ = mine[place] = Load(load.parent)
                sum_.add(load.cells_written, load.bytes_written, load.cells_read)
            if level and len(mine) > MOST_SUMS:
                self.levels[level] = _hottest(mine, KEPT_SUMS)


def _hottest(counters: dict[Place, Load], count: int) -> dict[Place, Load]:
    """Return the `count` most written and the `count` most read ranges."""
    if len(counters) <= count:
        return counters
    written = heapq.nlargest(count, counters.items(), lambda item: item[1].cells_written)
    read = heapq.nlargest(count, counters.items(), lambda item: item[1].cells_read)
    return {**dict(written), **{place: load for place, load in read if load.cells_read}}


class KeyLoad:
    """Counts load by range."""

    def __init__(self, split: SplitKey, now_ms: Callable[[], int]) -> None:
        self._split = split
        self._now_ms = now_ms
        self._started_ms = now_ms()
        self._past: deque[_Counters] = deque(maxlen=MINUTES - 1)
        self._current = _Counters(self._started_ms // MINUTE_MS)
        self._calls = 0

    def wrote(self, table: str, cells: Sequence[Put]) -> None:
        """Count written cells."""
        if not cells:
            return
        places = self._sample(len(cells))
        share = len(cells) / len(places)
        counters = self._counters()
        for at in places:
            row, _, value = cells[at]
            counters.add(table, self._split(table, row), share, share * len(value), 0)

    def read_rows(self, table: str, rows: Sequence[tuple[bytes, Sequence[tuple[bytes, bytes, int]]]]) -> None:
        """Count read cells by the keys of their rows."""
        if not rows:
            return
        places = self._sample(len(rows))
        share = len(rows) / len(places)
        counters = self._counters()
        for at in places:
            key, cells = rows[at]
            counters.add(table, self._split(table, key), 0, 0, share * len(cells))

    def read_keys(self, table: str, keys: Sequence[bytes]) -> None:
        """Count read cells by the row key of each, in order of the keys."""
        if len(keys) < 2:
            for key in keys:
                self.read_range(table, key, 1)
            return
        places, split = self._sample(len(keys)), self._split
        counters, share = self._counters(), len(keys) / len(places)
        first = split(table, keys[places[0]])
        if len(places) > 1 and split(table, keys[places[-1]]) != first:
            for at in places:
                counters.add(table, split(table, keys[at]), 0, 0, share)
        else:  # all keys are in one range, such as those of one metric and hour
            counters.add(table, first, 0, 0, len(keys))

    def wrote_range(self, table: str, key: bytes, cells: int, size: int) -> None:
        """Count written cells of rows that are in one range with `key`, and the bytes of their values."""
        self._counters().add(table, self._split(table, key), cells, size, 0)

    def read_range(self, table: str, key: bytes, cells: int) -> None:
        """Count read cells of rows that are in one range with `key`."""
        self._counters().read(table, key, cells, self._split)

    def _sample(self, count: int) -> range:
        """Return up to SAMPLES indexes at equal distances; the first one changes from call to call."""
        step = -(-count // SAMPLES)
        self._calls += 1
        return range(self._calls * STRIDE % step, count, step)

    def _counters(self) -> _Counters:
        """Return the counters of this minute. If the clock is set back, those of the latest."""
        number = self._now_ms() // MINUTE_MS
        if number > self._current.number:
            self._current.trim()
            self._past.append(self._current)
            self._current = _Counters(number)
        return self._current

    async def hot_ranges(self, length_ms: int, *, least_share: float, widths: int | None = None) -> HotRanges:
        """Return the ranges with at least a share of all writes or reads of the last `length_ms`, up to whole minutes.

        Load is counted in the narrowest such range; what is left of a table is a range with an empty prefix. With
        `widths` only this many of the prefixes of a key count, shorter ones first.
        """
        now_ms = self._now_ms()
        first = (now_ms - min(length_ms, MINUTES * MINUTE_MS)) // MINUTE_MS
        total = _Counters(0)
        times = [minute for minute in (*self._past, self._current) if minute.number > first]
        for at in range(0, len(times), STEP_MINUTES):
            for minute in times[at : at + STEP_MINUTES]:
                total.merge(minute)
            await trio.lowlevel.checkpoint()
        levels = total.levels if widths is None else total.levels[: widths + 1]
        sums = Load(b"")
        for load in total.levels[0].values():
            sums.add(load.cells_written, load.bytes_written, load.cells_read)
        oldest_ms = max(self._started_ms, (first + 1) * MINUTE_MS)
        found = list(_disjoint(levels, sums, least_share))
        return HotRanges(found, sums.cells_written, sums.bytes_written, sums.cells_read, min(oldest_ms, now_ms), now_ms)


def _is_any(load: Load, least: Sequence[float]) -> bool:
    return load.cells_written >= least[0] or load.bytes_written >= least[1] or load.cells_read >= least[2]


def _disjoint(levels: Sequence[dict[Place, Load]], sums: Load, least_share: float) -> Iterator[HotRange]:
    """Yield the ranges with at least a share of the load, narrow ones first, and the rest of each table."""
    least = [max(least_share * all_, 1e-9) for all_ in (sums.cells_written, sums.bytes_written, sums.cells_read)]
    listed: dict[Place, Load] = {}  # by wider range: load of the narrower ones that are listed
    for level in reversed(range(len(levels))):
        above: dict[Place, Load] = {}
        for (table, prefix), load in levels[level].items():
            below = listed.get((table, prefix))
            if level and below is None and not _is_any(load, least):
                continue
            below = below or Load(b"")
            rest = [
                max(load.cells_written - below.cells_written, 0.0),
                max(load.bytes_written - below.bytes_written, 0.0),
                max(load.cells_read - below.cells_read, 0.0),
            ]
            is_listed = any(rest) if level == 0 else any(map(float.__ge__, rest, least))
            if is_listed:
                yield HotRange(table, prefix, *rest)
                below.add(*rest)
            above.setdefault((table, load.parent), Load(b"")).add(
                below.cells_written, below.bytes_written, below.cells_read
            )
        for place, load in listed.items():  # whose wider range was dropped in all minutes
            if place not in levels[level]:
                above.setdefault((place[0], b""), Load(b"")).add(
                    load.cells_written, load.bytes_written, load.cells_read
                )
        listed = above
