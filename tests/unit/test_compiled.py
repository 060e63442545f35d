"""The compiled loops, which a full run must not do without."""

import numpy as np

from tests.peers.needs import need_compiled_loops
from tsd.query.compiled import read_cells
from tsd.store.keyvalue import row_head, split_cells


def test_the_compiled_loops_are_built_and_read_a_cell() -> None:
    need_compiled_loops()
    keys: list[bytes] = []
    columns: list[bytes] = []
    values: list[bytes] = []
    split_cells([(row_head(b"\0k") + b"t:\0\x10", b"*")], keys, columns, values, by_loop=True)
    assert (keys, columns, values) == ([b"\0k"], [b"t:\0\x10"], [b"*"])
    read = read_cells(columns, values, 2, 0, np.zeros(1, np.int64), np.array([5000]), np.zeros(1, np.bool_))
    assert (read.times.tolist(), read.bits.tolist(), read.floats.tolist()) == ([6000], [42], [False])
