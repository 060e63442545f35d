"""Connections by chance, many at once, to a real daemon in this process; and whether it is as it was before."""

import os
import random
import ssl
from pathlib import Path
from typing import Any, NamedTuple

import trio
import trustme
from trio.testing import wait_all_tasks_blocked

from tests.faults.ledger import check_ledger
from tests.faults.test_http_fuzz import SETTINGS, TIMES, Drawing
from tests.fuzz.wire import HOST, Bad, Wire
from tests.running import Running, running
from tests.unit.doors.web_parts import hear

SIDE_BY_SIDE = 12
BASE = 1_356_998_400
KEPT = b"".join(b"put kept.series %d %d kept=k%d\n" % (BASE + n, n, n % 5) for n in range(100))
QUIET = {
    **SETTINGS,
    "tsd.core.auto_create_metrics": "false",  # or what is drawn would fill memory by right
    "tsd.core.auto_create_tagks": "false",
    "tsd.core.auto_create_tagvs": "false",
    "tsd.tls.handshake_timeout": "1000",
}
SETTLE_S = 60.0  # for the daemon to be done with connections that have ended
WARM = 10_000  # requests before memory is looked at


class Came(NamedTuple):
    """What a flood came to."""

    requests: int
    connections: int
    answered: int
    grown: int  # bytes of memory, after the first requests


class Flood:
    """Connections side by side."""

    def __init__(self, port: int, client: ssl.SSLContext, seed: int) -> None:
        self.connections = 0
        self._seed = seed
        chances = [random.Random(f"{seed}/{number}") for number in range(SIDE_BY_SIDE)]
        self._wires = [Wire(port, chance, Drawing(chance).one, client) for chance in chances]

    @property
    def sent(self) -> int:
        """Requests."""
        return sum(wire.sent for wire in self._wires)

    @property
    def answered(self) -> int:
        """Connections that were told something."""
        return sum(wire.answered for wire in self._wires)

    async def play(self, requests: int) -> None:
        """Go on until so many were sent. Raises Bad."""

        async def worker(wire: Wire) -> None:
            while self.sent < requests:
                self.connections += 1
                await wire.connect()

        async with trio.open_nursery() as nursery:
            for wire in self._wires:
                nursery.start_soon(worker, wire)


async def flood(folder: Path, requests: int, seed: int) -> Came:
    """So many requests. Raises Bad."""
    authority = trustme.CA(key_type=trustme.KeyType.ECDSA)
    leaf = authority.issue_cert(HOST, key_type=trustme.KeyType.ECDSA)
    leaf.private_key_and_cert_chain_pem.write_to_path(str(folder / "both.pem"))
    client = ssl.create_default_context()
    authority.configure_trust(client)
    async with running(folder / "state", SETTINGS) as daemon:
        await daemon.tell(b"put m %d 1 host=a\n" % BASE + KEPT)
    settings = {**QUIET, "tsd.tls.certificate": str(folder / "both.pem")}
    async with running(folder / "state", settings) as daemon:
        before = await kept(daemon)
        points = sum(len(series["dps"]) for series in before)
        if points != 100:
            raise Bad(f"what is to be kept is not there: {points} of 100 points")
        tasks = await settled(daemon)
        drawn = Flood(daemon.port, client, seed)
        await drawn.play(min(requests, WARM))
        warm = memory()
        await drawn.play(requests)
        left = await settled(daemon) - tasks
        if left > 0:
            raise Bad(f"{left} tasks are left")
        if await kept(daemon) != before:
            raise Bad("stored points have changed")
        await _check_counts(daemon)
        return Came(drawn.sent, drawn.connections, drawn.answered, memory() - warm)


async def settled(daemon: Running) -> int:
    """How many tasks there are when no connection is left."""
    with trio.move_on_after(SETTLE_S):
        while daemon.daemon.listener.statistics().open:  # noqa: ASYNC110 - a socket's end has no event
            await trio.sleep(0.01)
        await wait_all_tasks_blocked()  # the last one's task has still to end
        return trio.lowlevel.current_statistics().tasks_living
    raise Bad(f"{daemon.daemon.listener.statistics().open} connections are still open")


async def kept(daemon: Running) -> list[Any]:
    """What is stored that no request speaks of."""
    async with daemon.client() as client:
        target = f"/api/query?{TIMES}&m=none:kept.series&show_tsuids&ms"
        await client.send(f"GET {target} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        found: list[Any] = (await hear(client)).json
        return found


async def _check_counts(daemon: Running) -> None:
    """No error of ours, and an account that balances."""
    async with daemon.client() as client:
        stats = await client.stats()
    if stats["rpc.exceptions"] or daemon.daemon.listener.statistics().failed:
        raise Bad(f"{stats['rpc.exceptions']} errors of ours")
    check_ledger(stats)


def memory() -> int:
    """Bytes that this process has in memory."""
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
