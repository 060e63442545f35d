"""Points through a layout whose series are named by interned pairs: put as one window, and read by tags."""

from typing import NamedTuple

import numpy as np

from tsd.codec.names import Kind
from tsd.codec.points import Columns, Int32, Int64
from tsd.codec.putline import HOUR_S
from tsd.codec.text import FLOAT
from tsd.tables import Tables
from tsd.tables.reading import EncodedPage, PointPage, ScanRange, SeriesRequest
from tsd.tables.writing import SeriesKey, SeriesKeys, SeriesText

Number = int | float
Found = dict[tuple[tuple[str, str], ...], dict[int, Number]]


class Lookup:
    """Series by their numbers."""

    def __init__(self, keys: list[SeriesKey]) -> None:
        self._keys = keys

    def keys(self, numbers: Int32) -> SeriesKeys:
        return SeriesKeys.of(self._keys[number] for number in numbers.tolist())

    def text(self, number: int) -> SeriesText | None:
        raise NotImplementedError

    def generations(self, numbers: Int32) -> Int64:
        return np.ones(len(numbers), np.int64)


class Point(NamedTuple):
    """A point as it is sent."""

    series: SeriesText
    time_ms: int
    value: Number


async def put(tables: Tables, *points: tuple[SeriesText, int, Number]) -> None:
    """Put the points of one window."""
    sent = [Point(*one) for one in points]
    resolved = await tables.resolver.resolve([one.series for one in sent])
    assert not resolved.refused, resolved.refused
    columns = Columns(
        np.arange(len(sent), dtype=np.int32),
        np.array([one.time_ms << 1 | 1 for one in sent], np.int64),
        np.array([FLOAT | 7 if isinstance(one.value, float) else 7 for one in sent], np.uint8),
        np.array([_bits(one.value) for one in sent], np.int64),
    )
    await tables.writer.write(columns, Lookup(list(resolved.keys)))


def _bits(value: Number) -> int:
    return int(np.float64(value).view(np.int64)) if isinstance(value, float) else value


async def read(tables: Tables, request: SeriesRequest, first_ms: int, last_ms: int) -> Found:
    """Return the points of each series by its tags."""
    selection = await tables.reader.select(request)
    found: Found = {}

    async def take(page: EncodedPage[PointPage]) -> None:
        await selection.series.match(page.series())
        decoded = page.decode()
        assert not decoded.warnings
        batch = decoded.batch
        for row, number in enumerate(batch.series.tolist()):
            part = slice(batch.starts[row], batch.starts[row + 1])
            pairs = selection.series.series_pairs[number]
            words = [pairs[at : at + 4] for at in range(0, len(pairs), 4)]
            tagks = await selection.series.names(Kind.TAGK, words[::2])
            tagvs = await selection.series.names(Kind.TAGV, words[1::2])
            tags = sorted((tagks[k], tagvs[v]) for k, v in zip(words[::2], words[1::2], strict=True))
            bits = batch.bits[part]
            values = np.where(batch.floats[part], bits.view(np.float64).astype(object), bits.astype(object)).tolist()
            found.setdefault(tuple(tags), {}).update(zip(batch.times[part].tolist(), values, strict=True))

    span = ScanRange(first_ms // 1000 // HOUR_S * HOUR_S, (last_ms // 1000 // HOUR_S + 1) * HOUR_S)
    await selection.read(span, take, annotations=False)
    cut = {tags: {t: v for t, v in each.items() if first_ms <= t <= last_ms} for tags, each in found.items()}
    return {tags: each for tags, each in cut.items() if each}
