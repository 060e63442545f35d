"""Cell signatures do not depend on order or parts, and change with any cell."""

import numpy as np
import pytest

from tests.unit.store.thrift_results import NAME, encoded, pieces
from tsd.store import Cell, Row
from tsd.store.cells import HAS_CELL_LOOP, CellSigner
from tsd.store.hbase.pool import NoAnswer
from tsd.store.hbase.thrift_codec import RowReader

ROWS = [
    Row(b"m1-row", [Cell(b"t:a", b"12", 5), Cell(b"t:ab", b"", 6)]),
    Row(b"m1-rowb", [Cell(b"t:12345678", b"1234", 1356998400000)]),
    Row(b"m2", [Cell(b"t:\xf0", b"123", 7), Cell(b"t:\x01", b"1", 7)]),
]
pytestmark = pytest.mark.skipif(not HAS_CELL_LOOP, reason="no C compiler when tsd was installed")
OTHERS = [
    Row(b"m1-row", [Cell(b"t:a", b"12", 5)]),
    Row(b"m1-row", [Cell(b"t:a", b"123", 5), Cell(b"t:ab", b"", 6)]),
    Row(b"m1-row", [Cell(b"t:a", b"12", 6), Cell(b"t:ab", b"", 6)]),
    Row(b"m1-row", [Cell(b"t:a", b"12", 5), Cell(b"t:ac", b"", 6)]),
    Row(b"m1-row", [Cell(b"t:a", b"12", 5), Cell(b"t:ab", b"", 6), Cell(b"t:b", b"", 6)]),
    Row(b"m1-ro", [Cell(b"wt:a", b"12", 5), Cell(b"t:ab", b"", 6)]),
    Row(b"m1-rox", [Cell(b"t:a", b"12", 5), Cell(b"t:ab", b"", 6)]),
]


def signed(parts: list[list[Row]]) -> dict[bytes, bytes]:
    signer = CellSigner(2)
    for rows in parts:
        cells = [(row.key, cell) for row in rows for cell in row.cells]
        lengths = np.array([len(cell.value) for _, cell in cells], np.int64)
        signer.add([k for k, _ in cells], [c.column for _, c in cells], lengths, [c.time_ms for _, c in cells])
    return signer.finish()


def as_lengths(rows: list[Row]) -> list[tuple[bytes, dict[bytes, tuple[bytes, int]]]]:
    return [(row.key, {c.column: (len(c.value).to_bytes(4, "big"), c.time_ms) for c in row.cells}) for row in rows]


def test_signature_ignores_order_and_parts() -> None:
    whole = signed([ROWS])
    assert sorted(whole) == [b"m1", b"m2"]
    assert signed([[row] for row in ROWS]) == whole
    assert signed([[row._replace(cells=row.cells[::-1]) for row in ROWS]]) == whole


@pytest.mark.parametrize("other", OTHERS, ids=range(len(OTHERS)))
def test_signature_changes_with_any_cell(other: Row) -> None:
    whole, changed = signed([ROWS]), signed([[other, *ROWS[1:]]])
    assert changed[b"m1"] != whole[b"m1"]
    assert changed[b"m2"] == whole[b"m2"]


@pytest.mark.parametrize("size", [1 << 20, 50, 1], ids=str)
def test_answer_has_the_signature_of_its_cells(size: int) -> None:
    signer = CellSigner(2)
    answers = RowReader(pieces(encoded(as_lengths(ROWS)), size))
    assert answers.sign(NAME.encode(), 7, signer, b"") == (3, b"m2")
    assert signer.finish() == signed([ROWS])


@pytest.mark.parametrize("rows", [[ROWS[1], ROWS[0]], [ROWS[0], ROWS[0]]], ids=["not in order", "twice"])
def test_unordered_rows_are_refused(rows: list[Row]) -> None:
    with pytest.raises(NoAnswer):
        RowReader(pieces(encoded(as_lengths(rows)), 1 << 20)).sign(NAME.encode(), 7, CellSigner(2), b"")
    values = [(row.key, {c.column: (c.value, c.time_ms) for c in row.cells}) for row in ROWS]
    with pytest.raises(NoAnswer):
        RowReader(pieces(encoded(values), 1 << 20)).sign(NAME.encode(), 7, CellSigner(2), b"")
    with pytest.raises(NoAnswer):
        RowReader(pieces(encoded(as_lengths(ROWS)), 1 << 20)).sign(NAME.encode(), 7, CellSigner(2), b"m1-row")
