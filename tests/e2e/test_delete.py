"""Deletion of points with `tsd delete` and `tsd scan --delete`, on both engines and with a daemon."""

import json
import re
import time
import urllib.request
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.command import HOST, Done, Served, Tsd
from tests.e2e.entities import stored_entities
from tsd.store import Put

pytestmark = pytest.mark.slow
T = 1356998400  # the start of an hour
WEB01 = [f"sys.cpu {T + offset} {offset} host=web01" for offset in range(0, 7200, 600)]
WEB02 = [f"sys.cpu {T}500 0.1 host=web02", f"sys.cpu {T + 3000} 7 host=web02"]
OTHER = [f"sys.mem {T} 1 host=web01"]
SPAN = ("--since", str(T + 1200), "--until", str(T + 4800))
WOULD = """\
sys.cpu host=web01: 6 points in 2 rows, 2013/01/01-00:20:00 UTC to 2013/01/01-01:10:00 UTC
sys.cpu host=web02: 1 point in 1 row, 2013/01/01-00:50:00 UTC to 2013/01/01-00:50:00 UTC
"""
TOTAL = "7 points in 3 rows of 2 series"


@pytest.fixture
def filled(engine: Tsd) -> Tsd:
    """A store with points, each hour in one cell."""
    text = "".join(line + "\n" for line in [*WEB01, *WEB02, *OTHER])
    assert engine.run("import", "-", stdin=text.encode()).status == 0
    return engine


def test_delete_shows_then_deletes_exact_range(filled: Tsd) -> None:
    nothing = f"{TOTAL} would be deleted; add --yes to delete them\n"
    assert filled.run("delete", "sys.cpu", *SPAN) == Done(0, WOULD, nothing)
    assert sorted(filled.lines("sys.cpu")) == sorted([*WEB01, *WEB02])
    assert filled.run("delete", "sys.cpu", *SPAN, "--yes") == Done(0, WOULD, f"deleted {TOTAL}\n")
    assert sorted(filled.lines("sys.cpu")) == sorted([*WEB01[:2], *WEB01[8:], WEB02[0]])
    none = "0 points in 0 rows of 0 series"
    assert filled.run("delete", "sys.cpu", *SPAN, "--yes") == Done(0, "", f"deleted {none}\n")
    assert filled.lines("sys.mem") == OTHER


def test_delete_by_tags_allows_new_points(filled: Tsd) -> None:
    everything = ("--since", "1", "--until", "now", "--yes")
    done = filled.run("delete", "sys.cpu", "host=web01", *everything)
    first, *notes = done.err.splitlines()
    assert (done.status, first) == (0, "deleted 12 points in 2 rows of 1 series")
    assert bool(notes) == ("tsd.storage.backend" in filled.settings)  # other daemons may have more of them
    assert filled.lines("sys.cpu") == WEB02
    assert filled.run("import", "-", stdin=WEB01[3].encode()).status == 0
    assert sorted(filled.lines("sys.cpu")) == sorted([WEB01[3], *WEB02])


def test_scan_delete_removes_printed_rows(filled: Tsd) -> None:
    done = filled.run("scan", "--delete", str(T), str(T + 60), "sum", "sys.cpu")
    assert (done.status, done.err) == (0, "deleted 2 rows\n")
    assert sorted(done.out.splitlines()) == sorted([*WEB01[:6], *WEB02])
    assert filled.lines("sys.cpu", "sys.mem") == [*WEB01[6:], *OTHER]
    assert filled.run("import", "-", stdin=done.out.encode()).status == 0
    assert sorted(filled.lines("sys.cpu")) == sorted([*WEB01, *WEB02])


def test_scan_delete_without_a_reader_fails_and_deletes_nothing(filled: Tsd) -> None:
    """Regression: the exit status was 0, as if all were deleted."""
    with filled.popen("scan", "--delete", "1", "sum", "sys.cpu") as process:
        process.stdout.close()
        error = process.stderr.read().decode()
        assert (process.wait(), "deleted 0 rows" in error) == (1, True), error
    assert sorted(filled.lines("sys.cpu")) == sorted([*WEB01, *WEB02])


