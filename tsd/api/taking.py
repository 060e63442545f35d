"""Data points of a request → the way in, the journal's disk, and, where the sender waits for it, the store."""

import math
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import NamedTuple

import msgspec
import trio

from tsd.api.incoming import MOST_SHOWN, UNSHOWN, Failure, Flags, Outcome, Piece, Shown, answer, told
from tsd.doors.exchange import Request, Response
from tsd.doors.visitor import Visitor
from tsd.errors import BadLine, Refused
from tsd.ingest.intake import Intake, Taken

PATIENCE_S = 10.0  # with a journal that is full, or a disk that does not answer

Echo = Callable[[Piece], Sequence[Shown | None]]
TakeIn = Callable[[bytes, Visitor], Awaitable[Taken]]


class Storing(NamedTuple):
    """How points get from the journal into the store at once."""

    flush: Callable[[], Awaitable[bool]]  # whether everything that came before is stored
    trouble: Callable[[], str | None]  # why not


class PointsDoor:
    """What /api/put, /api/rollup and /api/histogram hand their lines to."""

    def __init__(self, intake: Intake, storing: Storing, *, patience_s: float = PATIENCE_S) -> None:
        self._intake = intake
        self._storing = storing
        self._patience_s = patience_s
        self.accepted = 0  # data points

    async def admit(self, visitor: Visitor) -> None:
        """Wait until the sender's quota has caught up with what it sent before; raises Refused where that takes longer
        than it would wait. Ask before any work is done for it."""
        debt_s = visitor.client.debt_s
        if debt_s > self._patience_s:
            told = f"More lines came than {visitor.client.exceeded} allows: send again in {math.ceil(debt_s)} s"
            raise Refused(429, "Please throttle writes", told, (("Retry-After", str(math.ceil(debt_s))),))
        if debt_s:
            await visitor.rest()

    async def take(
        self, pieces: Sequence[Piece], flags: Flags, echo: Echo, take_in: TakeIn, request: Request
    ) -> Response:
        """Take the lines of a request in, and answer once the good ones are on disk. `echo` gives a piece's points, for
        the answer. Raises Refused; with status 503 the same request may be sent again."""
        if not any(piece.size for piece in pieces):
            raise Refused(400, "No datapoints found in content")
        if not self._intake.gate.is_open:
            await self._wait(self._intake.gate.passed, "Please throttle writes")
        failures: list[Failure] = []
        good: list[tuple[Piece, Sequence[int]]] = []
        position = 0
        for piece in pieces:
            refused, reached = await self._take_piece(piece, take_in, echo, request)
            position = max(position, reached)  # a piece without a single line reaches nothing
            failures += (
                _failures(piece, refused, flags, echo) if len(failures) < MOST_SHOWN else [UNSHOWN] * len(refused)
            )
            numbers = [number for number in piece.points if number not in refused] if refused else piece.points
            good.append((piece, numbers))
        taken = sum(len(numbers) for _, numbers in good)
        self.accepted += taken
        on_disk = partial(self._intake.synced, position, hurry=True)
        await self._wait(on_disk, "The journal cannot be written, please try again")
        outcome = await self._store(Outcome(taken, failures), flags, lambda why: _taken(good, why, flags, echo))
        return answer(outcome, flags)

    async def _wait(self, until: Callable[[], Awaitable[None]], message: str) -> None:
        """Wait, but not for ever: whoever sends has a time limit as well. Raises Refused."""
        with trio.move_on_after(self._patience_s) as scope:
            await until()
        if scope.cancelled_caught:
            raise Refused(503, message, "; ".join(sorted(self._intake.gate.held)))

    async def _take_piece(
        self, piece: Piece, take_in: TakeIn, echo: Echo, request: Request
    ) -> tuple[dict[int, BadLine], int]:
        """Take a piece's lines in; which points were refused, and the journal's position, 0 where there is no line."""
        refused = dict(piece.refused)
        points = echo(piece) if refused else ()
        for number, error in refused.items():
            self._intake.refuse(error, _text(request, points[number]), request.visitor)
        block, done, position = piece.lines, 0, 0
        while block:
            taken = await take_in(block, request.visitor)
            refused.update((piece.points[done + reject.line], reject.error) for reject in taken.rejects)
            done += taken.accepted + len(taken.rejects)
            block, position = taken.rest, taken.position
            await trio.lowlevel.checkpoint()
        return refused, position

    async def _store(self, outcome: Outcome, flags: Flags, failures: Callable[[str], Sequence[Failure]]) -> Outcome:
        """Wait for the store, where the sender does; the outcome with what came of it. `failures` are the points that
        were taken, each with an error."""
        if not flags.sync or not outcome.taken:
            return outcome
        stored = None
        with trio.move_on_after(flags.timeout_ms / 1000 if flags.timeout_ms > 0 else math.inf):
            stored = await self._storing.flush()
        if stored:
            return outcome
        if stored is None:
            return outcome._replace(late=failures("Write timedout"))
        return outcome._replace(unstored=failures(f"Storage exception: {self._storing.trouble()}"))


def _text(request: Request, point: Shown | None) -> bytes:
    """A point that no line can say, as it was sent: the endpoint's path and the JSON, e.g. `api/put {"metric":…}`."""
    said = None if point is None else point.echo("")
    return b"api/%s %s" % (request.segments[0].encode(), msgspec.json.encode(said))


def _failures(piece: Piece, refused: dict[int, BadLine], flags: Flags, echo: Echo) -> list[Failure]:
    """The refused points of a piece, in order. Only an answer with details shows the points."""
    if not flags.details:
        return [UNSHOWN] * len(refused)
    points = echo(piece) if refused else ()
    return [_failure(points[number], told(refused[number])) for number in sorted(refused)]


def _failure(point: Shown | None, error: str) -> Failure:
    return Failure(None if point is None else point.echo(error), error)


def _taken(good: Sequence[tuple[Piece, Sequence[int]]], error: str, flags: Flags, echo: Echo) -> list[Failure]:
    """The points that were taken in, each with the same error."""
    found: list[Failure] = []
    for piece, numbers in good:
        if not flags.details or len(found) >= MOST_SHOWN:
            found += [UNSHOWN] * len(numbers)
            continue
        points = echo(piece)
        found += [_failure(points[number], error) for number in numbers]
    return found
