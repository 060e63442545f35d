"""Put lines → points in their open rows: the hot path. What is done for a line, `tsd.ingest.looped` does in C where it
was compiled, and `tsd.ingest.plain` elsewhere; both say of every line what `tsd.codec.putline` does."""

import sys

from tsd.codec.columns import Columns
from tsd.codec.putline import NameRules
from tsd.ingest import compiled
from tsd.ingest.looped import LoopedRows
from tsd.ingest.plain import PlainRows
from tsd.ingest.putlines import POINT_BYTES, Absorbed, Verdicts
from tsd.ingest.series import SeriesTable, Texts
from tsd.ingest.summary_cells import SummaryCells


class OpenRows:
    """Points that are accepted and not yet written, and the cells of rollups and histograms. `points` counts the lines
    of both, those that only the journal has included."""

    def __init__(self, table: SeriesTable, rules: NameRules) -> None:
        self.table = table
        self.summaries = SummaryCells()
        self.points = 0
        self.complete = True  # whether all of them are here
        self._rules = rules
        texts = table.texts
        self._rows = PlainRows(table, texts, rules) if isinstance(texts, Texts) else LoopedRows(table, texts, rules)

    def another(self) -> "OpenRows":
        """Empty rows of the same series, for a window that is read again."""
        return OpenRows(self.table, self._rules)

    @property
    def size(self) -> int:
        """Bytes held."""
        return self.points * POINT_BYTES + self.summaries.size

    @property
    def judged(self) -> int:
        """Lines that wanted a closer look, or seemed to."""
        return self._rows.judged

    def holds(self, metric: bytes) -> bool:
        """Whether there are points of a metric, or may be, where they are in the journal alone."""
        return not self.complete or metric in self.summaries.metrics or self._rows.holds(metric)

    def absorb(
        self, block: bytes, verdicts: Verdicts, names: "compiled.KnownNames | None" = None, room: int = sys.maxsize
    ) -> Absorbed:
        """Take in the put lines that `block` (whole lines) starts with. With `names`, series all of whose names they
        know are entered on the way, up to `room` of them, as long as there are no verdicts.

        `verdicts` names the series that were strangers and are not entered. Either every line is dealt with, or none is
        and `strangers` says which series are wanted first. A line that wants a closer look is left, and with it all
        that follow, where SLOW_LINES lines were dealt with before.
        """
        rows = self._rows
        if isinstance(rows, LoopedRows):
            absorbed = rows.absorb(block, verdicts, names, room)
        else:
            absorbed = rows.absorb(block, verdicts)
        self.points += absorbed.accepted
        self.complete &= not absorbed.journaled
        return absorbed

    def absorb_plain(self, block: bytes) -> int | None:
        """Take in `block` where all of its lines are plain put lines of series that are known: how many they are. None
        where one is not; then nothing was taken in."""
        accepted = self._rows.absorb_plain(block)
        if accepted is not None:
            self.points += accepted
        return accepted

    def take(self) -> Columns:
        """All points that are here, in order of arrival; none are left."""
        self.points, self.complete = 0, True
        return self._rows.take()

    def take_summaries(self) -> SummaryCells:
        """All cells of rollups and histograms that are here; none are left. Their lines are points until `take`."""
        taken, self.summaries = self.summaries, SummaryCells()
        return taken
