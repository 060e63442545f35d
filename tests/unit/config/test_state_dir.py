"""The state folder: its lock, its format, its errors, and sockets in folders with long names."""

import errno
import os
import re
import resource
import socket
import stat
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tsd.config.state_dir import (
    FORMAT,
    STATE,
    absolute,
    lock_folder,
    lock_state,
    socket_address,
    write_atomically,
    write_restoration,
)
from tsd.errors import BadConfig, DaemonRuns, NewerState, TsdError

SOCKET_PATH_BYTES = 107  # unix(7): 108 with the zero at its end


@pytest.fixture
def no_mask() -> Iterator[None]:
    """A user with umask 0: new files are readable and writable by all users unless a program restricts them."""
    mask = os.umask(0)
    yield
    os.umask(mask)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_new_folder_is_for_user_and_group_only(tmp_path: Path, no_mask: None) -> None:
    folder = tmp_path / "not" / "there" / "yet"
    with lock_state(folder):
        assert mode(folder) == 0o750
        assert mode(folder / "lock") == 0o640
        assert (folder / "lock").read_text() == f"{os.getpid()}\n"
        assert (folder / "format").read_text() == f"{FORMAT}\n"
        assert sorted(path.name for path in folder.iterdir()) == ["format", "lock"]


def test_folder_that_existed_is_restricted_with_its_files(tmp_path: Path, no_mask: None) -> None:
    folder = tmp_path / "state"
    log = folder / "store" / "000001.log"
    log.parent.mkdir(parents=True)
    log.touch()
    (folder / "format").write_text(f"{FORMAT}\n")
    with lock_state(folder):
        (log.parent / "000002.log").touch()
    found = {path.name: mode(path) for path in (folder, log.parent, *log.parent.iterdir())}
    assert found == {"state": 0o750, "store": 0o750, "000001.log": 0o640, "000002.log": 0o640}


def test_folder_with_other_content_keeps_its_permissions(tmp_path: Path, no_mask: None) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "mine").touch()
    (tmp_path / "store").symlink_to(tmp_path / "mine")
    with lock_state(tmp_path):
        assert (mode(tmp_path), mode(tmp_path / "mine")) == (0o755, 0o666)


@pytest.mark.parametrize("name", ["passwd", "photos", "tsd"])
def test_folder_with_other_files_and_no_state_is_refused_and_left_alone(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "file").touch()
    (tmp_path / "journal").mkdir()
    with pytest.raises(BadConfig, match=re.escape(name)), lock_state(tmp_path):  # no restart helps
        raise AssertionError("it is used")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(("journal", name))
    with lock_state(tmp_path, files=[tmp_path / name / "accounts"]):
        pass


@pytest.mark.parametrize(
    "name",
    """
    lost+found aquota.user CACHEDIR.TAG .snapshot tsd.conf tsd.conf~ #tsd.conf# tsd.conf.dpkg-old tsd.log tsd.log.1
    tsd.log-20260101.gz journal id lock format.new rollups.json compact.json compact.json.lock
    """.split(),
)
def test_new_state_folder_may_have_what_mounts_operators_and_interrupted_starts_leave(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / name).touch()
    with lock_state(tmp_path):
        pass


def test_new_state_folder_may_have_empty_folders(tmp_path: Path) -> None:
    (tmp_path / "backups").mkdir()
    with lock_state(tmp_path):
        pass


