"""A layout's writer and resolver, around which the tables of entities are tested."""

from collections.abc import Sequence

import numpy as np

from tsd.codec.points import Columns, Int32, Int64
from tsd.tables.writing import PointWriter, SeriesKey, SeriesKeys, SeriesLookup, SeriesText, SummaryWriter

TEXTS = [SeriesText(b"sys.cpu", b"host=a"), SeriesText(b"sys.cpu", b"dc=eu"), SeriesText(b"sys.cpu", b"host=b")]


class Inner(PointWriter):
    """Keeps the points."""

    def __init__(self) -> None:
        self.written: list[Columns] = []

    @property
    def cells(self) -> int:
        return len(self.written)

    @property
    def summaries(self) -> SummaryWriter | None:
        return None

    async def write(self, points: Columns, series: SeriesLookup, *, whole: bool = False) -> None:
        self.written.append(points)

    async def record(self, points: Columns, series: SeriesLookup) -> None:
        pass

    async def sync(self) -> None:
        pass


class Lookup:
    """Series by their numbers; `generation` changes when numbers are reused."""

    def __init__(self, texts: Sequence[SeriesText] = TEXTS, generation: int = 1) -> None:
        self._texts = texts
        self._generation = generation

    def keys(self, numbers: Int32) -> SeriesKeys:
        return SeriesKeys.of(SeriesKey(b"k", b"") for _ in numbers)

    def text(self, number: int) -> SeriesText | None:
        return self._texts[number]

    def generations(self, numbers: Int32) -> Int64:
        return np.full(len(numbers), self._generation, np.int64)


def points(*given: tuple[int, int, int]) -> Columns:
    """Return points of (series, time in seconds, value)."""
    series, times, values = map(np.array, zip(*given, strict=True))
    return Columns(series.astype(np.int32), times * 2000, np.zeros(len(series), np.uint8), values)
