"""Random calls of a store: what `test_stores` does with every engine.

Row keys are prefixes of each other, full of 00, 01 and ff; timestamps go back and forth, pages are small.
"""

import sys
from typing import NamedTuple

import numpy as np
from hypothesis import strategies as st

from tsd.store import CellMatrix, Put, Rewrite

AHEAD_MS = 9 * 10**15  # later than the clock of the store


class Write(NamedTuple):
    cells: list[Put]
    time_ms: int | None


class Delete(NamedTuple):
    columns: dict[bytes, set[bytes]]
    up_to_ms: int | None


class Get(NamedTuple):
    rows: list[bytes]
    columns: set[bytes] | None


class Walk(NamedTuple):
    start: bytes
    stop: bytes | None
    limit: int
    columns: set[bytes] | None


class CheckAndPut(NamedTuple):
    cell: Put
    expected: bytes | None


class Create(NamedTuple):
    cells: list[Put]


class Increment(NamedTuple):
    row: bytes
    by: int


class Wait(NamedTuple):
    ms: int


class Fold(NamedTuple):
    """Move cells to blocks, where the engine has them: no answer may change."""

    prefix: bytes


class PutNew(NamedTuple):
    """Put cells of 8 bytes, which the embedded store may keep in runs."""

    cells: list[Put]

    @property
    def matrix(self) -> CellMatrix:
        rows, columns = sorted({cell.row for cell in self.cells}), sorted({cell.column for cell in self.cells})
        shape = len(rows), len(columns)
        made = CellMatrix(rows, columns, np.zeros(shape, np.uint64), np.zeros(shape, np.bool_))
        for cell in self.cells:
            at = rows.index(cell.row), columns.index(cell.column)
            made.values[at], made.present[at] = int.from_bytes(cell.value, sys.byteorder), True
        return made


class DeleteRange(NamedTuple):
    """Delete whole rows but for some cells, where the engine has deletes of ranges."""

    start: bytes
    stop: bytes
    cells: list[Put]

    @property
    def keep(self) -> list[Put]:
        return [cell for cell in self.cells if self.start <= cell.row < self.stop]


class Replace(NamedTuple):
    """Write some cells of rows and delete others, where the engine has atomic rewrites."""

    cells: list[Put]
    time_ms: int
    deletes: list[tuple[bytes, int]]
    kept: list[tuple[bytes, int]]

    @property
    def changes(self) -> list[Rewrite]:
        found = []
        for row in sorted({cell.row for cell in self.cells}):
            puts = [*{cell.column: cell for cell in self.cells if cell.row == row}.values()]
            changed = {put.column for put in puts}
            deletes = [one for one in self.deletes if one[0] not in changed]
            changed |= {column for column, _ in deletes}
            kept = [one for one in self.kept if one[0] not in changed]
            found.append(Rewrite(row, puts, self.time_ms, deletes, kept))
        return found


class Reopen(NamedTuple):
    pass


Call = (
    Write
    | Delete
    | Get
    | Walk
    | CheckAndPut
    | Create
    | Increment
    | Wait
    | Fold
    | PutNew
    | DeleteRange
    | Replace
    | Reopen
)

COUNTER = b"u:n"
rows = st.lists(st.sampled_from([b"\0", b"\1", b"a", b"\xff"]), min_size=1, max_size=3).map(b"".join)
# Long ones the embedded store keeps in another way; two start alike, and some hold the points that their values have.
LONG = [
    b"t:" + bytes(low for at in range(20) for low in (0, at * 16 % 256)),
    b"t:" + bytes(40),
    b"t:" + bytes(39) + b"\20",
]
# Cells of points, which blocks can have: columns and values that belong together.
FOLDABLE = [
    (b"t:\0\0", b"\7"),
    (b"t:\0\0", b"\7\0"),  # not a point's
    (b"t:\0\x10", b"\1"),
    (b"t:\0\0\0\x10", b"\1\2\0"),
    (b"t:\0\0\0\x1b", b"\1" + bytes.fromhex("3f800000") + b"\0"),
    (b"t:\xf0\0\0\x40", b"\1"),
    (b"t:" + b"".join((at << 4).to_bytes(2, "big") for at in range(20)), bytes(range(20)) + b"\0"),
]
columns = st.sampled_from(
    [
        b"t:",
        b"t:\0",
        b"t::",
        b"t:a",
        b"t:a:b",
        b"t:\0\0\0\0a",
        b"t:\xff",
        b"u:a",
        b"u:\0\xff\1",
        b"t:" + b"\xff" * 13,
        *LONG,
        *(column for column, _ in FOLDABLE),
    ]
)
values = st.sampled_from([b"", b"\0", b"v", b"\xff" * 9, bytes(8), bytes(21), bytes(range(20)) + b"\0"])
foldable = st.builds(lambda row, cell: Put(row, *cell), rows, st.sampled_from(FOLDABLE))
of_runs = st.builds(
    Put,
    st.sampled_from([b"\0", b"\0\1", b"\0\1a", b"\0\xff"]),
    st.sampled_from([b"t:", b"t:\0", b"t:a", b"u:n"]),
    st.sampled_from([bytes(8), bytes(range(8))]),
)
cells = foldable | of_runs | st.builds(Put, rows, columns, values)
times = st.none() | st.integers(1, 9)
named = st.none() | st.sets(columns, min_size=1)
calls: st.SearchStrategy[Call] = st.one_of(
    st.builds(Write, st.lists(cells, max_size=8).map(sorted), times | st.just(AHEAD_MS)),
    st.builds(Delete, st.dictionaries(rows, st.sets(columns, min_size=1), max_size=5), times),
    st.builds(Get, st.lists(rows, max_size=5), named),
    st.builds(Walk, rows | st.just(b""), st.none() | rows, st.integers(1, 4), named),
    st.builds(CheckAndPut, cells, st.none() | values),
    st.builds(Create, st.lists(cells, max_size=4, unique_by=lambda cell: cell.row)),
    st.builds(Increment, rows, st.sampled_from([1, 0, -3, 2**62])),
    st.builds(Wait, st.integers(0, 2000)),
    st.builds(Fold, st.sampled_from([b"\0", b"a"])),
    st.builds(PutNew, st.lists(of_runs, min_size=1, max_size=9, unique_by=lambda cell: (cell.row, cell.column))),
    st.builds(DeleteRange, rows, rows, st.lists(cells, max_size=2).map(sorted)),
    st.builds(
        Replace,
        st.lists(cells, max_size=6).map(sorted),
        st.integers(1, 9),
        st.lists(st.tuples(columns, st.integers(1, 9)), max_size=4, unique_by=lambda one: one[0]),
        st.lists(st.tuples(columns, st.integers(1, 9)), max_size=1),
    ),
    st.just(Reopen()),
)
programs = st.lists(calls, max_size=30)
