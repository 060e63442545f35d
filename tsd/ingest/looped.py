"""A block of put lines → points, in a compiled loop; `tsd.ingest.plain` does the same where that was not built.

The loop knows the plain forms of lines alone. Every other line is judged by `parse_put`, and then the loop goes on.
"""

import numpy as np

from tsd.codec.columns import Columns
from tsd.codec.putline import NameRules
from tsd.errors import BadLine, bare
from tsd.ingest import compiled
from tsd.ingest.putlines import SLOW_LINES, Absorbed, Reject, Verdicts, is_put, read_put
from tsd.ingest.series import SeriesTable, SeriesText


class LoopedRows:
    """Points in order of arrival."""

    def __init__(self, table: SeriesTable, texts: "compiled.Texts", rules: NameRules) -> None:
        self._table = table
        self._rules = rules
        self._points = compiled.Points(texts)
        self.judged = 0  # lines that the loop did not know

    def holds(self, metric: bytes) -> bool:
        """Whether there are points of a metric."""
        return self._table.any_of(metric, np.frombuffer(self._points.numbers(), np.int32))

    def absorb(self, block: bytes, verdicts: Verdicts, names: "compiled.KnownNames | None", room: int) -> Absorbed:
        """See `OpenRows.absorb`. A line that the loop does not know is left where SLOW_LINES were dealt with before."""
        before = len(self._points)
        strangers: dict[SeriesText, None] | None = None if verdicts else {}  # a verdict is looked up line by line
        known = None if verdicts else names
        limit = len(self._table) + room
        try:
            end = self._points.read(block, 0, strangers, known, room)
            if end < len(block):
                absorbed = self._judge(block, end, before, strangers, verdicts, known, limit)
            else:
                absorbed = Absorbed(len(self._points) - before, block, [], list(strangers or ()), b"")
        except BaseException:
            self._points.cut(before)
            raise
        finally:
            self._table.admit()
        if absorbed.strangers:
            self._points.cut(before)
            return Absorbed(0, b"", [], absorbed.strangers, b"")
        return absorbed

    def absorb_plain(self, block: bytes) -> int | None:
        """See `OpenRows.absorb_plain`."""
        before = len(self._points)
        end = 0
        try:
            end = self._points.read(block, 0, None, None, 0)
        finally:
            if end < len(block):
                self._points.cut(before)
        return len(self._points) - before if end == len(block) else None

    def _judge(
        self,
        block: bytes,
        at: int,
        before: int,
        met: dict[SeriesText, None] | None,
        verdicts: Verdicts,
        names: "compiled.KnownNames | None",
        limit: int,
    ) -> Absorbed:
        """The rest of a block, from a line on where the loop stopped. Up to `limit` series are then known."""
        rejects: list[Reject] = []
        kept: list[bytes] = []
        strangers = {} if met is None else met
        judged = journaled = start = 0
        while is_put(block[at : at + 4]) and (end := block.find(b"\n", at)) >= 0:
            number = (
                len(self._points) - before + len(rejects) + journaled
            )  # of the line in its block, without strangers
            if max(number, judged) >= SLOW_LINES:
                break
            judged += 1
            try:
                point = read_put(block[at:end], self._table, self._rules, verdicts)
            except BadLine as error:
                rejects.append(Reject(number, bare(error)))
                kept.append(block[start:at])
                start = end + 1
            else:
                if isinstance(point, SeriesText):
                    strangers[point] = None
                elif point is None:
                    journaled += 1
                else:
                    self._points.append(*point)
            room = 0 if strangers else limit - len(self._table)
            at = self._points.read(block, end + 1, met, names, room)
        kept.append(block[start:at])
        self.judged += judged
        accepted = len(self._points) - before + journaled
        return Absorbed(accepted, b"".join(kept), rejects, list(strangers), block[at:], journaled)

    def take(self) -> Columns:
        """All points; none are left."""
        taken = self._points.take()
        if taken is None:
            return Columns(np.empty(0, np.int32), np.empty(0, np.int64), np.empty(0, np.uint8), np.empty(0, np.int64))
        return columns_of(taken)


def columns_of(buffers: tuple[memoryview, memoryview, memoryview, memoryview]) -> Columns:
    """Columns that are in memory of the loop's."""
    series, instants, flags, bits = buffers
    return Columns(
        np.frombuffer(series, np.int32),
        np.frombuffer(instants, np.int64),
        np.frombuffer(flags, np.uint8),
        np.frombuffer(bits, np.int64),
    )
