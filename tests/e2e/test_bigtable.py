"""Commands and the daemon on Bigtable's emulator: put, query, compaction, fsck, copies, restarts, and clear errors."""

from pathlib import Path

import pytest
import trio

from tests.e2e.command import Tsd, on_bigtable
from tests.e2e.engine_points import LINES, T, check_all_are_kept, check_delete, import_points, text
from tests.peers.bigtable import PROJECT, RunningBigtable
from tests.unit.store.bigtable_server import Failing, scripted
from tsd.store import Put
from tsd.store.bigtable.session import NOT_FOUND

pytestmark = [pytest.mark.slow, pytest.mark.bigtable]


@pytest.fixture
def tsd(bigtable: RunningBigtable, tmp_path: Path) -> Tsd:
    """An instance with tables and points."""
    return import_points(Tsd(tmp_path / "state", on_bigtable(bigtable)))


def test_compaction_fsck_and_copies_keep_all_points(tsd: Tsd, tmp_path: Path) -> None:
    instance = f"{tsd.settings['tsd.storage.bigtable.instance']}back"
    back = tsd.but({"tsd.storage.bigtable.instance": instance})
    emulator = f"tsd.storage.bigtable.emulator={tsd.settings['tsd.storage.bigtable.emulator']}"
    to_back = ["--to", f"bigtable:{PROJECT}/{instance}", "--to-set", emulator]
    check_all_are_kept(tsd, Tsd(tmp_path / "home"), back, to_back)


def test_bad_settings_are_named(bigtable: RunningBigtable, tmp_path: Path) -> None:
    tsd = Tsd(tmp_path / "state", on_bigtable(bigtable))
    file = tmp_path / "key.json"
    file.write_text("{}")
    wrong = {
        "tsd.storage.bigtable.project": ["", "tsd.storage.bigtable.project"],
        "tsd.storage.bigtable.emulator": ["nowhere", "tsd.storage.bigtable.emulator"],
        "tsd.storage.bigtable.credentials": [str(file), "private_key"],
    }
    for key, (value, named) in wrong.items():
        done = tsd.but({key: value}).run("check-config")
        assert done.status == 2
        assert named in done.err


def test_settings_of_opentsdb_are_understood(bigtable: RunningBigtable, tmp_path: Path) -> None:
    ours = on_bigtable(bigtable)
    theirs = {
        "google.bigtable.project.id": ours.pop("tsd.storage.bigtable.project"),
        "google.bigtable.instance.id": ours.pop("tsd.storage.bigtable.instance"),
        "google.bigtable.emulator.endpoint.host": ours.pop("tsd.storage.bigtable.emulator"),
        "google.bigtable.zone.id": "europe-west1-c",
    }
    tsd = Tsd(tmp_path / "state", {**ours, **theirs})
    assert tsd.run("create-tables").status == 0
    checked = tsd.run("check-config")
    assert checked.status == 0
    assert "ignored: google.bigtable.zone.id" in checked.err


def test_delete_removes_named_points_only(tsd: Tsd) -> None:
    check_delete(tsd)


def test_daemon_keeps_acknowledged_points_while_bigtable_is_paused(tmp_path: Path) -> None:
    own = RunningBigtable(tmp_path / "bigtable")
    settings = {"tsd.storage.flush_interval": "100", "tsd.storage.bigtable.timeout": "500"}
    tsd = Tsd(tmp_path / "state", on_bigtable(own, settings))
    try:
        assert tsd.run("create-tables").status == 0
        with tsd.serve() as served:
            assert served.send_lines(text([f"put {line}" for line in LINES[:8]])) == b"synced 8\n"
            served.flush()
            assert sorted(tsd.lines("a.b")) == sorted(LINES[:8])
            own.pause()
            assert served.send_lines(text([f"put {line}" for line in LINES[8:16]])) == b"synced 8\n"
            served.await_event("store.unavailable")
            own.resume()
            served.await_event("store.available")
            served.flush()
            assert sorted(tsd.lines("a.b")) == sorted(LINES[:16])
    finally:
        own.kill()


