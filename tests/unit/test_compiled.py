"""The compiled loops, which a full run must not do without."""

import re
from pathlib import Path

import numpy as np

from tests.peers.needs import LOOPS, need_compiled_loops
from tsd.codec.putline import NameRules
from tsd.ingest.rows import OpenRows
from tsd.ingest.series import KeyParts, SeriesTable, SeriesText
from tsd.query.compiled import read_cells
from tsd.store.keyvalue import row_head, split_cells


def test_none_is_left_out_of_what_a_full_run_needs() -> None:
    setup = Path(__file__).parents[2] / "setup.py"
    assert re.findall(r'Extension\("([\w.]+)"', setup.read_text()) == sorted(LOOPS)


def test_the_compiled_loops_are_built_and_read_a_cell() -> None:
    need_compiled_loops()
    keys: list[bytes] = []
    columns: list[bytes] = []
    values: list[bytes] = []
    split_cells([(row_head(b"\0k") + b"t:\0\x10", b"*")], keys, columns, values, by_loop=True)
    assert (keys, columns, values) == ([b"\0k"], [b"t:\0\x10"], [b"*"])
    read = read_cells(columns, values, 2, 0, np.zeros(1, np.int64), np.array([5000]), np.zeros(1, np.bool_))
    assert (read.times.tolist(), read.bits.tolist(), read.floats.tolist()) == ([6000], [42], [False])
    rows = OpenRows(SeriesTable(by_loop=True), NameRules())
    rows.table.enter(SeriesText(b"m", b"a=1"), KeyParts(b"m", b"a1"))
    assert rows.absorb(b"put m 1 2.5 a=1\n", {}).accepted == 1
    assert (rows.judged, [column.tolist() for column in rows.take()]) == (0, [[0], [2000], [11], [0x40200000]])