def test_delete_keeps_unreadable_rows_within_partial_hours(tmp_path: Path) -> None:
    tsd = Tsd(tmp_path / "state")
    lines = "".join(line + "\n" for line in WEB01)
    assert tsd.run("import", "-", stdin=lines.encode()).status == 0
    row = bytes.fromhex("00000150e22700000001000001")
    tsd.put_directly("tsdb", Put(row, b"t:\0\2", b"\1\2\3"))
    done = tsd.run("delete", "sys.cpu", *SPAN, "--yes")
    assert (done.status, done.out.count("\n")) == (1, 1)
    assert f"row {row.hex()}" in done.err
    scanned = tsd.run("scan", "--delete", "1", "sum", "sys.cpu", encoding="latin-1")
    assert (scanned.status, scanned.out.splitlines()) == (1, WEB01[8:])
    assert scanned.err.endswith("deleted 1 row\n")
    done = tsd.run("delete", "sys.cpu", "--since", str(T), "--until", str(T + 3600), "--yes")
    assert done == Done(0, "sys.cpu host=web01: 0 points in 1 row\n", "deleted 0 points in 1 row of 1 series\n")
    assert tsd.lines("sys.cpu") == []


@pytest.mark.parametrize("words", [("sys.cpu", "--since", "5", "--until", "5"), ("sys.cpu", "sys.mem", *SPAN)])
def test_delete_refuses_bad_arguments(tmp_path: Path, words: tuple[str, ...]) -> None:
    assert Tsd(tmp_path / "state").run("delete", *words, "--yes").status == 2


def test_delete_refused_if_daemon_cannot_flush(tmp_path: Path) -> None:
    away = {"tsd.storage.backend": "hbase", "tsd.storage.hbase.thrift": f"{HOST}:1"}
    tsd = Tsd(tmp_path / "state", {**away, "tsd.storage.flush_interval": "3600000"})
    with tsd.serve("--port", "0", "--set", "tsd.core.drain_timeout=0") as daemon:
        assert daemon.send_lines(f"put {WEB01[0]}\n".encode()) == b"synced 1\n"
        for words in (("delete", "sys.cpu", *SPAN, "--yes"), ("scan", "--delete", "1", "sum", "sys.cpu")):
            done = tsd.run(*words)
            assert (done.status, done.out) == (3, "")
            assert done.err.startswith("tsd: the daemon cannot write")


def test_delete_handles_lines_left_in_journal(tmp_path: Path) -> None:
    """Regression: a copy omitted these lines, and the next daemon wrote deleted points again."""
    tsd = Tsd(tmp_path / "state", {"tsd.storage.flush_interval": "3600000"})
    assert tsd.run("import", "-", stdin=WEB01[0].encode()).status == 0
    with tsd.serve() as daemon:
        assert daemon.send_lines(f"put {WEB01[1]}\n".encode()) == b"synced 1\n"
        daemon.kill()
    warning = f"tsd: no daemon runs, and the journal {tsd.folder / 'journal'} "
    scanned = tsd.run("scan", "--import", "1", "sum", "sys.cpu")
    assert (scanned.status, scanned.out) == (0, WEB01[0] + "\n")
    assert scanned.err.startswith(warning)
    for words in (
        ("delete", "sys.cpu", *SPAN, "--yes"),
        ("scan", "--delete", "1", "sum", "sys.cpu"),
        ("import", "-"),
        ("copy", "--to", f"embedded:{tmp_path / 'other'}"),
    ):
        done = tsd.run(*words)
        assert (done.status, done.out, done.err.startswith(warning)) == (3, "", True), done
    with tsd.serve():
        assert tsd.lines("sys.cpu") == WEB01[:2]
    assert tsd.lines("sys.cpu") == WEB01[:2]


