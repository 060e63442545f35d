"""The state folder: whose it is, what is said when it cannot be used, and sockets in folders with long names."""

import os
import resource
import socket
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tsd.errors import DaemonRuns, NewerState, TsdError
from tsd.state import FORMAT, held, socket_address

SOCKET_PATH_BYTES = 107  # unix(7): 108 with the zero at its end


@pytest.fixture
def no_mask() -> Iterator[None]:
    """A user whose files anybody may read and write unless a program says otherwise."""
    mask = os.umask(0)
    yield
    os.umask(mask)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_folder_is_made_for_its_user_and_group(tmp_path: Path, no_mask: None) -> None:
    folder = tmp_path / "not" / "there" / "yet"
    with held(folder):
        assert mode(folder) == 0o750
        assert mode(folder / "lock") == 0o640
        assert (folder / "lock").read_text() == f"{os.getpid()}\n"
        assert (folder / "format").read_text() == f"{FORMAT}\n"
        assert sorted(path.name for path in folder.iterdir()) == ["format", "lock"]


def test_the_second_to_want_it_is_told_who_has_it(tmp_path: Path) -> None:
    with held(tmp_path):
        for _ in range(2):
            with (
                pytest.raises(DaemonRuns, match=f"^state folder {tmp_path}: process {os.getpid()} uses it$"),
                held(tmp_path),
            ):
                raise AssertionError("two have it")
    with held(tmp_path):
        pass


def test_an_error_inside_gives_the_folder_back(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="of the body's"), held(tmp_path):
        raise OSError("of the body's")
    with held(tmp_path):
        pass


def test_a_lock_that_a_killed_process_left_is_no_lock(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text("1234567890123\n")
    with held(tmp_path):
        assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"


def test_a_folder_of_a_newer_version_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "format").write_text(f"{FORMAT + 1}\n")
    for _ in range(2):
        with pytest.raises(NewerState) as caught, held(tmp_path):
            raise AssertionError("it is used")
        assert str(caught.value) == (
            f"state folder {tmp_path}: a newer version has used it, its format is {FORMAT + 1}, this version knows "
            f"{FORMAT}: "
            "run the newer one, or give another folder with --data"
        )
    assert (tmp_path / "format").read_text() == f"{FORMAT + 1}\n"


def test_a_folder_of_an_older_version_is_used(tmp_path: Path) -> None:
    (tmp_path / "format").write_text("0\n")
    with held(tmp_path):
        assert (tmp_path / "format").read_text() == f"{FORMAT}\n"


def test_who_only_reads_leaves_a_folder_to_its_older_version(tmp_path: Path) -> None:
    (tmp_path / "format").write_text("3\n")
    with held(tmp_path, writes=False):
        assert (tmp_path / "format").read_text() == "3\n"
    (tmp_path / "format").write_text(f"{FORMAT + 1}\n")
    with pytest.raises(NewerState), held(tmp_path, writes=False):
        raise AssertionError("it is used")


def test_a_format_of_more_digits_than_python_reads_is_told_in_words(tmp_path: Path) -> None:
    (tmp_path / "format").write_text("1" * 5000)
    with pytest.raises(TsdError, match=f"its format is '{'1' * 60}', wanted a number"), held(tmp_path):
        raise AssertionError("it is used")


@pytest.mark.parametrize("found", ["1.5", "\xff", "-1", "\xb2"])
def test_a_folder_that_does_not_say_what_it_is_is_left_alone(tmp_path: Path, found: str) -> None:
    (tmp_path / "format").write_text(found + "\n", "latin-1")
    for _ in range(2):
        with pytest.raises(TsdError) as caught, held(tmp_path):
            raise AssertionError("it is used")
        assert str(caught.value) == (
            f"state folder {tmp_path}: its format is {found!r}, wanted a number: {tmp_path}/format is damaged. If no "
            f"newer version has used the folder, write {FORMAT} into it"
        )
        assert type(caught.value) is TsdError
    assert (tmp_path / "format").read_text("latin-1") == found + "\n"


def test_a_start_that_was_cut_off_does_not_spoil_the_folder(tmp_path: Path) -> None:
    (tmp_path / "format.new").write_text("")
    with held(tmp_path):
        assert (tmp_path / "format").read_text() == f"{FORMAT}\n"


def test_a_full_disk_is_said_so_and_leaves_nothing_half_written(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        with pytest.raises(TsdError) as caught, held(tmp_path):
            raise AssertionError("it is used")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert str(caught.value) == f"state folder {tmp_path}: File too large; give another with --data"
    with held(tmp_path):
        assert (tmp_path / "format").read_text() == f"{FORMAT}\n"


@pytest.mark.parametrize(
    ("spoiled", "folder", "wanted"),
    [
        ("state", "state", "File exists"),
        ("state", "state/below", "Not a directory"),
        ("state/lock/in_the_way", "state", "Is a directory"),
        ("state/format/in_the_way", "state", "Is a directory"),
    ],
)
def test_a_folder_that_cannot_be_used_is_named_with_the_reason(
    tmp_path: Path, spoiled: str, folder: str, wanted: str
) -> None:
    (tmp_path / spoiled).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / spoiled).write_text("in the way")
    with pytest.raises(TsdError) as caught, held(tmp_path / folder):
        raise AssertionError("it is used")
    assert str(caught.value) == f"state folder {tmp_path / folder}: {wanted}; give another with --data"


@pytest.mark.parametrize("length", [20, SOCKET_PATH_BYTES - 1, SOCKET_PATH_BYTES, SOCKET_PATH_BYTES + 1, 250])
@pytest.mark.parametrize("letter", ["x", "é"])
def test_a_socket_in_a_folder_with_a_name_of_any_length(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, length: int, letter: str
) -> None:
    monkeypatch.chdir(tmp_path)  # so that only the length asked for counts
    size = length - len("/s")
    path = Path("y" * (size % len(letter.encode())) + letter * (size // len(letter.encode())), "s")
    assert len(os.fsencode(path)) == length
    path.parent.mkdir()
    descriptors = set(os.listdir("/proc/self/fd"))
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as client:
        with socket_address(path) as address:
            assert (address == str(path)) == (length <= SOCKET_PATH_BYTES)
            listener.bind(address)
        listener.listen()
        assert stat.S_ISSOCK(path.stat().st_mode)
        with socket_address(path) as address:
            client.connect(address)
    assert set(os.listdir("/proc/self/fd")) <= descriptors  # what other tests left may go meanwhile
    for descriptor in descriptors:  # nor has one of ours the number of one that went
        with suppress(FileNotFoundError):
            assert not Path(f"/proc/self/fd/{descriptor}").readlink().is_relative_to(tmp_path)