def test_named_file_may_be_in_a_new_state_folder_that_is_a_link(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.mkdir()
    link.symlink_to(real)
    for folder, other in ((link, real), (real, link)):
        (real / "accounts").touch()
        with pytest.raises(TsdError, match="accounts"), lock_state(folder):
            raise AssertionError("it is used")
        with lock_state(folder, files=[other / "accounts"]):
            pass
        (real / "format").unlink()


@pytest.mark.parametrize("part", ["format", "store"])
def test_used_state_folder_may_have_other_files(tmp_path: Path, part: str) -> None:
    (tmp_path / part).touch()
    (tmp_path / "other").touch()
    with lock_state(tmp_path):
        pass


def test_folder_whose_restoration_has_not_ended_is_refused_for_that(tmp_path: Path) -> None:
    write_restoration(tmp_path, Path("/backup"), {str(tmp_path / "format"): 2})
    (tmp_path / "compact.json").touch()
    with pytest.raises(TsdError, match="/backup"), lock_state(tmp_path):
        raise AssertionError("it is used")


def test_second_lock_fails_and_names_the_first_process(tmp_path: Path) -> None:
    with lock_state(tmp_path):
        for _ in range(2):
            with (
                pytest.raises(DaemonRuns, match=rf"{tmp_path}\b.*\b{os.getpid()}\b"),
                lock_state(tmp_path),
            ):
                raise AssertionError("two have it")
    with lock_state(tmp_path):
        pass


def test_error_in_the_block_releases_the_lock(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="of the body's"), lock_state(tmp_path):
        raise OSError("of the body's")
    with lock_state(tmp_path):
        pass


def test_lock_file_of_a_killed_process_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text("1234567890123\n")
    with lock_state(tmp_path):
        assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"


def test_newer_format_is_refused_and_kept(tmp_path: Path) -> None:
    (tmp_path / "format").write_text(f"{FORMAT + 1}\n")
    for _ in range(2):
        with pytest.raises(NewerState) as caught, lock_state(tmp_path):
            raise AssertionError("it is used")
        assert str(FORMAT + 1) in str(caught.value)
    assert (tmp_path / "format").read_text() == f"{FORMAT + 1}\n"


def test_folder_before_columns_of_lines_is_marked_when_it_is_used(tmp_path: Path) -> None:
    """Regression: a version that does not know columns used the folder, and ended with a traceback."""
    (tmp_path / "format").write_text("1\n")
    with lock_state(tmp_path):
        marked = (tmp_path / "format").read_text()
    assert marked == f"{FORMAT}\n" != "1\n"


def test_format_below_the_first_is_refused(tmp_path: Path) -> None:
    (tmp_path / "format").write_text("0\n")
    with pytest.raises(TsdError), lock_state(tmp_path):
        raise AssertionError("it is used")
    assert (tmp_path / "format").read_text() == "0\n"


def test_format_with_5000_digits_is_refused(tmp_path: Path) -> None:
    (tmp_path / "format").write_text("1" * 5000)
    with pytest.raises(TsdError) as caught, lock_state(tmp_path):
        raise AssertionError("it is used")
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("found", ["1.5", "\xff", "-1", "\xb2"])
def test_damaged_format_is_refused_and_kept(tmp_path: Path, found: str) -> None:
    (tmp_path / "format").write_text(found + "\n", "latin-1")
    for _ in range(2):
        with pytest.raises(TsdError) as caught, lock_state(tmp_path):
            raise AssertionError("it is used")
        assert repr(found) in str(caught.value)
        assert type(caught.value) is TsdError
    assert (tmp_path / "format").read_text("latin-1") == found + "\n"


def test_draft_of_a_killed_process_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "format.new").write_text("")
    with lock_state(tmp_path):
        assert (tmp_path / "format").read_text() == f"{FORMAT}\n"


def test_full_disk_is_an_error_and_leaves_no_format(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        with pytest.raises(TsdError) as caught, lock_state(tmp_path):
            raise AssertionError("it is used")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert os.strerror(errno.EFBIG) in str(caught.value)
    with lock_state(tmp_path):
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
def test_unusable_folder_is_named_with_the_reason(tmp_path: Path, spoiled: str, folder: str, wanted: str) -> None:
    (tmp_path / spoiled).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / spoiled).write_text("in the way")
    with pytest.raises(TsdError) as caught, lock_state(tmp_path / folder):
        raise AssertionError("it is used")
    assert str(tmp_path / folder) in str(caught.value)
    assert wanted in str(caught.value)


