"""The compiled loops, which a full run must not do without."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.peers.needs import LOOPS, need_compiled_loops
from tsd.codec.putline import NameRules
from tsd.ingest.open_window import OpenWindow
from tsd.ingest.series import SeriesTable
from tsd.store.rocksdb.keys import row_prefix, split_cells
from tsd.tables.opentsdb.decode import read_cells
from tsd.tables.writing import SeriesKey, SeriesText

SETUP = Path(__file__).parents[2] / "setup.py"


def test_full_run_needs_every_compiled_module() -> None:
    sources = (SETUP.parent / "tsd").rglob("*.pyx")
    names = sorted(".".join(source.relative_to(SETUP.parent).with_suffix("").parts) for source in sources)
    assert names == sorted(LOOPS)


@pytest.mark.slow
def test_missing_modules_are_reported_in_one_line(tmp_path: Path) -> None:
    shutil.copy(SETUP, tmp_path)
    for name in LOOPS:
        source = tmp_path / f"{name.replace('.', '/')}.pyx"
        source.parent.mkdir(parents=True, exist_ok=True)
        source.write_text("")
    words = [sys.executable, "setup.py", "build_ext", "--build-lib", "built"]
    done = subprocess.run(words, cwd=tmp_path, env=os.environ | {"CC": "/bin/false"}, capture_output=True, text=True)
    warnings = [line for line in done.stderr.splitlines() if line.startswith("tsd: ")]
    assert (done.returncode, len(warnings)) == (0, 1), done.stderr
    count = len(LOOPS) + 1  # with the module that they share
    assert warnings[0].startswith(f"tsd: {count} of {count} compiled loops are left out (")
    assert "warning: building" not in done.stderr


def test_compiled_loops_are_built_and_read_a_cell() -> None:
    need_compiled_loops()
    keys: list[bytes] = []
    columns: list[bytes] = []
    values: list[bytes] = []
    split_cells([(row_prefix(b"\0k") + b"t:\0\x10", b"*")], keys, columns, values, compiled=True)
    assert (keys, columns, values) == ([b"\0k"], [b"t:\0\x10"], [b"*"])
    read = read_cells(columns, values, 0, np.zeros(1, np.int64), np.array([5000]), np.zeros(1, np.bool_))
    assert (read.times.tolist(), read.bits.tolist(), read.floats.tolist()) == ([6000], [42], [False])
    open_window = OpenWindow(SeriesTable(compiled=True), NameRules())
    open_window.table.insert(SeriesText(b"m", b"a=1"), SeriesKey(b"m", b"a1"))
    assert open_window.absorb(b"put m 1 2.5 a=1\n", {}).accepted == 1
    assert (open_window.slow_lines, [column.tolist() for column in open_window.take()]) == (
        0,
        [[0], [2000], [11], [0x40200000]],
    )
