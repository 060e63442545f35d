"""Replay of rejected lines: each is sent to the intake again, and its outcome is recorded in the log of rejected lines.

A line counts as accepted when it is on disk. Of a text with several points, those that are refused again are recorded
as lines of their own: a further replay must not write the others over newer values. A crash between the journal and the
log makes the next replay send the line again.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec
import trio

from tsd.api.health import UNAVAILABLE
from tsd.codec.kairosline import is_text_line
from tsd.errors import ILLEGAL_ARGUMENT, Refused, StoreDown
from tsd.ingest.charset import Undecodable
from tsd.ingest.dialect import Translation
from tsd.ingest.intake import Intake
from tsd.ingest.limits import RefusedLine
from tsd.ingest.put_lines import is_put
from tsd.ingest.rejected.files import LINE_BYTES, Outcome, is_unstored
from tsd.ingest.rejected.log import RejectedLog
from tsd.server.http.messages import Endpoint, Request
from tsd.server.peer import local_peer
from tsd.tables import Operation

TIMEOUT_S = 30.0  # wait at most this long for a full journal or a slow disk
END_S = 1.0  # the end of the daemon waits at most this long for the journal
CHECKPOINT_LINES = 50  # between two trio checkpoints
# Endpoints whose refused points are kept as JSON.
ENDPOINTS = ("api/put", "api/rollup", "api/histogram", "api/datapoints", "write")
ACCEPTED = Outcome(True)
NO_LINE = Outcome(False, ILLEGAL_ARGUMENT, "the record has no whole line")

Item = tuple[str, bytes, bool]  # name of a record, its line, and whether it is as sent: see RejectedLine


class Sent(NamedTuple):
    """A line that was sent again."""

    name: str  # of its record
    outcome: Outcome
    position: int = 0  # in the journal
    left: Sequence[RefusedLine] = ()  # its points that were refused again, while others were accepted


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
        self._sending = trio.Lock()

    async def __call__(self, items: Sequence[Item]) -> list[Outcome]:
        """Send lines and return their outcomes, one call after the other. A call without lines only waits for those
        before it: a command that was killed may have left one. Raise StoreDown."""
        async with self._sending:
            return await self._send_all(items) if items else []

    async def _send_all(self, items: Sequence[Item]) -> list[Outcome]:
        with trio.move_on_after(TIMEOUT_S) as scope:
            await self._intake.backpressure.wait_open()
        if scope.cancelled_caught:
            raise StoreDown(f"the daemon accepts no lines now: {'; '.join(sorted(self._intake.backpressure.reasons))}")
        await self._rejected.check_room([line for name, line, _ in items if not is_unstored(name)])
        sent: list[Sent] = []
        try:
            for name, line, as_sent in items:
                sent.append(await self._send(name, line, as_sent=as_sent))
                if len(sent) % CHECKPOINT_LINES == 0:
                    await trio.lowlevel.checkpoint()
            with trio.move_on_after(TIMEOUT_S):
                await self._synced(sent)
        finally:  # also at an error of one line and at the end of the daemon: what is on disk is not sent again
            with trio.move_on_after(END_S, shield=True):
                await self._synced(sent)
            with trio.CancelScope(shield=True):
                await self._mark([one for one in sent if one.position <= self._intake.synced])
        if any(one.position > self._intake.synced for one in sent):
            raise StoreDown("the journal is not written: the lines may be lost, replay them again")
        return [one.outcome for one in sent]

    async def _synced(self, sent: Sequence[Sent]) -> None:
        """Wait until accepted lines are on disk."""
        await self._intake.wait_synced(max([one.position for one in sent], default=0), hurry=True)

    async def _mark(self, sent: Sequence[Sent]) -> None:
        """Record outcomes. Lines that were not sent keep their first reason. Raise StoreDown."""
        outcomes = [(one.name, ACCEPTED if one.left else one.outcome) for one in sent if one.outcome is not NO_LINE]
        await self._rejected.mark(outcomes, {one.name: one.left for one in sent})

    async def _send(self, name: str, line: bytes, *, as_sent: bool) -> Sent:
        """Send one line. Raise StoreDown."""
        if not line or b"\n" in line:
            return Sent(name, NO_LINE)
        if as_sent and self._translation is not None:
            [piece] = self._translation.read([line + b"\n"])
            if isinstance(piece, Undecodable):
                return Sent(name, Outcome(False, piece.error.reason, str(piece.error)))
            assert isinstance(piece, bytes)
            line = piece.removesuffix(b"\n")
        path, _, body = line.partition(b" ")
        if body and (path_name := path.decode("latin-1")) in ENDPOINTS:
            return await self._post(name, path_name, body)
        if is_put(line):
            take = self._intake.take
        elif line.startswith((b"rollup", b"histogram", b"meta ")) or is_text_line(line):
            take = self._intake.take_summaries
        else:
            return Sent(name, NO_LINE)
        refused: list[RefusedLine] = []
        taken = await take(line + b"\n", local_peer(refused=refused))
        return Sent(name, _refusal(refused[0]) if refused else ACCEPTED, taken.position if taken.accepted else 0)

    async def _post(self, name: str, path: str, body: bytes) -> Sent:
        """Send data points to their HTTP endpoint, which returns when they are on disk. Raise StoreDown."""
        endpoint = self._endpoint(path)
        if endpoint is None:
            return Sent(name, NO_LINE)
        segments, is_api = tuple(path.removeprefix("api/").split("/")), path.startswith("api/")
        refused: list[RefusedLine] = []
        peer = local_peer(refused=refused)
        request = Request("POST", f"/{path}", segments, {"details": [""]}, body=body, is_api=is_api, peer=peer)
        try:
            response = await endpoint(request)
        except Refused as error:
            if error.status == UNAVAILABLE:
                raise StoreDown(f"{error.message}: {error.details}") from error
            return Sent(name, Outcome(False, ILLEGAL_ARGUMENT, error.details or error.message))
        assert isinstance(response.body, bytes)
        errors = msgspec.json.decode(response.body)["errors"] if response.body else []
        message = "" if not errors else errors[0]["error"] if isinstance(errors[0], dict) else errors[0]
        if response.status == UNAVAILABLE:
            raise StoreDown(message)
        if not errors:
            return Sent(name, ACCEPTED)
        outcome = _refusal(refused[0]) if refused else Outcome(False, ILLEGAL_ARGUMENT, message)
        is_kept = not is_unstored(name) and all(map(_is_whole, refused))
        return Sent(name, outcome, left=refused if peer.client.accepted and is_kept else ())


def _refusal(refused: RefusedLine) -> Outcome:
    return Outcome(False, refused.error.reason, str(refused.error))


def _is_whole(refused: RefusedLine) -> bool:
    """Return whether the log can hold what was refused."""
    return b" " in refused.line and len(refused.line) <= LINE_BYTES


def replay_operations(replay: Replay, rejected: RejectedLog) -> dict[str, Operation]:
    """Return the operations of the control socket that send rejected lines again."""

    async def rejected_flush() -> None:
        await rejected.flush()

    async def rejected_replay(items: Sequence[Item]) -> list[Outcome]:
        return await replay(items)

    return {"rejected_flush": rejected_flush, "rejected_replay": rejected_replay}
