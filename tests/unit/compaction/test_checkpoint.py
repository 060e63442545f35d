"""Where a pass is, in a file."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tsd.compaction.checkpoint import Checkpoint, Place
from tsd.compaction.sweep import Stretch
from tsd.compaction.tally import Tally
from tsd.errors import DaemonRuns, TsdError

ASKED = ["embedded", "", "tsdb", "2d-ago", "now"]
PLACE = Place(
    Stretch(3600, 7200, (b"\0\0\1", b"\0\0\xff")),
    bytes.fromhex("000001ff"),
    Tally(rows=7, compacted=3, cells_before=9, hidden=1, errors=Counter(read=2)),
)


def test_another_process_goes_on_with_what_was_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "new" / "compact.json"
    with Checkpoint(path, ASKED).held():
        Checkpoint(path, ASKED).save(PLACE)
    assert Checkpoint(path, ASKED).load() == PLACE
    assert Checkpoint(path, [*ASKED, "a.metric"]).load() is None
    Checkpoint(path, ASKED).clear()
    Checkpoint(path, ASKED).clear()
    assert Checkpoint(path, ASKED).load() is None


def test_only_one_pass_has_it(tmp_path: Path) -> None:
    file = Checkpoint(tmp_path / "compact.json", ASKED)
    with file.held():
        with pytest.raises(DaemonRuns, match=r"^folder of the checkpoint .*: process \d+ uses it$"):
            Checkpoint(tmp_path / "compact.json", []).held().__enter__()
        with Checkpoint(tmp_path / "other.json", ASKED).held():
            pass
    with file.held():
        pass


DAMAGES: list[Any] = [
    ("", b""),
    ("", b"\xff\xfe"),
    ("", b"[]"),
    ("", b"7"),
    ("", None),  # cut
    ("asked", None),
    ("stretch", [3600, 7200]),
    ("stretch", [3600, "7200", []]),
    ("stretch", [3600, 1e400, []]),
    ("stretch", [3600, 7200, ["0"]]),
    ("stretch", [3600, 7200, [1]]),
    ("position", "xyz"),
    ("position", 7),
    ("tally", {}),
    ("tally", []),
    ("tally", {"errors": {}, "rows": "7"}),
    ("tally", {"errors": {"read": None}}),
    ("tally", {"errors": 7}),
    ("tally", {"errors": {}, "of a later version": 1}),
]


@pytest.mark.parametrize(("part", "value"), DAMAGES)
def test_with_a_damaged_one_a_pass_begins_anew(tmp_path: Path, part: str, value: object) -> None:
    file = Checkpoint(tmp_path / "compact.json", ASKED)
    file.save(PLACE)
    path = tmp_path / "compact.json"
    if part:
        path.write_text(json.dumps({**json.loads(path.read_text()), part: value}))
    else:
        path.write_bytes(value if isinstance(value, bytes) else path.read_bytes()[:-20])
    assert file.load() is None
    file.save(PLACE)
    assert file.load() == PLACE


def test_what_the_disk_does_not_take_is_an_error_in_words(tmp_path: Path) -> None:
    (tmp_path / "compact.json.new").mkdir()
    with pytest.raises(
        TsdError, match=r"^folder of the checkpoint .*: Is a directory; give another with --checkpoint$"
    ):
        Checkpoint(tmp_path / "compact.json", ASKED).save(PLACE)
    (tmp_path / "compact.json").mkdir()
    with pytest.raises(TsdError, match="Is a directory"):
        Checkpoint(tmp_path / "compact.json", ASKED).load()
