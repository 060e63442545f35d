"""/health/live, /ready, /write, /read and /store, for those who restart what hangs and send work to what works.

Writing, reading and the store are told apart, because one may do without the others: while HBase is away points are
taken all the same, and nothing can be read.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

import trio

from tsd.api.messages import answer, check_method
from tsd.doors.exchange import Endpoint, Request, Response
from tsd.errors import CorruptRow, NoTable, Refused, StoreError
from tsd.ingest.intake import Gate
from tsd.ingest.journal import Journal
from tsd.settings import Mode

FRESH_S = 1.0  # so long one answer of the store serves all who ask
PATIENCE_S = 3.0  # for the store, of one who asks
STUCK_S = 10.0  # a disk that takes so long for one group of lines is not one to rely on
UNAVAILABLE = 503
OK = "ok"

# What is looked at under each name; `ready` looks at all, and what it needs is said by the mode.
ASKED = {"live": (), "ready": ("write", "read", "store"), "write": ("write",), "read": ("read",), "store": ("store",)}
NEEDED = {Mode.READ_WRITE: ("write", "read"), Mode.READ_ONLY: ("read",), Mode.WRITE_ONLY: ("write",)}


class Verdict(NamedTuple):
    """Each `ok`, or what is wrong."""

    store: str  # it answers
    read: str  # and holds the tables that points are read from


class Probe:
    """Whether the store answers. One question at a time, however many ask: a store that is away holds each for long,
    and a thread that waits for it cannot be called back."""

    def __init__(self, ask: Callable[[], Awaitable[None]]) -> None:
        self._ask = ask
        self._wanted = trio.Event()
        self._answered = trio.Event()
        self._verdict = Verdict("", "")
        self._at = -FRESH_S

    async def run(self) -> None:
        """Ask whenever somebody wants to know, for ever."""
        while True:
            await self._wanted.wait()
            self._verdict = await self._find_out()
            self._at = trio.current_time()
            self._wanted = trio.Event()
            self._answered.set()
            self._answered = trio.Event()

    async def _find_out(self) -> Verdict:
        try:
            await self._ask()
        except NoTable as error:
            return Verdict(OK, str(error))
        except StoreError as error:
            return Verdict(str(error), str(error))
        except CorruptRow:  # it answered
            pass
        return Verdict(OK, OK)

    async def verdict(self) -> Verdict:
        """What it found a moment ago, or finds now."""
        if trio.current_time() - self._at < FRESH_S:
            return self._verdict
        self._wanted.set()
        with trio.move_on_after(PATIENCE_S):
            await self._answered.wait()
            return self._verdict
        silent = f"no answer within {PATIENCE_S:g} s"
        return Verdict(silent, silent)


class Health:
    """What a daemon can do at the moment."""

    def __init__(self, mode: Mode, gate: Gate, journal: Journal, probe: Probe, trouble: Callable[[], str]) -> None:
        """`trouble` gives why the store does not take cells, where it does not."""
        self._mode = mode
        self._gate = gate
        self._journal = journal
        self._probe = probe
        self._trouble = trouble

    async def look(self, which: str) -> Mapping[str, str]:
        """`status`, which is `ok` or `not ready`, and what each check that belongs to `which` (of `ASKED`) found."""
        asked = ASKED[which]
        found: dict[str, str] = {}
        if "write" in asked:
            found["write"] = self._write()
        if "read" in asked or "store" in asked:
            store, read = await self._probe.verdict()
            trouble = self._trouble()
            found["read"] = "tsd.mode is wo" if self._mode is Mode.WRITE_ONLY else read
            found["store"] = f"it takes no cells: {trouble}" if store == OK and trouble else store
        needed = NEEDED[self._mode] if which == "ready" else asked
        fine = all(found[check] == OK for check in needed)
        return {"status": OK if fine else "not ready", **{check: found[check] for check in asked}}

    def _write(self) -> str:
        """Points are taken as long as the journal takes them: whether the store does is another question."""
        if self._mode is Mode.READ_ONLY:
            return "tsd.mode is ro"
        if self._journal.trouble:
            return f"the journal cannot be written: {self._journal.trouble}"
        since = self._journal.writing_since
        if since is not None and (waited_s := trio.current_time() - since) > STUCK_S:
            return f"the journal's disk has not answered for {waited_s:.0f} s"
        if held := sorted(self._gate.held):
            return f"no points are taken in: {', '.join(held)}"
        return OK


def routes(health: Health) -> dict[str, Endpoint]:
    """200 where all is well, 503 and the reasons where it is not: what load balancers go by."""

    async def endpoint(request: Request) -> Response:
        check_method(request, "GET", "HEAD", "POST")
        which = request.segments[1].lower() if len(request.segments) > 1 else "ready"
        if which not in ASKED:
            raise Refused(404, "Endpoint not found")
        found = await health.look(which)
        return answer(found, 200 if found["status"] == OK else UNAVAILABLE)

    return {"health": endpoint}
