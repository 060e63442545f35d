"""Many random connections at once to a real daemon in this process. Afterwards its state must be unchanged."""

import os
import random
import ssl
from pathlib import Path
from typing import Any, NamedTuple

import trio
import trustme
from trio.testing import wait_all_tasks_blocked

from tests.faults.accounting import check_ledger
from tests.faults.random_requests import SETTINGS, TIMES, RandomRequests
from tests.fuzz.connections import HOST, Bad, FuzzedConnections
from tests.running import Running, running
from tests.unit.server.web_parts import read_response

SIDE_BY_SIDE = 12
BASE = 1_356_998_400
KEPT = b"".join(b"put kept.series %d %d kept=k%d\n" % (BASE + n, n, n % 5) for n in range(100))
QUIET = {
    **SETTINGS,
    "tsd.core.auto_create_metrics": "false",  # otherwise random names fill the memory
    "tsd.core.auto_create_tagks": "false",
    "tsd.core.auto_create_tagvs": "false",
}
SETTLE_S = 60.0  # for the daemon to end closed connections
WARM = 10_000  # requests before the first memory measurement


class Outcome(NamedTuple):
    """Result of a flood."""

    requests: int
    connections: int
    answered: int
    grown: int  # bytes of memory since the first measurement


class Flood:
    """Concurrent connections."""

    def __init__(self, port: int, client: ssl.SSLContext, seed: int) -> None:
        self.connections = 0
        rngs = [random.Random(f"{seed}/{number}") for number in range(SIDE_BY_SIDE)]
        self._fuzzers = [FuzzedConnections(port, rng, RandomRequests(rng).one, client) for rng in rngs]

    @property
    def sent(self) -> int:
        """Number of requests."""
        return sum(fuzzer.sent for fuzzer in self._fuzzers)

    @property
    def answered(self) -> int:
        """Number of answered connections."""
        return sum(fuzzer.answered for fuzzer in self._fuzzers)

    async def play(self, requests: int) -> None:
        """Continue until this many requests were sent. Raise Bad."""

        async def worker(fuzzer: FuzzedConnections) -> None:
            while self.sent < requests:
                self.connections += 1
                await fuzzer.connect()

        async with trio.open_nursery() as nursery:
            for fuzzer in self._fuzzers:
                nursery.start_soon(worker, fuzzer)


async def flood(folder: Path, requests: int, seed: int) -> Outcome:
    """Send this many requests to a daemon and check it. Raise Bad."""
    authority = trustme.CA(key_type=trustme.KeyType.ECDSA)
    leaf = authority.issue_cert(HOST, key_type=trustme.KeyType.ECDSA)
    leaf.private_key_and_cert_chain_pem.write_to_path(str(folder / "both.pem"))
    client = ssl.create_default_context()
    authority.configure_trust(client)
    async with running(folder / "state", SETTINGS) as daemon:
        await daemon.send_lines(b"put m %d 1 host=a\n" % BASE + KEPT)
    settings = {**QUIET, "tsd.tls.certificate": str(folder / "both.pem")}
    async with running(folder / "state", settings) as daemon:
        before = await untouched_points(daemon)
        points = sum(len(series["dps"]) for series in before)
        if points != 100:
            raise Bad(f"points are missing: {points} of 100")
        tasks = await settled(daemon)
        load = Flood(daemon.port, client, seed)
        await load.play(min(requests, WARM))
        warm = memory()
        await load.play(requests)
        left = await settled(daemon) - tasks
        if left > 0:
            raise Bad(f"{left} tasks are left")
        if await untouched_points(daemon) != before:
            raise Bad("stored points have changed")
        await _check_counts(daemon)
        return Outcome(load.sent, load.connections, load.answered, memory() - warm)


async def settled(daemon: Running) -> int:
    """Return the number of tasks once no connection is open."""
    with trio.move_on_after(SETTLE_S):
        while daemon.daemon.server.listener.statistics().open:  # noqa: ASYNC110 - a socket's end has no event
            await trio.sleep(0.01)
        await wait_all_tasks_blocked()  # the task of the last connection ends
        return trio.lowlevel.current_statistics().tasks_living
    raise Bad(f"{daemon.daemon.server.listener.statistics().open} connections are still open")


async def untouched_points(daemon: Running) -> list[Any]:
    """Return the stored points that no request touches."""
    async with daemon.client() as client:
        target = f"/api/query?{TIMES}&m=none:kept.series&show_tsuids&ms"
        await client.send(f"GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        found: list[Any] = (await read_response(client)).json
        return found


async def _check_counts(daemon: Running) -> None:
    """Assert that there were no internal errors, and that the counts of lines balance."""
    async with daemon.client() as client:
        stats = await client.stats()
    if stats["rpc.exceptions"] or daemon.daemon.server.listener.statistics().failed:
        raise Bad(f"{stats['rpc.exceptions']} internal errors")
    check_ledger(stats)


def memory() -> int:
    """Return this process' memory in bytes."""
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
