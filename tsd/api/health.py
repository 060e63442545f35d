"""/health/live and /health/ready, for those who restart what hangs and send work to what works."""

from collections.abc import Awaitable, Callable, Mapping, Sequence

import trio

from tsd.api.messages import answer, check_method
from tsd.doors.exchange import Endpoint, Request, Response
from tsd.errors import CorruptRow, Refused, StoreError

FRESH_S = 1.0  # so long one answer of the store serves all who ask
PATIENCE_S = 3.0  # for the store, of one who asks
UNAVAILABLE = 503
OK = "ok"


class Probe:
    """Whether the store answers. One question at a time, however many ask: a store that is away holds each for long,
    and a thread that waits for it cannot be called back."""

    def __init__(self, ask: Callable[[], Awaitable[None]]) -> None:
        self._ask = ask
        self._wanted = trio.Event()
        self._answered = trio.Event()
        self._verdict = ""
        self._at = -FRESH_S

    async def run(self) -> None:
        """Ask whenever somebody wants to know, for ever."""
        while True:
            await self._wanted.wait()
            try:
                await self._ask()
                self._verdict = OK
            except StoreError as error:
                self._verdict = str(error)
            except CorruptRow:  # it answered
                self._verdict = OK
            self._at = trio.current_time()
            self._wanted = trio.Event()
            self._answered.set()
            self._answered = trio.Event()

    async def verdict(self) -> str:
        """`ok`, or what is wrong."""
        if trio.current_time() - self._at < FRESH_S:
            return self._verdict
        self._wanted.set()
        with trio.move_on_after(PATIENCE_S):
            await self._answered.wait()
            return self._verdict
        return f"no answer within {PATIENCE_S:g} s"


def routes(probe: Probe, held: Callable[[], Sequence[str]], journal_trouble: Callable[[], str]) -> dict[str, Endpoint]:
    """`held` gives the reasons for which no points are taken in, `journal_trouble` why nothing can be journaled."""

    async def health(request: Request) -> Response:
        check_method(request, "GET", "HEAD", "POST")
        which = request.segments[1].lower() if len(request.segments) > 1 else "ready"
        if which == "live":
            return answer({"status": OK})
        if which != "ready":
            raise Refused(404, "Endpoint not found")
        return _ready({"write": _write(held(), journal_trouble()), "read": await probe.verdict()})

    return {"health": health}


def _write(held: Sequence[str], trouble: str) -> str:
    """Points are taken as long as the journal takes them: whether the store does is another question."""
    return trouble or (f"no points are taken in: {', '.join(sorted(held))}" if held else OK)


def _ready(checks: Mapping[str, str]) -> Response:
    fine = all(told == OK for told in checks.values())
    return answer({"status": OK if fine else "not ready", **checks}, 200 if fine else UNAVAILABLE)
