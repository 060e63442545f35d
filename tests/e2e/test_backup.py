"""`tsd backup` and `tsd restore` as operators run them: next to a daemon that takes lines, and without one."""

import json
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.command import Done, Served, Tsd, until
from tests.e2e.entities import stored_entities
from tsd.config.state_dir import write_restoration
from tsd.store import Put

pytestmark = pytest.mark.slow

START_S = 1700000000
SETTINGS = {"tsd.core.auto_create_metrics": "true"}


def put_lines(first: int, count: int) -> bytes:
    """Return lines of a series; line N has the value N and its own second."""
    return b"".join(b"put backup.m %d %d host=web01\n" % (START_S + n, n) for n in range(first, first + count))


@contextmanager
def under_load(served: Served, first: int) -> Iterator[None]:
    """Send lines from the number `first` on until the block ends."""
    stop = threading.Event()

    def send() -> None:
        at = first
        while not stop.is_set():
            served.send_lines(put_lines(at, 100))
            at += 100

    sender = threading.Thread(target=send)
    sender.start()
    try:
        yield
    finally:
        stop.set()
        sender.join()


def values(tsd: Tsd) -> list[int]:
    """Return the values of all points in the store of a daemon that has stopped."""
    return [int(line.split()[2]) for line in tsd.lines("backup.m", start=str(START_S))]


def test_backup_under_load_has_everything_acknowledged(tmp_path: Path) -> None:
    tsd = Tsd(tmp_path / "state", SETTINGS)
    with tsd.serve() as served:
        served.send_lines(put_lines(0, 500))
        served.flush()
        served.send_lines(put_lines(500, 500))  # in the journal only
        with under_load(served, 1000):
            done = tsd.run("backup", tmp_path / "backups", "--json")
        assert (done.status, done.err) == (0, "")
        served.kill()
    made = json.loads(done.out)
    restored = Tsd(tmp_path / "restored", SETTINGS)
    back = restored.run("restore", tmp_path / "backups", "--json")
    assert (back.status, back.err) == (0, "")
    assert json.loads(back.out)["backup"] == made["backup"]
    with restored.serve() as served:
        served.flush()
    found = values(restored)
    assert found[:1000] == list(range(1000))
    assert found == list(range(len(found)))


def test_folder_without_backups_is_an_error(tmp_path: Path) -> None:
    tsd = Tsd(tmp_path / "state", SETTINGS)
    assert tsd.run("backup", "--list", tmp_path / "none") == Done(1, "", f"{tmp_path / 'none'}: no backup\n")
    assert tsd.run("backup", "--list", "--json", tmp_path).out == "[]\n"


def test_restored_daemon_can_be_backed_up_again(tmp_path: Path) -> None:
    tsd, restored = Tsd(tmp_path / "state", SETTINGS), Tsd(tmp_path / "restored", SETTINGS)
    with tsd.serve() as served:
        served.send_lines(put_lines(0, 10))
    assert tsd.run("backup", tmp_path / "backups").status == 0  # no daemon runs
    assert restored.run("restore", tmp_path / "backups").status == 0
    with restored.serve() as served:
        served.send_lines(put_lines(10, 10))
        done = restored.run("backup", tmp_path / "backups", "--keep", "1")
        assert (done.status, done.err) == (0, "")
    listed = restored.run("backup", "--list", "--json", tmp_path / "backups")
    assert [(each["complete"], each["lacks"]) for each in json.loads(listed.out)] == [(True, [])]
    assert restored.run("restore", "--check", tmp_path / "backups").status == 0
    assert values(restored) == list(range(20))


def test_tables_of_entities_are_backed_up_and_restored(tmp_path: Path) -> None:
    settings = {**SETTINGS, "tsd.entity.enabled": "true"}
    tsd, restored = Tsd(tmp_path / "state", settings), Tsd(tmp_path / "restored", settings)
    plain = Tsd(tmp_path / "plain", SETTINGS)
    with tsd.serve() as served, plain.serve():
        served.send_lines(put_lines(0, 10))
        served.flush()
        served.send_lines(put_lines(10, 10))  # maybe in the journal only
        made = tsd.run("backup", tmp_path / "backups", "--json")
        assert (made.status, made.err) == (0, "")
        served.kill()
    assert plain.run("backup", tmp_path / "others").status == 0
    without = plain.run("restore", "--check", tmp_path / "others", "--json")
    back = restored.run("restore", tmp_path / "backups", "--json")
    assert (back.status, back.err) == (0, "")
    assert json.loads(back.out)["tables"] == json.loads(without.out)["tables"]
    with restored.serve():
        pass
    assert values(restored) == list(range(20))
    found = stored_entities(restored.folder, settings)
    assert found.points == {("web01", "backup.m"): [((START_S + n) * 1000, n) for n in range(20)]}
    assert found.newest == {("web01", "backup.m"): [((START_S + 19) * 1000, 19)]}