@pytest.mark.parametrize(
    "words",
    [("delete", "sys.cpu", "--since", "1", "--until", "now", "--yes"), ("scan", "--delete", "1", "sum", "sys.cpu")],
    ids=["delete", "scan"],
)
def test_deleted_points_are_not_the_newest_of_their_series(tmp_path: Path, words: tuple[str, ...]) -> None:
    """Nor are they after a loss of power: the store is synced."""
    tsd = Tsd(tmp_path / "state", {"tsd.core.auto_create_metrics": "true"})
    with tsd.serve() as daemon:
        lines = "".join(f"put {line}\n" for line in [*WEB01, *OTHER])
        assert daemon.send_lines(lines.encode()).startswith(b"synced ")
        daemon.flush()
        assert [point["timestamp"] for point in _newest(daemon, "sys.cpu")] == [(T + 6600) * 1000]
        syncs = _store_syncs(daemon)
        assert tsd.run(*words).status == 0
        assert _store_syncs(daemon) > syncs
        assert _newest(daemon, "sys.cpu") == []
        assert [point["timestamp"] for point in _newest(daemon, "sys.mem")] == [T * 1000]


@pytest.mark.parametrize("ago_s", [60, 0], ids=["later", "same time"])
def test_imported_points_are_the_newest_of_their_series(tmp_path: Path, ago_s: int) -> None:
    tsd = Tsd(tmp_path / "state", {"tsd.core.auto_create_metrics": "true"})
    now_s = int(time.time())  # noqa: TID251 (points of the last hours are found)
    with tsd.serve() as daemon:
        assert daemon.send_lines(f"put m {now_s - 3600 - ago_s} 1 host=web01\n".encode()) == b"synced 1\n"
        assert [point["value"] for point in _newest(daemon, "m")] == ["1"]
        daemon.flush()
        assert tsd.run("import", "-", stdin=f"m {now_s - 3600} 2 host=web01\n".encode()).status == 0
        found = [(point["timestamp"], point["value"]) for point in _newest(daemon, "m")]
        assert found == [((now_s - 3600) * 1000, "2")]


def _store_syncs(daemon: Served) -> int:
    """Return how often the store was synced."""
    with urllib.request.urlopen(f"http://{HOST}:{daemon.port}/metrics", timeout=60) as answer:
        found = re.search(r'tsd_store_call_duration_seconds_count{call="sync"} (\d+)', answer.read().decode())
    return int(found[1]) if found else 0


def _newest(daemon: Served, metric: str) -> list[dict[str, Any]]:
    """Return the newest points of a metric's series on web01."""
    url = f"http://{HOST}:{daemon.port}/api/query/last?timeseries={metric}{{host=web01}}"
    with urllib.request.urlopen(url, timeout=60) as answer:
        found: list[dict[str, Any]] = json.load(answer)
        return found