def test_missing_tables_and_missing_server_are_named(bigtable: RunningBigtable, tmp_path: Path) -> None:
    tsd = Tsd(tmp_path / "state", on_bigtable(bigtable))
    done = tsd.run("scan", "--import", "1", "sum", "a.b")
    assert done.status == 3
    assert "create-tables" in done.err
    unchecked = tsd.run("check-config")
    assert unchecked.status == 3
    assert "create-tables" in unchecked.err
    assert tsd.run("create-tables").status == 0
    assert tsd.run("check-config").status == 0
    gone = {"tsd.storage.bigtable.emulator": "127.0.0.1:1", "tsd.storage.bigtable.timeout": "500"}
    away = tsd.but(gone).run("scan", "--import", "1", "sum", "a.b")
    assert away.status == 3
    assert "127.0.0.1:1" in away.err


def test_missing_project_is_one_line(tmp_path: Path) -> None:
    with scripted([Failing(NOT_FOUND, "Project 'gone' not found or deleted.")]) as server:
        settings = {
            "tsd.storage.backend": "bigtable",
            "tsd.storage.bigtable.project": "gone",
            "tsd.storage.bigtable.instance": "i",
            "tsd.storage.bigtable.emulator": f"127.0.0.1:{server.port}",
        }
        done = Tsd(tmp_path / "state", settings).run("check-config")
    assert done.status == 3
    [line] = done.err.splitlines()
    assert "projects/gone/instances/i" in line


def test_long_names_are_refused_and_hold_up_no_others(tsd: Tsd) -> None:
    with tsd.serve() as served:
        lines = [f"put {'m' * 4097} {T} 1 host=h0", f"put ok.metric {T} 1 host=h0"]
        refused = served.send_lines(text(lines[:1]))
        assert b"4096" in refused
        assert refused.endswith(b"synced 0\n")
        assert served.send_lines(text(lines[1:])) == b"synced 1\n"
        served.flush()
    assert tsd.lines("ok.metric") == [f"ok.metric {T} 1 host=h0"]
    most = tsd.run("check-config", "--set", "tsd.storage.max_tags=700")
    assert most.status == 2
    assert "tsd.storage.max_tags" in most.err


def test_row_of_opentsdb_on_bigtable_is_read_and_compacted_alike(bigtable: RunningBigtable, tmp_path: Path) -> None:
    """Recorded from OpenTSDB 2.4.1 over asyncbigtable: overlapping cells, of which the later timestamp counts."""
    tsd = Tsd(tmp_path / "state", on_bigtable(bigtable))
    assert tsd.run("create-tables").status == 0
    assert tsd.run("mkmetric", "m").status == 0
    assert tsd.run("import", "-", stdin=f"m {T} 0 host=a\n".encode()).status == 0
    row = bytes.fromhex("0000016b038200000001000001")
    cells = [("00a0014b", "053fc0000000", 0), ("014b01e0", "42c700000700", 1000), ("0280", "01", 0)]

    async def put() -> None:
        store = bigtable.store(tsd.settings["tsd.storage.bigtable.instance"])
        for qualifier, value, later_ms in cells:
            cell = Put(row, b"t:" + bytes.fromhex(qualifier), bytes.fromhex(value))
            await store.put("tsdb", [cell], time_ms=1_795_400_000_000 + later_ms)
        await store.aclose()

    async def get() -> list[tuple[str, str]]:
        store = bigtable.store(tsd.settings["tsd.storage.bigtable.instance"])
        found = (await store.get("tsdb", [row]))[row]
        await store.aclose()
        return [(cell.column[2:].hex(), cell.value.hex()) for cell in found]

    trio.run(put)
    base = 1_795_392_000
    answer = [f"m {base + at} {value} host=a" for at, value in ((10, "5"), (20, "99.5"), (30, "7"), (40, "1"))]
    assert tsd.lines("m", start=str(base)) == answer
    done = tsd.run("compact", "--since", str(base), "--set", "tsd.storage.fix_duplicates=true")
    assert done.status == 0, done
    assert trio.run(get) == [("00a0014b01e00280", "0542c70000070100")]
