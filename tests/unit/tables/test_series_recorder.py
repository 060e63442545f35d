"""A whole daemon: what it writes is found at once, and after a restart."""

import http.client
import json
import time
from pathlib import Path
from typing import Any

import trio

from tests.running import Running, running

TRACKED = {
    "tsd.core.meta.enable_tsuid_tracking": "true",
    "tsd.core.meta.enable_realtime_ts": "true",
    "tsd.core.meta.enable_realtime_uid": "true",
    "tsd.core.tree.enable_processing": "true",
}
NOW_S = int(time.time())  # noqa: TID251 - the daemon's clock is the machine's


async def http_request(daemon: Running, method: str, path: str, body: object = None) -> Any:
    """The JSON that a request is answered with."""

    def hop() -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", daemon.port, timeout=60)
        connection.request(method, path, json.dumps(body) if body is not None else None)
        data = connection.getresponse().read()
        connection.close()
        return json.loads(data) if data else None

    return await trio.to_thread.run_sync(hop)


async def test_newest_points_are_answered_also_after_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path) as daemon:
        await daemon.send_lines(b"put m %d 42 host=a\nput m %d 4.5 host=b\n" % (NOW_S, NOW_S))
        first = await http_request(daemon, "GET", "/api/query/last?timeseries=m&resolve")
        assert [(one["tags"]["host"], one["value"]) for one in first] == [("a", "42"), ("b", "4.5")]
        found = await http_request(daemon, "GET", "/api/search/lookup?m=m%7Bhost=*%7D&limit=1000")
        assert [one["tags"] for one in found["results"]] == [{"host": "a"}, {"host": "b"}]
    async with running(tmp_path) as daemon:
        assert await http_request(daemon, "GET", "/api/query/last?timeseries=m&resolve") == first
        await daemon.send_lines(b"put m %d 43 host=a\n" % NOW_S)
        again = await http_request(daemon, "GET", "/api/query/last?timeseries=m%7Bhost=a%7D")
        assert [one["value"] for one in again] == ["43"]


async def test_tracking_settings_create_metadata_and_leaves(tmp_path: Path) -> None:
    async with running(tmp_path, TRACKED) as daemon:
        await http_request(daemon, "POST", "/api/tree", {"name": "T", "enabled": True})
        rule = {"treeId": 1, "level": 0, "order": 0, "type": "METRIC"}
        await http_request(daemon, "POST", "/api/tree/rule", rule)
        await daemon.send_lines(b"put m %d 42 host=a\n" % NOW_S)
        await daemon.daemon.flush()
        [meta] = await http_request(daemon, "GET", "/api/uid/tsmeta?m=m")
        assert (meta["totalDatapoints"], meta["metric"]["name"]) == (1, "m")
        assert min(meta["created"], meta["lastReceived"], meta["metric"]["created"]) >= NOW_S
        branch = await http_request(daemon, "GET", "/api/tree/branch?treeid=1")
        assert [leaf["displayName"] for leaf in branch["leaves"]] == ["m"]