@pytest.mark.parametrize("serves", [False, True], ids=["alone", "daemon"])
def test_deleted_points_leave_the_tables_of_entities(tmp_path: Path, serves: bool) -> None:
    tsd = Tsd(tmp_path / "state", {"tsd.entity.enabled": "true", "tsd.core.auto_create_metrics": "true"})
    with tsd.serve() as daemon:
        lines = "".join(f"put {line}\n" for line in [*WEB01, *WEB02, *OTHER])
        assert daemon.send_lines(lines.encode()).startswith(b"synced ")
        daemon.flush()

    def run(*words: str) -> Done:
        return tsd.run(*words)

    with tsd.serve() if serves else nullcontext():
        told = run("delete", "sys.cpu", *SPAN)
        assert told == Done(0, WOULD, f"{TOTAL}, and 7 points of entities would be deleted; add --yes to delete them\n")
        assert run("delete", "sys.cpu", *SPAN, "--yes").err == f"deleted {TOTAL}, and 7 points of entities\n"
        assert json.loads(run("entity", "check", "--json").out)["differences"] == 0
        shown = json.loads(run("entity", "web02", "--start", "1", "--json").out)["series"]
        assert [list(one["dps"]) for one in shown] == [[str(T * 1000 + 500)]]
        assert run("scan", "--delete", str(T), str(T + 60), "sum", "sys.cpu", "host=web01").status == 0
        assert json.loads(run("entity", "check", "--json").out)["differences"] == 0
    left = stored_entities(tsd.folder, tsd.settings)
    assert sorted(at // 1000 - T for at, _ in left.points["web01", "sys.cpu"]) == [4800, 5400, 6000, 6600]
    assert left.newest == {series: points[-1:] for series, points in left.points.items()}
    assert set(left.points) == {("web01", "sys.cpu"), ("web02", "sys.cpu"), ("web01", "sys.mem")}


def test_delete_finds_points_that_only_the_tables_of_entities_have(tmp_path: Path) -> None:
    settings = {"tsd.entity.enabled": "true", "tsd.core.auto_create_metrics": "true"}
    tsd = Tsd(tmp_path / "state", settings)
    every = ("--since", "0", "--until", "now")
    with tsd.serve() as daemon:
        daemon.send_lines("".join(f"put {line}\n" for line in [*WEB01, *OTHER]).encode())
        daemon.flush()
        assert tsd.but({"tsd.entity.enabled": "false"}).run("delete", "sys.cpu", *every, "--yes").status == 0
    assert tsd.run("uid", "delete", "metrics", "sys.cpu").status == 0
    words = ("sys.cpu", "host=web01", *every)
    done = tsd.run("delete", *words, "--yes", "--json")
    assert (done.status, json.loads(done.out)["entity_points"]) == (0, len(WEB01)), done
    assert tsd.run("delete", *words).err.startswith("tsd: No such name")
    assert set(stored_entities(tsd.folder, tsd.settings).newest) == {("web01", "sys.mem")}


@pytest.mark.difference(
    "scan-charset",
    topic="commands",
    theirs="`scan --import` prints names in the locale's charset, and `import` reads them so",
    ours="Both use ISO-8859-1, as on the wire and in the tables",
)
def test_non_ascii_names_survive_round_trip(tmp_path: Path) -> None:
    """Regression: names were printed in UTF-8 and read back as other characters."""
    line = f"temp.café {T} 1 lieu=étage".encode("latin-1")
    tsd, fresh = Tsd(tmp_path / "state"), Tsd(tmp_path / "fresh")
    assert tsd.run("import", "-", stdin=line).status == 0
    printed = tsd.run("scan", "--import", "1", "sum", "temp.café", encoding="latin-1").out
    assert printed.encode("latin-1") == line + b"\n"
    assert fresh.run("import", "-", stdin=printed.encode("latin-1")).status == 0
    assert fresh.lines("temp.café") == printed.splitlines()


def test_scan_deletes_no_row_whose_lines_cannot_be_imported(tmp_path: Path) -> None:
    """Regression: import took a line of a metric that starts with # for a comment, and refused the others."""
    tsd = Tsd(tmp_path / "state", {"tsd.core.tag.allow_specialchars": "#"})
    assert tsd.run("import", "-", stdin=f"put #odd {T} 1 host=web01\nsys.cpu {T} 2 host=gone\n".encode()).status == 0
    long = "m" * 16384
    assert tsd.run("mkmetric", long).status == 0
    tsd.put_directly("tsdb", Put(bytes.fromhex("00000350e22700000001000001"), b"t:\0\0", b"\1"))
    assert tsd.run("uid", "delete", "tagv", "gone").status == 0
    done = tsd.run("scan", "--delete", "1", "sum", "#odd", "sum", "sys.cpu", "sum", long)
    assert (done.status, done.out) == (1, f"put #odd {T} 1 host=web01\n")
    assert "a UID of sys.cpu host=<000002> has no name, which a line needs\n" in done.err
    assert "a line of 16408 bytes, of which 16384 can be imported\n" in done.err
    assert done.err.endswith("deleted 1 row\n")
    assert tsd.run("import", "-", stdin=done.out.encode()) == Done(0, "", "imported 1 data point, refused 0 lines\n")
    assert tsd.lines("#odd") == done.out.splitlines()
    assert [row.key.hex()[:6] for row in tsd.read_directly("tsdb")] == ["000001", "000002", "000003"]
