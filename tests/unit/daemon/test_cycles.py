"""Requests leave no objects that reference each other.

Such objects wait for Python's cycle collector, which counts objects and not bytes. The daemon runs it rarely. Objects
that outlived one of its runs wait for thousands of others.
"""

import gc
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.running import Client, running
from tests.unit.server.web_parts import get, post, read_response

BASE = 1_600_000_000 // 3600 * 3600
LINES = b"".join(b"put cycle.m %d %d host=%d\n" % (BASE + at * 10, at, at % 3) for at in range(90))
SETTINGS = {"tsd.core.auto_create_metrics": "true", "tsd.rollups.enable": "true", "tsd.kairosdb.enabled": "true"}
HOUR = f"/api/query?start={BASE}&end={BASE + 3599}&m="
EXPRESSION = {
    "time": {"start": str(BASE), "end": str(BASE + 3599), "aggregator": "sum"},
    "metrics": [{"id": "a", "metric": "cycle.m", "filter": "f"}],
    "filters": [{"id": "f", "tags": []}],
    "expressions": [{"id": "e", "expr": "a + 1"}],
    "outputs": [{"id": "e"}],
}
KAIROSDB = {"start_absolute": BASE * 1000, "end_absolute": (BASE + 3599) * 1000, "metrics": [{"name": "cycle.m"}]}
REQUESTS = {
    "general query": (get(HOUR + "sum:cycle.m&m=max:cycle.m"), 200),
    "repeated query": (get(HOUR + "sum:cycle.m"), 200),
    "repeated query of groups": (get(HOUR + "sum:1m-avg:cycle.m{host=*}"), 200),
    "query with wrong times": (get("/api/query?start=x&m=sum:cycle.m"), 400),
    "query of an unknown metric": (get(HOUR + "sum:nosuch"), 400),
    "query with a wrong body": (post("/api/query", b'{"start": "x", "queries": [{"metric": "a"}]}'), 400),
    "expression": (post("/api/query/exp", json.dumps(EXPRESSION).encode()), 200),
    "wrong expression": (post("/api/query/exp", b"{}"), 500),
    "KairosDB's query": (post("/api/v1/datapoints/query", json.dumps(KAIROSDB).encode()), 200),
    "put": (post("/api/put", b'[{"metric": "cycle.m", "timestamp": 1, "value": 1, "tags": {"host": "1"}}]'), 204),
    "refused put": (post("/api/put?details", b'[{"metric": "a b", "timestamp": 1, "value": 1, "tags": {}}]'), 400),
}


@contextmanager
def uncollected() -> Iterator[list[str]]:
    """Collect the types of tsd's objects that the block leaves to the cycle collector."""
    found: list[str] = []
    gc.collect()
    gc.disable()
    try:
        yield found
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        kinds = {type(one) for one in gc.garbage}
        found += sorted(one.__name__ for one in kinds if one.__module__.startswith("tsd."))
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


@pytest.mark.parametrize("name", REQUESTS)
async def test_request_leaves_no_cycle(tmp_path: Path, name: str) -> None:
    request, status = REQUESTS[name]

    async def send(client: Client) -> None:
        await client.send(request)
        assert (await read_response(client)).status == status

    async with running(tmp_path, SETTINGS) as daemon:
        await daemon.send_lines(LINES)
        async with daemon.client() as client:
            await send(client)  # imports, and a repeated query's access path
            with uncollected() as found:
                await send(client)
                await send(client)
            assert found == []
