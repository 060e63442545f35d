"""Checkpoint files of long jobs."""

import errno
import json
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tsd.errors import DaemonRuns, TsdError
from tsd.tables.checkpoint import Checkpoint
from tsd.tables.opentsdb.compaction.compactor import CompactionStats
from tsd.tables.opentsdb.compaction.sweep import SweepRange, SweepState, load_state, save_state

JOB = ["embedded", "", "tsdb", "2d-ago", "now"]
STATE = SweepState(
    SweepRange(3600, 7200, (b"\0\0\1", b"\0\0\xff")),
    bytes.fromhex("000001ff"),
    CompactionStats(rows=7, compacted=3, cells_before=9, hidden=1, errors=Counter(read=2)),
)


def test_next_run_of_the_same_job_resumes(tmp_path: Path) -> None:
    path = tmp_path / "new" / "compact.json"
    with Checkpoint(path, JOB).lock():
        save_state(Checkpoint(path, JOB), STATE)
    assert load_state(Checkpoint(path, JOB)) == STATE
    assert load_state(Checkpoint(path, [*JOB, "a.metric"])) is None
    Checkpoint(path, JOB).clear()
    Checkpoint(path, JOB).clear()
    assert load_state(Checkpoint(path, JOB)) is None


def test_lock_excludes_other_processes(tmp_path: Path) -> None:
    file = Checkpoint(tmp_path / "compact.json", JOB)
    with file.lock():
        with pytest.raises(DaemonRuns, match=rf"{tmp_path}\b.*\b{os.getpid()}\b"):
            Checkpoint(tmp_path / "compact.json", []).lock().__enter__()
        with Checkpoint(tmp_path / "other.json", JOB).lock():
            pass
    with file.lock():
        pass


DAMAGES: list[Any] = [
    ("", b""),
    ("", bytes(100)),
    ("", b'{"job":\xff'),
    ("", None),  # cut
    ("job", None),
    ("state", None),
    ("state", []),
    ("range", [3600, 7200]),
    ("range", [3600, "7200", []]),
    ("range", [3600, 1e400, []]),
    ("range", [3600, 7200, ["0"]]),
    ("range", [3600, 7200, [1]]),
    ("position", "xyz"),
    ("position", 7),
    ("stats", {}),
    ("stats", []),
    ("stats", {"errors": {}, "rows": "7"}),
    ("stats", {"errors": {"read": None}}),
    ("stats", {"errors": 7}),
    ("stats", {"errors": {}, "unknown": 1}),
]


@pytest.mark.parametrize(("part", "value"), DAMAGES)
def test_damaged_checkpoint_counts_as_absent(tmp_path: Path, part: str, value: object) -> None:
    file = Checkpoint(tmp_path / "compact.json", JOB)
    save_state(file, STATE)
    path = tmp_path / "compact.json"
    saved = json.loads(path.read_text())
    if part in saved:
        path.write_text(json.dumps({**saved, part: value}))
    elif part:
        path.write_text(json.dumps({**saved, "state": {**saved["state"], part: value}}))
    else:
        path.write_bytes(value if isinstance(value, bytes) else path.read_bytes()[:-20])
    assert load_state(file) is None
    save_state(file, STATE)
    assert load_state(file) == STATE


@pytest.mark.parametrize("text", [b"sys.cpu 1356998400 42 host=web01\n", b"\xff\xfe", b"[]", b'{"users": {}}'])
def test_file_of_another_program_is_refused(tmp_path: Path, text: bytes) -> None:
    """Regression: the end of the job deleted it."""
    path = tmp_path / "points.txt"
    path.write_bytes(text)
    with pytest.raises(TsdError, match=rf"--checkpoint {path}: got b.*, wanted no file or one of an earlier run"):
        load_state(Checkpoint(path, JOB))


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to(os.devnull)])
def test_what_is_no_file_is_refused(tmp_path: Path, make: Callable[[Path], None]) -> None:
    """Regression: the end of the job deleted /dev/null. A pipe was read until it had a writer."""
    path = tmp_path / "compact.json"
    make(path)
    with pytest.raises(TsdError, match=rf"--checkpoint {path}: "):
        load_state(Checkpoint(path, JOB))


def test_disk_error_is_a_tsd_error(tmp_path: Path) -> None:
    (tmp_path / "compact.json.new").mkdir()
    with pytest.raises(TsdError, match=rf"{tmp_path}\b.*{os.strerror(errno.EISDIR)}.*--checkpoint\b"):
        save_state(Checkpoint(tmp_path / "compact.json", JOB), STATE)
