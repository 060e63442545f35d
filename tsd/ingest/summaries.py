"""Lines of rollups and histograms → cells that wait with the points of their window: the same journal, the same
ledger, the same errors. Each is read by itself: there are few beside points."""

from typing import NamedTuple

import structlog
import trio

from tsd import histograms, rollups
from tsd.codec.putline import NameRules, map_order
from tsd.codec.summary import Summary
from tsd.errors import BadLine, CorruptRow, StoreError, bare
from tsd.ingest.names import SeriesNames
from tsd.ingest.putlines import Absorbed, Reject
from tsd.ingest.rows import OpenRows
from tsd.ingest.series import KeyParts, SeriesText
from tsd.rollups import Rollups
from tsd.uid_flight import Permit

log = structlog.get_logger(__name__)

AT_ONCE = 200  # lines: each takes 20 µs and more


class SummaryRules(NamedTuple):
    """What the lines may say."""

    names: NameRules
    table: str  # of the points, and of histograms
    rollups: Rollups | None = None  # None: off
    histogram_id: int | None = None  # of the simple histograms' codec; None: off


def read_summary(line: bytes, rules: SummaryRules) -> Summary:
    """The cell that a line says; raises BadLine."""
    if line.partition(b" ")[0] == b"rollup":
        return rollups.read_rollup(line, rules.rollups, rules.names)
    return histograms.read_histogram(line, rules.histogram_id, rules.names, rules.table)


class Summaries:
    """What takes the lines in."""

    def __init__(self, names: SeriesNames, rules: SummaryRules) -> None:
        self.rules = rules
        self._names = names

    async def absorb(
        self, rows: OpenRows, block: bytes, *, journal_alone: bool = False, permit: Permit | None = None
    ) -> Absorbed:
        """Take the first lines of a block, none of them a put line, into `rows`. Nothing else runs between that and the
        return. Where the store does not answer, StoreError is raised (CorruptRow where it holds no UID table); with
        `journal_alone`, good lines are accepted all the same, and left to the journal. `permit` is asked for new
        names."""
        lines = block.split(b"\n", AT_ONCE)
        rest = lines.pop()
        read: list[Summary | BadLine] = [_read(line, self.rules) for line in lines]
        await trio.lowlevel.checkpoint()
        texts = {_text(summary): map_order(summary.tags) for summary in read if isinstance(summary, Summary)}
        found: dict[SeriesText, KeyParts | BadLine] | None
        try:
            found = await self._names.resolve(texts, permit)
        except (StoreError, CorruptRow) as error:
            if not journal_alone:
                raise
            error.with_traceback(None)  # trio's frame of a call in a thread holds the error
            log.debug("rollups and histograms left to the journal", lines=len(texts), because=str(error))
            found = None
        return _enter(rows, lines, read, found, rest)


def _read(line: bytes, rules: SummaryRules) -> Summary | BadLine:
    try:
        return read_summary(line, rules)
    except BadLine as error:
        return bare(error)


def _text(summary: Summary) -> SeriesText:
    return SeriesText(summary.metric, b" ".join(b"=".join(pair) for pair in summary.tags))


def _enter(
    rows: OpenRows,
    lines: list[bytes],
    read: list[Summary | BadLine],
    found: dict[SeriesText, KeyParts | BadLine] | None,
    rest: bytes,
) -> Absorbed:
    """Take read lines in, `found` None: as lines that the journal alone has."""
    kept: list[bytes] = []
    rejects: list[Reject] = []
    for at, (line, summary) in enumerate(zip(lines, read, strict=True)):
        if isinstance(summary, BadLine):
            rejects.append(Reject(at, summary))
            continue
        parts = None if found is None else found[_text(summary)]
        if isinstance(parts, BadLine):
            rejects.append(Reject(at, parts))
            continue
        if parts is not None:
            rows.summaries.add(summary, parts)
        kept.append(line + b"\n")
    rows.points += len(kept)
    rows.complete &= found is not None or not kept
    return Absorbed(len(kept), b"".join(kept), rejects, [], rest)
