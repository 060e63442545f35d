"""Commands on a salted table in HBase, where the rows of one metric have as many key prefixes as there are salts."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.broken_rows import lay, shown, stored
from tests.e2e.command import Tsd, on_hbase
from tests.peers.hbase import RunningHbase

pytestmark = pytest.mark.slow
SALTED = {"tsd.storage.salt.width": "1", "tsd.storage.salt.buckets": "5"}
T = 1356998400
LINES = [f"m {T + offset} {host} host=h{host}" for host in range(8) for offset in (0, 10, 3600, 3610)]
SPAN = ("--since", str(T + 5), "--until", str(T + 3605))  # one point of each hour


@pytest.fixture
def salted(hbase: RunningHbase, tmp_path: Path) -> Tsd:
    """A salted table with two points in each of 16 rows."""
    tsd = Tsd(tmp_path / "state", on_hbase(hbase, hbase.new_tables(), SALTED))
    assert tsd.run("import", "-", stdin="".join(line + "\n" for line in LINES).encode()).status == 0
    assert len({key[0] for key in stored(tsd)}) > 2
    return tsd


def test_scan_and_delete_cover_all_salts(salted: Tsd) -> None:
    assert sorted(salted.lines("m")) == sorted(LINES)
    done = salted.run("delete", "m", *SPAN, "--yes")
    assert (done.status, done.err) == (0, "deleted 16 points in 16 rows of 8 series\n")
    assert sorted(salted.lines("m")) == sorted(line for line in LINES if int(line.split()[1]) - T in (0, 3610))
    scanned = salted.run("scan", "--delete", str(T), str(T + 10), "sum", "m", "host=h3")
    assert (scanned.out, scanned.err) == (f"m {T} 3 host=h3\n", "deleted 1 row\n")
    assert len(salted.lines("m")) == 15


def test_fsck_covers_all_salts_and_reports_wrong_salt(salted: Tsd) -> None:
    rows = list(stored(salted))
    lay(salted, dict.fromkeys(rows, "0207=2a@1"))
    stray = bytes((rows[0][0] ^ 1,)) + rows[0][1:]
    lay(salted, {stray: "0000=2a@1"})
    looked_at = salted.run("fsck", "1", "sum", "m").out.splitlines()
    assert {"Rows Processed: 17", "Improperly Encoded Floating Point Values: 16", "Other Problems: 1"} <= set(looked_at)
    assert any(f"WARN row {stray.hex()}" in line and "salt: got" in line for line in looked_at)
    assert sum(repaired_values_per_run(salted)) == 16
    assert all("0207=" not in shown(row) for row in stored(salted).values())
    assert len(salted.lines("m")) == len(LINES) + 16 + 1


def repaired_values_per_run(tsd: Tsd) -> Iterator[int]:
    """Run fsck until it skips no recently written row. Yield the number of values that each run repaired."""
    out = "being written to"
    while "being written to" in out:
        out = tsd.run("fsck", "--full-scan", "--fix").out
        yield int(re.search(r"^Improperly Encoded Floating Point Values Fixed: (\d+)", out, re.MULTILINE)[1])


def test_copy_keeps_the_salt(salted: Tsd, tmp_path: Path) -> None:
    named = {key: value for key, value in salted.settings.items() if key.endswith("_table")}
    other = Tsd(tmp_path / "other", {**SALTED, **named})
    assert salted.run("copy", "--to", f"embedded:{other.folder}").status == 0
    assert stored(other) == stored(salted)
    assert sorted(other.lines("m")) == sorted(LINES)
