"""/health/live and /ready, the liveness and readiness probes, and the checks /health/write, /read and /store.

Each check has a path of its own because they fail independently: without HBase points are still accepted, but nothing
can be read.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

import trio

from tsd.api.messages import answer, check_method
from tsd.config.health import CHECKS, OK
from tsd.config.settings import Mode
from tsd.errors import CorruptRow, NoTable, Refused, StoreError
from tsd.ingest.accepted import Backpressure
from tsd.ingest.journal.journal import Journal
from tsd.server.http.messages import Endpoint, Request, Response

FRESH_S = 1.0  # how long one probe of the store is reused
PROBE_TIMEOUT_S = 3.0  # how long a request waits for the store
SYNC_TIMEOUT_S = 10.0  # a journal sync that takes longer fails the check
UNAVAILABLE = 503

# `ready` reports all checks, but only these can fail it.
NEEDED = {Mode.READ_WRITE: ("write", "read"), Mode.READ_ONLY: ("read",), Mode.WRITE_ONLY: ("write",)}


class ProbeResult(NamedTuple):
    """Each `ok`, or an error."""

    store: str  # whether the store answers
    read: str  # whether it has the tables to read points from


class StoreProbe:
    """Checks that the store answers. All requests share one probe at a time: a store that is down blocks a thread for
    long, and threads cannot be cancelled."""

    def __init__(self, read: Callable[[], Awaitable[None]]) -> None:
        """`read` reads a little of each needed table. It may raise StoreError, and CorruptRow."""
        self._read = read
        self._wanted = trio.Event()
        self._answered = trio.Event()
        self._result = ProbeResult("", "")
        self._at = -FRESH_S

    async def run(self) -> None:
        """Probe the store whenever a result is requested. Never returns."""
        while True:
            await self._wanted.wait()
            self._result = await self._probe()
            self._at = trio.current_time()
            self._wanted = trio.Event()
            self._answered.set()
            self._answered = trio.Event()

    async def _probe(self) -> ProbeResult:
        try:
            await self._read()
        except NoTable as error:
            return ProbeResult(OK, str(error))
        except StoreError as error:
            return ProbeResult(str(error), str(error))
        except CorruptRow:  # the store answered
            pass
        return ProbeResult(OK, OK)

    async def result(self) -> ProbeResult:
        """Return the result of a recent probe, or of a new one."""
        if trio.current_time() - self._at < FRESH_S:
            return self._result
        self._wanted.set()
        with trio.move_on_after(PROBE_TIMEOUT_S):
            await self._answered.wait()
            return self._result
        timeout = f"no answer within {PROBE_TIMEOUT_S:g} s"
        return ProbeResult(timeout, timeout)


class Health:
    """The health checks of a daemon."""

    def __init__(
        self, mode: Mode, backpressure: Backpressure, journal: Journal, probe: StoreProbe, trouble: Callable[[], str]
    ) -> None:
        """`trouble` returns why the store refuses writes, or an empty text."""
        self._mode = mode
        self._backpressure = backpressure
        self._journal = journal
        self._probe = probe
        self._trouble = trouble

    async def check(self, which: str) -> Mapping[str, str]:
        """Run the checks of a key of CHECKS. `status` is `ok` or `not ready`; the others are `ok` or an error."""
        checks = CHECKS[which]
        found: dict[str, str] = {}
        if "write" in checks:
            found["write"] = self._write()
        if "read" in checks or "store" in checks:
            store, read = await self._probe.result()
            trouble = self._trouble()
            found["read"] = "tsd.mode is wo" if self._mode is Mode.WRITE_ONLY else read
            found["store"] = f"it refuses writes: {trouble}" if store == OK and trouble else store
        needed = NEEDED[self._mode] if which == "ready" else checks
        fine = all(found[check] == OK for check in needed)
        return {"status": OK if fine else "not ready", **{check: found[check] for check in checks}}

    def _write(self) -> str:
        """Return the `write` check: points are accepted while the journal can be written, even without the store."""
        if self._mode is Mode.READ_ONLY:
            return "tsd.mode is ro"
        if self._journal.trouble:
            return f"the journal cannot be written: {self._journal.trouble}"
        since = self._journal.writing_since
        if since is not None and (waited_s := trio.current_time() - since) > SYNC_TIMEOUT_S:
            return f"the journal's disk has not answered for {waited_s:.0f} s"
        if reasons := sorted(self._backpressure.reasons):
            return f"no points are accepted: {', '.join(reasons)}"
        return OK


def routes(health: Health) -> dict[str, Endpoint]:
    """/health/CHECK: 200 if the check passes, 503 and the errors if not."""

    async def endpoint(request: Request) -> Response:
        check_method(request, "GET", "HEAD", "POST")
        which = request.segments[1].lower() if len(request.segments) > 1 else "ready"
        if which not in CHECKS:
            raise Refused(404, "Endpoint not found")
        found = await health.check(which)
        return answer(found, 200 if found["status"] == OK else UNAVAILABLE)

    return {"health": endpoint}
