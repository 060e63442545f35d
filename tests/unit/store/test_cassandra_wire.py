"""Values in the bodies of Cassandra's messages."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tsd.errors import CorruptRow
from tsd.store import CellPage
from tsd.store.cassandra.cells import encode_stamp, rows_of, take_cells
from tsd.store.cassandra.wire import HAS_WIRE_LOOP, RawRows, encode_value, find_values, values_at

pytest.importorskip("cassandra")
from cassandra import ConsistencyLevel
from cassandra.protocol import BatchMessage, ProtocolHandler
from cassandra.query import BatchType

from tsd.store.cassandra.protocol import EncodedRows, Handler

Row = list[bytes]
NULL = b"\xff\xff\xff\xff"


@given(
    st.integers(1, 4).flatmap(
        lambda width: st.lists(st.lists(st.binary(max_size=9), min_size=width, max_size=width), max_size=8)
    )
)
def test_values_of_any_length_are_found(rows: list[Row]) -> None:
    width = len(rows[0]) if rows else 2
    body = b"".join(encode_value(value) for row in rows for value in row)
    places = find_values(RawRows(len(rows), body), width)
    uncompiled = find_values(RawRows(len(rows), body), width, compiled=False)
    assert [part.tolist() for part in places] == [part.tolist() for part in uncompiled]
    found = [values_at(body, *row) for row in zip(places.starts.tolist(), places.lengths.tolist(), strict=True)]
    assert found == rows


def test_null_has_a_negative_length() -> None:
    body = encode_value(b"a") + NULL + encode_value(b"b") + NULL
    assert find_values(RawRows(2, body), 2).lengths.tolist() == [[1, -1], [1, -1]]


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("cut", [1, 3, 5, 7])
def test_body_that_ends_early_is_an_error(cut: int, compiled: bool) -> None:
    body = encode_value(b"abc") * 2
    with pytest.raises(CorruptRow):
        find_values(RawRows(2, body[:-cut]), 1, compiled=compiled and HAS_WIRE_LOOP)


@given(
    st.lists(
        st.tuples(
            st.sampled_from([b"", b"a", b"ab"]),
            st.sampled_from([b"t:", b"t:x"]),
            st.binary(max_size=5),
            st.integers(-(2**63), 2**63 - 1),
        )
    )
)
def test_cells_of_an_answer_join_the_cells_before(cells: list[tuple[bytes, bytes, bytes, int]]) -> None:
    body = b"".join(b"".join(map(encode_value, cell[:3])) + encode_stamp(cell[3]) for cell in cells)
    pages = []
    for compiled in {True, False} & {HAS_WIRE_LOOP, False}:
        page = CellPage([b"before"], [b"t:"], [b"v"], 0, [7], None)
        assert take_cells(b"part", RawRows(len(cells), body), page, compiled=compiled) == sum(
            len(one[2]) for one in cells
        )
        pages.append(page)
    wanted = [(b"part" + key, column, value, stamp // 1000) for key, column, value, stamp in cells]
    for page in pages:
        found = list(zip(page.keys, page.columns, page.values, page.times_ms, strict=True))
        assert found == [(b"before", b"t:", b"v", 7), *wanted]
    rows = rows_of(b"part", RawRows(len(cells), body))
    assert [(row.key, *cell) for row in rows for cell in row.cells] == wanted
    assert all(one.key != other.key for one, other in pairwise(rows))


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("cut", [1, 9, 12, 15])
def test_cells_that_end_early_are_an_error(cut: int, compiled: bool) -> None:
    body = encode_value(b"key") + encode_value(b"t:") + encode_value(b"v") + encode_stamp(1)
    with pytest.raises(CorruptRow):
        take_cells(b"", RawRows(1, body[:-cut]), CellPage([], [], [], 0, [], None), compiled=compiled and HAS_WIRE_LOOP)


@pytest.mark.skipif(not HAS_WIRE_LOOP, reason="needs the compiled loop")
@pytest.mark.parametrize("place", range(4))
def test_null_in_a_cell_is_an_error(place: int) -> None:
    parts = [encode_value(b"key"), encode_value(b"t:"), encode_value(b"v"), encode_stamp(1)]
    parts[place] = NULL
    with pytest.raises(CorruptRow):
        take_cells(b"", RawRows(1, b"".join(parts)), CellPage([], [], [], 0, [], None))


def test_encoded_batch_has_the_bytes_of_the_drivers_own() -> None:
    rows = [[b"key", b"column", b""], [b"k" * 300, b"c", b"value"]]
    options = (ConsistencyLevel.QUORUM, ConsistencyLevel.SERIAL, 5)
    own = BatchMessage(BatchType.UNLOGGED, [(True, b"id", row) for row in rows], *options)
    encoded = EncodedRows(b"id", 3, [b"".join(map(encode_value, row)) for row in rows])
    ours = BatchMessage(BatchType.UNLOGGED, encoded, *options)
    sent = [
        handler.encode_message(batch, 7, 4, compressor=None, allow_beta_protocol_version=False)
        for handler, batch in ((ProtocolHandler, own), (Handler, ours))
    ]
    assert sent[0] == sent[1]
