"""Laws of taking a span out of a row, on generated rows and for any span."""

import trio
from hypothesis import given
from hypothesis import strategies as st

from tests.property.codec_rows import KEY, with_appends
from tsd.codec.cell import COLUMN, Point
from tsd.codec.merge import StoredCell
from tsd.codec.removal import NEWEST, Span, removal
from tsd.codec.row import data_cells, points
from tsd.query.removal import BUSY_MS, Part, remove_parts
from tsd.store import Family, Put, Row, Table
from tsd.store.memory import MemoryStore

TABLE = "tsdb"
edges = st.one_of(st.sampled_from([-1, 0, 1, 1000, 2000, 5000, 3_600_000]), st.integers(0, 3_600_001))
spans = st.builds(Span, edges, edges)


def seen(row: list[StoredCell]) -> list[Point]:
    """What a reader finds, flags of no account: mended ones may differ."""
    return points(KEY, row, NEWEST)


@given(with_appends, spans)
def test_points_of_the_span_go_and_all_others_stay_as_they_were(row: list[StoredCell], span: Span) -> None:
    before = seen(row)
    assert seen(trio.run(removed, row, span)) == [point for point in before if point.offset_ms not in span]
    assert list(removal(KEY, row, span).points) == [p.offset_ms for p in before if p.offset_ms in span]


@given(with_appends, spans)
def test_what_is_left_may_be_written_as_the_newest(row: list[StoredCell], span: Span) -> None:
    done = removal(KEY, row, span)
    if not span.whole:
        spare = [StoredCell(*point, 0) for point in done.spare]
        assert seen(spare) == [point for point in seen(row) if point.offset_ms not in span]


@given(with_appends, spans)
def test_doing_it_again_changes_nothing(row: list[StoredCell], span: Span) -> None:
    once = trio.run(removed, row, span)
    assert not removal(KEY, once, span).changes


async def removed(row: list[StoredCell], span: Span) -> list[StoredCell]:
    """The row in a store, after the removal."""
    store = MemoryStore(lambda: 100)
    await store.create_tables([Table(TABLE, (Family(b"t"),))])
    for cell in row:
        await store.put(TABLE, [Put(KEY, COLUMN + cell.qualifier, cell.value)], time_ms=cell.time_ms)
    for cells in (await store.get(TABLE, [KEY])).values():
        part = Part(Row(KEY, cells), removal(KEY, row, span))
        assert not await remove_parts(store, TABLE, [part], read_ms=BUSY_MS + 50)
    return data_cells((await store.get(TABLE, [KEY])).get(KEY, []))
