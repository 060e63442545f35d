"""Known series of a metric are found by their tags as one by one."""

import random
from pathlib import Path

import numpy as np
import pytest

from tests.unit.ingest.parts import BASE, Parts, going, make_store
from tsd.codec.names import Widths
from tsd.codec.opentsdb.rowkey import KeyLayout
from tsd.tables.open_points import OpenPoints
from tsd.tables.opentsdb.known_series import known_table
from tsd.tables.opentsdb.reader import OpenTsdbReader, ReadTable
from tsd.tables.reading import SeriesRequest
from tsd.tables.writing import SeriesKey, SeriesKeys

METRIC, OTHER = b"\0\0\1", b"\0\0\2"


def tags(*values: int) -> bytes:
    """The pairs of a series: one tag name a value."""
    return b"".join(bytes((0, 0, name, 0, 0, value)) for name, value in enumerate(values))


@pytest.mark.parametrize("salt_width", [0, 1])
@pytest.mark.parametrize("seed", range(5))
def test_rows_lead_to_the_places_of_their_series(seed: int, salt_width: int) -> None:
    chance = random.Random(seed)
    tails = [tags(*(chance.randrange(256) for _ in range(chance.randrange(1, 4)))) for _ in range(80)]
    keys = [SeriesKey(bytes(salt_width) + METRIC, tail) for tail in dict.fromkeys(tails)]
    keys += [SeriesKey(bytes(salt_width) + OTHER, tail) for tail in tails]
    mixed: list[SeriesKey | None] = [*keys, None, None]
    chance.shuffle(mixed)
    known = known_table(SeriesKeys.of(mixed), METRIC, KeyLayout(Widths(), salt_width))
    assert known is not None
    rows = np.arange(known.table.count)
    found = [mixed[place] for place in known.places]
    assert len(rows) == len(set(tails))
    assert {key.head[salt_width:] for key in found if key} == {METRIC}
    for row, key in zip(rows, found, strict=True):
        assert key is not None
        assert known.table.series_pairs(rows[row : row + 1]) == [key.tail]
        assert known.table.find([key.tail]).tolist() == [row]
    assert known.table.find([tags(1, 1, 1, 1, 1), b"", tags(0)[:-1]]).tolist() == []


@pytest.mark.parametrize("tails", [[tags(1), tags(1)], [tags(1), b""], [tags(1), b"\1"]])
def test_equal_or_malformed_series_cannot_be_told_apart(tails: list[bytes]) -> None:
    assert known_table(SeriesKeys.of(SeriesKey(METRIC, tail) for tail in tails), METRIC, KeyLayout()) is None


def test_without_series_the_table_is_empty() -> None:
    known = known_table(SeriesKeys.of([]), METRIC, KeyLayout())
    assert known is not None
    assert known.table.count == len(known.places) == 0


async def test_open_points_of_tsuids(tmp_path: Path) -> None:
    async with going(Parts(tmp_path, await make_store())) as parts:
        await parts.take(*(b"put m %d %d host=h%d" % (BASE, at, at) for at in range(20)))
        reader = OpenTsdbReader(ReadTable(parts.store, "tsdb", KeyLayout()), parts.uids)

        async def found(*pairs: bytes) -> OpenPoints:
            request = SeriesRequest(tsuids=tuple((METRIC + one).hex() for one in pairs))
            selection = await reader.select(request)
            points = await parts.unstored.open_points(b"m", selection.find_known)
            assert points is not None
            return points

        everyone = await found(*(bytes((0, 0, 1, 0, 0, value)) for value in range(1, 21)))
        assert sorted(everyone.columns.bits.tolist()) == list(range(20))
        chosen = await found(bytes((0, 0, 1, 0, 0, 5)), bytes((0, 0, 1, 0, 0, 99)))
        assert [key.tail[-1] for key in chosen.keys] == [5]