def test_journal_elsewhere_is_found_without_its_setting(tmp_path: Path) -> None:
    tsd, restored = Tsd(tmp_path / "state", SETTINGS), Tsd(tmp_path / "restored", SETTINGS)
    with tsd.but({"tsd.journal.path": str(tmp_path / "journal")}).serve() as served:
        served.send_lines(put_lines(0, 10))
        assert tsd.run("backup", tmp_path / "backups").status == 0
        served.kill()
    assert tsd.run("backup", tmp_path / "later").status == 0
    refused = tsd.run("delete", "backup.m", "--since", str(START_S), "--until", "now", "--yes")
    assert (refused.status, str(tmp_path / "journal") in refused.err) == (3, True)
    for backups in ("backups", "later"):
        assert restored.run("restore", tmp_path / backups).status == 0
        with restored.serve():
            pass
        assert values(restored) == list(range(10))
        shutil.rmtree(restored.folder)


def test_backup_of_an_earlier_time_than_the_newest_is_kept_and_reported(tmp_path: Path) -> None:
    """Regression: after a backup under a clock that was ahead, --keep removed each new one at once."""
    tsd = Tsd(tmp_path / "state", SETTINGS)
    with tsd.serve() as served:
        served.send_lines(put_lines(0, 10))
    assert tsd.run("backup", tmp_path / "backups").status == 0
    [first] = (tmp_path / "backups").iterdir()
    ahead = first.rename(first.with_name("2999-01-01T00-00-00Z"))
    done = tsd.run("backup", tmp_path / "backups", "--keep", "1")
    assert done.status == 1
    assert str(ahead) in done.err
    assert len(list((tmp_path / "backups").iterdir())) == 2
    shutil.move(ahead, tmp_path / "ahead")
    assert tsd.run("backup", tmp_path / "backups", "--keep", "1").status == 0
    assert len(list((tmp_path / "backups").iterdir())) == 1


def test_restoring_over_data_is_refused(tmp_path: Path) -> None:
    tsd = Tsd(tmp_path / "state", SETTINGS)
    with tsd.serve() as served:
        served.send_lines(put_lines(0, 10))
    assert tsd.run("backup", tmp_path / "backups").status == 0
    refused = tsd.run("restore", tmp_path / "backups")
    assert refused.status == 1
    assert str(tmp_path / "state") in refused.err
    assert values(tsd) == list(range(10))


def test_incomplete_backup_is_not_restored(tmp_path: Path) -> None:
    tsd, restored = Tsd(tmp_path / "state", SETTINGS), Tsd(tmp_path / "restored", SETTINGS)
    with tsd.serve() as served:
        served.send_lines(put_lines(0, 10))
    assert tsd.run("backup", tmp_path / "backups").status == 0
    [lost] = list((tmp_path / "backups").glob("*/store/CURRENT"))
    lost.unlink()
    for words in (["restore", lost.parents[1]], ["restore", "--check", lost.parents[1]]):
        refused = restored.run(*words)
        assert refused.status == 1
        assert "store/CURRENT" in refused.err
    assert not (tmp_path / "restored").exists()
    listed = restored.run("backup", "--list", tmp_path / "backups")
    assert (listed.status, listed.err) == (1, "")
    assert "store/CURRENT" in listed.out


def test_interrupted_restoration_starts_over(tmp_path: Path) -> None:
    tsd, restored = Tsd(tmp_path / "state", SETTINGS), Tsd(tmp_path / "restored", SETTINGS)
    with tsd.serve() as served:
        served.send_lines(put_lines(0, 10))
    assert tsd.run("backup", tmp_path / "backups").status == 0
    restored.folder.mkdir()
    (restored.folder / "restoration").write_text("{}")  # as a restoration that was killed leaves it
    with restored.spawn() as served:
        assert served.wait() == 1
        assert "restore" in served.log_text()
    assert restored.run("restore", tmp_path / "backups").status == 0
    with restored.serve():
        pass
    assert values(restored) == list(range(10))


def test_files_of_an_interrupted_restoration_do_not_stay(tmp_path: Path) -> None:
    """Regression: what an older backup lacked, such as the progress of rollups, was there after its restoration."""
    tsd, restored = Tsd(tmp_path / "state", SETTINGS), Tsd(tmp_path / "restored", SETTINGS)
    with tsd.serve() as served:
        served.send_lines(put_lines(0, 10))
    assert tsd.run("backup", tmp_path / "older").status == 0
    (tsd.folder / "rollup-progress.json").write_text("{}")
    assert tsd.run("backup", tmp_path / "newer").status == 0
    assert restored.run("restore", tmp_path / "newer").status == 0
    begun = {str(restored.folder / name): 2 for name in ("rollup-progress.json", "id")}
    write_restoration(restored.folder, tmp_path / "newer", begun)  # as before its end
    assert restored.run("restore", tmp_path / "older").status == 0
    assert not (restored.folder / "rollup-progress.json").exists()
    assert values(restored) == list(range(10))


