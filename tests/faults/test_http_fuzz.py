"""Random malformed requests to every endpoint of a real daemon.

The daemon answers each request or closes the connection, in time and without an internal error. Afterwards it still
serves, its counts balance, and the stored points are unchanged. TSD_FUZZ sets the number of connections, TSD_FUZZ_SEED
the random seed.
"""

import json
import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import trio

from tests.faults.accounting import check_ledger
from tests.faults.random_requests import BASE, SETTINGS, TIMES, RandomRequests
from tests.running import Running, running
from tests.unit.server.web_parts import HttpResponse, read_response

CONNECTIONS = int(os.environ.get("TSD_FUZZ") or 120)
SEED = int(os.environ.get("TSD_FUZZ_SEED") or 1)
SIDE_BY_SIDE = 12  # concurrent connections
PATIENCE_S = 300  # per answer; only bounds the wait of a failing test


async def converse(daemon: Running, requests: Sequence[bytes]) -> list[HttpResponse]:
    """Send requests one after the other. Return the answers up to the end of the connection. Disconnect if the daemon
    waits for more input."""
    responses: list[HttpResponse] = []
    async with daemon.client() as client:
        for request in requests:
            try:
                with trio.fail_after(PATIENCE_S):
                    await client.send(request)
                    await client.stream.send_eof() if request is requests[-1] else None
                    answer = await read_response(client, head=request.startswith(b"HEAD"))
                    while answer.status == 100:
                        answer = await read_response(client, head=request.startswith(b"HEAD"))
                    responses.append(answer)
            except (AssertionError, trio.BrokenResourceError):
                return responses
            except trio.TooSlowError:
                raise TimeoutError(f"no answer to {request[:2000]!r}") from None
    return responses


async def kept(daemon: Running) -> tuple[list[Any], dict[str, int]]:
    """Return the stored points that no request touches, and the stats."""
    async with daemon.client() as client:
        target = f"/api/query?{TIMES}&m=none:kept.series&show_tsuids&ms"
        await client.send(f"GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        found = (await read_response(client)).json
    async with daemon.client() as client:
        return found, await client.stats()


async def test_malformed_requests_answered_or_closed(tmp_path: Path) -> None:
    async with running(tmp_path, SETTINGS) as daemon:
        lines = b"".join(b"put kept.series %d %d kept=k%d\n" % (BASE + n, n, n % 5) for n in range(100))
        await daemon.send_lines(b"put m %d 1 host=a\n" % BASE)  # assigns the UIDs that requests use
        await daemon.send_lines(lines)
        before, _ = await kept(daemon)
        assert sum(len(series["dps"]) for series in before) == 100
        statuses = set()

        async def worker(number: int) -> None:
            for connection in range(number, CONNECTIONS, SIDE_BY_SIDE):
                requests = list(RandomRequests(random.Random(f"{SEED}/{connection}")).requests())
                for request, response in zip(requests, await converse(daemon, requests), strict=False):
                    check_answer(request, response)
                    statuses.add(response.status)

        async with trio.open_nursery() as nursery:
            for number in range(SIDE_BY_SIDE):
                nursery.start_soon(worker, number)
        assert {200, 400} <= statuses  # connections are not just closed
        after, stats = await kept(daemon)
        assert after == before
        assert stats["rpc.exceptions"] == 0
        check_ledger(stats)


def check_answer(request: bytes, response: HttpResponse) -> None:
    """Assert that an answer is well-formed."""
    assert 200 <= response.status < 600
    is_json = response.headers.get("content-type", "").startswith("application/json") and b"jsonp" not in request
    if is_json and response.body and "content-encoding" not in response.headers:
        json.loads(response.body)
