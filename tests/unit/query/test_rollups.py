"""Which rollup cells a sub query reads, and their values."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.running import Running, running
from tests.unit.api.http_requests import http_post, http_request
from tests.unit.query.engines import DATA, FEW, QueryEnvironment
from tsd.codec.opentsdb.rollup import Rollups, parse_config
from tsd.codec.opentsdb.rowkey import KeyLayout
from tsd.errors import BadQuery
from tsd.query.model import Downsample
from tsd.query.rollups import cells_for, intervals_for
from tsd.store import CellPage
from tsd.tables.opentsdb.reader import OpenTsdbReader, ReadTable, SummarySources
from tsd.tables.opentsdb.summary_cells import RollupColumns, decode_rollups
from tsd.tables.reading import RollupSource, SeriesRequest

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


async def source() -> RollupSource:
    """The rollups of a metric."""
    env = await QueryEnvironment.build(FEW)
    reader = OpenTsdbReader(ReadTable(env.store, DATA, env.layout), env.uids, summaries=SummarySources(ROLLUPS))
    selection = await reader.select(SeriesRequest("sys.cpu"))
    assert selection.rollups is not None
    return selection.rollups


async def fetch(daemon: Running, query: str) -> Any:
    """The body of an answer to a query of the first day."""
    async with daemon.client() as client:
        path = f"/api/query?start={START_S}&end={START_S + 86399}&m={query}"
        await client.send(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        return json.loads((await client.read_to_end()).partition(b"\r\n\r\n")[2])


@pytest.mark.parametrize(
    ("interval_s", "names"), [(3600, ["1h", "10m", "1m"]), (1800, ["10m", "1m"]), (420, ["1m"]), (90, []), (0, [])]
)
async def test_matching_intervals_are_sorted_longest_first(interval_s: int, names: list[str]) -> None:
    found = intervals_for(await source(), Downsample("", interval_s * 1000, "sum"))
    assert [one.name for one in found] == names


@pytest.mark.difference(
    "rollup-deviations",
    topic="rollups",
    theirs="`dev` of rollups is a number without meaning",
    ours="It is refused",
)
async def test_deviation_of_rollups_is_refused() -> None:
    with pytest.raises(BadQuery, match="ROLLUP_RAW"):
        cells_for(await source(), ROLLUPS.config.interval("1h"), "dev")


async def test_mean_needs_sum_and_count(tmp_path: Path) -> None:
    lines = [
        *(f"rollup 1h-sum m {START_S + hour * 3600} {hour + 10} host=a" for hour in range(4)),
        *(f"rollup 1h-count m {START_S + hour * 3600} 2 host=a" for hour in (0, 1, 3)),
    ]
    async with running(tmp_path, SETTINGS) as daemon:
        assert await daemon.send_lines("".join(f"{line}\n" for line in lines).encode()) == b"synced 7\n"
        [two_hours], [hours], [filled] = [
            await fetch(daemon, f"sum:{spec}:m{{host=a}}".replace("{", "%7B").replace("}", "%7D"))
            for spec in ("2h-avg", "1h-avg", "1h-avg-zero")
        ]
    assert two_hours["dps"] == {str(START_S): 5.25, str(START_S + 7200): 6.5}
    assert hours["dps"] == {str(START_S + hour * 3600): (hour + 10) / 2 for hour in (0, 1, 3)}
    assert filled["dps"] == {
        str(START_S + hour * 3600): (hour + 10) / 2 if hour in (0, 1, 3) else 0 for hour in range(24)
    }


@pytest.mark.difference("rollup-duplicates")
async def test_newer_cell_of_an_interval_counts(tmp_path: Path) -> None:
    async with running(tmp_path, SETTINGS) as daemon:
        for value in ("2.5", "7", "1.25"):
            await daemon.send_lines(f"rollup 1h-sum m {START_S} {value} host=a\n".encode())
            [group] = await fetch(daemon, "sum:1h-sum:m")
            assert group["dps"] == {str(START_S): float(value)}


@pytest.mark.difference(
    "histograms-with-rollups",
    topic="rollups",
    theirs="Histograms are looked up in a rollup table, which has none, if one fits the downsampler",
    ours="They are found",
)
async def test_histogram_query_ignores_rollups(tmp_path: Path) -> None:
    lines = [f"histogram h {START_S + at} 0,2=1:2,4={at} host=a\n" for at in (0, 60, 600)]
    async with running(tmp_path, {**SETTINGS, "tsd.storage.salt.width": "1"}) as daemon:
        await daemon.send_lines("".join(lines).encode())
        answers = await fetch(daemon, "none:10m-sum:percentiles%5B50%5D:show-histogram-buckets:h")
    assert {group["metric"]: group["dps"] for group in answers} == {
        "h_pct_50.0": {str(START_S): 3.0, str(START_S + 600): 3.0},
        "h_UNDERFLOW": {str(START_S): 0, str(START_S + 600): 0},
        "h_0.0_2.0": {str(START_S): 2, str(START_S + 600): 1},
        "h_2.0_4.0": {str(START_S): 60, str(START_S + 600): 600},
        "h_OVERFLOW": {str(START_S): 0, str(START_S + 600): 0},
    }


@pytest.mark.difference(
    "histograms-of-a-range",
    topic="rollups",
    theirs="Histograms that are added over the whole range (`0all-sum`) have series without points",
    ours="Each series has its point, at the start",
)
async def test_histograms_of_the_whole_range_are_added(tmp_path: Path) -> None:
    """OpenTSDB stamps the sum with 0, which is before the range."""
    lines = [f"histogram h {START_S + at} 0,2=1:2,4={at} host=a\n" for at in (0, 60, 600)]
    async with running(tmp_path, SETTINGS) as daemon:
        await daemon.send_lines("".join(lines).encode())
        answers = await fetch(daemon, "none:0all-sum:percentiles%5B50%5D:show-histogram-buckets:h")
    assert {one["metric"]: one["dps"] for one in answers} == {
        "h_pct_50.0": {str(START_S): 3.0},
        "h_UNDERFLOW": {str(START_S): 0},
        "h_0.0_2.0": {str(START_S): 3},
        "h_2.0_4.0": {str(START_S): 660},
        "h_OVERFLOW": {str(START_S): 0},
    }


async def test_histogram_query_deletes_the_rows_that_it_read(tmp_path: Path) -> None:
    lines = [f"histogram h {START_S + at} 0,2=1 host={host}\n" for at in (0, 7200) for host in "ab"]
    lines += [f"put h {START_S + at} 1 host=a\n" for at in (60, 7260)]
    body = {"metric": "h", "aggregator": "none", "tags": {"host": "a"}, "percentiles": [50]}
    async with running(tmp_path, {**SETTINGS, "tsd.http.query.allow_delete": "true"}) as daemon:
        await daemon.send_lines("".join(lines).encode())
        request = {"start": START_S, "end": START_S + 60, "queries": [body], "delete": True}
        deleted = await http_post(daemon, "/api/query", json.dumps(request).encode())
        answers = await fetch(daemon, "none:percentiles%5B50%5D:h")
        [points] = await fetch(daemon, "none:h")
    assert [one["dps"] for one in deleted.json] == [{str(START_S): 1.0}]
    assert points["dps"] == {str(START_S + 7260): 1}
    assert {one["tags"]["host"]: one["dps"] for one in answers} == {
        "a": {str(START_S + 7200): 1.0},
        "b": {str(START_S): 1.0, str(START_S + 7200): 1.0},
    }


async def test_histogram_query_deletes_no_more_points_than_a_query_may_read(tmp_path: Path) -> None:
    lines = [f"histogram h {START_S} 0,2=1 host=a\n"] + [f"put h {START_S + at} 1 host=a\n" for at in range(200)]
    settings = {"tsd.http.query.allow_delete": "true", "tsd.query.limits.data_points.default": "100"}
    async with running(tmp_path, {**SETTINGS, **settings}) as daemon:
        await daemon.send_lines("".join(lines).encode())
        body = {"metric": "h", "aggregator": "none", "percentiles": [50]}
        request = {"start": START_S, "end": START_S + 300, "queries": [body]}
        statuses = [
            (await http_post(daemon, "/api/query", json.dumps({**request, "delete": delete}).encode())).status
            for delete in (False, True, False)
        ]
    assert statuses == [200, 413, 200]


async def test_series_of_histograms_alone_are_found_through_the_index(tmp_path: Path) -> None:
    lines = [f"put h {START_S} 1 host=p{number}\n" for number in range(40)] + [f"histogram h {START_S} 0,2=1 host=a\n"]
    async with running(tmp_path, {**SETTINGS, "tsd.http.query.allow_delete": "true"}) as daemon:
        await daemon.send_lines("".join(lines).encode())
        assert await daemon.daemon.flush()
        found = (await http_request(daemon, "/api/search/lookup?m=h%7Bhost=a%7D")).json
        assert [one["tags"] for one in found["results"]] == [{"host": "a"}]
        path = f"/api/query?start={START_S}&end={START_S + 60}&m=none:h%7Bhost=a%7D"
        assert (await http_request(daemon, path, method="DELETE")).json == []
        assert await fetch(daemon, "none:percentiles%5B50%5D:h") == []


@pytest.mark.difference(
    "histograms-unconfigured",
    topic="rollups",
    theirs="Without `tsd.core.histograms.config` a query of percentiles or buckets is answered with `[]`",
    ours="It is answered with 400, and names the setting",
)
async def test_histogram_query_without_codec_is_refused(tmp_path: Path) -> None:
    async with running(tmp_path) as daemon:
        await daemon.send_lines(b"put h %d 1 host=a\n" % START_S)
        answer = await fetch(daemon, "sum:percentiles%5B50%5D:h")
    assert answer["error"]["message"].startswith("Histogram storage has not been enabled.")


@pytest.mark.difference(
    "rollup-old-cells",
    topic="rollups",
    theirs="Cells of the old form, with the name of their aggregator, are read for means only",
    ours="They are read for every function",
)
def test_rollup_cells_with_aggregator_names_are_read() -> None:
    key = bytes.fromhex("00000150e22700000001000001")
    names = [b"t:\x00" + bytes.fromhex("0010"), b"t:\x01" + bytes.fromhex("0010"), b"t:sum:" + bytes.fromhex("0020")]
    page = CellPage([key] * 3, names, [b"\x05", b"\x01", b"\x07"], 0, [1, 1, 1], None)
    config = ROLLUPS.config
    columns = RollupColumns(config.interval("1h"), config.column_starts(["sum"]))
    [batch] = decode_rollups({key[7:]: 0}, KeyLayout(), columns, page).batches
    assert batch.times.tolist() == [(START_S + 3600) * 1000, (START_S + 7200) * 1000]
    assert batch.bits.tolist() == [5, 7]


@pytest.mark.difference(
    "rollup-fallback-raw",
    topic="corrected",
    theirs="`ROLLUP_FALLBACK_RAW` downsamples raw points with the interval of the table without points",
    ours="it uses the requested interval",
)
async def test_corrected_fallback_keeps_the_interval(tmp_path: Path) -> None:
    async with running(tmp_path, SETTINGS) as daemon:
        await daemon.send_lines(f"put m {START_S} 1 host=a\nput m {START_S + 3600} 2 host=a\n".encode())
        query = "sum:2h-sum:rollup_fallback_raw:m"
        found = [(await fetch(daemon, query + more))[0]["dps"] for more in ("", "&corrected")]
    assert found == [{str(START_S): 1.0, str(START_S + 3600): 2.0}, {str(START_S): 3.0}]


@pytest.mark.parametrize(
    ("usage", "uncorrected"),
    [
        ("rollup_fallback", {START_S: 10, START_S + 600: 20, START_S + 3600: 40}),
        ("rollup_fallback_raw", {START_S: 30, START_S + 3600: 40}),
    ],
)
async def test_fallback_of_pre_aggregates_reads_pre_aggregates(
    usage: str, uncorrected: dict[int, float], tmp_path: Path
) -> None:
    lines = [f"put m {START_S} 1 host=a\n"]
    lines += [f"rollup sum m {START_S + at} {value} dc=x\n" for at, value in ((0, 10), (600, 20), (3600, 40))]
    async with running(tmp_path, SETTINGS) as daemon:
        assert await daemon.send_lines("".join(lines).encode()) == b"synced 4\n"
        query = f"sum:2h-sum:pre-agg:{usage}:m"
        [group], [corrected] = [await fetch(daemon, query + more) for more in ("", "&corrected")]
    assert group["dps"] == {str(time): value for time, value in uncorrected.items()}
    assert corrected["dps"] == {str(START_S): 70.0}


async def test_daemon_tells_up_to_when_its_rollups_are_complete(tmp_path: Path) -> None:
    async with running(tmp_path, {**SETTINGS, "tsd.rollups.build": "true"}) as daemon:
        await daemon.send_lines(f"put m {START_S} 3 host=a\n".encode())
        [group] = await fetch(daemon, "sum:1h-sum:m")
        stats = await daemon.send_lines(b"stats\n")
    assert group["dps"] == {str(START_S): 3}
    assert b"tsd.rollups.complete " in stats
    assert b"interval=1h" in stats


async def test_daemon_without_a_configuration_has_hours_and_days(tmp_path: Path) -> None:
    async with running(tmp_path, {"tsd.rollups.build": "true"}) as daemon:
        lines = [
            f"put m {START_S} 3 host=a",
            f"rollup 1d-sum m {START_S} 5 host=b",
            f"rollup 1h-max m {START_S} 7 host=c",
        ]
        assert b"illegal" not in await daemon.send_lines("".join(f"{line}\n" for line in lines).encode())
        refused = await daemon.send_lines(f"rollup 10m-sum m {START_S} 3 host=a\n".encode())
        stats = await daemon.send_lines(b"stats\n")
    assert b"10m" in refused
    for interval in (b"1h", b"1d"):
        assert b"interval=" + interval in stats
