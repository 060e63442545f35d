"""HBase's gateway fails during queries: each answer is complete or an error, and the daemon keeps running."""

import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.faults.process import Served, address_of, on_hbase, served
from tests.faults.query_clients import OK, http_request
from tests.peers.hbase import RunningHbase
from tsd.cli.torture.proxy import FaultyProxy, ProxyMode

BASE_S = 1356998400
HOSTS, HOURS = 150, 8  # enough rows for several pages
SHORT = {"tsd.storage.hbase.thrift.timeout": "500"}  # ms
PATHS = [
    f"/api/query?start={BASE_S}&end={BASE_S + HOURS * 3600 - 1}&m={m}"
    for m in ("sum:fq.m", "max:10m-avg:fq.m{host=*}", "none:fq.m{}{host=wildcard(h1*)}", "sum:fq.m{host=h7|h77}")
]
MISBEHAVING = [mode for mode in ProxyMode if mode is not ProxyMode.PASS]
TURNS = 30
CLIENTS = 3
PATIENCE_S = 60
FAILED = 424  # the store, in OpenTSDB's numbers


@pytest.fixture
def proxy(hbase: RunningHbase) -> Iterator[FaultyProxy]:
    with FaultyProxy(hbase.host, hbase.thrift_port) as proxy:
        yield proxy


async def test_answer_is_complete_or_error(hbase: RunningHbase, proxy: FaultyProxy, tmp_path: Path) -> None:
    rng = random.Random(1)
    async with served(tmp_path, {**on_hbase(address_of(proxy), hbase.new_tables()), **SHORT}) as daemon:
        await daemon.ready()
        async with daemon.client() as client:
            await client.send_lines(b"".join(lines()))
            wanted = {path: await whole(daemon, path) for path in PATHS}
            statuses: list[int] = []
            async with trio.open_nursery() as nursery:
                for _ in range(CLIENTS):
                    nursery.start_soon(query_repeatedly, daemon, rng, wanted, statuses)
                for _ in range(TURNS):
                    proxy.mode = rng.choice([ProxyMode.PASS, rng.choice(MISBEHAVING)])
                    for _ in range(rng.randrange(1, 100)):
                        await client.stats()  # the duration of a round: some calls fail in the middle of a scan
                    if rng.random() < 0.3:
                        proxy.disconnect_all()
                proxy.mode = ProxyMode.PASS
                nursery.cancel_scope.cancel()
        assert {path: await whole(daemon, path) for path in PATHS} == wanted
        assert set(statuses) == {OK, FAILED}
        await daemon.terminate()


def lines() -> Iterator[bytes]:
    for host in range(HOSTS):
        for hour in range(HOURS):
            for at in range(0, 3600, 300):
                yield f"put fq.m {BASE_S + hour * 3600 + at} {host * hour + at} host=h{host}\n".encode()


async def whole(daemon: Served, path: str) -> Any:
    """Return the answer to a query. Repeat it while the gateway is avoided, as after a slow call on a busy machine."""
    with trio.fail_after(PATIENCE_S):
        while (result := await http_request(daemon.port, path))[0] == FAILED:
            pass
    status, answer = result
    assert status == OK, (path, answer)
    assert answer
    return answer


async def query_repeatedly(daemon: Served, rng: random.Random, wanted: Mapping[str, Any], statuses: list[int]) -> None:
    """Query until cancelled, and assert that each successful answer is complete."""
    while True:
        path = rng.choice(PATHS)
        status, answer = await http_request(daemon.port, path)
        assert status == FAILED or (status == OK and answer == wanted[path]), (path, status, answer)
        statuses.append(status)
