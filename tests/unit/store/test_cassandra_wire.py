"""Values in the bodies of Cassandra's messages."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tsd.errors import CorruptRow
from tsd.store import CellPage, Put
from tsd.store.cassandra.cells import encode_stamp, put_batches, rows_of, take_cells
from tsd.store.cassandra.keys import Prefixes, Shape
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


@pytest.mark.skipif(not HAS_WIRE_LOOP, reason="needs the compiled loop")
def test_batches_hold_each_put_once_in_whole_rows() -> None:
    shape = Shape("t", (b"t", b"u"), Prefixes(0, 2))
    cells = [
        Put(b"%c%c%d" % (part, 255 - part, row), b"t:" + column.to_bytes(2, "big"), b"v" * (column % 7))
        for part in range(3)
        for row in range(5)
        for column in range(row * 130)
    ]
    cells.append(Put(b"k", b"u:", b""))  # shorter than a partition's bytes
    batches = put_batches(shape, cells, 99)
    assert batches is not None
    assert sorted(batches) == sorted({shape.partition(cell.row) for cell in cells})
    found = []
    for partition, some in batches.items():
        rows_of_batches = []
        for batch in some:
            places = find_values(RawRows(len(batch), b"".join(batch)), 5)
            joined = b"".join(batch)
            columns = [
                values_at(joined, places.starts[:, at].tolist(), places.lengths[:, at].tolist()) for at in range(5)
            ]
            stamps, values, parts, keys, names = columns
            assert set(stamps) == {(99).to_bytes(8, "big")}
            assert set(parts) == {partition}
            assert len(batch) <= 520
            rows_of_batches.append(set(keys))
            found += [Put(partition + key, name, value) for key, name, value in zip(keys, names, values, strict=True)]
        assert sum(map(len, rows_of_batches)) == len(set[bytes]().union(*rows_of_batches))
    assert sorted(found) == sorted(cells)


@pytest.mark.skipif(not HAS_WIRE_LOOP, reason="needs the compiled loop")
@pytest.mark.parametrize(
    "cells",
    [
        [Put(b"", b"t:", b"")],
        [Put(b"r", b"x:", b"")],
        [Put(b"r", b"t", b"")],
        [Put(b"r", b"t:b", b""), Put(b"r", b"t:a", b"")],
        [Put(b"r", b"t:a", b""), Put(b"r", b"t:a", b"")],
        [Put(b"r", b"t:a", b""), Put(b"s", b"t:a", b""), Put(b"r", b"t:b", b"")],
        [Put(bytes(1 << 16), b"t:", b"")],
    ],
)
def test_unusual_puts_are_left_to_the_general_code(cells: list[Put]) -> None:
    assert put_batches(Shape("t", (b"t",), Prefixes(0, 2)), cells, 99) is None
