"""Queued rows of one hour and one group of metrics, and the rows in it that have one cell so far."""

from tsd.codec.bytemap import ByteMap
from tsd.codec.opentsdb.rowkey import BASE_BYTES

SINGLE, WAITING = 1, 2  # states of a row: one cell so far; more, so that it needs compaction
GONE = 0
GROUPS = 64  # of metrics in an hour. A bucket per metric would use 2 KiB, often for few series
_READ_ROWS = 64


class _Walk:
    """Progress of removing the rows in one state."""

    __slots__ = ("ahead", "next")

    def __init__(self) -> None:
        self.next = 0  # index in the map: earlier rows are not in this state any more
        self.ahead: list[bytes] = []  # rows read before that index


class HourBucket:
    """Rows by their keys without the base time.

    `states` has the rows in the order of their first record. Rows that are recorded again after removal are in `_back`,
    so that a walk over the map returns each row once. Members that few buckets need are allocated on first use.
    """

    __slots__ = ("_back", "_walks", "is_plain", "single", "states", "waiting")

    def __init__(self) -> None:
        self.states = ByteMap()  # state of each row; a removed row stays as GONE
        self._back: dict[int, set[bytes]] | None = None  # rows recorded again after removal, by state
        self._walks: dict[int, _Walk] | None = None  # by state
        self.is_plain = True  # `states` is complete: no row was recorded again
        self.single = self.waiting = 0  # numbers of rows

    def state(self, key: bytes) -> int:
        """Return SINGLE, WAITING, or GONE, also for a row that was never recorded."""
        state = self.states.number(key)
        if state in (WAITING, SINGLE):
            return state
        if self._back and key in self._back[WAITING]:
            return WAITING
        return SINGLE if self._back and key in self._back[SINGLE] else GONE

    def count_added(self, state: int, count: int) -> None:
        """Count new rows that were added to `states`."""
        if state == SINGLE:
            self.single += count
        else:
            self.waiting += count

    def count_promoted(self, count: int) -> None:
        """Count rows that changed from SINGLE to WAITING in `states`."""
        self.single -= count
        self.waiting += count

    def add_single(self, key: bytes) -> None:
        """Add a row with one cell; its state is GONE."""
        self.single += 1
        self._add(key, SINGLE)

    def set_waiting(self, key: bytes) -> None:
        """Mark a row for compaction; its state is not WAITING."""
        self.waiting += 1
        if self.state(key) == SINGLE:
            self.single -= 1
            if self._back and key in self._back[SINGLE]:
                self._back[SINGLE].remove(key)
                self._back[WAITING].add(key)
            else:
                self.states.put_number(key, WAITING)
        else:
            self._add(key, WAITING)

    def _add(self, key: bytes, state: int) -> None:
        if self.states.number(key) < 0:
            self.states.put_number(key, state)
        else:
            self._back = self._back or {SINGLE: set(), WAITING: set()}
            self.is_plain = False
            self._back[state].add(key)

    def pop(self, state: int) -> bytes:
        """Remove and return a row in a state that has one. WAITING requires that no row is SINGLE."""
        if state == SINGLE:
            self.single -= 1
        else:
            assert not self.single
            self.waiting -= 1
        if self._back and self._back[state]:
            return self._back[state].pop()
        self._walks = self._walks or {SINGLE: _Walk(), WAITING: _Walk()}
        walk = self._walks[state]
        while True:
            if not walk.ahead:
                found, walk.next = self.states.items(walk.next, _READ_ROWS)
                walk.ahead = [key for key, _ in found]
            key = walk.ahead.pop()
            if self.states.number(key) == state:
                self.states.put_number(key, GONE)
                return key

    def close(self) -> None:
        """Remove the SINGLE rows and free their keys: a few waiting rows may keep a bucket for long."""
        if self.single:
            self.single = 0
            self.states.keep_number(WAITING)
            for key in self._back[WAITING] if self._back else ():
                self.states.put_number(key, WAITING)
            self._back = self._walks = None
            self.is_plain = True


def bucket_key(row: bytes, salt: int, start: int) -> bytes:
    """Return the key of a row's bucket: base time, salt and group of metrics. The salt has `salt` bytes, the base time
    starts at `start`."""
    return row[start : start + BASE_BYTES] + row[:salt] + bytes((row[start - 1] % GROUPS,))
