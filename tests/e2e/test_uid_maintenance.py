"""`tsd uid rename`, `delete`, `fsck` and `report`, and how daemons follow."""

import json
import re
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.broken_rows import lay_uids, stored
from tests.e2e.command import Done, Tsd, on_hbase
from tests.peers.hbase import RunningHbase
from tsd.codec.names import Kind
from tsd.codec.opentsdb.uid import COUNTER_ROW, encode_counter, id_column, name_column
from tsd.daemon.settings import now_ms
from tsd.store import Put

pytestmark = pytest.mark.slow
METRIC = Kind.METRIC


def test_uid_rename(engine: Tsd) -> None:
    engine.run("mkmetric", "sys.cpu", "sys.mem")
    assert engine.run("uid", "rename", "metrics", "sys.cpu", "cpu") == Done(0, "metrics sys.cpu -> cpu\n", "")
    assert engine.run("uid", "grep", "metrics", ".").out == "metrics cpu: [0, 0, 1]\nmetrics sys.mem: [0, 0, 2]\n"
    unknown = "tsd: No such name for 'metrics': 'sys.cpu'\n"
    assert engine.run("uid", "rename", "metrics", "sys.cpu", "x") == Done(1, "", unknown)
    taken = "tsd: An UID with name sys.mem for metrics already exists\n"
    assert engine.run("uid", "rename", "metrics", "cpu", "sys.mem") == Done(1, "", taken)
    assert engine.run("uid", "rename", "metrics", "cpu", "a:b").status == 2
    assert engine.run("uid", "rename", "metric", "cpu", "b").status == 2
    assert engine.run("uid", "fsck").status == 0
    assert engine.run("uid", "rename", "metrics", "cpu", "sys.cpu").status == 0  # and back
    assert engine.run("uid", "metrics", "sys.cpu", "1").out == "metrics sys.cpu: [0, 0, 1]\n" * 2


def test_uid_delete(engine: Tsd) -> None:
    engine.run("mkmetric", "sys.cpu", "sys.mem")
    assert engine.run("uid", "delete", "metrics", "sys.cpu") == Done(0, "UID metrics sys.cpu: [0, 0, 1] deleted.\n", "")
    assert engine.run("uid", "grep", ".").out == "metrics sys.mem: [0, 0, 2]\n"
    assert engine.run("uid", "delete", "metrics", "sys.cpu").status == 1
    assert engine.run("uid", "metrics", "1").status == 1
    assert engine.run("mkmetric", "sys.cpu").out == "metrics sys.cpu: [0, 0, 3]\n"


