"""The intake: whole lines from a socket or a file are parsed into the open window and journaled in one step.

Lines → parser → (unknown series: validate, resolve, insert) → open window → journal. The replay of a journal and
imports use the first part, `absorb_whole`.
"""

import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

import trio

from tsd.errors import BadLine, CorruptRow, StoreError, bare
from tsd.ingest.accepted import AcceptedLines
from tsd.ingest.limits import NewNameLimit, Origin, OriginAdmission, RefusedLine
from tsd.ingest.open_window import OpenWindow
from tsd.ingest.put_lines import SLOW_LINES, Absorbed, Reject, is_put, leading_others
from tsd.ingest.series import Validator
from tsd.ingest.summaries import Summaries
from tsd.lazy import LazyLogger
from tsd.store.scheduling import IngestLoad
from tsd.tables.writing import SeriesResolver, SeriesText

log = LazyLogger(__name__)

MOST_ROUNDS = 8  # in which series of a block are inserted: as many as have room in each


class Taken(NamedTuple):
    """Result of the intake of a block."""

    accepted: int
    rejects: Sequence[Reject]  # in the order of their lines
    rest: bytes  # starts with the first line that is no put line, or that is left for the next call
    position: int  # in the journal: the accepted lines are on disk once `Journal.synced` reaches it


Explain = Callable[[BadLine, bytes], BadLine]


def unchanged(error: BadLine, _line: bytes) -> BadLine:
    """Return the error of a refused line."""
    return error


async def absorb(
    open_window: OpenWindow,
    resolver: SeriesResolver,
    block: bytes,
    admission: OriginAdmission | None = None,
) -> Absorbed:
    """Absorb a block into `open_window`, and return without a checkpoint after that.

    The parser absorbs a block in one pass if its series are known, or if all their names are cached. Otherwise it
    absorbs nothing, the unknown series are inserted or refused, and a second pass absorbs the block. One pass would
    need a second set of points, whose series are numbered later. For the look-up of a name waits, and points must not
    be in the open window before they can be journaled. The second pass takes 0.04 us a line, a new name 17 us.

    Raise StoreError if the store does not answer, and CorruptRow if it has no UID table. With `admission`, which
    limits new names and series, these are not raised: well-formed series are inserted without keys and resolved when
    their window is written. Valid lines of series that it does not admit then are accepted but kept only in the
    journal.
    """
    refusals: dict[SeriesText, BadLine | None] = {}
    while True:  # a third pass only if series were evicted during the insertion
        absorbed = _absorb_once(open_window, resolver, block, refusals, admission)
        if not absorbed.unknown:
            return absorbed
        refusals |= await _insert_unknown(open_window, resolver, absorbed.unknown, admission)


def _absorb_once(
    open_window: OpenWindow,
    resolver: SeriesResolver,
    block: bytes,
    refusals: dict[SeriesText, BadLine | None],
    admission: OriginAdmission | None,
) -> Absorbed:
    """Absorb a block in one pass, with series whose names are all cached. If others are unknown, absorb nothing."""
    before = len(open_window.table)
    room = admission.room if admission is not None else sys.maxsize
    absorbed = open_window.absorb(block, refusals, resolver.composer, room)
    if admission is not None:
        admission.count_series(len(open_window.table) - before)
    return absorbed


async def _insert_unknown(
    open_window: OpenWindow,
    resolver: SeriesResolver,
    unknown: Sequence[SeriesText],
    admission: OriginAdmission | None,
) -> dict[SeriesText, BadLine | None]:
    """Validate, filter, resolve and insert unknown series. Return those that were not inserted, each with the error for
    its lines, or with None if its lines are kept only in the journal."""
    refusals: dict[SeriesText, BadLine | None] = {**await _validate(open_window.validator, unknown)}
    series = [text for text in unknown if text not in refusals]
    over: dict[SeriesText, BadLine] = {}
    table = open_window.table
    try:
        for _ in range(MOST_ROUNDS):
            over = admission.over_limit(series) if admission is not None else {}
            series = [text for text in series if text not in over]
            resolved = await resolver.resolve(series, admission)
            before = len(table)
            table.insert_all(series, resolved.keys)
            refusals |= {series[at]: error for at, error in resolved.refused.items()}
            if admission is not None:
                admission.count_series(len(table) - before)
            if admission is None or not over or not admission.room:
                break
            series = list(over)  # some of those before them were refused, or are one series
    except (StoreError, CorruptRow) as error:
        if admission is None:
            raise
        bare(error)
        log.debug("series.unresolved", series=len(series), error=str(error))
        for text in series:
            if admission.admits_unresolved:
                table.insert(text, None)
            else:
                refusals[text] = None
    return refusals | over


