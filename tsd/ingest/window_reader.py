"""Points of windows as they are written: from memory, or read again from the journal, with keys for all series.

A series may have been inserted without a key while the store did not answer. It gets one now, or its lines are refused.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import trio

from tsd.codec.points import Columns, joined_columns
from tsd.errors import StoreError
from tsd.ingest.intake import absorb_whole
from tsd.ingest.journal.disk import unused, write_new
from tsd.ingest.journal.journal import Journal, Segment
from tsd.ingest.journal.segment import Block, Damage
from tsd.ingest.limits import RefusedLine
from tsd.ingest.open_window import OpenWindow
from tsd.ingest.summaries import Summaries
from tsd.ingest.windows import Window
from tsd.lazy import LazyLogger
from tsd.tables.writing import SeriesResolver, SeriesText, SummaryBatch

log = LazyLogger(__name__)


def monotonic_s() -> int:
    """Return the time by trio's clock, which never goes back."""
    return int(trio.current_time())


class Contents(NamedTuple):
    """Points of a window to write, and its refused lines."""

    columns: Columns
    summaries: SummaryBatch | None
    refused: list[RefusedLine]


class WindowReader:
    """Reads the windows of one writer."""

    def __init__(
        self,
        open_window: OpenWindow,
        resolver: SeriesResolver,
        journal: Journal,
        summaries: Summaries,
        refused_folder: Path,
        uptime_s: Callable[[], int] = monotonic_s,
    ) -> None:
        """`uptime_s` is the clock of the table's series and of the writer. It never goes back: it separates series that
        may be evicted from those that waiting windows hold."""
        self._open_window = open_window
        self._resolver = resolver
        self._journal = journal
        self._summaries = summaries
        self._refused_folder = refused_folder
        self.uptime_s = uptime_s

    async def read(self, window: Window) -> Contents:
        """Return a window's points, whose series all have keys, and the lines that are refused now."""
        table = self._open_window.table
        invalidations = table.invalidations
        if window.parts is None:
            contents = await self._read_again(window)
        elif len(window.parts) == 1:
            contents = Contents(window.parts[0], window.summaries, [])
        else:
            contents = Contents(await trio.to_thread.run_sync(joined_columns, window.parts), window.summaries, [])
        while not await self._resolve(contents.columns):  # the lines of refused series are rejected when read again
            contents = await self._read_again(window)
        if table.invalidations != invalidations:
            columns = contents.columns
            contents = contents._replace(columns=columns._replace(series=table.merge_numbers(columns.series)))
        return contents

    async def _resolve(self, columns: Columns) -> bool:
        """Resolve series that were inserted without keys. Return False if any of them is refused."""
        table = self._open_window.table
        if not (table.unresolved or table.refused):
            return True
        present = set(np.unique(columns.series).tolist())
        numbers: dict[SeriesText, list[int]] = {}
        for number in present & table.unresolved.keys():
            numbers.setdefault(table.unresolved[number], []).append(number)
        keys, refused = await self._resolver.resolve(list(numbers))
        for at, (text, key) in enumerate(zip(list(numbers), keys, strict=True)):
            for number in numbers[text]:
                if at in refused:
                    table.refuse(number)
                else:
                    table.set_key(number, key)
        return not table.refused & present

    async def _read_again(self, window: Window) -> Contents:
        """Return a window's points from its segments, and the lines that are refused now."""
        open_window = self._open_window.new_window()
        refused: list[RefusedLine] = []
        for pending in window.segments:
            refused += await self._read_segment(pending.segment, open_window)
        columns = open_window.take()
        open_window.table.mark_seen(columns.series, self.uptime_s())
        return Contents(columns, open_window.take_summaries(), refused)

    async def _read_segment(self, segment: Segment, open_window: OpenWindow) -> list[RefusedLine]:
        """Add the points of a segment to `open_window`. Return the lines that are refused now."""
        refused: list[RefusedLine] = []
        pieces = await self._journal.read(segment)
        damages: list[Damage] = []  # found only now: the segment was intact when it was written or found
        while (piece := await _next_of(pieces, segment.path)) is not None:
            if isinstance(piece, Damage):
                damages.append(piece)
                continue
            absorbed = await absorb_whole(open_window, self._resolver, piece.text, self._summaries)
            if absorbed.rejects:
                lines = piece.text.split(b"\n")
                refused += [RefusedLine(lines[at], error) for at, error in absorbed.rejects]
        if damages:
            with as_store_error():
                await trio.to_thread.run_sync(self._journal.quarantine, segment, damages)
        return refused

    async def keep_refused(self, window: Window, refused: list[RefusedLine]) -> None:
        """Write acknowledged lines that cannot be stored to a file, and log an error."""
        text = b"".join(b"# %s\n%s\n" % (str(error).encode(), line) for line, error, _ in refused)

        def write() -> Path:
            self._refused_folder.mkdir(parents=True, exist_ok=True)
            path = unused(self._refused_folder / f"{window.segments[0].segment.path.stem}.lines")
            write_new(self._journal.disk, path, [text])
            return path

        with as_store_error():
            path = await trio.to_thread.run_sync(write)
        first = refused[0].error
        log.error(
            "journal.lines_refused",
            lines=len(refused),
            reason=first.reason,
            error=str(first),
            path=str(path),
            next_step="tsd rejected --replay",
        )


async def _next_of(pieces: Iterator[Block | Damage], path: Path) -> Block | Damage | None:
    with as_store_error():
        try:
            return await trio.to_thread.run_sync(next, pieces, None)
        except FileNotFoundError:
            log.error("journal.segment_missing", path=str(path))
            return None


class FolderFails(StoreError):
    """A window cannot be read, or its refused lines cannot be kept: the state folder's disk is full or fails."""


@contextmanager
def as_store_error() -> Iterator[None]:
    """Raise a StoreError for an OSError of the state folder, so that the window is retried."""
    try:
        yield
    except OSError as exc:
        raise FolderFails(f"the state folder cannot be used: {exc}") from exc
