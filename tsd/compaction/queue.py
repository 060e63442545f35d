"""Rows that a daemon writes → those that will want compaction, oldest hour first.

A row that is written as one cell wants none: it is only watched for a second one. Memory is that of the tag pairs of
the rows of an hour or two, some 50 bytes a row, and bounded: what does not fit is counted, and left to a pass.
"""

import random
from collections.abc import Iterable, Sequence

from sortedcontainers import SortedDict

from tsd.bytemap import ByteMap
from tsd.codec.rowkey import BASE_BYTES, LAST_BASE, Layout, base_bytes
from tsd.codec.times import HOUR_S
from tsd.store import Put

WATCHED, WAITING = 1, 2  # one cell so far; more
GONE = 0
_TAKEN_AT_ONCE = 64


class _Hour:
    """Rows of one hour that start alike, by their tag pairs. What is known of a row stands where it was first noted;
    the few that come back after they went are held apart, so that a walk over the others meets each row once."""

    __slots__ = ("_ahead", "_back", "_closed", "_next", "_states", "waiting", "watched")

    def __init__(self) -> None:
        self._states = ByteMap()
        self._back: tuple[set[bytes], set[bytes], set[bytes]] = (set(), set(), set())  # by state
        self._closed = False
        self._next = {WATCHED: 0, WAITING: 0}  # places in the map: rows before are no more in that state
        self._ahead: dict[int, list[bytes]] = {WATCHED: [], WAITING: []}  # rows before those places that may be
        self.watched = self.waiting = 0  # rows

    def state(self, pairs: bytes) -> int:
        """WATCHED, WAITING, or GONE, as of a row that was never noted."""
        state = self._states.number(pairs)
        if state == WAITING or (state == WATCHED and not self._closed):
            return state
        if state >= 0:
            return WAITING if pairs in self._back[WAITING] else WATCHED if pairs in self._back[WATCHED] else GONE
        return GONE

    def meet(self, puts: Sequence[Put], at: int, end: int, state: int, room: int) -> tuple[int, int]:
        """Take note of rows from a place in `puts` on that start alike, up to `end`: of those that were never noted,
        `room` at most, and those that wait already. The place of the first other one, and how many were new."""
        at, new = self._states.put_rest(puts, at, end, state, WAITING, room)
        if state == WATCHED:
            self.watched += new
        else:
            self.waiting += new
        return at, new

    def watch(self, pairs: bytes) -> None:
        """A row that is gone, or was never noted, has one cell."""
        self.watched += 1
        self._enter(pairs, WATCHED)

    def wait(self, pairs: bytes) -> None:
        """A row wants compaction."""
        self.waiting += 1
        if self.state(pairs) == WATCHED:
            self.watched -= 1
            if pairs in self._back[WATCHED]:
                self._back[WATCHED].remove(pairs)
                self._back[WAITING].add(pairs)
            else:
                self._states.put_number(pairs, WAITING)
        else:
            self._enter(pairs, WAITING)

    def _enter(self, pairs: bytes, state: int) -> None:
        if self._states.number(pairs) < 0:
            self._states.put_number(pairs, state)
        else:
            self._back[state].add(pairs)

    def pop(self, state: int) -> bytes:
        """A row in that state, of which there is one; it is gone. Those WAITING only while none is WATCHED."""
        if state == WATCHED:
            self.watched -= 1
        else:
            assert not self.watched
            self.waiting -= 1
        if self._back[state]:
            return self._back[state].pop()
        while True:
            if not self._ahead[state]:
                found, self._next[state] = self._states.items(self._next[state], _TAKEN_AT_ONCE)
                self._ahead[state] = [pairs for pairs, _ in found]
            pairs = self._ahead[state].pop()
            if self._states.number(pairs) == state:
                self._states.put_number(pairs, GONE)
                return pairs

    def close(self) -> None:
        """Forget those that are watched."""
        self._closed = True
        self.watched = 0
        self._back[WATCHED].clear()


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

    def note(self, puts: Sequence[Put]) -> None:
        """Take note of cells that were written."""
        start, end = self._start, self._end
        met: dict[bytes, tuple[tuple[bytes, bytes], _Hour, int]] = {}  # of rows put back metrics take turns
        at = 0
        while at < len(puts):
            row = puts[at].row
            head = row[:end]
            if head not in met:
                place = head[start:], head[:start]
                state = WAITING if int.from_bytes(place[0], "big") <= self._closed_s else WATCHED
                met[head] = place, self._hours.get(place) or _Hour(), state
            place, hour, state = met[head]
            if place in self._hours:
                at, new = hour.meet(puts, at, end, state, self._limit - self._held)  # most rows of most calls
                self._held += new
                if state == WAITING:
                    self.waiting += new
                if at == len(puts) or (row := puts[at].row)[:end] != head:
                    continue
            if hour.state(row[end:]) != WAITING:
                self._note(place, hour, row[end:])
            at += 1

    def _note(self, place: tuple[bytes, bytes], hour: _Hour, pairs: bytes) -> None:
        """Take note of another cell of a row that does not wait yet."""
        old = int.from_bytes(place[0], "big") <= self._closed_s
        if hour.state(pairs) != WATCHED:
            if not self._has_room(place[0]):
                return
            self._held += 1
            self._hours[place] = hour
            if not old:
                hour.watch(pairs)
                return
        hour.wait(pairs)
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
            self._held -= hour.watched
            hour.close()
            if not hour.waiting:
                del self._hours[place]
        self._closed_s = max(self._closed_s, last_s)

    def put_back(self, rows: Iterable[bytes]) -> None:
        """Have rows wait again that were taken."""
        closed_s, self._closed_s = self._closed_s, LAST_BASE  # whatever their hour: that they want it is known
        self.note([Put(row, b"", b"") for row in rows])
        self._closed_s = closed_s

    def _take_of(self, base: bytes, count: int) -> list[bytes]:
        """Rows of one hour."""
        taken: list[bytes] = []
        places = list(self._hours.irange((base, b""), (base + b"\0", b"")))
        while places and len(taken) < count:
            chosen = random.sample(places, min(count - len(taken), len(places)))
            taken += [place[1] + base + self._hours[place].pop(WAITING) for place in chosen]
            emptied = {place for place in chosen if not self._hours[place].waiting}
            for place in emptied:
                del self._hours[place]
            places = [place for place in places if place not in emptied]
        self._held -= len(taken)
        self.waiting -= len(taken)
        return taken
