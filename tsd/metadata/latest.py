"""The newest point of each series, kept from what is written: the way in pays for it by the window, not by the point.

What stood in the store before this daemon started it does not know, and in tables that others write to it cannot know
all; `checked_ms` and `depth_h` say when, and how far back, somebody looked there for a series.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
import trio
from numpy.typing import NDArray

from tsd.bytemap import ByteMap
from tsd.codec.columns import Columns, series_ends
from tsd.codec.words import FLOAT, LENGTH

NEW_SERIES = 2000  # entered in one go: a millisecond's work
NO_TIME = 0  # ms; of a series that has no point as far as anybody looked
_GROWTH = 1024

Slots = NDArray[np.intp]
_T = TypeVar("_T", bound=np.generic)


class Tags(Protocol):
    """Series of one metric."""

    @property
    def numbers(self) -> list[int]:
        """By which they are known."""
        ...

    @property
    def pairs(self) -> list[bytes]:
        """The joined tag pairs of each."""
        ...


class Numbered(Protocol):
    """Series by numbers, which are used again."""

    def births(self, numbers: NDArray[np.int32]) -> NDArray[np.int64]:
        """For each number one that changes when it is given to another series; never 0."""
        ...

    def tags_of(self, numbers: NDArray[np.int32], salt_width: int) -> Mapping[bytes, Tags]:
        """The tag pairs of those series whose UIDs are known, by metric UID."""
        ...


class LastPoint(NamedTuple):
    """A series' newest point."""

    time_ms: int
    number: int | float


