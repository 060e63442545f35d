"""Replay of rejected lines: each is sent to the intake again, and its outcome is recorded in the log of rejected lines.

A line counts as accepted when it is on disk. Replaying a line twice is harmless: it writes the same cell.
"""

from collections.abc import Awaitable, Callable, Sequence

import msgspec
import trio

from tsd.codec.kairosline import is_text_line
from tsd.errors import ILLEGAL_ARGUMENT, BadLine, Refused, StoreDown
from tsd.ingest.charset import Undecodable
from tsd.ingest.dialect import Translation
from tsd.ingest.intake import Intake, Taken
from tsd.ingest.lines import is_put
from tsd.ingest.rejected.files import Outcome
from tsd.ingest.rejected.log import RejectedLog
from tsd.server.http.messages import Endpoint, Request
from tsd.server.peer import local_peer

TIMEOUT_S = 30.0  # wait at most this long for a full journal or a slow disk
CHECKPOINT_LINES = 50  # between two trio checkpoints
# Endpoints whose refused points are kept as JSON.
ENDPOINTS = ("api/put", "api/rollup", "api/histogram", "api/datapoints", "write")
NO_LINE = Outcome(False, ILLEGAL_ARGUMENT, "the record has no whole line")

Item = tuple[str, bytes, bool]  # name of a record, its line, and whether it is as sent: see RejectedLine


class Replay:
    """Sends rejected lines again."""

    def __init__(
        self,
        intake: Intake,
        rejected: RejectedLog,
        endpoint: Callable[[str], Endpoint | None],
        translation: Translation | None,
    ) -> None:
        """`endpoint` returns the endpoint of a path, e.g. api/put. `translation` is that of telnet lines."""
        self._intake = intake
        self._rejected = rejected
        self._endpoint = endpoint
        self._translation = translation
        self._peer = local_peer(keeps_refused=False)

    async def __call__(self, items: Sequence[Item]) -> list[Outcome]:
        """Send lines and return their outcomes. Raises StoreDown."""
        with trio.move_on_after(TIMEOUT_S) as scope:
            await self._intake.backpressure.wait_open()
        if scope.cancelled_caught:
            raise StoreDown(f"the daemon accepts no lines now: {'; '.join(sorted(self._intake.backpressure.reasons))}")
        outcomes = []
        position = 0
        for at, (_, line, as_sent) in enumerate(items, 1):
            outcome, line_position = await self._send(line, as_sent=as_sent)
            outcomes.append(outcome)
            position = max(position, line_position)
            if at % CHECKPOINT_LINES == 0:
                await trio.lowlevel.checkpoint()
        with trio.move_on_after(TIMEOUT_S) as scope:
            await self._intake.wait_synced(position, hurry=True)
        if scope.cancelled_caught:
            raise StoreDown("the journal is not written: the lines may be lost, replay them again")
        named = [(name, outcome) for (name, _, _), outcome in zip(items, outcomes, strict=True)]
        await self._rejected.mark([one for one in named if one[1] is not NO_LINE])  # others keep their first reason
        return outcomes

    async def _send(self, line: bytes, *, as_sent: bool) -> tuple[Outcome, int]:
        """Send one line; return its outcome and its position in the journal."""
        if not line or b"\n" in line:
            return NO_LINE, 0
        if as_sent and self._translation is not None:
            [piece] = self._translation.read([line + b"\n"])
            if isinstance(piece, Undecodable):
                return Outcome(False, piece.error.reason, str(piece.error)), 0
            assert isinstance(piece, bytes)
            line = piece.removesuffix(b"\n")
        path, _, body = line.partition(b" ")
        if body and (name := path.decode("latin-1")) in ENDPOINTS:
            return await self._post(name, body), 0
        if is_put(line):
            return _outcome(await self._intake.take(line + b"\n", self._peer))
        if line.startswith((b"rollup", b"histogram", b"meta ")) or is_text_line(line):
            return _outcome(await self._intake.take_summaries(line + b"\n", self._peer))
        return NO_LINE, 0

    async def _post(self, name: str, body: bytes) -> Outcome:
        """Send data points to their HTTP endpoint, which returns when they are on disk."""
        endpoint = self._endpoint(name)
        if endpoint is None:
            return NO_LINE
        segments, is_api = tuple(name.removeprefix("api/").split("/")), name.startswith("api/")
        request = Request("POST", f"/{name}", segments, {"details": [""]}, body=body, is_api=is_api, peer=self._peer)
        try:
            response = await endpoint(request)
        except Refused as error:
            return Outcome(False, ILLEGAL_ARGUMENT, error.details or error.message)
        assert isinstance(response.body, bytes)
        errors = msgspec.json.decode(response.body)["errors"] if response.body else []
        if not errors:
            return Outcome(True)
        return Outcome(False, ILLEGAL_ARGUMENT, errors[0]["error"] if isinstance(errors[0], dict) else errors[0])


def _outcome(taken: Taken) -> tuple[Outcome, int]:
    if taken.accepted:
        return Outcome(True), taken.position
    error: BadLine = taken.rejects[0].error
    return Outcome(False, error.reason, str(error)), 0


Verb = Callable[..., Awaitable[object]]


def verbs(replay: Replay, rejected: RejectedLog) -> dict[str, Verb]:
    """Return the replay commands of the control socket."""

    async def rejected_flush() -> None:
        await rejected.flush()

    async def rejected_replay(items: Sequence[Item]) -> list[Outcome]:
        return await replay(items)

    return {"rejected_flush": rejected_flush, "rejected_replay": rejected_replay}
