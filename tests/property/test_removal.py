"""Laws of taking a span out of a row, on generated rows and for any span."""

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from tests.property.codec_rows import KEY, with_appends
from tsd.codec.opentsdb.cell import COLUMN, Point
from tsd.codec.opentsdb.merge import StoredCell
from tsd.codec.opentsdb.row import NEWEST, Span, data_cells, points, removal
from tsd.store import Family, Put, Row, Table
from tsd.store.memory import MemoryStore
from tsd.tables.opentsdb.delete import BUSY_MS, RowRemoval, remove_parts

TABLE = "tsdb"
edges = st.one_of(st.sampled_from([-1, 0, 1, 1000, 2000, 5000, 3_600_000]), st.integers(0, 3_600_001))
spans = st.builds(Span, edges, edges)


def seen(row: list[StoredCell]) -> list[Point]:
    """What a reader finds, flags of no account: mended ones may differ."""
    return points(KEY, row, NEWEST)


@pytest.mark.difference("scan-delete")
@given(with_appends, spans)
def test_removal_takes_exactly_the_points_of_the_span(row: list[StoredCell], span: Span) -> None:
    before = seen(row)
    assert seen(trio.run(removed, row, span)) == [point for point in before if point.offset_ms not in span]
    assert list(removal(KEY, row, span).points) == [p.offset_ms for p in before if p.offset_ms in span]


@given(with_appends, spans)
def test_spare_cells_keep_the_remaining_points(row: list[StoredCell], span: Span) -> None:
    done = removal(KEY, row, span)
    if not span.whole:
        spare = [StoredCell(*point, 0) for point in done.spare]
        assert seen(spare) == [point for point in seen(row) if point.offset_ms not in span]


@given(with_appends, spans)
def test_repeated_removal_changes_nothing(row: list[StoredCell], span: Span) -> None:
    once = trio.run(removed, row, span)
    assert not removal(KEY, once, span).changes


async def removed(row: list[StoredCell], span: Span) -> list[StoredCell]:
    """The row in a store, after the removal."""
    store = MemoryStore(lambda: 100)
    await store.create_tables([Table(TABLE, (Family(b"t"),))])
    for cell in row:
        await store.put(TABLE, [Put(KEY, COLUMN + cell.qualifier, cell.value)], time_ms=cell.time_ms)
    for cells in (await store.get(TABLE, [KEY])).values():
        part = RowRemoval(Row(KEY, cells), removal(KEY, row, span))
        assert not await remove_parts(store, TABLE, [part], read_ms=BUSY_MS + 50)
    return data_cells((await store.get(TABLE, [KEY])).get(KEY, []))
