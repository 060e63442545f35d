"""One way in: whole put lines from a socket, a file or the journal are absorbed, and journaled in the same step."""

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import structlog
import trio

from tsd.codec.putline import Tags
from tsd.errors import BadLine, CorruptRow, StoreError
from tsd.ingest.growth import Growth, Permit
from tsd.ingest.journal import GROUP_BYTES, Journal
from tsd.ingest.ledger import Ledger
from tsd.ingest.names import Judged, Named, SeriesNames
from tsd.ingest.putlines import SLOW_LINES, Absorbed, Reject, is_put, leading_others
from tsd.ingest.rows import OpenRows
from tsd.ingest.series import SeriesText
from tsd.ingest.source import Refusal, Source
from tsd.ingest.summaries import Summaries, SummaryRules
from tsd.store.turns import PACE

log = structlog.get_logger(__name__)

NOBODY = Named(False, {})


class Taken(NamedTuple):
    """What became of a block."""

    accepted: int
    rejects: Sequence[Reject]  # in the order of their lines
    rest: bytes  # from the first line on that is not a put line, or is one too many for now
    position: int  # in the journal: the accepted lines are on disk once it has been synced so far


class Gate:
    """Whether anything may come in. Those who would be overrun hold it shut, each under its own name."""

    def __init__(self) -> None:
        self._held: set[str] = set()
        self._opened = trio.Event()
        self._opened.set()

    @property
    def is_open(self) -> bool:
        """Whether anything may come in."""
        return not self._held

    @property
    def held(self) -> frozenset[str]:
        """Why it is shut; empty where it is open."""
        return frozenset(self._held)

    def hold(self, why: str) -> None:
        """Shut it."""
        if not self._held:
            self._opened = trio.Event()
            log.warning("reading from clients has stopped", because=why)
        self._held.add(why)

    def release(self, why: str) -> None:
        """Give one reason up; the last one opens the gate."""
        if why in self._held:
            self._held.remove(why)
            if not self._held:
                self._opened.set()
                log.info("reading from clients again")

    async def passed(self) -> None:
        """Return once the gate is open."""
        while self._held:
            await self._opened.wait()


async def absorb(
    rows: OpenRows,
    names: SeriesNames,
    block: bytes,
    *,
    most_unsettled: int | None = None,
    permit: Permit | None = None,
) -> Absorbed:
    """Take a block into `rows`, its strangers entered first. Nothing else runs between the absorption and the return.

    Where the store does not answer, StoreError is raised (CorruptRow where it holds no UID table). With
    `most_unsettled`, well-formed strangers are then entered without their UIDs, to be settled when their window is
    written; once there are so many, good lines of others are accepted and left to the journal. `permit` says what may
    be new; without one anything may.
    """
    verdicts: dict[SeriesText, BadLine | None] = {}
    named: Named | None = None
    while True:
        known = len(rows.table)
        absorbed = rows.absorb(block, verdicts, names.known, permit.room if permit is not None else sys.maxsize)
        if permit is not None:
            permit.met_series(len(rows.table) - known)
        if not absorbed.strangers:
            return absorbed
        good: Mapping[SeriesText, Tags] | None = None
        try:
            if named is None:
                named = NOBODY  # if that fails
                named = await _name(names, absorbed.strangers, permit)
                if named.some:
                    continue
            good = await _sift(names, absorbed.strangers, verdicts, permit)
            resolved = await names.resolve(good, permit, named.without)
        except (StoreError, CorruptRow) as error:
            if most_unsettled is None:
                raise
            error.with_traceback(None)  # trio's frame of a call in a thread holds the error: together they held a block
            log.debug("series entered without UIDs", series=len(absorbed.strangers), because=str(error))
        else:
            known = len(rows.table)
            for text, parts in resolved.items():
                if isinstance(parts, BadLine):
                    verdicts[text] = parts
                else:
                    rows.table.enter(text, parts)
            if permit is not None:
                permit.met_series(len(rows.table) - known)
            continue
        for text in good if good is not None else await _sift(names, absorbed.strangers, verdicts, permit):
            if len(rows.table.unsettled) < most_unsettled:
                rows.table.enter(text, None)
            else:
                verdicts[text] = None


async def _name(names: SeriesNames, strangers: Sequence[SeriesText], permit: Permit | None) -> Named:
    """Have as many strangers as possible entered by the next look at their lines. Raises StoreError, and CorruptRow."""
    if permit is not None and len(strangers) > permit.room:
        return NOBODY  # names of series that have no room get no UID
    return await names.name(strangers, permit)


async def _sift(
    names: SeriesNames,
    strangers: Sequence[SeriesText],
    verdicts: dict[SeriesText, BadLine | None],
    permit: Permit | None,
) -> Mapping[SeriesText, Tags]:
    """The strangers that are well-formed and have room; the others get their verdict."""
    judged = await _judge(names, strangers)
    verdicts.update(judged.refused)
    if permit is not None and (crowded_out := permit.crowded_out(judged.good)):
        verdicts.update(crowded_out)
        for text in crowded_out:
            del judged.good[text]
    return judged.good


async def _judge(names: SeriesNames, strangers: Sequence[SeriesText]) -> Judged:
    """Which of the texts are well-formed; others run in between."""
    judged = Judged({}, {})
    for at in range(0, len(strangers), SLOW_LINES):
        good, refused = names.judge(strangers[at : at + SLOW_LINES])
        judged.good.update(good)
        judged.refused.update(refused)
        await trio.lowlevel.checkpoint()
    return judged


