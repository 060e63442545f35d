"""Rows of an hour that want compaction, or may, and how those that were put are entered among them."""

from collections.abc import Mapping, Sequence

from tsd.bytemap import ByteMap
from tsd.codec.rowkey import BASE_BYTES

WATCHED, WAITING = 1, 2  # one cell so far; more
GONE = 0
TURNS = 64  # of an hour's metrics. Each having its own took 2 KiB an hour of those that have three series
_TAKEN_AT_ONCE = 64


class _Walk:
    """How far those rows of an hour that are in one state were taken."""

    __slots__ = ("ahead", "next")

    def __init__(self) -> None:
        self.next = 0  # a place in the map: rows before it are no more in that state
        self.ahead: list[bytes] = []  # rows before that place that may be


class Hour:
    """Rows of one hour that take turns with others, by their keys without the base time. What is known of a row stands
    where it was first noted; the few that come back after they went are held apart, so that a walk over the others
    meets each row once. What few of them need is not there before they need it."""

    __slots__ = ("_back", "_walks", "is_plain", "states", "waiting", "watched")

    def __init__(self) -> None:
        self.states = ByteMap()  # as rows were first noted, and what became of them since
        self._back: dict[int, set[bytes]] | None = None  # those that came back, by state
        self._walks: dict[int, _Walk] | None = None  # by state
        self.is_plain = True  # `states` says all of it: none came back
        self.watched = self.waiting = 0  # rows

    def state(self, key: bytes) -> int:
        """WATCHED, WAITING, or GONE, as of a row that was never noted."""
        state = self.states.number(key)
        if state in (WAITING, WATCHED):
            return state
        if self._back and key in self._back[WAITING]:
            return WAITING
        return WATCHED if self._back and key in self._back[WATCHED] else GONE

    def grew(self, state: int, count: int) -> None:
        """So many rows that were never noted were entered in `states`."""
        if state == WATCHED:
            self.watched += count
        else:
            self.waiting += count

    def met_again(self, count: int) -> None:
        """So many rows that were watched have another cell, and wait as of now in `states`."""
        self.watched -= count
        self.waiting += count

    def watch(self, key: bytes) -> None:
        """A row that is gone, or was never noted, has one cell."""
        self.watched += 1
        self._enter(key, WATCHED)

    def wait(self, key: bytes) -> None:
        """A row wants compaction."""
        self.waiting += 1
        if self.state(key) == WATCHED:
            self.watched -= 1
            if self._back and key in self._back[WATCHED]:
                self._back[WATCHED].remove(key)
                self._back[WAITING].add(key)
            else:
                self.states.put_number(key, WAITING)
        else:
            self._enter(key, WAITING)

    def _enter(self, key: bytes, state: int) -> None:
        if self.states.number(key) < 0:
            self.states.put_number(key, state)
        else:
            self._back = self._back or {WATCHED: set(), WAITING: set()}
            self.is_plain = False
            self._back[state].add(key)

    def pop(self, state: int) -> bytes:
        """A row in that state, of which there is one; it is gone. Those WAITING only while none is WATCHED."""
        if state == WATCHED:
            self.watched -= 1
        else:
            assert not self.watched
            self.waiting -= 1
        if self._back and self._back[state]:
            return self._back[state].pop()
        self._walks = self._walks or {WATCHED: _Walk(), WAITING: _Walk()}
        walk = self._walks[state]
        while True:
            if not walk.ahead:
                found, walk.next = self.states.items(walk.next, _TAKEN_AT_ONCE)
                walk.ahead = [key for key, _ in found]
            key = walk.ahead.pop()
            if self.states.number(key) == state:
                self.states.put_number(key, GONE)
                return key

    def close(self) -> None:
        """Forget those that are watched, and their keys: one row that waits may keep an hour of many for long."""
        if self.watched:
            self.watched = 0
            self.states.keep_number(WAITING)
            for key in self._back[WAITING] if self._back else ():
                self.states.put_number(key, WAITING)
            self._back = self._walks = None
            self.is_plain = True


def place_of(row: bytes, salt: int, start: int) -> bytes:
    """Whose rows take turns with others': the base time, the salt, and what is left of a metric."""
    return row[start : start + BASE_BYTES] + row[:salt] + bytes((row[start - 1] % TURNS,))


def plain_note_rows(
    puts: Sequence[tuple[bytes, bytes, bytes]],
    at: int,
    hours: Mapping[bytes, Hour],
    salt: int,
    start: int,
    closed_s: int,
    room: int,
    last_s: int,
) -> tuple[int, int, int, int]:
    """Take note of the rows of puts from a place on, of those that want no closer look: of one that was never noted,
    while there is `room`, in an hour that is there; of another cell of one; and, where there is no room, of one of the
    base time `last_s` or later. Those of base times up to `closed_s` wait, others are watched.

    The place of the first other row, and how many are new, have begun to wait, and were left out. `salt` is how wide
    that is, and `start` where base times start."""
    end = start + BASE_BYTES
    new, begun, left_out, state, base_s, head = 0, 0, 0, WATCHED, 0, b""
    hour: Hour | None = None
    for number in range(at, len(puts)):
        row = puts[number][0]
        if len(row) < end:
            return number, new, begun, left_out
        if row[:end] != head:
            head = row[:end]
            base_s = int.from_bytes(head[start:], "big")
            state = WAITING if base_s <= closed_s else WATCHED
            hour = hours.get(place_of(row, salt, start))
        key = row[:start] + row[end:]
        known = -1 if hour is None else hour.states.number(key)
        if known == WAITING:
            continue
        if hour is not None and hour.is_plain and known == WATCHED:
            hour.states.put_number(key, WAITING)
            hour.met_again(1)
            begun += 1
        elif hour is not None and hour.is_plain and known < 0 and new < room:
            hour.states.put_number(key, state)
            hour.grew(state, 1)
            new += 1
            begun += state == WAITING
        elif known < 0 and new >= room and base_s >= last_s:
            left_out += 1
        else:
            return number, new, begun, left_out
    return len(puts), new, begun, left_out
