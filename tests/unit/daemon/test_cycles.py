"""Requests and connections leave no objects that reference each other.

Such objects wait for Python's cycle collector, which counts objects and not bytes. The daemon runs it rarely. Objects
that outlived one of its runs wait for thousands of others.
"""

import gc
import json
import ssl
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import pytest
import trio
import trustme

from tests.running import OPEN, Client, Running, running
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
    """Collect the types of objects that the block leaves to the cycle collector: tsd's, and streams with TLS."""
    found: list[str] = []
    gc.collect()
    gc.disable()
    try:
        yield found
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        kinds = {type(one) for one in gc.garbage}
        found += sorted(one.__name__ for one in kinds if one.__module__.startswith("tsd.") or one is trio.SSLStream)
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


async def be_silent(_: Client) -> None:
    pass


async def send_points(client: Client) -> None:
    await client.send_lines(LINES)


async def send_half_a_line(client: Client) -> None:
    await client.send(b"put cycle")


async def send_request(client: Client) -> None:
    await client.send(get("/api/version"))
    await read_response(client)


async def send_query(client: Client) -> None:
    await client.send(get(HOUR + "sum:cycle.m"))
    await read_response(client)


async def send_half_a_request(client: Client) -> None:
    await client.send(post("/api/put", b"[" * 100)[:-50])


Talk = Callable[[Client], Awaitable[None]]
TALKS = (be_silent, send_points, send_half_a_line, send_request, send_query, send_half_a_request)


async def await_ends(daemon: Running) -> None:
    """Wait until the daemon has noticed the ends of all connections."""
    async with daemon.client() as client:
        while (await client.stats())["connectionmgr.connections type=open"] > 1:
            await trio.lowlevel.checkpoint()


@pytest.mark.parametrize("talk", TALKS)
async def test_ended_connection_leaves_no_cycle(tmp_path: Path, talk: Talk) -> None:
    async with running(tmp_path, SETTINGS) as daemon:
        await daemon.send_lines(LINES)

        async def connect() -> None:
            async with daemon.client() as client:
                await talk(client)
            await await_ends(daemon)

        await connect()
        with uncollected() as found:
            await connect()
        assert found == []


@pytest.mark.parametrize("talk", [*TALKS, None], ids=lambda talk: talk.__name__ if talk else "broken_handshake")
async def test_ended_tls_connection_leaves_no_cycle(tmp_path: Path, talk: Talk | None) -> None:
    leaf = trustme.CA(key_type=trustme.KeyType.ECDSA).issue_cert("a.test", key_type=trustme.KeyType.ECDSA)
    leaf.cert_chain_pems[0].write_to_path(tmp_path / "cert")
    leaf.private_key_pem.write_to_path(tmp_path / "key")
    access = {**OPEN, "tsd.tls.certificate": str(tmp_path / "cert"), "tsd.tls.key": str(tmp_path / "key")}
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    async with running(tmp_path, SETTINGS, access=access) as daemon:
        await daemon.send_lines(LINES)

        async def connect() -> None:
            async with daemon.client() as client:
                if talk is None:
                    await client.send(b"\x16\3\1\0\5wrong")
                    await client.read_to_end()
                else:
                    stream = trio.SSLStream(client.stream, context, server_hostname="a.test")
                    await stream.do_handshake()
                    await talk(Client(cast(trio.SocketStream, stream)))
                    vars(stream).clear()  # the test's own stream references itself, too
            await await_ends(daemon)

        await connect()
        with uncollected() as found:
            await connect()
        assert found == []