@pytest.mark.parametrize("closed", ["lock", ""])
def test_file_or_folder_of_another_user_is_named_with_both_users(closed: str) -> None:
    """Regression: after a command of root the daemon said only that it has no permission. In a folder without access
    the lock cannot be looked at either."""
    user, other = os.geteuid(), 65534
    with tempfile.TemporaryDirectory() as made:
        Path(made).chmod(0o755)
        folder = Path(made) / "state"
        with lock_state(folder):
            pass
        folder.chmod(0o755)
        (folder / closed).chmod(0)
        if user == 0:
            os.seteuid(other)
        try:
            with pytest.raises(TsdError) as caught, lock_state(folder):
                raise AssertionError("it is used")
        finally:
            os.seteuid(user)
            folder.chmod(0o700)
    assert str(folder / closed) in str(caught.value)
    if user == 0:
        assert {"0", str(other)} <= set(re.findall(r"user (\d+)", str(caught.value)))
        assert "(root)" in str(caught.value)
        assert "sudo" not in str(caught.value)  # no daemon should run as root


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files in other users' folders")


@needs_root
def test_who_may_not_read_a_users_folder_is_told_to_run_as_that_user() -> None:
    with tempfile.TemporaryDirectory() as made:
        os.chown(made, 65534, 65534)  # with mode 0700
        os.seteuid(65533)
        try:
            with pytest.raises(TsdError, match="sudo -u") as caught, lock_state(Path(made)):
                raise AssertionError("it is used")
        finally:
            os.seteuid(0)
    assert {"65533", "65534"} <= set(re.findall(r"user (\d+)", str(caught.value)))


@needs_root
def test_root_makes_no_store_in_the_folder_of_another_user(tmp_path: Path) -> None:
    """Regression: after a command of root the other user's daemon could not open its store."""
    folder = tmp_path / "state"
    folder.mkdir()
    os.chown(folder, 65534, 65534)
    for _ in range(2):
        with pytest.raises(TsdError, match="65534"), lock_state(folder):
            raise AssertionError("it is used")
        assert not (folder / "format").exists()
        (folder / "lock").touch()  # of that user
        os.chown(folder / "lock", 65534, 65534)
    os.chown(folder / "lock", 0, 0)  # of a root that has used the folder before
    for _ in range(2):
        with lock_state(folder):
            pass


@needs_root
def test_files_of_root_belong_to_the_user_of_their_folder(tmp_path: Path) -> None:
    """Regression: after a backup of root, those of the daemon's user failed: its lock was root's."""
    os.chown(tmp_path, 65534, 65534)
    with lock_folder(tmp_path, "backup.lock", STATE):
        write_atomically(tmp_path / "compact.json", b"{}")
    owners = {path.name: (path.stat().st_uid, path.stat().st_gid) for path in tmp_path.iterdir()}
    assert owners == dict.fromkeys(("backup.lock", "compact.json"), (65534, 65534))


def test_removed_working_folder_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: a daemon ended with a traceback."""
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(TsdError, match="var"):
        absolute("var")
    assert absolute("/srv/../var") == Path("/var")


@pytest.mark.parametrize("length", [20, SOCKET_PATH_BYTES - 1, SOCKET_PATH_BYTES, SOCKET_PATH_BYTES + 1, 250])
@pytest.mark.parametrize("letter", ["x", "é"])
def test_socket_path_of_any_length_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, length: int, letter: str
) -> None:
    monkeypatch.chdir(tmp_path)  # so that the path is relative
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
    assert set(os.listdir("/proc/self/fd")) <= descriptors  # those of other tests may be closed meanwhile
    for descriptor in descriptors:  # and none is reused for a file of this test
        with suppress(FileNotFoundError):
            assert not Path(f"/proc/self/fd/{descriptor}").readlink().is_relative_to(tmp_path)
