"""Files that are there, are absent, or cannot be seen."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tsd.config.files import exists, is_file, is_folder, with_suffix


@pytest.fixture
def loop(tmp_path: Path) -> Path:
    """A link to itself: no user can see what is there, not even root."""
    path = tmp_path / "loop"
    path.symlink_to(path)
    return path


def test_files_and_folders_are_told_apart(tmp_path: Path) -> None:
    file, link, dangling = tmp_path / "file", tmp_path / "link", tmp_path / "dangling"
    file.write_bytes(b"")
    link.symlink_to(tmp_path)
    dangling.symlink_to(tmp_path / "missing")
    paths = (file, link, tmp_path / "missing", file / "below", dangling)
    assert [exists(path) for path in paths] == [True, True, False, False, False]
    assert [is_file(path) for path in paths] == [True, False, False, False, False]
    assert [is_folder(path) for path in paths] == [False, True, False, False, False]


def test_content_is_chosen_by_suffix_and_sorted(tmp_path: Path) -> None:
    for name in ("2.log", "1.log", "3.log.gz", "log"):
        (tmp_path / name).write_bytes(b"")
    assert [path.name for path in with_suffix(tmp_path, ".log")] == ["1.log", "2.log"]
    assert with_suffix(tmp_path / "missing", ".log") == with_suffix(tmp_path / "log", ".log") == []


@pytest.mark.parametrize("look", [exists, is_file, is_folder, lambda path: with_suffix(path, ".log")])
def test_error_is_not_absence(look: Callable[[Path], object], loop: Path) -> None:
    with pytest.raises(OSError, match="symbolic links"):
        look(loop)
    with pytest.raises(OSError, match="symbolic links"):
        look(loop / "below")