async def absorb_whole(
    rows: OpenRows, names: SeriesNames, block: bytes, summaries: Summaries | None = None
) -> Absorbed:
    """Take in a block to its end: put lines, and, where `summaries` takes them, lines of rollups and histograms. Where
    it raises, as `absorb` does, a part is taken in."""
    accepted, kept, rejects, done = 0, list[bytes](), list[Reject](), 0
    rest = block
    while rest:
        if summaries is None or is_put(rest):
            absorbed = await absorb(rows, names, rest)
            rest = absorbed.rest
        else:
            others, puts = leading_others(rest)
            absorbed = await summaries.absorb(rows, others)
            rest = absorbed.rest + puts
        assert absorbed.accepted or absorbed.rejects, rest[:100]
        accepted += absorbed.accepted
        kept.append(absorbed.kept)
        rejects += [Reject(done + at, error) for at, error in absorbed.rejects]
        done += absorbed.accepted + len(absorbed.rejects)
        await trio.lowlevel.checkpoint()
    return Absorbed(accepted, b"".join(kept), rejects, [], b"")


class Intake:
    """What doors and imports hand their lines to."""

    def __init__(
        self,
        rows: OpenRows,
        names: SeriesNames,
        journal: Journal,
        ledger: Ledger,
        gate: Gate,
        on_growth: Callable[[], None],
        *,
        most_unsettled: int,
        summaries: Summaries,
        growth: Growth | None = None,
        on_refused: Callable[[Source, Sequence[Refusal]], None] = lambda *_: None,
    ) -> None:
        """`on_growth` is called after each block; `most_unsettled` bounds the series met while the store is away.
        `on_refused` is told of lines of sources whose refused lines are to be kept."""
        self._rows = rows
        self._names = names
        self._journal = journal
        self._ledger = ledger
        self.gate = gate
        self._on_growth = on_growth
        self._most_unsettled = most_unsettled
        self._summaries = summaries
        self._growth = growth or Growth(rows.table)
        self._on_refused = on_refused
        self._draining = trio.Lock()

    async def take_in(self, block: bytes, source: Source | None = None) -> Taken:
        """Absorb the put lines that `block` (whole lines) starts with, and journal the accepted ones. Where many of
        them want a closer look, some are left for the next call, so that others get their turn."""
        permit = Permit(self._growth, source)
        absorbed = await absorb(self._rows, self._names, block, most_unsettled=self._most_unsettled, permit=permit)
        return self._enter(absorbed, block, source)

    def take_at_once(self, block: bytes, source: Source) -> Taken | None:
        """Likewise, where nothing has to be waited for; None where a series is new, and then nothing was taken."""
        absorbed = self._rows.absorb(block, {})
        return None if absorbed.strangers else self._enter(absorbed, block, source)

    def take_plain(self, block: bytes) -> Taken | None:
        """Likewise what several sources sent, who are told by whoever knows which part is whose; None also where a line
        wants a closer look."""
        accepted = self._rows.absorb_plain(block)
        return None if accepted is None else self._enter(Absorbed(accepted, block, [], [], b""), block, None)

    async def take_summaries_in(self, block: bytes, source: Source | None = None) -> Taken:
        """Likewise the lines of rollups and histograms in a block of nothing else."""
        permit = Permit(self._growth, source)
        absorbed = await self._summaries.absorb(self._rows, block, journal_alone=True, permit=permit)
        return self._enter(absorbed, block, source)

    @property
    def summary_rules(self) -> SummaryRules:
        """What those lines may say."""
        return self._summaries.rules

    def _enter(self, absorbed: Absorbed, block: bytes, source: Source | None) -> Taken:
        """Journal and count what was absorbed, in one step with that: the order of the journal is the order of the
        points, so that a replay ends with the same last values."""
        PACE.came(len(block) - len(absorbed.rest))
        if absorbed.accepted:
            self._journal.append(absorbed.kept, absorbed.accepted)
        self._ledger.received += absorbed.accepted + len(absorbed.rejects)
        for reject in absorbed.rejects:
            self._ledger.refuse(reject.error.reason)
        if source is not None:
            self._tell(source, absorbed.accepted, _refusals(block, absorbed.rejects) if absorbed.rejects else ())
        self._on_growth()
        return Taken(absorbed.accepted, absorbed.rejects, absorbed.rest, self._journal.position)

    def refuse(self, error: BadLine, text: bytes = b"", source: Source | None = None) -> None:
        """Count a line that never got so far, as one that was too long; `text` is what is kept of it."""
        self._ledger.received += 1
        self._ledger.refuse(error.reason)
        if source is not None:
            self._tell(source, 0, [Refusal(text, error)])

    def _tell(self, source: Source, accepted: int, refusals: Sequence[Refusal]) -> None:
        source.took(accepted, refusals)
        if refusals and source.keeps_refused:
            self._on_refused(source, refusals)

    async def drained(self) -> None:
        """Return once the disk has most of what came. Whoever sends much at a time asks before it is taken in: else all
        others wait for its megabytes to be written whenever they wait for a line of theirs. Of many that ask,
        one at a time is let through: what it takes in at once counts for the next."""
        async with self._draining:
            while self._journal.pending > 2 * GROUP_BYTES:  # one that is being written, and the next
                await self._journal.progressed()

    async def synced(self, position: int, *, hurry: bool = False) -> None:
        """Return once the lines up to `position` are on disk; `hurry`: sooner than `tsd.journal.sync_interval` says."""
        if hurry and self._journal.synced < position:
            self._journal.hurry()
        await self._journal.wait_synced(position)


def _refusals(block: bytes, rejects: Sequence[Reject]) -> list[Refusal]:
    """The refused lines of a block."""
    lines = block.split(b"\n", rejects[-1].line + 1)
    return [Refusal(lines[at], error) for at, error in rejects]
