"""`tsd uid prune` as operators run it, on each engine."""

import json
from pathlib import Path

import pytest

from tests.e2e.command import Tsd, on_cassandra, on_hbase

pytestmark = pytest.mark.slow

T = 1356998400
LINES = [
    f"{metric} {T + at} {at} host=h{host} dc=x"
    for metric in ("sys.cpu", "sys.old")
    for host in (1, 2)
    for at in (0, 7200)
]
ENGINES = [
    "embedded",
    pytest.param("hbase", marks=pytest.mark.hbase),
    pytest.param("cassandra", marks=pytest.mark.cassandra),
]
NOW = ("--older-than", "0h", "--all-stopped")


@pytest.fixture(params=ENGINES)
def tsd(request: pytest.FixtureRequest, tmp_path: Path) -> Tsd:
    """Two metrics with points, of which one is deleted again, with a host that the other does not have."""
    settings = {"tsd.core.auto_create_metrics": "true", "tsd.query.series_index": "true"}
    if request.param == "hbase":
        hbase = request.getfixturevalue("hbase")
        settings = on_hbase(
            hbase, hbase.unused_tables(), {**settings, "tsd.query.series_table": f"{tmp_path.name}-series"}
        )
    elif request.param == "cassandra":
        settings = on_cassandra(request.getfixturevalue("cassandra"), settings)
    made = Tsd(tmp_path / "state", settings)
    if request.param != "embedded":
        assert made.run("create-tables").status == 0
    lines = [f"put {line}" for line in [*LINES, f"sys.old {T} 1 host=gone dc=y"]]
    with made.serve() as served:
        assert served.send_lines("".join(f"{line}\n" for line in lines).encode()).startswith(b"synced")
    deleted = made.run("delete", "sys.old", "--since", "1", "--until", str(T + 90_000), "--yes")
    assert deleted.status == 0, deleted
    return made


def test_unused_names_go_and_data_stays(tsd: Tsd) -> None:
    before = tsd.run("uid", "grep", ".").out
    young = json.loads(tsd.run("uid", "prune", "--dry-run", "--json").out)
    assert not any(found["deleted"] for found in young["names"].values())
    assert young["series"] == {"indexed": 0, "described": 0, "kept": 3}
    preview = tsd.run("uid", "prune", "--dry-run", "--json", *NOW)
    assert (preview.status, preview.err) == (0, ""), preview
    assert tsd.run("uid", "grep", ".").out == before
    done = tsd.run("uid", "prune", "--json", *NOW)
    assert (done.status, done.err) == (0, ""), done
    assert json.loads(done.out) == {**json.loads(preview.out), "dry_run": False}
    deleted = {kind: found["deleted"] for kind, found in json.loads(done.out)["names"].items()}
    assert deleted == {"metrics": ["sys.old"], "tagk": [], "tagv": ["gone", "y"]}
    assert json.loads(done.out)["series"]["indexed"] == 3
    assert tsd.run("uid", "fsck").status == 0
    assert sorted(tsd.lines("sys.cpu")) == sorted(line for line in LINES if line.startswith("sys.cpu"))
    with tsd.serve() as served:
        assert served.send_lines(f"put sys.old {T} 5 host=gone dc=y\n".encode()) == b"synced 1\n"
        assert tsd.lines("sys.old") == [f"sys.old {T} 5 host=gone dc=y"]
    assert tsd.run("uid", "metrics", "sys.old").out == "metrics sys.old: [0, 0, 3]\n"
    assert json.loads(tsd.run("uid", "prune", "--json", *NOW).out)["names"]["metrics"]["deleted"] == []


def test_nothing_is_deleted_while_a_daemon_runs(tsd: Tsd) -> None:
    before = tsd.run("uid", "grep", ".").out
    with tsd.serve():
        refused = tsd.run("uid", "prune", *NOW)
        assert (refused.status, refused.out) == (1, "")
        preview = json.loads(tsd.run("uid", "prune", "--dry-run", "--json", *NOW).out)
        assert preview["names"]["metrics"]["deleted"] == ["sys.old"]
    assert tsd.run("uid", "grep", ".").out == before


def test_shared_tables_want_a_word_that_all_is_stopped(tsd: Tsd) -> None:
    done = tsd.run("uid", "prune", "--older-than", "0")
    assert done.status == (1 if "tsd.storage.backend" in tsd.settings else 0)


def test_names_of_a_journal_stay(tmp_path: Path) -> None:
    tsd = Tsd(tmp_path / "state", {"tsd.storage.flush_interval": "3600000"})
    with tsd.serve() as served:
        served.send_lines(b"put sys.cpu 1356998400 1 host=a\n")
        served.kill()
    assert tsd.run("uid", "prune", *NOW).status == 1


@pytest.mark.parametrize("age", ["soon", "forever", "-1h"])
def test_bad_ages_are_refused(age: str, tmp_path: Path) -> None:
    assert Tsd(tmp_path / "state").run("uid", "prune", f"--older-than={age}").status == 2
