"""Refused lines → the way in, once more. What is taken is marked so when it is on disk, what is refused again keeps its
place with its new reason. To send a line twice is harmless: its point has one place.
"""

from collections.abc import Awaitable, Callable, Sequence

import msgspec
import trio

from tsd.deadletters.log import DeadLetters
from tsd.deadletters.records import Outcome
from tsd.doors.exchange import Endpoint, Request
from tsd.doors.visitor import here
from tsd.errors import ILLEGAL_ARGUMENT, BadLine, Refused, StoreDown
from tsd.ingest.intake import Intake, Taken
from tsd.ingest.putlines import is_put

PATIENCE_S = 30.0  # with a journal that is full, or its disk
TURN_LINES = 50  # before others get their turn
ENDPOINTS = "api/"
NO_LINE = Outcome(False, ILLEGAL_ARGUMENT, "the record holds no whole line that could be sent again")


class Replay:
    """Sends lines again."""

    def __init__(self, intake: Intake, letters: DeadLetters, endpoint: Callable[[str], Endpoint | None]) -> None:
        """`endpoint` is what answers at a path, e.g. api/put."""
        self._intake = intake
        self._letters = letters
        self._endpoint = endpoint
        self._visitor = here(keeps_refused=False)

    async def __call__(self, items: Sequence[tuple[str, bytes]]) -> list[Outcome]:
        """What becomes of lines, given with their records' names. Raises StoreDown where they cannot be taken now."""
        with trio.move_on_after(PATIENCE_S) as scope:
            await self._intake.gate.passed()
        if scope.cancelled_caught:
            raise StoreDown(f"the daemon takes no lines now: {'; '.join(sorted(self._intake.gate.held))}")
        outcomes = []
        position = 0
        for at, (_, line) in enumerate(items, 1):
            outcome, line_position = await self._send(line)
            outcomes.append(outcome)
            position = max(position, line_position)
            if at % TURN_LINES == 0:
                await trio.lowlevel.checkpoint()
        with trio.move_on_after(PATIENCE_S) as scope:
            await self._intake.synced(position, hurry=True)
        if scope.cancelled_caught:
            raise StoreDown("the journal is not written: whether the lines are kept is not known, send them again")
        await self._letters.mark([(name, outcome) for (name, _), outcome in zip(items, outcomes, strict=True)])
        return outcomes

    async def _send(self, line: bytes) -> tuple[Outcome, int]:
        """What becomes of one line, and its position in the journal."""
        if not line or b"\n" in line:
            return NO_LINE, 0
        if line.startswith(ENDPOINTS.encode()):
            return await self._post(line), 0
        if is_put(line):
            return _outcome(await self._intake.take_in(line + b"\n", self._visitor))
        if line.startswith((b"rollup", b"histogram")):
            return _outcome(await self._intake.take_summaries_in(line + b"\n", self._visitor))
        return NO_LINE, 0

    async def _post(self, line: bytes) -> Outcome:
        """What becomes of a data point of HTTP, given with its path; it is on disk then."""
        path, _, body = line.partition(b" ")
        name = path.decode("latin-1")
        endpoint = self._endpoint(name)
        if endpoint is None or not body:
            return NO_LINE
        request = Request(
            "POST", f"/{name}", tuple(name.split("/")[1:]), {"details": [""]}, body=body, visitor=self._visitor
        )
        try:
            response = await endpoint(request)
        except Refused as error:
            return Outcome(False, ILLEGAL_ARGUMENT, error.details or error.message)
        assert isinstance(response.body, bytes)
        errors = msgspec.json.decode(response.body)["errors"]
        return Outcome(False, ILLEGAL_ARGUMENT, errors[0]["error"]) if errors else Outcome(True)


def _outcome(taken: Taken) -> tuple[Outcome, int]:
    if taken.accepted:
        return Outcome(True), taken.position
    error: BadLine = taken.rejects[0].error
    return Outcome(False, error.reason, str(error)), 0


Verb = Callable[..., Awaitable[object]]


def verbs(replay: Replay, letters: DeadLetters) -> dict[str, Verb]:
    """What commands on this machine may ask."""

    async def rejected_flush() -> None:
        await letters.flush()

    async def rejected_replay(items: Sequence[tuple[str, bytes]]) -> list[Outcome]:
        return await replay(items)

    return {"rejected_flush": rejected_flush, "rejected_replay": rejected_replay}