def test_restoration_that_starts_over_keeps_another_daemons_journal(tmp_path: Path) -> None:
    """Regression: with the journal's folder of another daemon in the settings, its segments were removed."""
    tsd, restored = Tsd(tmp_path / "state", SETTINGS), Tsd(tmp_path / "restored", SETTINGS)
    with tsd.serve() as served:
        served.send_lines(put_lines(0, 10))
    assert tsd.run("backup", tmp_path / "backups").status == 0
    wrong = restored.but({"tsd.journal.path": str(tmp_path / "journal")})
    segment = tmp_path / "journal" / "0000000000000001.journal"
    segment.parent.mkdir()
    segment.write_text("lines of another daemon")
    restored.folder.mkdir()
    for begun in ("{}", json.dumps({"backup": "", "files": {str(restored.folder / "id"): 2}})):
        (restored.folder / "restoration").write_text(begun)
        refused = wrong.run("restore", tmp_path / "backups")
        assert refused.status == 1
        assert str(segment.parent) in refused.err
        assert segment.read_text() == "lines of another daemon"
    segment.unlink()
    assert wrong.run("restore", tmp_path / "backups").status == 0


@pytest.fixture
def other_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder on another file system than `tmp_path`, to which files are copied."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK) or memory.stat().st_dev == tmp_path.stat().st_dev:
        yield tmp_path
        return
    folder = Path(tempfile.mkdtemp(dir=memory))
    yield folder
    shutil.rmtree(folder)


def test_killed_backup_and_restoration_say_what_they_lack(tmp_path: Path, other_disk: Path) -> None:
    tsd, restored = Tsd(tmp_path / "state", SETTINGS), Tsd(other_disk / "restored", SETTINGS)
    with tsd.serve() as served:
        served.send_lines(put_lines(0, 500))
    tsd.put_directly("tsdb", *(Put(b"\xff%012d" % at, b"t:\0\0", os.urandom(1 << 16)) for at in range(512)))
    with tsd.serve() as served:
        served.send_lines(put_lines(500, 500))
        for number, begun in enumerate(("*/backup.json", "*/state/id", "*/store/*")):
            folder = other_disk / f"killed-{number}"
            _kill_once(tsd, ["backup", folder], lambda: any(folder.glob(begun)))  # noqa: B023
            [listed] = json.loads(tsd.run("backup", "--list", "--json", folder).out)
            assert listed["complete"] != bool(listed["lacks"])
            if listed["lacks"]:
                refused = restored.run("restore", folder)
                assert (refused.status, restored.folder.exists()) == (1, False)
                assert "lacks" in refused.err
                assert tsd.run("backup", folder).status == 0
            assert restored.run("restore", "--check", folder).status == 0
        served.kill()
    unfinished = restored.folder / "restoration"
    for begun in ("restoration", "journal", "store/CURRENT"):
        _kill_once(restored, ["restore", folder], (restored.folder / begun).exists)
        if unfinished.exists():
            with restored.spawn() as refusing:
                assert refusing.wait() == 1
                assert "lacks" in refusing.log_text()
        else:
            shutil.rmtree(restored.folder)
    assert restored.run("restore", folder).status == 0
    with restored.serve() as served:
        served.flush()
    assert values(restored) == list(range(1000))


def _kill_once(tsd: Tsd, words: list[str | Path], has_begun: Callable[[], bool]) -> None:
    """Kill a command once it has begun with something. It may have ended by then."""
    with tsd.popen(*words) as process:
        until(lambda: has_begun() or process.poll() is not None, "it has begun")
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.wait()


@pytest.mark.parametrize("place", [".", "backups/daily", "link"])
def test_backup_below_the_state_folder_is_refused(tmp_path: Path, place: str) -> None:
    """Regression: it copied itself, level by level, until the path was too long, and broke all later backups."""
    tsd = Tsd(tmp_path / "state", SETTINGS)
    tsd.run("mkmetric", "a.m")
    (tmp_path / "state" / "link").symlink_to(tmp_path / "state" / "store")
    before = sorted(tmp_path.rglob("*"))
    refused = tsd.run("backup", tmp_path / "state" / place)
    assert (refused.status, str(tmp_path / "state") in refused.err) == (1, True)
    assert sorted(tmp_path.rglob("*")) == before


def test_backup_of_hbase_is_refused(tmp_path: Path) -> None:
    tsd = Tsd(tmp_path / "state", {"tsd.storage.backend": "hbase"})
    refused = tsd.run("backup", tmp_path / "backups")
    assert refused.status == 1
    assert "hbase" in refused.err.lower()
    assert not (tmp_path / "backups").exists()
