"""Answers to scannerGetList as thriftpy2 writes them, in one piece and in many."""

import Hbase_thrift as api  # made by happybase when it is imported
import pytest
from hypothesis import given
from hypothesis import strategies as st
from thriftpy2.thrift import TApplicationException, TMessageType

from tests.unit.store.thrift_results import NAME, encoded, pieces, written
from tsd.store.cells import HAS_CELL_LOOP
from tsd.store.hbase.pool import NoAnswer
from tsd.store.hbase.thrift_codec import OtherAnswer, RawCells, RowReader

pytestmark = pytest.mark.skipif(not HAS_CELL_LOOP, reason="no C compiler when tsd was installed")


ROWS = [
    (b"\0\0\1row", {b"t:\0\x10": (b"*", 1356998400000)}),
    (b"\0\0\2", {b"t:a": (b"", 0), b"t:b": (bytes(70_000), 1)}),
    (b"\0\0\3", {b"t:": (b"\0\1\2", -1)}),
]


def expected(rows: list[tuple[bytes, dict[bytes, tuple[bytes, int]]]]) -> RawCells:
    flat = [(key, column, value, time) for key, cells in rows for column, (value, time) in cells.items()]
    return RawCells(*([cell[at] for cell in flat] for at in range(4)), len(rows))  # type: ignore[arg-type,call-arg]


@pytest.mark.parametrize("size", [1 << 20, 4096, 777, 1], ids=str)
def test_rows_are_read_from_pieces_of_any_size(size: int) -> None:
    rows = [(key, {c: (v[:50], t) for c, (v, t) in cells.items()}) for key, cells in ROWS] if size == 1 else ROWS
    assert RowReader(pieces(encoded(rows), size)).read(NAME.encode(), 7) == expected(rows)


def framed(message: bytes) -> bytes:
    return len(message).to_bytes(4, "big") + message


@pytest.mark.parametrize("size", [1 << 20, 777], ids=str)
def test_frames_are_read_from_pieces_of_any_size(size: int) -> None:
    reader = RowReader(pieces(framed(encoded(ROWS)), size), framed=True)
    assert reader.read(NAME.encode(), 7) == expected(ROWS)


@pytest.mark.parametrize("is_framed", [False, True], ids=["no frames", "frames"])
def test_consecutive_answers_are_read(is_framed: bool) -> None:
    answers = [ROWS, [], ROWS[:1]]
    messages = [encoded(rows, number) for number, rows in enumerate(answers)]
    parts = iter(map(framed, messages) if is_framed else messages)
    reader = RowReader(lambda room: _whole(room, next(parts)), framed=is_framed)
    for number, rows in enumerate(answers):
        assert reader.read(NAME.encode(), number) == expected(rows)


def _whole(room: memoryview, data: bytes) -> int:
    room[: len(data)] = data
    return len(data)


def test_large_answer_grows_the_buffer() -> None:
    rows = [(b"%d" % at, {b"t:q": (bytes(300_000), at)}) for at in range(9)]
    assert RowReader(pieces(encoded(rows), 1 << 20)).read(NAME.encode(), 7) == expected(rows)


@pytest.mark.parametrize(
    "data",
    [
        written(api.Hbase.scannerGetList_result(io=api.IOError(message=b"busy")), TMessageType.REPLY, 7),
        written(TApplicationException(1, "no"), TMessageType.EXCEPTION, 7),
        encoded(ROWS, 8),
        encoded(ROWS).replace(NAME.encode(), b"scannerGetLisT"),
    ],
    ids=["refusal", "exception", "another number", "another name"],
)
def test_other_answer_is_returned_with_its_bytes(data: bytes) -> None:
    with pytest.raises(OtherAnswer) as caught:
        RowReader(pieces(data, 1 << 20)).read(NAME.encode(), 7)
    assert data.startswith(caught.value.received)
    with pytest.raises(OtherAnswer) as caught:
        RowReader(pieces(framed(data), 1 << 20), framed=True).read(NAME.encode(), 7)
    assert framed(data).startswith(caught.value.received)


@pytest.mark.parametrize(
    "data",
    [encoded(ROWS[:1]).replace(b"\x0a\0\2", b"\x0b\0\2"), encoded(ROWS[:1]) + b"more"],
    ids=["another type", "more than it"],
)
def test_invalid_rows_raise_no_answer(data: bytes) -> None:
    with pytest.raises(NoAnswer, match=rf"\b{len(data)}\b"):
        RowReader(pieces(data, 1 << 20)).read(NAME.encode(), 7)


@pytest.mark.parametrize("length", [0, 1, 2**31])
def test_frames_of_another_length_raise_no_answer(length: int) -> None:
    data = encoded(ROWS[:1])
    with pytest.raises(NoAnswer):
        RowReader(pieces(length.to_bytes(4, "big") + data, 1 << 20), framed=True).read(NAME.encode(), 7)


def test_truncated_answer_raises_eof() -> None:
    data = encoded(ROWS)
    for end in (0, 10, 40, len(data) - 1):
        with pytest.raises(EOFError):
            RowReader(pieces(data[:end], 1 << 20)).read(NAME.encode(), 7)


@given(st.binary(max_size=80), st.integers(0, 120))
def test_any_bytes_are_rows_or_refused(tail: bytes, cut: int) -> None:
    data = encoded([(b"k", {b"t:q": (b"v", 5)})])
    try:
        cells = RowReader(pieces(data[: min(cut, len(data))] + tail, 64)).read(NAME.encode(), 7)
    except (OtherAnswer, NoAnswer, EOFError):
        return
    assert len({len(column) for column in cells[:4]}) == 1
    assert set(map(type, cells.keys + cells.columns + cells.values)) <= {bytes}
