"""`tsd query --graph`: the file of a picture."""

import os
import resource
from pathlib import Path

import pytest

from tsd.cli.query_picture import write_picture
from tsd.errors import TsdError

OLDER, NEWER = b"<?xml older", b"<?xml" + b"x" * 10_000


@pytest.mark.parametrize("exists", [True, False])
def test_full_disk_leaves_what_was_there(tmp_path: Path, exists: bool) -> None:
    path = tmp_path / "graph.svg"
    if exists:
        path.write_bytes(OLDER)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(NEWER) // 2, hard))
    try:
        with pytest.raises(TsdError, match=path.name):
            write_picture(path, NEWER)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == ({path.name: OLDER} if exists else {})


def test_picture_is_written_into_a_pipe(tmp_path: Path) -> None:
    """Regression: a file replaced the pipe, and its reader waited."""
    os.mkfifo(pipe := tmp_path / "graph.svg")
    read = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_picture(pipe, OLDER)
        assert os.read(read, 100) == OLDER
    finally:
        os.close(read)
    assert pipe.is_fifo()


def test_picture_is_written_into_a_pipe_without_a_name() -> None:
    """Regression: --graph /dev/stdout, and a shell's >(command), failed with `No such file or directory`."""
    read, write = os.pipe()
    try:
        write_picture(Path(f"/dev/fd/{write}"), OLDER)
        assert os.read(read, 100) == OLDER
    finally:
        os.close(read)
        os.close(write)


def test_picture_replaces_an_older_one_also_behind_a_link(tmp_path: Path) -> None:
    link, target = tmp_path / "link.svg", tmp_path / "target.svg"
    target.write_bytes(OLDER)
    link.symlink_to(target)
    write_picture(link, NEWER)
    assert link.is_symlink()
    assert target.read_bytes() == NEWER