async def _validate(validator: Validator, unknown: Sequence[SeriesText]) -> dict[SeriesText, BadLine]:
    """Return the texts that are not well-formed series, with their errors. Checks are done in batches between
    checkpoints."""
    suspects = validator.suspects(unknown)
    errors: dict[SeriesText, BadLine] = {}
    for at in range(0, len(suspects), SLOW_LINES):
        errors |= {text: error for text in suspects[at : at + SLOW_LINES] if (error := validator.check(text))}
        await trio.lowlevel.checkpoint()
    return errors


async def absorb_whole(
    open_window: OpenWindow, resolver: SeriesResolver, block: bytes, summaries: Summaries | None = None
) -> Absorbed:
    """Absorb a whole block: put lines and, with `summaries`, lines of rollups and histograms. Raise as `absorb` does; a
    part of the block may then be absorbed."""
    accepted, kept, rejects, done = 0, list[bytes](), list[Reject](), 0
    rest = block
    while rest:
        if summaries is None or is_put(rest):
            absorbed = await absorb(open_window, resolver, rest)
            rest = absorbed.rest
        else:
            others, puts = leading_others(rest)
            absorbed = await summaries.absorb(open_window, others)
            rest = absorbed.rest + puts
        assert absorbed.accepted or absorbed.rejects, rest[:100]
        accepted += absorbed.accepted
        kept.append(absorbed.kept)
        rejects += [Reject(done + at, error) for at, error in absorbed.rejects]
        done += absorbed.accepted + len(absorbed.rejects)
        await trio.lowlevel.checkpoint()
    return Absorbed(accepted, b"".join(kept), rejects, [], b"")


