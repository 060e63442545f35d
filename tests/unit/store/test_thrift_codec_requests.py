"""Requests as thriftpy2 writes them, byte for byte."""

import Hbase_thrift as api  # made by happybase when it is imported
import pytest
from hypothesis import given
from hypothesis import strategies as st
from thriftpy2.protocol import TBinaryProtocol
from thriftpy2.thrift import TMessageType
from thriftpy2.transport import TMemoryBuffer

from tsd.codec.opentsdb.rowkey import LONGEST_HBASE_KEY
from tsd.errors import StoreError
from tsd.store import Put
from tsd.store.hbase import connection as thrift
from tsd.store.hbase.thrift_codec import CREATE, HAS_ENCODE_LOOP, create_requests, put_call, put_request

needs_loop = pytest.mark.skipif(not HAS_ENCODE_LOOP, reason="nothing is compiled here: thriftpy2 writes puts")

ROWS = st.binary(min_size=1, max_size=40)
COLUMNS = st.binary(max_size=12).map(lambda name: b"t:" + name)
CELLS = st.lists(st.tuples(ROWS, st.lists(st.tuples(COLUMNS, st.binary(max_size=300)), min_size=1, max_size=4))).map(
    lambda rows: [Put(row, column, value) for row, cells in rows for column, value in cells]
)
TIMES = st.none() | st.integers(-(2**63), 2**63 - 1)


def written(call: str, number: int, **arguments: object) -> bytes:
    buffer = TMemoryBuffer()
    protocol = TBinaryProtocol(buffer, decode_response=False)
    protocol.write_message_begin(call, TMessageType.CALL, number)
    getattr(api.Hbase, call + "_args")(**arguments).write(protocol)
    protocol.write_message_end()
    return bytes(buffer.getvalue())


def put_as_library(number: int, table: str, cells: list[Put], time_ms: int | None) -> bytes:
    batches: list[api.BatchMutation] = []
    for row, column, value in cells:
        if not batches or batches[-1].row != row:
            batches.append(api.BatchMutation(row, []))
        batches[-1].mutations.append(api.Mutation(False, column, value))
    timed = {} if time_ms is None else {"timestamp": time_ms}
    named = {"tableName": table.encode(), "rowBatches": batches, "attributes": {}}
    return written(put_call(time_ms), number, **named, **timed)


@needs_loop
@given(st.integers(0, 2**31 - 1), st.text(max_size=12), CELLS, TIMES)
def test_puts_are_encoded(number: int, table: str, cells: list[Put], time_ms: int | None) -> None:
    expected = put_as_library(number, table, cells, time_ms)
    assert put_request(number, table, cells, time_ms) == expected
    assert put_request(number, table, tuple(cells), time_ms) == expected


@needs_loop
def test_large_value_and_repeated_row_are_encoded() -> None:
    cells = [Put(b"a", b"t:1", bytes(1 << 20)), Put(b"b", b"t:", b""), Put(b"a", b"t:2", b"*"), Put(b"a", b"t:3", b"*")]
    assert put_request(1, "tsdb", cells, None) == put_as_library(1, "tsdb", cells, None)


@given(st.integers(0, 2**31 - 9), st.text(max_size=12), CELLS.map(lambda cells: cells[:8]))
def test_creates_are_encoded(number: int, table: str, cells: list[Put]) -> None:
    numbers = range(number, number + len(cells))
    one_by_one = [
        written(
            CREATE,
            each,
            tableName=table.encode(),
            row=cell.row,
            column=cell.column,
            mput=api.Mutation(False, cell.column, cell.value),
            attributes={},
        )
        for each, cell in zip(numbers, cells, strict=True)
    ]
    assert create_requests(numbers, table, cells) == one_by_one


@pytest.mark.parametrize(
    ("cell", "got"),
    [
        (Put(b"", b"t:", b"v"), r"\b0\b"),
        (Put(bytes(LONGEST_HBASE_KEY + 1), b"t:", b"v"), r"\b32768\b"),
        (Put(b"r", b"t", b"v"), b"t".hex()),
    ],
    ids=["no row", "a long row", "no family"],
)
def test_cells_that_hbase_refuses_are_refused(cell: Put, got: str) -> None:
    fine = Put(bytes(LONGEST_HBASE_KEY), b"t:", b"")
    with pytest.raises(StoreError, match=got):
        create_requests([1, 2], "tsdb", [fine, cell])
    if HAS_ENCODE_LOOP:
        with pytest.raises(StoreError, match=got):
            put_request(1, "tsdb", [fine, cell], None)


@needs_loop
@pytest.mark.parametrize("cell", [(b"r", b"t:"), [b"r", b"t:", b"v"], (b"r", None, b"v"), (b"r", b"t:", "v")], ids=repr)
def test_non_cell_is_refused(cell: object) -> None:
    with pytest.raises(TypeError):
        put_request(1, "tsdb", [cell], None)  # type: ignore[list-item]


assert thrift  # it imports happybase, which makes Hbase_thrift
