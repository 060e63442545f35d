"""`tsd scan` and OpenTSDB's tool on the same tables."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conformance.put_lines import HOUR_S, Generator, block, series
from tests.e2e.command import Tsd, on_hbase
from tests.peers.hbase import RunningHbase
from tests.peers.opentsdb import Opentsdb

HOURS = [1356998400, 1357002000]
SERIES = [series(b"scan.cpu", b"host=web01 cpu=0"), series(b"scan.cpu", b"cpu=1 host=web02 dc=lga")]


@pytest.fixture
def sides(hbase: RunningHbase, opentsdb: Callable[..., Opentsdb], tmp_path: Path) -> tuple[Tsd, Opentsdb, RunningHbase]:
    """The `tsd` command and OpenTSDB, on tables that both have written to."""
    tables = hbase.new_tables()
    peer = opentsdb(tables, **{"tsd.storage.enable_compaction": "false"})
    tsd = Tsd(tmp_path / "state", on_hbase(hbase, tables))
    lines = Generator(1, SERIES, HOURS).lines(200, once_an_instant=True)
    assert peer.send(block(lines[::2])) == b""
    assert tsd.run("import", "-", stdin=block(lines[1::2])).status == 0
    note = {"startTime": HOURS[0] + 5, "tsuid": "000001000001000001000002000002", "description": "d"}
    assert peer.http("POST", "/api/annotation", note)[0] == 200
    return tsd, peer, hbase


def test_scan_prints_rows_as_opentsdb(sides: tuple[Tsd, Opentsdb, RunningHbase]) -> None:
    tsd, peer, _ = sides
    words = [str(HOURS[0]), str(HOURS[1]), "sum", "scan.cpu"]
    for options in ([], ["--import"]):
        for tags in ([], ["host=web01"]):
            ours = tsd.run("scan", *options, *words, *tags, encoding="latin-1")
            theirs = peer.tool("DumpSeries", *options, *words, *tags).decode("latin-1")
            assert sorted(tidy(ours.out)) == sorted(tidy(theirs))


@pytest.mark.difference(
    "scan-annotations",
    topic="commands",
    theirs="`scan` reads the column of an annotation as that of a data point and prints another time",
    ours="It prints the annotation's time",
)
def test_scan_prints_annotation_with_time(sides: tuple[Tsd, Opentsdb, RunningHbase]) -> None:
    """OpenTSDB reads the column as a data point's: second 5 becomes second 0, with the time of second 16."""
    tsd, peer, _ = sides
    words = [str(HOURS[0]), str(HOURS[1]), "sum", "scan.cpu"]
    [ours] = [line for line in tsd.run("scan", *words).out.splitlines() if is_note(line)]
    [theirs] = [line for line in peer.tool("DumpSeries", *words).decode("latin-1").splitlines() if is_note(line)]
    qualifier, value, offset, text, time, date = theirs.split("\t")
    assert (offset, time, date) == ("0", f"{HOURS[0] + 16}000", "(Tue Jan 01 00:00:16 UTC 2013)")
    right = ["5", text, str(HOURS[0] + 5), "(Tue Jan 01 00:00:05 UTC 2013)"]
    assert ours.split("\t") == [qualifier, value, *right]


@pytest.mark.difference(
    "scan-delete",
    topic="commands",
    theirs=(
        "`scan --delete` deletes the present row, including points written meanwhile. Nothing deletes less than an hour"
    ),
    ours="It deletes only what it read and printed. `tsd delete` deletes a span to the millisecond",
)
def test_scan_delete_prints_and_removes_rows_as_opentsdb(sides: tuple[Tsd, Opentsdb, RunningHbase]) -> None:
    tsd, peer, hbase = sides
    before = hbase.tables.rows(peer.tables.data)
    words = [str(HOURS[0]), str(HOURS[0] + HOUR_S - 1), "sum", "scan.cpu"]
    would = peer.tool("DumpSeries", "--import", *words, "host=web01").decode("latin-1")
    ours = tsd.run("scan", "--delete", *words, "host=web01", encoding="latin-1")
    assert sorted(tidy(ours.out)) == sorted(tidy(would))
    after = hbase.tables.rows(peer.tables.data)
    [gone] = set(before) - set(after)
    assert after == {key: cells for key, cells in before.items() if key != gone}
    theirs = peer.tool("DumpSeries", "--delete", *words, "host=web02").decode("latin-1")
    assert theirs
    [kept_by_neither] = set(after) - set(hbase.tables.rows(peer.tables.data))
    assert kept_by_neither[3:7] == gone[3:7] == HOURS[0].to_bytes(4, "big")


def is_note(line: str) -> bool:
    return '"startTime"' in line


def tidy(text: str) -> list[list[str]]:
    """Split lines into sorted words, because tags differ in order. Round fractions, which Java prints differently."""
    lines = [line for line in text.splitlines() if not is_note(line)]
    return [sorted(map(tidy_word, re.sub(r"[{},]", " ", line).split())) for line in lines]


def tidy_word(word: str) -> str:
    return f"{float(word):.6g}" if re.fullmatch(r"-?\d+\.\d+([eE][+-]?\d+)?", word) else word