class Latest:
    """Series by metric UID and tag pairs → their newest points."""

    def __init__(self, salt_width: int, *, most: int = 2_000_000) -> None:
        """`most` series are remembered; then those whose points are oldest are forgotten, half of all."""
        self._salt_width = salt_width
        self._most = most
        self._slots: dict[bytes, ByteMap] = {}  # by metric UID, by tag pairs
        self._count = 0
        self._times = np.zeros(_GROWTH, np.int64)
        self._bits = np.zeros(_GROWTH, np.int64)
        self._floats = np.zeros(_GROWTH, np.bool_)
        self._checks: tuple[NDArray[np.int64], NDArray[np.int32]] | None = None  # from the first question for them on
        self._slot_of = np.zeros(_GROWTH, np.int32)  # by the series table's numbers
        self._births = np.zeros(_GROWTH, np.int64)  # to know a number that was given to another series
        self.forgotten = 0  # series
        self._drops = 0  # how often places were given up

    def __len__(self) -> int:
        return self._count

    @property
    def checked_ms(self) -> NDArray[np.int64]:
        """By slot: when somebody last looked into the store."""
        return self._looks()[0]

    @property
    def depth_h(self) -> NDArray[np.int32]:
        """By slot: how far back that was; -1: nobody did."""
        return self._looks()[1]

    def _looks(self) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        if self._checks is None:
            size = len(self._times)
            self._checks = np.zeros(size, np.int64), np.full(size, -1, np.int32)
        return self._checks

    async def note(self, columns: Columns, table: Numbered, before_ms: int) -> None:
        """Take the newest points of a written window, which is sorted by series and time. Those from `before_ms` on
        are left out: a clock that is wrong would hide all points that follow."""
        ends = series_ends(columns)
        if (columns.instants[ends] >= before_ms << 1).any():
            columns = columns.at(columns.instants < before_ms << 1)
            ends = series_ends(columns)
        if not len(ends):
            return
        numbers = columns.series[ends]
        await self._enter_new(numbers, table)
        slots = self._slot_of[numbers]
        times = columns.instants[ends] >> 1
        newer = times >= self._times[slots]
        if not newer.all():
            slots, times, ends = slots[newer], times[newer], ends[newer]
        flags = columns.flags[ends]
        self._times[slots] = times
        self._floats[slots] = flags & FLOAT > 0
        self._bits[slots] = _as_doubles(flags, columns.bits[ends])

    async def _enter_new(self, numbers: NDArray[np.int32], table: Numbered) -> None:
        """Give slots to series of these numbers that have none."""
        if len(self._births) <= numbers[-1]:
            size = max(int(numbers[-1]) + 1, 2 * len(self._births))
            self._births = _grown(self._births, size)
            self._slot_of = _grown(self._slot_of, size)
        if self._count + len(numbers) > self._most:
            self._forget_half()
        drops = -1
        while drops != self._drops:  # what was entered before everything was forgotten has no slot
            drops = self._drops
            await self._enter(numbers, table)

    async def _enter(self, numbers: NDArray[np.int32], table: Numbered) -> None:
        births, drops = table.births(numbers), self._drops
        new = numbers[births != self._births[numbers]]
        for at in range(0, len(new), NEW_SERIES):
            for metric, some in table.tags_of(new[at : at + NEW_SERIES], self._salt_width).items():
                self._slot_of[some.numbers] = self._slots_for(metric, some.pairs)
            await trio.lowlevel.checkpoint()
            if drops != self._drops:
                return
        self._births[numbers] = births

    def _slots_for(self, metric: bytes, pairs: list[bytes]) -> list[int]:
        """Where the newest points of a metric's series stand; places are made where there are none."""
        if not pairs:
            return []
        series = self._slots.get(metric)
        if series is None:
            series = self._slots[metric] = ByteMap()
        slots, self._count = series.enter(pairs, self._count)
        if self._count > len(self._times):
            self._grow(max(self._count, 2 * len(self._times)))
        return slots

    def slot(self, metric: bytes, pairs: bytes) -> int:
        """Where a series' newest point stands; a place is made where there is none."""
        return self._slots_for(metric, [pairs])[0]

    def _grow(self, size: int) -> None:
        self._times, self._bits = _grown(self._times, size), _grown(self._bits, size)
        self._floats = _grown(self._floats, size)
        if self._checks is not None:
            more = np.full(size - len(self.depth_h), -1, np.int32)
            self._checks = _grown(self.checked_ms, size), np.concatenate((self.depth_h, more))

    def metrics(self) -> Collection[bytes]:
        """The metrics of which there are series."""
        return self._slots.keys()

    def pairs_of(self, metric: bytes) -> Collection[bytes]:
        """The tag pairs of a metric's series."""
        return self._slots[metric].keys() if metric in self._slots else ()

    def slots_of(self, metric: bytes, pairs: Iterable[bytes]) -> Slots:
        """The slots of some series of a metric, those that are not known entered."""
        return np.array(self._slots_for(metric, [*pairs]), np.intp)

    def times_ms(self, slots: Slots) -> NDArray[np.int64]:
        """The times of the newest points; NO_TIME where there is none."""
        return self._times[slots]

    def points(self, slots: Sequence[int]) -> list[LastPoint]:
        """The newest points."""
        times, bits, floats = self._times[slots], self._bits[slots], self._floats[slots]
        numbers: list[int | float] = [
            double if is_float else integer
            for integer, double, is_float in zip(
                bits.tolist(), bits.view(np.float64).tolist(), floats.tolist(), strict=True
            )
        ]
        return [LastPoint(*one) for one in zip(times.tolist(), numbers, strict=True)]

    def take(self, slot: int, found: LastPoint | None, *, checked_ms: int, depth_h: int) -> None:
        """What a look into the store found, as far back as that."""
        self.checked_ms[slot] = checked_ms
        self.depth_h[slot] = max(depth_h, int(self.depth_h[slot]))
        if found is not None and found.time_ms > self._times[slot]:
            self._times[slot] = found.time_ms
            is_float = isinstance(found.number, float)
            self._floats[slot] = is_float
            self._bits[slot] = np.float64(found.number).view(np.int64) if is_float else found.number

    def drop(self) -> None:
        """Forget everything: names may have other UIDs by now, or points may have been deleted."""
        self._drops += 1
        self._slots.clear()
        self._count = 0
        self._births[:] = 0
        self._times[:] = NO_TIME
        self._checks = None

    def _forget_half(self) -> None:
        """Forget the series whose points are oldest."""
        self._drops += 1
        order = np.argsort(self._times[: self._count], kind="stable")
        kept = np.sort(order[self._count // 2 :])
        moved = np.full(self._count, -1, np.int64)
        moved[kept] = np.arange(len(kept))
        self.forgotten += self._count - len(kept)
        for array in (self._times, self._bits, self._floats, *(self._checks or ())):
            array[: len(kept)] = array[kept]
        self._times[len(kept) :] = NO_TIME
        if self._checks is not None:
            self.depth_h[len(kept) :] = -1
        slots = {metric: _moved(series, moved) for metric, series in self._slots.items()}
        self._slots = {metric: series for metric, series in slots.items() if len(series)}
        self._count = len(kept)
        self._births[:] = 0  # every number finds its slot anew


def _moved(series: ByteMap, moved: NDArray[np.int64]) -> ByteMap:
    """Those of a metric's series whose slots have moved somewhere."""
    left = ByteMap()
    for pairs in series.keys():  # noqa: SIM118 - it is no dict
        slot = int(moved[series.number(pairs)])
        if slot >= 0:
            left.put_number(pairs, slot)
    return left


def _as_doubles(flags: NDArray[np.uint8], bits: NDArray[np.int64]) -> NDArray[np.int64]:
    """Bits with 4-byte floats made doubles; integers stay."""
    short = (flags & (FLOAT | LENGTH)) == FLOAT | 3
    if not short.any():
        return bits
    doubles = bits.copy()
    doubles[short] = bits[short].astype(np.uint32).view(np.float32).astype(np.float64).view(np.int64)
    return doubles


def _grown(array: NDArray[_T], size: int) -> NDArray[_T]:
    """With zeros behind, which take no memory before they are written to."""
    grown = np.zeros(size, array.dtype)
    grown[: len(array)] = array
    return grown
