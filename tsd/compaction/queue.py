"""Rows that a daemon writes → those that will want compaction, oldest hour first.

A row that is written as one cell wants none: it is only watched for a second one. Memory is that of the tag pairs of
the rows of an hour or two, some 110 bytes a row, and bounded: what does not fit is counted, and left to a pass.
"""

import random
from collections.abc import Iterable

from sortedcontainers import SortedDict

from tsd.codec.rowkey import BASE_BYTES, LAST_BASE, Layout, base_bytes
from tsd.codec.times import HOUR_S
from tsd.store import Put


class _Hour:
    """Rows of one hour that start alike: their tag pairs."""

    __slots__ = ("waiting", "watched")

    def __init__(self) -> None:
        self.watched: set[bytes] = set()  # one cell so far
        self.waiting: set[bytes] = set()


class RowQueue:
    """Rows by base time, then by salt and metric."""

    def __init__(self, layout: Layout, limit: int, started_s: int) -> None:
        """It holds `limit` rows. Of an hour that began before `started_s`, other cells of a row may be there already:
        the first one that is noted is enough."""
        self._start = layout.metric_end
        self._end = layout.metric_end + BASE_BYTES
        self._limit = limit
        self._closed_s = started_s - 1  # the last base time of hours whose rows may have cells that nobody noted
        self._hours: SortedDict = SortedDict()  # (base time, salt and metric) → _Hour
        self._held = 0
        self.waiting = 0
        self.left_out = 0

    @property
    def hours(self) -> int:
        """Of how many metrics, each hour counted, it holds rows."""
        return len(self._hours)

    @property
    def oldest(self) -> int | None:
        """The base time of the oldest row that it holds."""
        return int.from_bytes(self._hours.peekitem(0)[0][0], "big") if self._hours else None

    def note(self, puts: Iterable[Put]) -> None:
        """Take note of cells that were written."""
        start, end = self._start, self._end
        last = None
        for row, _, _ in puts:
            head = row[:end]
            if head != last:
                last = head
                place = head[start:], head[:start]
                hour = self._hours.get(place) or _Hour()
            pairs = row[end:]
            if pairs not in hour.waiting:
                self._note(place, hour, pairs)

    def _note(self, place: tuple[bytes, bytes], hour: _Hour, pairs: bytes) -> None:
        """Take note of another cell of a row that does not wait yet."""
        old = int.from_bytes(place[0], "big") <= self._closed_s
        if pairs in hour.watched:
            hour.watched.remove(pairs)
        elif self._has_room(place[0]):
            self._held += 1
            self._hours[place] = hour
            if not old:
                hour.watched.add(pairs)
                return
        else:
            return
        hour.waiting.add(pairs)
        self.waiting += 1

    def _has_room(self, base: bytes) -> bool:
        """Whether a row of an hour can be held. Where all is full, one of a later hour goes: points that claim to be of
        years to come would else keep everybody out until then."""
        if self._held < self._limit:
            return True
        self.left_out += 1
        place, hour = self._hours.peekitem(-1)
        if place[0] <= base:
            return False
        if hour.watched:
            hour.watched.pop()
        else:
            hour.waiting.pop()
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
            base = self._hours.peekitem(0)[0][0]
            if int.from_bytes(base, "big") > self._closed_s:
                break
            taken += self._take_of(base, count - len(taken))
        return taken

    def _close(self, over_s: int) -> None:
        """From now on a row of such an hour wants compaction with the next cell, as it may have one."""
        last_s = over_s - HOUR_S
        for place in list(self._hours.irange(maximum=(base_bytes(last_s + 1), b""), inclusive=(True, False))):
            hour = self._hours[place]
            self._held -= len(hour.watched)
            hour.watched.clear()
            if not hour.waiting:
                del self._hours[place]
        self._closed_s = max(self._closed_s, last_s)

    def put_back(self, rows: Iterable[bytes]) -> None:
        """Have rows wait again that were taken."""
        closed_s, self._closed_s = self._closed_s, LAST_BASE  # whatever their hour: that they want it is known
        self.note(Put(row, b"", b"") for row in rows)
        self._closed_s = closed_s

    def _take_of(self, base: bytes, count: int) -> list[bytes]:
        """Rows of one hour."""
        taken: list[bytes] = []
        places = list(self._hours.irange((base, b""), (base + b"\0", b"")))
        while places and len(taken) < count:
            chosen = random.sample(places, min(count - len(taken), len(places)))
            taken += [place[1] + base + self._hours[place].waiting.pop() for place in chosen]
            emptied = {place for place in chosen if not self._hours[place].waiting}
            for place in emptied:
                del self._hours[place]
            places = [place for place in places if place not in emptied]
        self._held -= len(taken)
        self.waiting -= len(taken)
        return taken
