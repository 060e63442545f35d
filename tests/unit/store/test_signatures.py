"""What is signed: each group of rows, whatever the parts and the order its cells come in; any other cell shows."""

import numpy as np
import pytest

from tests.unit.store.test_rowanswers import NAME, encoded, pieces
from tsd.store import Cell, Row
from tsd.store.changes import Signing
from tsd.store.gateways import NoAnswer
from tsd.store.keyvalue import HAS_LOOP
from tsd.store.rowanswers import RowAnswers

ROWS = [
    Row(b"m1-row", [Cell(b"t:a", b"12", 5), Cell(b"t:ab", b"", 6)]),
    Row(b"m1-rowb", [Cell(b"t:12345678", b"1234", 1356998400000)]),
    Row(b"m2", [Cell(b"t:\xf0", b"123", 7), Cell(b"t:\x01", b"1", 7)]),
]
WAYS = [True, False] if HAS_LOOP else [False]
OTHERS = [
    Row(b"m1-row", [Cell(b"t:a", b"12", 5)]),
    Row(b"m1-row", [Cell(b"t:a", b"123", 5), Cell(b"t:ab", b"", 6)]),
    Row(b"m1-row", [Cell(b"t:a", b"12", 6), Cell(b"t:ab", b"", 6)]),
    Row(b"m1-row", [Cell(b"t:a", b"12", 5), Cell(b"t:ac", b"", 6)]),
    Row(b"m1-row", [Cell(b"t:a", b"12", 5), Cell(b"t:ab", b"", 6), Cell(b"t:b", b"", 6)]),
    Row(b"m1-ro", [Cell(b"wt:a", b"12", 5), Cell(b"t:ab", b"", 6)]),
    Row(b"m1-rox", [Cell(b"t:a", b"12", 5), Cell(b"t:ab", b"", 6)]),
]


def signed(parts: list[list[Row]], *, by_loop: bool) -> dict[bytes, bytes]:
    signing = Signing(2, by_loop=by_loop)
    for rows in parts:
        cells = [(row.key, cell) for row in rows for cell in row.cells]
        lengths = np.array([len(cell.value) for _, cell in cells], np.int64)
        signing.add([k for k, _ in cells], [c.column for _, c in cells], lengths, [c.time_ms for _, c in cells])
    return signing.finish()


def as_lengths(rows: list[Row]) -> list[tuple[bytes, dict[bytes, tuple[bytes, int]]]]:
    return [(row.key, {c.column: (len(c.value).to_bytes(4, "big"), c.time_ms) for c in row.cells}) for row in rows]


@pytest.mark.parametrize("by_loop", WAYS)
def test_groups_are_signed_alike_whatever_the_parts_and_the_order(by_loop: bool) -> None:
    whole = signed([ROWS], by_loop=by_loop)
    assert sorted(whole) == [b"m1", b"m2"]
    assert signed([[row] for row in ROWS], by_loop=by_loop) == whole
    assert signed([[row._replace(cells=row.cells[::-1]) for row in ROWS]], by_loop=by_loop) == whole


@pytest.mark.parametrize("by_loop", WAYS)
@pytest.mark.parametrize("other", OTHERS, ids=range(len(OTHERS)))
def test_whatever_is_other_shows(other: Row, by_loop: bool) -> None:
    whole, changed = signed([ROWS], by_loop=by_loop), signed([[other, *ROWS[1:]]], by_loop=by_loop)
    assert changed[b"m1"] != whole[b"m1"]
    assert changed[b"m2"] == whole[b"m2"]


@pytest.mark.skipif(not HAS_LOOP, reason="no C compiler when tsd was installed")
@pytest.mark.parametrize("size", [1 << 20, 50, 1], ids=str)
def test_a_gateways_answer_is_signed_as_its_cells_are(size: int) -> None:
    signing = Signing(2)
    answers = RowAnswers(pieces(encoded(as_lengths(ROWS)), size))
    assert answers.sign(NAME.encode(), 7, signing, b"") == (3, b"m2")
    assert signing.finish() == signed([ROWS], by_loop=True)


@pytest.mark.skipif(not HAS_LOOP, reason="no C compiler when tsd was installed")
@pytest.mark.parametrize("rows", [[ROWS[1], ROWS[0]], [ROWS[0], ROWS[0]]], ids=["not in order", "twice"])
def test_rows_that_do_not_ascend_are_no_answer(rows: list[Row]) -> None:
    with pytest.raises(NoAnswer):
        RowAnswers(pieces(encoded(as_lengths(rows)), 1 << 20)).sign(NAME.encode(), 7, Signing(2), b"")
    values = [(row.key, {c.column: (c.value, c.time_ms) for c in row.cells}) for row in ROWS]
    with pytest.raises(NoAnswer):
        RowAnswers(pieces(encoded(values), 1 << 20)).sign(NAME.encode(), 7, Signing(2), b"")
    with pytest.raises(NoAnswer):
        RowAnswers(pieces(encoded(as_lengths(ROWS)), 1 << 20)).sign(NAME.encode(), 7, Signing(2), b"m1-row")
