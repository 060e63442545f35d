"""A whole daemon: what it writes is found at once, and after a restart."""

import http.client
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from click.testing import CliRunner

from tests.running import Running, running
from tsd.cli import tsd
from tsd.config.loader import key_layout
from tsd.config.settings import Config
from tsd.daemon.settings import now_ms
from tsd.daemon.wiring import opened_store
from tsd.tables.opentsdb.series_index import SeriesIndex

TRACKED = {
    "tsd.core.meta.enable_tsuid_tracking": "true",
    "tsd.core.meta.enable_realtime_ts": "true",
    "tsd.core.meta.enable_realtime_uid": "true",
    "tsd.core.tree.enable_processing": "true",
}


@pytest.fixture
def now_s() -> int:
    """The second in which the test began. The daemon's clock is the machine's."""
    return now_ms() // 1000


async def http_request(daemon: Running, method: str, path: str, body: object = None) -> Any:
    """The JSON that a request is answered with."""

    def hop() -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", daemon.port, timeout=60)
        connection.request(method, path, json.dumps(body) if body is not None else None)
        data = connection.getresponse().read()
        connection.close()
        return json.loads(data) if data else None

    return await trio.to_thread.run_sync(hop)


async def test_newest_points_are_answered_also_after_a_restart(tmp_path: Path, now_s: int) -> None:
    async with running(tmp_path) as daemon:
        await daemon.send_lines(b"put m %d 42 host=a\nput m %d 4.5 host=b\n" % (now_s, now_s))
        first = await http_request(daemon, "GET", "/api/query/last?timeseries=m&resolve")
        assert [(one["tags"]["host"], one["value"]) for one in first] == [("a", "42"), ("b", "4.5")]
        found = await http_request(daemon, "GET", "/api/search/lookup?m=m%7Bhost=*%7D&limit=1000")
        assert [one["tags"] for one in found["results"]] == [{"host": "a"}, {"host": "b"}]
    async with running(tmp_path) as daemon:
        assert await http_request(daemon, "GET", "/api/query/last?timeseries=m&resolve") == first
        await daemon.send_lines(b"put m %d 43 host=a\n" % now_s)
        again = await http_request(daemon, "GET", "/api/query/last?timeseries=m%7Bhost=a%7D")
        assert [one["value"] for one in again] == ["43"]


@pytest.mark.parametrize("writer", ["daemon", "import"])
async def test_series_that_were_written_without_an_index_are_found_with_it(
    tmp_path: Path, writer: str, now_s: int
) -> None:
    """Regression: queries with a filter did not find them."""
    config = Config(path=str(tmp_path))
    on, off = {"tsd.core.auto_create_metrics": "true"}, {"tsd.query.series_index": "false"}
    async with running(tmp_path, on) as daemon:
        await daemon.send_lines(b"put m %d 1 host=a\n" % now_s)
    async with opened_store(config) as store:
        await SeriesIndex(store, config.series_table, key_layout(config)).rebuild(config.data_table)
    if writer == "daemon":
        async with running(tmp_path, on | off) as daemon:
            await daemon.send_lines(b"put m %d 2 host=b\n" % now_s)
    else:
        words = ["--data", str(tmp_path), "--set", "tsd.query.series_index=false", "import", "-"]
        run = partial(CliRunner().invoke, tsd, words, input=f"m {now_s} 2 host=b\n")
        assert (await trio.to_thread.run_sync(run)).exit_code == 0
    async with running(tmp_path, on) as daemon:
        [found] = await http_request(daemon, "GET", f"/api/query?start={now_s - 1}&m=sum:m%7Bhost=b%7D")
        assert found["dps"] == {str(now_s): 2}


async def test_tracking_settings_create_metadata_and_leaves(tmp_path: Path, now_s: int) -> None:
    async with running(tmp_path, TRACKED) as daemon:
        await http_request(daemon, "POST", "/api/tree", {"name": "T", "enabled": True})
        rule = {"treeId": 1, "level": 0, "order": 0, "type": "METRIC"}
        await http_request(daemon, "POST", "/api/tree/rule", rule)
        await daemon.send_lines(b"put m %d 42 host=a\n" % now_s)
        await daemon.daemon.flush()
        [meta] = await http_request(daemon, "GET", "/api/uid/tsmeta?m=m")
        assert (meta["totalDatapoints"], meta["metric"]["name"]) == (1, "m")
        assert min(meta["created"], meta["lastReceived"], meta["metric"]["created"]) >= now_s
        branch = await http_request(daemon, "GET", "/api/tree/branch?treeid=1")
        assert [leaf["displayName"] for leaf in branch["leaves"]] == ["m"]
