"""Which rollup cells a sub query reads, and what becomes of them: what a comparison with OpenTSDB does not show."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.running import Running, running
from tsd.codec.rollup import parse_config
from tsd.codec.rowkey import Layout
from tsd.errors import BadQuery
from tsd.query.gathering import Tally
from tsd.query.model import Downsample
from tsd.query.rollups import batch_of, cells_for, intervals_for
from tsd.rollups import Rollups
from tsd.store.cells import CellPage

START_S = 1356998400
CONFIG = {
    "aggregationIds": {"sum": 0, "count": 1, "max": 3},
    "intervals": [
        {"interval": "1m", "table": "tsdb", "preAggregationTable": "agg", "rowSpan": "1h", "defaultInterval": True},
        {"interval": "10m", "table": "r10m", "preAggregationTable": "agg10m", "rowSpan": "6h"},
        {"interval": "1h", "table": "r1h", "preAggregationTable": "agg1h", "rowSpan": "1d"},
    ],
}
ROLLUPS = Rollups(parse_config(json.dumps(CONFIG).encode()))
SETTINGS = {
    "tsd.rollups.enable": "true",
    "tsd.rollups.config": json.dumps(CONFIG),
    "tsd.core.histograms.config": '{"net.opentsdb.core.SimpleHistogramDecoder": 42}',
}


async def asked(daemon: Running, query: str) -> Any:
    """The body of an answer to a query of the first day."""
    async with daemon.client() as client:
        path = f"/api/query?start={START_S}&end={START_S + 86399}&m={query}"
        await client.send(f"GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".encode())
        return json.loads((await client.read_to_end()).partition(b"\r\n\r\n")[2])


@pytest.mark.parametrize(
    ("interval_s", "names"), [(3600, ["1h", "10m", "1m"]), (1800, ["10m", "1m"]), (420, ["1m"]), (90, []), (0, [])]
)
def test_intervals_that_divide_the_downsamplers_are_told_longest_first(interval_s: int, names: list[str]) -> None:
    found = intervals_for(ROLLUPS, Downsample("", interval_s * 1000, "sum"))
    assert [one.name for one in found] == names


def test_a_deviation_cannot_be_told_from_rollups() -> None:
    with pytest.raises(BadQuery, match="ROLLUP_RAW"):
        cells_for(ROLLUPS, ROLLUPS.config.interval("1h"), "dev", grouped=False)


async def test_a_mean_needs_both_a_sum_and_a_count(tmp_path: Path) -> None:
    lines = [
        *(f"rollup 1h-sum m {START_S + hour * 3600} {hour + 10} host=a" for hour in range(4)),
        *(f"rollup 1h-count m {START_S + hour * 3600} 2 host=a" for hour in (0, 1, 3)),
    ]
    async with running(tmp_path, SETTINGS) as daemon:
        assert await daemon.tell("".join(f"{line}\n" for line in lines).encode()) == b"synced 7\n"
        [group] = await asked(daemon, "sum:2h-avg:m")
    assert group["dps"] == {str(START_S): 5.25, str(START_S + 7200): 6.5}


async def test_of_two_cells_for_one_interval_the_newer_counts(tmp_path: Path) -> None:
    async with running(tmp_path, SETTINGS) as daemon:
        for value in ("2.5", "7", "1.25"):
            await daemon.tell(f"rollup 1h-sum m {START_S} {value} host=a\n".encode())
            [group] = await asked(daemon, "sum:1h-sum:m")
            assert group["dps"] == {str(START_S): float(value)}


async def test_histograms_are_found_by_a_query_whose_interval_has_rollups(tmp_path: Path) -> None:
    lines = [f"histogram h {START_S + at} 0,2=1:2,4={at} host=a\n" for at in (0, 60, 600)]
    async with running(tmp_path, {**SETTINGS, "tsd.storage.salt.width": "1"}) as daemon:
        await daemon.tell("".join(lines).encode())
        answers = await asked(daemon, "none:10m-sum:percentiles%5B50%5D:show-histogram-buckets:h")
    assert {group["metric"]: group["dps"] for group in answers} == {
        "h_pct_50.0": {str(START_S): 3.0, str(START_S + 600): 3.0},
        "h_UNDERFLOW": {str(START_S): 0, str(START_S + 600): 0},
        "h_0.0_2.0": {str(START_S): 2, str(START_S + 600): 1},
        "h_2.0_4.0": {str(START_S): 60, str(START_S + 600): 600},
        "h_OVERFLOW": {str(START_S): 0, str(START_S + 600): 0},
    }


async def test_without_a_codec_histograms_cannot_be_asked_for(tmp_path: Path) -> None:
    async with running(tmp_path) as daemon:
        await daemon.tell(b"put h %d 1 host=a\n" % START_S)
        answer = await asked(daemon, "sum:percentiles%5B50%5D:h")
    assert answer["error"]["message"].startswith("Histogram storage has not been enabled.")


def test_cells_named_by_their_aggregator_are_read_like_those_with_its_id() -> None:
    key = bytes.fromhex("00000150e22700000001000001")
    columns = [b"t:\x00" + bytes.fromhex("0010"), b"t:\x01" + bytes.fromhex("0010"), b"t:sum:" + bytes.fromhex("0020")]
    page = CellPage([key] * 3, columns, [b"\x05", b"\x01", b"\x07"], 0, [1, 1, 1], None)
    cells = cells_for(ROLLUPS, ROLLUPS.config.interval("1h"), "sum", grouped=False)
    batch = batch_of(page, {key[7:]: 0}, Layout(), cells.interval, cells.columns[0], Tally())
    assert batch.times.tolist() == [(START_S + 3600) * 1000, (START_S + 7200) * 1000]
    assert batch.bits.tolist() == [5, 7]


async def test_where_no_rollups_are_raw_points_are_downsampled_as_asked_when_corrected(tmp_path: Path) -> None:
    async with running(tmp_path, SETTINGS) as daemon:
        await daemon.tell(f"put m {START_S} 1 host=a\nput m {START_S + 3600} 2 host=a\n".encode())
        query = "sum:2h-sum:rollup_fallback_raw:m"
        found = [(await asked(daemon, query + more))[0]["dps"] for more in ("", "&corrected")]
    assert found == [{str(START_S): 1.0, str(START_S + 3600): 2.0}, {str(START_S): 3.0}]
