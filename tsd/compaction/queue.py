"""Rows that a daemon writes → those that will want compaction, oldest hour first.

A row that is written as one cell wants none: it is only watched for a second one. Memory is that of the metrics and tag
pairs of the rows of an hour or two, some 60 bytes a row and 400 a group of metrics, and bounded: what does not fit is
counted, and left to a pass.
"""

import os
import random
from collections.abc import Iterable, Sequence

from sortedcontainers import SortedDict

from tsd.codec.rowkey import BASE_BYTES, LAST_BASE, Layout, base_bytes
from tsd.codec.times import HOUR_S
from tsd.compaction.hours import GONE, WAITING, WATCHED, Hour, place_of, plain_note_rows
from tsd.store import Put

try:
    from tsd.compaction import _noting
except ImportError:  # no C compiler when it was installed
    HAS_LOOP = False
else:
    HAS_LOOP = not os.environ.get("TSD_PURE")  # to compare the two


class RowQueue:
    """Rows by base time, then by salt and metric."""

    def __init__(self, layout: Layout, limit: int, started_s: int, *, by_loop: bool = HAS_LOOP) -> None:
        """It holds `limit` rows. Of an hour that began before `started_s`, other cells of a row may be there already:
        the first one that is noted is enough."""
        self._note_rows = _noting.note_rows if by_loop else plain_note_rows
        self._salt = layout.salt_width
        self._start = layout.metric_end
        self._end = layout.pairs_start
        self._limit = limit
        self._closed_s = started_s - 1  # the last base time of hours whose rows may have cells that nobody noted
        self._hours: SortedDict = SortedDict()  # place_of(row) → Hour
        self._held = 0
        self.waiting = 0
        self.left_out = 0

    @property
    def turns(self) -> int:
        """Of how many groups of metrics, each hour and salt counted, it holds rows."""
        return len(self._hours)

    @property
    def oldest(self) -> int | None:
        """The base time of the oldest row that it holds."""
        return self._base(0) if self._hours else None

    def note(self, puts: Sequence[Put]) -> None:
        """Take note of cells that were written."""
        at = 0
        while at < len(puts):
            room = self._limit - self._held
            last_s = LAST_BASE if room else self._base(-1)
            at, new, begun, left_out = self._note_rows(
                puts, at, self._hours, self._salt, self._start, self._closed_s, room, last_s
            )
            self._held += new
            self.waiting += begun
            self.left_out += left_out
            if at < len(puts):
                self._note(puts[at].row)
                at += 1

    def _base(self, at: int) -> int:
        """The base time of the hour at a place."""
        return int.from_bytes(self._hours.peekitem(at)[0][:BASE_BYTES], "big")

    def _note(self, row: bytes) -> None:
        """Take note of another cell of a row; raises ValueError for what is none."""
        if len(row) < self._end:
            raise ValueError(f"got a row of {len(row)} bytes, wanted {self._end} or more")
        place, key = place_of(row, self._salt, self._start), row[: self._start] + row[self._end :]
        hour = self._hours.get(place)
        state = GONE if hour is None else hour.state(key)
        if state == WAITING:
            return
        if hour is None or state != WATCHED:
            if not self._has_room(place[:BASE_BYTES]):
                return
            self._held += 1
            hour = self._hours.setdefault(place, hour or Hour())
            if int.from_bytes(place[:BASE_BYTES], "big") > self._closed_s:
                hour.watch(key)
                return
        hour.wait(key)
        self.waiting += 1

    def _has_room(self, base: bytes) -> bool:
        """Whether a row of an hour can be held. Where all is full, one of a later hour goes: points that claim to be of
        years to come would else keep everybody out until then."""
        if self._held < self._limit:
            return True
        self.left_out += 1
        place, hour = self._hours.peekitem(-1)
        if place[:BASE_BYTES] <= base:
            return False
        if hour.watched:
            hour.pop(WATCHED)
        else:
            hour.pop(WAITING)
            self.waiting -= 1
        self._held -= 1
        if not hour.watched and not hour.waiting:
            del self._hours[place]
        return True

    def take(self, count: int, over_s: int) -> list[bytes]:
        """Up to `count` rows of hours that were over at `over_s`, oldest hours first; within an hour all salts and
        metrics have their turns. The rows of those hours that were only watched are forgotten."""
        self._close(over_s)
        taken: list[bytes] = []
        while self._hours and len(taken) < count:
            base_s = self._base(0)
            if base_s > self._closed_s:
                break
            taken += self._take_of(base_bytes(base_s), count - len(taken))
        return taken

    def _close(self, over_s: int) -> None:
        """From now on a row of such an hour wants compaction with the next cell, as it may have one."""
        last_s = over_s - HOUR_S
        for place in list(self._hours.irange(maximum=base_bytes(last_s + 1), inclusive=(True, False))):
            hour = self._hours[place]
            self._held -= hour.watched
            hour.close()
            if not hour.waiting:
                del self._hours[place]
        self._closed_s = max(self._closed_s, last_s)

    def put_back(self, rows: Iterable[bytes]) -> None:
        """Have rows wait again that were taken."""
        closed_s, self._closed_s = self._closed_s, LAST_BASE  # whatever their hour: that they want it is known
        try:
            self.note([Put(row, b"", b"") for row in rows])
        finally:
            self._closed_s = closed_s

    def _take_of(self, base: bytes, count: int) -> list[bytes]:
        """Rows of one hour."""
        taken: list[bytes] = []
        places = list(self._hours.irange(base, base + b"\xff" * (self._salt + 2)))
        while places and len(taken) < count:
            chosen = random.sample(places, min(count - len(taken), len(places)))
            keys = [self._hours[place].pop(WAITING) for place in chosen]
            taken += [key[: self._start] + base + key[self._start :] for key in keys]
            emptied = {place for place in chosen if not self._hours[place].waiting}
            for place in emptied:
                del self._hours[place]
            places = [place for place in places if place not in emptied]
        self._held -= len(taken)
        self.waiting -= len(taken)
        return taken
