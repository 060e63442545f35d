"""OpenTSDB reads every row of a table that `tsd fsck` has repaired, without a complaint."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.broken_rows import KEYS, NAMES, config_of, keyed, lay, lay_uids, stored
from tests.e2e.command import Tsd, on_hbase
from tests.peers.hbase import RunningHbase
from tests.peers.opentsdb import Opentsdb
from tsd.codec.opentsdb.row import data_cells, points
from tsd.codec.opentsdb.rowkey import split_key
from tsd.config.loader import key_layout

QUERY = {"metric": "broken", "aggregator": "none"}
GLOBAL_NOTES = bytes.fromhex("00000059685dd8")
HISTOGRAMS = {"tsd.core.histograms.config": '{"net.opentsdb.core.SimpleHistogramDecoder": 42}'}  # else none is read


@pytest.mark.difference("fsck-unreadable-cells")
def test_opentsdb_reads_rows_repaired_by_fsck(
    hbase: RunningHbase, opentsdb: Callable[..., Opentsdb], tmp_path: Path
) -> None:
    tables = hbase.new_tables()
    tsd = Tsd(tmp_path / "state", on_hbase(hbase, tables))
    lay_uids(tsd, NAMES)
    lay(tsd, {**keyed(), **KEYS})
    done = tsd.run("fsck", "--full-scan", "--fix-all")
    assert (done.status, done.err) == (1, "")
    again = tsd.run("fsck", "--full-scan")
    assert (again.status, again.err) == (0, ""), again.out
    wanted = {
        split_key(key_layout(config_of(tsd)), key).base * 1000 + point.offset_ms: point.number
        for key, row in stored(tsd).items()
        for point in points(key, data_cells(row.cells))
    }

    peer = opentsdb(tables, **HISTOGRAMS)
    for _ in range(2):  # the first makes OpenTSDB compact the rows
        body = {"start": 1, "msResolution": True, "globalAnnotations": True, "queries": [QUERY]}
        status, answer = peer.http("POST", "/api/query", body)
        assert status == 200, answer
        got = {int(time): number for series in answer for time, number in series["dps"].items()}
        assert {time: number for time, number in got.items() if number != "NaN"} == {
            time: number for time, number in wanted.items() if not math.isnan(number)
        }
        assert set(got) == set(wanted)
        peer.settle()
    assert "xception" not in peer.log()

    hbase.tables.delete(tables.data, GLOBAL_NOTES)  # OpenTSDB's fsck stops at such a row
    output = peer.tool("Fsck", "--full-scan", "--threads=1").decode()  # exit status 0: no errors
    columns = [cell.column.removeprefix(b"t:") for row in stored(tsd).values() for cell in row.cells]
    objects = [column for column in columns if len(column) % 2 and column[0] not in (1, 5)]
    assert output.count("possibly from a future version of OpenTSDB") == len(objects) > 5  # the scan was complete
    assert "ERROR" not in output