@pytest.mark.parametrize("salt", [{}, {"tsd.storage.salt.width": "1"}])
def test_uid_delete_tells_that_rows_are_left(tmp_path: Path, salt: dict[str, str]) -> None:
    """Also rows of points that the daemon holds, which no one has seen in the store yet."""
    tsd = Tsd(tmp_path / "state", salt)
    with tsd.serve() as daemon:
        daemon.send_lines(b"put gone %d 1 host=a\nput kept %d 1 host=a\n" % (2 * (now_ms() // 1000,)))
        deleted = tsd.run("uid", "delete", "metrics", "gone")
        assert (deleted.status, "--delete-orphans" in deleted.err) == (0, True)
        assert "Orphaned UID Rows: 1" in tsd.run("fsck", "--full-scan").out
        assert tsd.run("mkmetric", "unused").status == 0
        assert tsd.run("uid", "delete", "metrics", "unused").err == ""


def test_daemon_sees_uid_change_at_once(tmp_path: Path) -> None:
    tsd = Tsd(tmp_path / "state")
    with tsd.serve() as daemon:
        daemon.send_lines(b"put old 1356998400 1 host=a\nput gone 1356998400 1 host=a\n")
        assert tsd.run("uid", "rename", "metrics", "old", "new").status == 0
        assert tsd.run("uid", "delete", "metrics", "gone").status == 0
        daemon.send_lines(b"put old 1356998401 2 host=a\nput new 1356998402 3 host=a\nput gone 1356998403 4 host=a\n")
        assert tsd.lines("new") == ["new 1356998400 1 host=a", "new 1356998402 3 host=a"]
        assert tsd.lines("old") == ["old 1356998401 2 host=a"]
        assert tsd.lines("gone") == ["gone 1356998403 4 host=a"]
        orphans = tsd.run("fsck", "--full-scan")
        assert "Orphaned UID Rows: 1" in orphans.out.splitlines()


@pytest.mark.parametrize("over_http", [True, False])
def test_points_have_the_new_name_after_a_crash(tmp_path: Path, over_http: bool) -> None:
    """Regression: the journal had those of the open hour under the old name."""
    tsd, now_s = Tsd(tmp_path / "state", {"tsd.access.anonymous": "read,write,admin"}), now_ms() // 1000
    with tsd.serve() as daemon:
        daemon.send_lines(b"put old %d 1 host=a\n" % now_s)
        if over_http:
            with urlopen(f"http://127.0.0.1:{daemon.port}/api/uid/rename?metric=old&name=new", timeout=60) as answer:
                assert json.load(answer) == {"result": "true"}
        else:
            assert tsd.run("uid", "rename", "metrics", "old", "new").status == 0
        daemon.kill()
    with tsd.serve() as daemon:
        daemon.await_ready()
        assert tsd.lines("new") == [f"new {now_s} 1 host=a"]
        assert tsd.run("uid", "grep", "metrics", ".").out == "metrics new: [0, 0, 1]\n"


def test_nothing_is_renamed_while_points_wait_in_the_journal(tmp_path: Path) -> None:
    tsd, now_s = Tsd(tmp_path / "state"), now_ms() // 1000
    with tsd.serve() as daemon:
        daemon.send_lines(b"put old %d 1 host=a\n" % now_s)
        daemon.kill()
    assert tsd.run("mkmetric", "old").status == 0
    refused = tsd.run("uid", "rename", "metrics", "old", "new")
    assert (refused.status, "nothing renamed" in refused.err) == (3, True)
    with tsd.serve() as daemon:
        daemon.await_ready()
        assert tsd.run("uid", "rename", "metrics", "old", "new").status == 0
        assert tsd.lines("new") == [f"new {now_s} 1 host=a"]


def test_other_daemon_sees_uid_change_eventually(hbase: RunningHbase, tmp_path: Path) -> None:
    settings = on_hbase(hbase, hbase.new_tables(), {"tsd.uid.cache_ttl": "1"})
    tsd = Tsd(tmp_path / "state", settings)
    with tsd.serve() as daemon:
        daemon.send_lines(b"put old 1356998400 1 host=a\n")
        assert Tsd(tmp_path / "elsewhere", settings).run("uid", "rename", "metrics", "old", "new").status == 0
        daemon.await_event("uids.changed_elsewhere")
        daemon.send_lines(b"put old 1356998401 2 host=a\n")
        assert tsd.lines("new") == ["new 1356998400 1 host=a"]
        assert tsd.lines("old") == ["old 1356998401 2 host=a"]


BROKEN = [
    Put(b"a", id_column(METRIC), b"\0\0\1"),
    Put(b"\0\0\1", name_column(METRIC), b"a"),
    Put(b"b", id_column(METRIC), b"\0\0\2"),  # the UID has no name
    Put(b"c", id_column(METRIC), b"\0\0\3"),
    Put(b"d", id_column(METRIC), b"\0\0\3"),  # two names have this UID
    Put(b"\0\0\3", name_column(METRIC), b"c"),
    Put(b"\0\0\4", name_column(METRIC), b"a"),  # the name has another UID
    Put(b"\0\0\5", name_column(METRIC), b"leak"),
    Put(b"\0\0\6", name_column(METRIC), b"wrong"),
    Put(b"e", id_column(METRIC), b"\0\0\6"),
    Put(b"short", id_column(METRIC), b"\7"),
    Put(b"a", b"id:odd", b"x"),
    Put(COUNTER_ROW, id_column(METRIC), encode_counter(2)),
    Put(COUNTER_ROW, id_column(Kind.TAGK), b"short"),
]


def test_uid_fsck_checks_and_repairs(engine: Tsd) -> None:
    lay_uids(engine, BROKEN)
    before = stored(engine, "uid_table")
    done = engine.run("uid", "fsck")
    output = done.out.splitlines()
    assert (output[0], output[-1], done.status, done.err) == ("Running in log only mode", "7 errors found.", 7, "")
    assert "ERROR metrics: 000003 has several names: c, d" in output
    assert "WARN metrics: 000005 -> leak, which has no UID" in output
    assert stored(engine, "uid_table") == before

    report = json.loads(engine.run("uid", "fsck", "fix", "delete_unknown", "--json").out)
    assert (report["errors"], report["raised"], report["left"]) == (7, {"metrics": 4}, [])
    again = json.loads(engine.run("uid", "fsck", "--json").out)
    assert [one["detail"] for one in again["findings"] if one["error"]] == [  # only repairable by hand
        "short -> 07: a UID has 3 bytes",
        "a UID counter has 8 bytes, got 5: 73686f7274",
    ]
    assert engine.run("uid", "grep", "metrics", ".").out.splitlines() == [
        "metrics a: [0, 0, 1]",
        "metrics b: [0, 0, 2]",
        "metrics e: [0, 0, 6]",
        "metrics fsck.c.d: [0, 0, 3]",
        "metrics short: [7]",
    ]
    assert engine.run("mkmetric", "next").out == "metrics next: [0, 0, 7]\n"


def test_uid_fsck_refuses_unknown_arguments(tmp_path: Path) -> None:
    tsd = Tsd(tmp_path / "state")
    tsd.run("mkmetric", "a")
    assert tsd.run("uid", "fsck", "fixx").status == 2
    assert tsd.run("uid", "fsck", "--fix").out.splitlines() == [
        "Repairing what is found",
        "0 cells written, 0 deleted, 0 counters raised",
        "No errors found.",
    ]


@pytest.mark.difference(
    "uid-fsck-status",
    topic="rows",
    theirs="The exit status of `uid fsck` is the number of errors modulo 256: 0 for 256 errors",
    ours="It is 255 at most",
)
def test_uid_fsck_with_many_errors_fails(tmp_path: Path) -> None:
    tsd = Tsd(tmp_path / "state")
    tsd.run("mkmetric", "a")
    lay_uids(tsd, [Put(b"name%03d" % number, id_column(METRIC), bytes((1, 0, number))) for number in range(256)])
    done = tsd.run("uid", "fsck")
    assert (done.status, done.out.splitlines()[-1]) == (255, "257 errors found.")  # including the counter


def test_uid_report(engine: Tsd) -> None:
    engine.run("mkmetric", "a", "b", "c")
    done = engine.run("uid", "report")
    metrics, tagk, _ = done.out.splitlines()
    assert (done.status, done.err) == (0, "")
    assert re.fullmatch(
        r"metrics: 3 of 16777215 UIDs used \(0\.00 %\), 3 have a name; new: 3 in 1 day, 3 in 7 days, 3 in 30 days; "
        r"the rest lasts for more than 100 years",
        metrics,
    )
    assert tagk.endswith("new: 0 in 1 day, 0 in 7 days, 0 in 30 days; no new UIDs")
    report = json.loads(engine.run("uid", "report", "--json").out)
    assert (report["metrics"]["used"], report["metrics"]["left"], report["metrics"]["per_day"]) == (3, 16777212, 3.0)


def test_uid_report_warns_of_exhaustion(tmp_path: Path) -> None:
    tsd = Tsd(tmp_path / "state", {"tsd.storage.uid.width.metric": "1"})
    tsd.run("mkmetric", *(f"m{number}" for number in range(200)))
    [metrics, *_] = tsd.run("uid", "report").out.splitlines()
    assert re.search(r"200 of 255 UIDs used \(78\.43 %\), .*; exhausted on \d{4}-\d\d-\d\d, in 0 days$", metrics)
