"""How many new names and series may come in: caps on all of them, and whom each is put down to.

Only what is new is ever refused: a name that has a UID, and a series that is known, go on whatever the caps say.
"""

import sys
from collections.abc import Callable, Collection

import trio

from tsd.codec.uid import Kind
from tsd.errors import NEW_NAMES, TOO_MANY_SERIES, BadLine
from tsd.ingest.bucket import Bucket
from tsd.ingest.series import SeriesTable, SeriesText
from tsd.ingest.source import Source

MINUTE_S = 60


def too_many_names(kind: Kind, name: bytes, per_minute: int, key: str) -> BadLine:
    """What a line is refused with whose name would be one too many; `key` is the setting that says so."""
    return BadLine(
        NEW_NAMES,
        f"too many new names: '{name.decode('latin-1')}' of '{kind.value}' is new, and {per_minute} a minute may be "
        f"({key}): stop what makes names up, or send the line again later",
    )


class Growth:
    """What is let in of what is new."""

    def __init__(
        self,
        table: SeriesTable,
        *,
        max_series: int = 0,
        names_per_minute: int = 0,
        now_s: Callable[[], float] = trio.current_time,
    ) -> None:
        """0: any. `now_s` is a clock that only moves forward."""
        self.table = table
        self._max_series = max_series
        self._per_minute = names_per_minute
        self._now_s = now_s
        self._bucket: Bucket | None = None
        self.new_names = 0
        self.new_series = 0

    def limit(self, *, max_series: int, names_per_minute: int) -> None:
        """Have these caps from now on."""
        self._max_series, self._per_minute, self._bucket = max_series, names_per_minute, None

    def why_no_name(self, kind: Kind, name: bytes) -> BadLine | None:
        """Why nobody may bring a new name now; None where somebody may."""
        if not self._per_minute:
            return None
        now_s = self._now_s()
        if self._bucket is None:
            self._bucket = Bucket(self._per_minute / MINUTE_S, self._per_minute, now_s=now_s)
        if self._bucket.has(now_s=now_s):
            return None
        return too_many_names(kind, name, self._per_minute, "tsd.uid.new_per_minute")

    def named(self) -> None:
        """A name gets a UID."""
        self.new_names += 1
        if self._bucket is not None:
            self._bucket.take(now_s=self._now_s())

    @property
    def room(self) -> int:
        """How many series may come that are not known."""
        return max(self._max_series - len(self.table), 0) if self._max_series else sys.maxsize

    def crowded_out(self, series: Collection[SeriesText]) -> dict[SeriesText, BadLine]:
        """Those of some series that are not known and have no room."""
        if not self._max_series:
            return {}
        if len(series) <= self.room:
            return {}
        new = [text for text in series if not self.table.knows(text)]
        return {text: self._too_many(text) for text in new[self.room :]}

    def _too_many(self, text: SeriesText) -> BadLine:
        return BadLine(
            TOO_MANY_SERIES,
            f"too many series: {text.metric.decode('latin-1')} {text.tags.decode('latin-1')} is not known, and "
            f"{self._max_series} are (tsd.ingest.max_series): stop what makes series up, or raise the cap",
        )


class Permit:
    """What one block may bring that is new, and to whom it is put down."""

    def __init__(self, growth: Growth, source: Source | None) -> None:
        self._growth = growth
        self._source = source

    def why_not(self, kind: Kind, name: bytes) -> BadLine | None:
        """Asked before a new name gets its UID: why it gets none. None where it does; then it is counted."""
        why = self._source and self._source.why_no_name(kind, name)
        why = why or self._growth.why_no_name(kind, name)
        if why is None:
            self._growth.named()
            if self._source is not None:
                self._source.named(kind, name)
        return why

    @property
    def room(self) -> int:
        """How many series may come that are not known."""
        return self._growth.room

    def crowded_out(self, series: Collection[SeriesText]) -> dict[SeriesText, BadLine]:
        """See Growth."""
        return self._growth.crowded_out(series)

    def met_series(self, count: int) -> None:
        """So many series came that were not known."""
        self._growth.new_series += count
        if count and self._source is not None:
            self._source.met_series(count)
