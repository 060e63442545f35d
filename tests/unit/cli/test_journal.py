"""`tsd journal`: the lines of segments, and what is wrong with files that are none."""

import os
import subprocess
import sys
from pathlib import Path

from click.testing import CliRunner

from tsd.cli.journal import journal
from tsd.errors import TsdError
from tsd.ingest.journal.frames import FrameMaker
from tsd.ingest.journal.segment import HEADER_BYTES, block_of, header

OWNER = "0123456789abcdef" * 2
LINES = [b"put a %d 1 b=c\n" % at for at in range(100)]


def segment(path: Path, lines: list[bytes]) -> Path:
    blocks = b"".join(block_of(FrameMaker().frame_of(lines, 0), len(lines), HEADER_BYTES, OWNER))
    path.write_bytes(header(HEADER_BYTES + len(blocks), OWNER) + blocks)
    return path


def test_lines_of_segments_are_printed_in_order(tmp_path: Path) -> None:
    files = [segment(tmp_path / "1", LINES[:60]), segment(tmp_path / "2", LINES[60:])]
    done = CliRunner().invoke(journal, [str(path) for path in files])
    assert (done.exit_code, done.stdout_bytes) == (0, b"".join(LINES))


def test_damaged_files_are_named_after_all_that_can_be_read(tmp_path: Path) -> None:
    cut, whole = segment(tmp_path / "1", LINES[:60]), segment(tmp_path / "2", LINES[60:])
    cut.write_bytes(cut.read_bytes()[:-1])
    other = tmp_path / "other"
    other.write_bytes(b"something else\n")
    done = CliRunner().invoke(journal, [str(cut), str(other), str(whole)])
    assert done.stdout_bytes.endswith(b"".join(LINES[60:]))
    assert isinstance(done.exception, TsdError)
    assert str(cut) in str(done.exception)
    assert str(other) in str(done.exception)
    assert str(whole) not in str(done.exception)


def test_unreadable_files_are_named_after_what_others_have(tmp_path: Path) -> None:
    """Regression: the first missing file ended the command, which then said nothing of damage either."""
    cut, whole = segment(tmp_path / "1", LINES[:60]), segment(tmp_path / "2", LINES[60:])
    cut.write_bytes(cut.read_bytes() + b"more")
    folder = tmp_path / "folder"
    folder.mkdir()
    named = [cut, tmp_path / "none", folder, tmp_path / "neither"]
    done = CliRunner().invoke(journal, [*map(str, named), str(whole)])
    assert done.stdout_bytes == b"".join(LINES)
    assert isinstance(done.exception, TsdError)
    assert [str(path) for path in named if str(path) not in str(done.exception)] == []
    assert str(whole) not in str(done.exception)


def test_pipe_is_no_segment(tmp_path: Path) -> None:
    """Regression: it was read to its end for the header, and called damaged; without a writer the command waited."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    done = CliRunner().invoke(journal, [str(pipe)])
    assert isinstance(done.exception, TsdError)
    assert str(done.exception) == f"{pipe}: not a regular file"


def test_closed_pipe_ends_the_command_without_an_error(tmp_path: Path) -> None:
    """Regression: the reader that was gone was reported as an error of the segment."""
    large = segment(tmp_path / "1", LINES * 1000)
    with subprocess.Popen(
        [sys.executable, "-m", "tsd", "journal", *[large] * 6], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == LINES[0]
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


def test_full_disk_is_no_error_of_the_segment(tmp_path: Path) -> None:
    large = segment(tmp_path / "1", LINES * 1000)
    with open("/dev/full", "wb") as full:
        done = subprocess.run([sys.executable, "-m", "tsd", "journal", large], stdout=full, stderr=subprocess.PIPE)
    wanted = b"tsd: the command ended early: [Errno 28] No space left on device\n"
    assert (done.returncode, done.stderr) == (1, wanted)
