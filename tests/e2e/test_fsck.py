"""`tsd fsck` on malformed rows: on the embedded store, through a daemon that owns it, and on HBase."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.broken_rows import KEYS, NAMES, ROWS, keyed, lay, lay_uids, shown, stored
from tests.e2e.command import Tsd, on_hbase
from tests.peers.hbase import RunningHbase
from tests.unit.codec.codec_rows import cells
from tests.unit.codec.codec_rows import show as show_cells
from tests.unit.codec.codec_vectors import Vector, of_kind
from tests.unit.codec.row_vectors import FSCK_DEPARTURES, cells_of, fsck_of
from tsd.codec.opentsdb.fsck import FsckLine
from tsd.daemon.settings import now_ms

pytestmark = pytest.mark.slow
OLDEST = {"tsd.storage.fix_duplicates": "false"}  # OpenTSDB's default: the oldest duplicate wins
VECTORS: dict[str, list[Vector]] = {}
for _vector in of_kind("fsck"):
    if "row_hex" not in _vector:  # rows of a series with names
        VECTORS.setdefault(" ".join(_vector["options"]), []).append(_vector)

REPAIRS = {  # flags → rows before and after
    "--fix": {
        "0007=2a@1": "0000=2a",
        "000b=ffffffff42280000@1": "000b=42280000",
        "00100000=2b2a00@1": "00000010=2a2b00",
        "0000=2a@1 0010=2b@2": "0000=2a 0010=2b",
        "0000=2a@1 0001=002b@2": "0000=2a 0001=002b",
        "0002=010203@1": "0002=010203",
        "000b=7f800000@1": "000b=7f800000",
        "00=2a@1": "00=2a",
    },
    "--fix --compact": {"0000=2a@1 0010=2b@2": "00000010=2a2b00"},
    "--fix --resolve-duplicates": {"0000=2a@1 0001=002b@2": "0000=2a"},
    "--fix --resolve-duplicates --last-write-wins": {"0000=2a@1 0001=002b@2": "0001=002b"},
    "--fix --delete-unknown-columns": {"0000=2a@1 00=2a@2 ff000000000000=2a@3 =2a@1": "0000=2a"},
    "--fix --delete-bad-values": {
        "0002=010203@1 0010=2b@2": "0010=2b",
        "000b0010=7f8000002b00@1": "0010=2b",
        "010000=6f6f7073@1 0010=2b@2": "0010=2b",
        "060000=2a@1 0010=2b@2": "0010=2b",
    },
    "--fix --delete-bad-compacts": {"00000010=2a@1 0020=2c@2": "0020=2c", "050000=00@1 0020=2c@2": "0020=2c"},
    "--fix-all": {"0000=2a@1 0010=2b@2 0011=002c@3 00=2a@1 0002=@1": "00000010=2a2b00"},
    "--fix-all --last-write-wins": {"0000=2a@1 0010=2b@2 0011=002c@3": "00000011=2a002c00"},
    "--compact --resolve-duplicates --delete-bad-values": {"0000=2a@1 0010=2b@2 0002=@1": "0000=2a 0002= 0010=2b"},
}


def repaired(engine: Tsd, flags: str, rows: Mapping[bytes, str]) -> dict[bytes, str]:
    """Return what fsck leaves of rows of a series with names."""
    lay_uids(engine, NAMES)
    lay(engine, rows)
    done = engine.but(OLDEST).run("fsck", "--full-scan", *flags.split())
    assert (done.status in (0, 1), done.err) == (True, ""), done
    return {key: shown(row) for key, row in stored(engine).items()}


@pytest.mark.parametrize("flags", REPAIRS)
def test_each_fsck_flag_repairs_its_errors(engine: Tsd, flags: str) -> None:
    rows = keyed("\n".join(REPAIRS[flags]))
    assert repaired(engine, flags, rows) == {
        key: after for key, after in zip(rows, REPAIRS[flags].values(), strict=True) if after
    }


@pytest.mark.parametrize("flags", VECTORS)
def test_fsck_repairs_rows_as_opentsdb(engine: Tsd, flags: str) -> None:
    wanted = {}
    rows = {}
    for vector, key in zip(VECTORS[flags], keyed("\n".join("0000=2a" for _ in VECTORS[flags])), strict=True):
        rows[key] = " ".join(f"{show_cells([cell])}@{cell.time_ms}" for cell in cells_of(vector["before"]))
        departure = FSCK_DEPARTURES.get(fsck_of(vector))
        wanted[key] = departure.here if departure else show_cells(cells_of(vector["after"]))
    assert repaired(engine, flags, rows) == {key: after for key, after in wanted.items() if after}


def test_fsck_keeps_the_duplicate_that_queries_read(engine: Tsd) -> None:
    lay_uids(engine, NAMES)
    lay(engine, keyed("0000=2a@1 0001=002b@2"))
    engine.run("fsck", "--full-scan", "--fix", "--resolve-duplicates")
    assert list(map(shown, stored(engine).values())) == ["0001=002b"]


def test_fsck_deletes_unreadable_rows_if_allowed(engine: Tsd) -> None:
    orphans = {"00000158001000000001000009", "00000958001000000001000001"}
    odd = {"000001596841c0000001000001000001000001", "00000159684fd7000001000001", "00000059685dd8"}
    assert set(repaired(engine, "--fix --delete-bad-rows", KEYS)) == set(map(bytes.fromhex, orphans | odd))
    done = engine.run("fsck", "--full-scan", "--fix", "--delete-orphans", "--json")
    assert set(stored(engine)) == set(map(bytes.fromhex, odd))
    *findings, summary = map(json.loads, done.out.splitlines())
    assert {one["row"] for one in findings if one["line"] == "Orphaned UID Rows"} == orphans
    assert (summary["counts"]["Orphaned UID Rows Deleted"], summary["fixed"]) == (2, 2)


@pytest.mark.parametrize(
    "other",
    [{"tsd.storage.salt.width": "1"}, {"tsd.storage.uid.width.tagv": "4"}, {"tsd.storage.uid.width.metric": "1"}],
)
def test_fsck_with_wrong_configuration_deletes_nothing(tmp_path: Path, other: dict[str, str]) -> None:
    """Regression: every row counted as bad and was deleted."""
    tsd = Tsd(tmp_path / "state")
    lay_uids(tsd, NAMES)
    lay(tsd, {**keyed(), **KEYS})
    before = stored(tsd)
    for flags in (["--fix-all"], ["--fix", "--delete-orphans"], ["--fix", "--delete-bad-rows"]):
        done = tsd.but(other).run("fsck", "--full-scan", *flags)
        assert (done.status, done.out, done.err.startswith("tsd: no row was found that this")) == (1, "", True), done
    assert stored(tsd) == before
    assert tsd.but(other).run("fsck", "--full-scan", "--fix", "--compact", "--resolve-duplicates").out
    assert len(stored(tsd)) == len(before)
    forced = tsd.but(other).run("fsck", "--full-scan", "--fix", "--delete-bad-rows", "--force")
    assert "Invalid Rows Deleted: 0" not in forced.out.splitlines()


def test_fsck_reports_without_changing(engine: Tsd) -> None:
    lay_uids(engine, NAMES)
    lay(engine, {**keyed(), **KEYS})
    before = stored(engine)
    done = engine.run("fsck", "--full-scan")
    assert (done.status, done.err) == (1, "")
    output = done.out.splitlines()
    assert any(line.endswith("broken 1357005600 {host=a} column 0007: old encoding: value 2a") for line in output)
    assert "ERROR row 000001: row key: row key 000001: got 3 bytes, wanted 7 and a multiple of 6" in output
    summary = dict(line.rsplit(": ", 1) for line in output[output.index(f"Rows Processed: {len(before)}") - 1 : -1])
    assert list(summary)[: len(FsckLine)] == [line.value for line in FsckLine]
    assert int(summary["Key Values Processed"]) == sum(len(row.cells) for row in before.values())
    assert int(summary["Total Errors"]) > 40
    assert summary["Total Errors Fixed"] == "0"
    assert output[-1].startswith("Completed fsck in [")

    *findings, totals = map(json.loads, engine.run("fsck", "--full-scan", "--json").out.splitlines())
    assert totals["errors"] == sum(one["error"] for one in findings) == int(summary["Total Errors"])
    assert totals["counts"] == {line.value: int(summary[line.value]) for line in FsckLine}
    assert stored(engine) == before


def test_fsck_checks_only_the_selection(engine: Tsd) -> None:
    lay_uids(engine, NAMES)
    rows = keyed("0007=2a@1\n0007=2b@1\n0007=2c@1")
    lay(engine, rows)
    first, second, third = (int.from_bytes(key[3:7], "big") for key in rows)
    done = engine.run("fsck", "--fix", str(second), str(third - 1), "sum", "broken", "host=a")
    assert done.status == 1
    assert "Rows Processed: 1" in done.out.splitlines()
    assert list(map(shown, stored(engine).values())) == ["0007=2a", "0000=2b", "0007=2c"]
    assert engine.run("fsck", str(first), "sum", "nosuch").status == 1
    missing = engine.run("fsck", "--fix")
    assert (missing.status, missing.out) == (2, "")
    assert "--full-scan" in missing.err
    assert engine.run("fsck", "1").status == 2


def test_fsck_checks_the_open_hour(tmp_path: Path) -> None:
    """Regression: it did not read its points, and after a repair `query/last` had the newest of those it had read."""
    tsd, now_s = Tsd(tmp_path / "state", {"tsd.core.auto_create_metrics": "true"}), now_ms() // 1000
    with tsd.serve() as served:
        served.send_lines(b"put m %d 1 host=a\n" % now_s)
        done = tsd.run("fsck", "--full-scan")
        assert (done.status, "Valid Datapoints: 1\n" in done.out, done.err) == (0, True, "")


def test_fsck_reports_clean_table(engine: Tsd) -> None:
    lay_uids(engine, NAMES)
    lay(engine, keyed("0000=2a@1 0010=2b@2\n00000010=2a2b00@1"))
    done = engine.run("fsck", "--full-scan", "--threads", "4", "--sync")
    assert (done.status, done.err) == (0, "")
    assert {"Valid Datapoints: 4", "Total Errors: 0"} <= set(done.out.splitlines())


def test_fsck_keeps_row_if_deletion_hides_the_repair(hbase: RunningHbase, tmp_path: Path) -> None:
    """HBase hides puts with a time up to that of a deletion, until a major compaction."""
    tsd = Tsd(tmp_path / "state", on_hbase(hbase, hbase.new_tables()))
    [key] = keyed("0000=@9")
    assert repaired(tsd, "--fix-all", {key: "0000=@9"}) == {}
    lay(tsd, {key: "0007=2a@4 0010=2b@5"})
    done = tsd.run("fsck", "--full-scan", "--fix")
    assert "Improperly Encoded Floating Point Values Fixed: 0" in done.out.splitlines()
    assert "Rows left unchanged: 1" in done.out.splitlines()
    assert shown(stored(tsd)[key]) == "0007=2a 0010=2b"
    assert "Rows left unchanged" not in tsd.run("fsck", "--full-scan", "--fix", "--compact").out  # another column
    assert shown(stored(tsd)[key]) == "00000010=2a2b00"


def test_fsck_repairs_everything_in_one_run(engine: Tsd) -> None:
    after = repaired(engine, "--fix-all", {**keyed(), **KEYS})
    assert len(after) > 30
    assert all(cells(row) for row in after.values())
    assert len(keyed(ROWS)) > len(after)
    done = engine.but(OLDEST).run("fsck", "--full-scan", "--fix-all")
    assert (done.status, done.err) == (0, "")
    assert {key: shown(row) for key, row in stored(engine).items()} == after