class Intake:
    """Takes lines from connections, requests and commands."""

    def __init__(
        self,
        accepted: AcceptedLines,
        resolver: SeriesResolver,
        on_taken: Callable[[], None],
        *,
        summaries: Summaries,
        name_limit: NewNameLimit,
        load: IngestLoad,
        on_refused: Callable[[Origin, Sequence[RefusedLine]], None] = lambda *_: None,
    ) -> None:
        """`on_taken` is called after each block. `on_refused` gets the refused lines of each origin that does not
        collect them itself."""
        self._open_window, self._journal, self._ledger, self.backpressure = accepted
        self._resolver = resolver
        self._on_taken = on_taken
        self._summaries = summaries
        self._name_limit = name_limit
        self._on_refused = on_refused
        self._draining = trio.Lock()
        self._load = load

    async def take(self, block: bytes, origin: Origin | None = None, explain: Explain = unchanged) -> Taken:
        """Accept and journal the put lines at the start of `block` (whole lines). If many of them need the slow path,
        some are left for the next call, so that other connections are served in between. `explain` may replace the
        errors of refused lines."""
        admission = OriginAdmission(self._name_limit, origin)
        absorbed = await absorb(self._open_window, self._resolver, block, admission)
        return self._journal_and_count(absorbed, block, origin, explain)

    def try_take(self, block: bytes, origin: Origin, explain: Explain = unchanged) -> Taken | None:
        """Accept lines as `take` does, without a wait. Return None, and take nothing, if a name of a series is not
        cached."""
        absorbed = _absorb_once(self._open_window, self._resolver, block, {}, OriginAdmission(self._name_limit, origin))
        return None if absorbed.unknown else self._journal_and_count(absorbed, block, origin, explain)

    def take_packets(self, block: bytes, bounds: Sequence[int], first: int) -> tuple[int, int]:
        """Accept the packets of several connections, from number `first` up to the first packet that needs the slow
        path; see `OpenWindow.absorb_packets`. Return that packet's number, and the position in the journal. The caller
        counts the lines of each connection."""
        stop, accepted = self._open_window.absorb_packets(block, bounds, first)
        if accepted:
            taken = block[bounds[first] : bounds[stop]]
            self._journal_and_count(Absorbed(accepted, taken, [], [], b""), taken, None)
        return stop, self._journal.position

    async def take_summaries(self, block: bytes, origin: Origin | None = None, explain: Explain = unchanged) -> Taken:
        """Accept lines from the start of `block`, which has no puts: rollups, histograms, texts and metadata."""
        admission = OriginAdmission(self._name_limit, origin)
        absorbed = await self._summaries.absorb(self._open_window, block, journal_only=True, admission=admission)
        return self._journal_and_count(absorbed, block, origin, explain)

    def _journal_and_count(
        self, absorbed: Absorbed, block: bytes, origin: Origin | None, explain: Explain = unchanged
    ) -> Taken:
        """Journal and count absorbed lines, without a checkpoint since they were absorbed. So the journal has the order
        of the points, and a replay ends with the same last values."""
        self._load.record(len(block) - len(absorbed.rest))
        if absorbed.accepted:
            self._journal.append(absorbed.kept, absorbed.accepted)
        self._ledger.accepted += absorbed.accepted
        self._ledger.received += absorbed.accepted + len(absorbed.rejects)
        for reject in absorbed.rejects:
            self._ledger.refuse(reject.error.reason)
        rejects, refused = absorbed.rejects, list[RefusedLine]()
        if rejects:
            refused = [RefusedLine(line, explain(error, line)) for line, error, _ in _refused(block, rejects)]
            rejects = [Reject(at, one.error) for (at, _), one in zip(rejects, refused, strict=True)]
        if origin is not None:
            self._count(origin, absorbed.accepted, refused)
        self._on_taken()
        return Taken(absorbed.accepted, rejects, absorbed.rest, self._journal.position)

    def refuse(self, error: BadLine, text: bytes = b"", origin: Origin | None = None) -> None:
        """Count a line that was refused before it was parsed or translated, such as a too long one. `text` is its known
        part."""
        self._ledger.received += 1
        self._ledger.refuse(error.reason)
        if origin is not None:
            self._count(origin, 0, [RefusedLine(text, error, as_sent=True)])

    def refuse_points(self, errors: Sequence[BadLine], texts: Sequence[Sequence[bytes]], origin: Origin) -> None:
        """Count the errors of points that have no line, with the texts that show the points of each."""
        self._ledger.received += len(errors)
        for error in errors:
            self._ledger.refuse(error.reason)
        pairs = list(zip(errors, texts, strict=True))
        refused = [RefusedLine(some[0] if some else b"", error) for error, some in pairs]
        self._count(origin, 0, refused, [RefusedLine(text, error) for error, some in pairs for text in some])

    def _count(
        self,
        origin: Origin,
        accepted: int,
        refused: Sequence[RefusedLine],
        kept: Sequence[RefusedLine] | None = None,
    ) -> None:
        """Count lines, and keep the refused ones: `kept` instead of `refused`, if it is given."""
        origin.count_lines(accepted, refused)
        if refused:
            kept = refused if kept is None else kept
            if origin.refused is None:
                self._on_refused(origin, kept)
            else:
                origin.refused.extend(kept)

    async def wait_drained(self) -> None:
        """Wait until most of the accepted lines are on disk.

        A caller with megabytes of lines calls this before each `take`. Otherwise every other connection would have to
        wait until they are written. Callers pass one at a time, so that each sees the lines of the one before.
        """
        async with self._draining:
            most = 2 * self._journal.group_bytes  # the group that is being written, and the next
            while self._journal.pending > most:
                await self._journal.wait_progress()

    @property
    def synced(self) -> int:
        """Position in the journal up to which all lines are on disk."""
        return self._journal.synced

    async def wait_synced(self, position: int, *, hurry: bool = False) -> None:
        """Wait until the lines up to `position` are on disk. With `hurry` they are synced before
        `tsd.journal.sync_interval` ends."""
        if hurry and self._journal.synced < position:
            self._journal.hurry()
        await self._journal.wait_synced(position)


def _refused(block: bytes, rejects: Sequence[Reject]) -> list[RefusedLine]:
    """Return the refused lines of a block."""
    lines = block.split(b"\n", rejects[-1].line + 1)
    return [RefusedLine(lines[at], error) for at, error in rejects]
