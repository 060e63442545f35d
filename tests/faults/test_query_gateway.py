"""HBase's gateway misbehaves while queries read: an answer is whole or an error, and the daemon goes on."""

import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.faults.askers import OK, asked
from tests.faults.process import Served, address_of, on_hbase, served
from tests.peers.hbase import RunningHbase
from tsd.torture.proxy import FaultyProxy, Mode

BASE_S = 1356998400
HOSTS, HOURS = 150, 8  # rows enough for several pages
SHORT = {"tsd.storage.hbase.thrift.timeout": "500"}  # ms
PATHS = [
    f"/api/query?start={BASE_S}&end={BASE_S + HOURS * 3600 - 1}&m={m}"
    for m in ("sum:fq.m", "max:10m-avg:fq.m{host=*}", "none:fq.m{}{host=wildcard(h1*)}", "sum:fq.m{host=h7|h77}")
]
MISBEHAVING = [mode for mode in Mode if mode is not Mode.PASS]
TURNS = 60
ASKERS = 3
PATIENCE_S = 60
FAILED = 424  # the store, in OpenTSDB's numbers


@pytest.fixture
def proxy(hbase: RunningHbase) -> Iterator[FaultyProxy]:
    with FaultyProxy(hbase.host, hbase.thrift_port) as proxy:
        yield proxy


async def test_an_answer_is_whole_or_an_error(hbase: RunningHbase, proxy: FaultyProxy, tmp_path: Path) -> None:
    chance = random.Random(1)
    async with served(tmp_path, {**on_hbase(address_of(proxy), hbase.new_tables()), **SHORT}) as daemon:
        await daemon.ready()
        async with daemon.client() as client:
            await client.ask(b"".join(lines()))
            wanted = {path: await whole(daemon, path) for path in PATHS}
            statuses: list[int] = []
            async with trio.open_nursery() as nursery:
                for _ in range(ASKERS):
                    nursery.start_soon(ask_on, daemon, chance, wanted, statuses)
                for _ in range(TURNS):
                    proxy.mode = chance.choice([Mode.PASS, chance.choice(MISBEHAVING)])
                    for _ in range(chance.randrange(1, 100)):
                        await client.stats()  # how long a turn is: some of its calls are in the middle of a scan
                    if chance.random() < 0.3:
                        proxy.hang_up()
                proxy.mode = Mode.PASS
                nursery.cancel_scope.cancel()
        await until_asked_again(daemon)
        assert {path: await whole(daemon, path) for path in PATHS} == wanted
        assert set(statuses) == {OK, FAILED}
        await daemon.terminate()


def lines() -> Iterator[bytes]:
    for host in range(HOSTS):
        for hour in range(HOURS):
            for at in range(0, 3600, 300):
                yield f"put fq.m {BASE_S + hour * 3600 + at} {host * hour + at} host=h{host}\n".encode()


async def whole(daemon: Served, path: str) -> Any:
    status, answer = await asked(daemon.port, path)
    assert status == OK, (path, answer)
    assert answer
    return answer


async def until_asked_again(daemon: Served) -> None:
    """A gateway that failed is left alone for some seconds."""
    with trio.fail_after(PATIENCE_S):
        while (await asked(daemon.port, PATHS[0]))[0] != OK:
            pass


async def ask_on(daemon: Served, chance: random.Random, wanted: Mapping[str, Any], statuses: list[int]) -> None:
    """Ask for ever; what is answered well is right."""
    while True:
        path = chance.choice(PATHS)
        status, answer = await asked(daemon.port, path)
        assert status == FAILED or (status == OK and answer == wanted[path]), (path, status, answer)
        statuses.append(status)
