"""/api/stats/hot, its metrics and `tsd hot`: which ranges of row keys are written and read, on a running daemon."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import trio

from tests import layouts
from tests.running import Running, running
from tests.unit.api.http_requests import http_request
from tests.unit.api.test_metrics import metrics

BASE = 1_356_998_400
CREATES = {"tsd.core.auto_create_metrics": "true"}
QUERY = f"/api/query?start={BASE}&end={BASE + 7200}&m=sum:hot"


def lines() -> bytes:
    """Points of a metric with many series, of two hours, and of metrics with one series."""
    hot = [f"put hot {BASE + hour * 3600} 1 host=h{host:03d}\n" for hour in range(2) for host in range(150)]
    return "".join([*hot, *(f"put cold.{n} {BASE} 1 host=h000\n" for n in range(9))]).encode()


async def ranges(daemon: Running, more: str = "") -> list[dict[str, Any]]:
    """Ranges of the table of points."""
    response = await http_request(daemon, f"/api/stats/hot?limit=0{more}")
    assert response.status == 200, response.body
    return [one for one in response.json["ranges"] if one["table"] in ("tsdb", "metrics")]


async def test_hours_of_a_metric_show_writes_and_reads(tmp_path: Path) -> None:
    async with running(tmp_path, CREATES) as daemon:
        await daemon.send_lines(lines())
        await daemon.daemon.flush()
        hours = {one["time"]: one for one in await ranges(daemon) if one.get("metric") == "hot" and "time" in one}
        assert set(hours) == {BASE, BASE + 3600}
        for one in hours.values():
            assert 100 <= one["cellsWritten"] <= 200
            assert one["bytesWritten"] > 0
            assert (one["cellsRead"], one["readShare"]) == (0, 0)
        assert (await http_request(daemon, QUERY)).status == 200
        first, *others = await ranges(daemon, "&sort=reads")
        assert first["metric"] == "hot"
        assert first["readShare"] >= max(one["readShare"] for one in others)
        assert sum(one["cellsRead"] for one in (first, *others)) >= 300


async def test_blocks_are_read_in_their_ranges(tmp_path: Path) -> None:
    async with running(tmp_path, CREATES) as daemon:
        await daemon.send_lines(lines())
        await daemon.daemon.flush()
        blocks = daemon.daemon.store.column_blocks
        assert blocks is not None
        prefix = bytes.fromhex(next(one["start"] for one in await ranges(daemon) if one.get("time") == BASE))
        assert (await blocks.fold("tsdb", prefix)).cells
        daemon.daemon.drop_caches()
        assert (await http_request(daemon, QUERY)).status == 200
        read = {one["start"]: one["cellsRead"] for one in await ranges(daemon, "&sort=reads")}
        assert read[prefix.hex()] >= 150


async def test_salts_are_ranges_of_their_own(tmp_path: Path) -> None:
    async with running(tmp_path, {**CREATES, "tsd.storage.salt.width": "1", "tsd.storage.salt.buckets": "2"}) as daemon:
        await daemon.send_lines(lines())
        await daemon.daemon.flush()
        found = [one for one in await ranges(daemon) if one.get("metric") == "hot"]
        assert {one["salt"] for one in found} == {0, 1}
        assert all(bytes.fromhex(one["start"])[0] == one["salt"] for one in found)


async def test_heroics_rows_have_their_metric_and_tags(tmp_path: Path) -> None:
    async with running(tmp_path, {**CREATES, "tsd.storage.layout": "heroic"}) as daemon:
        await daemon.send_lines(b"".join(b"put hot %d 1 host=a\n" % (BASE + n) for n in range(100)))
        await daemon.daemon.flush()
        [found] = await ranges(daemon)
        assert (found["metric"], found["tags"], found["cellsWritten"]) == ("hot", "host=a", 100)


async def test_metrics_have_bounded_ranges_without_hours(tmp_path: Path) -> None:
    async with running(tmp_path, CREATES) as daemon:
        await daemon.send_lines(lines() + b"".join(b"put more.%d %d 1 a=b\n" % (n, BASE) for n in range(60)))
        await daemon.daemon.flush()
        await http_request(daemon, QUERY)
        values = (await metrics(daemon)).values
        written = [name for name in values if name.startswith("tsd_hot_range_written_ratio")]
        assert 1 <= len(written) <= 10
        for verb in ("written", "read"):
            [share] = [
                value for name, value in values.items()
                if name.startswith(f"tsd_hot_range_{verb}_ratio") and 'table="tsdb"' in name and 'metric="hot"' in name
            ]  # fmt: skip
            assert share > 0.1


async def command(folder: Path, *words: str) -> tuple[int, str, str]:
    """Status and output of `tsd hot`."""
    call = [sys.executable, "-m", "tsd", "hot", "--data", str(folder), *words]
    done = await trio.run_process(call, capture_stdout=True, capture_stderr=True, check=False)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


@pytest.mark.slow
async def test_command_shows_ranges_of_the_daemon(tmp_path: Path) -> None:
    async with running(tmp_path, CREATES) as daemon:
        await daemon.send_lines(lines())
        await daemon.daemon.flush()
        status, shown, _ = await command(tmp_path, "--since", "1h", "--sort", "bytes")
        assert status == 0
        assert "tsdb metric=hot time=2013-01-01T01:00:00Z" in shown
        status, shown, _ = await command(tmp_path, "--limit", "2", "--json")
        assert status == 0
        assert len(json.loads(shown)["ranges"]) == 2
        status, _, error = await command(tmp_path, "--since", "1x")
        assert (status, "got duration '1x'" in error) == (2, True)
    status, _, error = await command(tmp_path)
    assert (status, "no daemon runs" in error) == (3, True)


async def test_bad_parameters_are_refused(tmp_path: Path) -> None:
    async with running(tmp_path) as daemon:
        for bad in ("since=1x", "since=0m", "since=4h", "sort=x", "limit=-1", "limit=x"):
            assert (await http_request(daemon, f"/api/stats/hot?{bad}")).status == 400, bad
        assert (await http_request(daemon, "/api/stats/hot", method="DELETE")).status == 405
        assert (await http_request(daemon, "/api/stats/hot?since=180m&sort=bytes&limit=0")).status == 200


@pytest.mark.usefixtures("layout")
@pytest.mark.parametrize("layout", [layouts.READABLE], indirect=True)
async def test_layout_without_ranges_says_so(tmp_path: Path) -> None:
    async with running(tmp_path) as daemon:
        assert (await http_request(daemon, "/api/stats/hot")).status == 501
        assert (await http_request(daemon, "/metrics")).status == 200
