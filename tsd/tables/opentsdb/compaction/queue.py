"""Queue of rows that need compaction, oldest hour first, filled with the cells that a daemon writes.

A row with a single cell needs no compaction. It stays in the queue in case of a second cell, unless the first was
written when its hour was over. The queue takes some 60 bytes a row and 400 a bucket (see `hour_buckets`) for the rows
of an hour or two. It is bounded: rows that do not fit are counted, and left to `tsd compact`.
"""

import os
import random
from collections.abc import Iterable, Iterator, Sequence

from sortedcontainers import SortedDict

from tsd.codec.opentsdb.rowkey import BASE_BYTES, LAST_BASE, KeyLayout, base_bytes
from tsd.codec.putline import HOUR_S
from tsd.store import Put
from tsd.tables.opentsdb.compaction.hour_buckets import GONE, SINGLE, WAITING, HourBucket, bucket_key
from tsd.tables.writing import AHEAD_S

try:
    from tsd.tables.opentsdb.compaction import _queue
except ImportError:  # installed without a C compiler
    HAS_LOOP = False
else:
    HAS_LOOP = not os.environ.get("TSD_PURE")  # TSD_PURE selects the Python code, to compare both


class RowQueue:
    """Rows by base time, then by salt and metric."""

    def __init__(self, layout: KeyLayout, limit: int, started_s: int, *, compiled: bool = HAS_LOOP) -> None:
        """The queue holds `limit` rows. Rows of hours that begin up to AHEAD_S after the start of the daemon may have
        cells of an earlier run: one recorded cell is enough to queue such a row. `compiled` selects the compiled
        loop."""
        self._compiled = compiled
        self._salt = layout.salt_width
        self._start = layout.metric_end
        self._end = layout.pairs_start
        self._limit = limit
        self._closed_s = started_s + AHEAD_S  # last base time of hours whose rows may have unrecorded cells
        self._whole_s = self._closed_s  # last base time of hours with rows whose only cell may be unrecorded
        self._buckets: SortedDict = SortedDict()  # bucket_key(row) → HourBucket
        self._size = 0
        self.waiting = 0  # rows that need compaction
        self.dropped = 0

    @property
    def buckets(self) -> int:
        """Number of buckets."""
        return len(self._buckets)

    @property
    def oldest(self) -> int | None:
        """The lowest base time of a row, None if the queue is empty."""
        return self._base(0) if self._buckets else None

    @property
    def room(self) -> int:
        """How many more rows fit."""
        return self._limit - self._size

    def base_s(self, row: bytes) -> int:
        """Return the base time of a row."""
        return int.from_bytes(row[self._start : self._end], "big")

    def is_waiting(self, row: bytes) -> bool:
        """Return whether a row needs compaction."""
        bucket = self._buckets.get(bucket_key(row, self._salt, self._start))
        return bucket is not None and bucket.state(row[: self._start] + row[self._end :]) == WAITING

    def record(self, puts: Sequence[Put], *, whole: bool = False) -> None:
        """Record cells that were written. Raise ValueError for an invalid row key.

        `whole`: the cells are of rows of one hour, as compaction would make them, and none of these rows had other
        cells to come. Rows without another recorded cell are not added to the queue: the next cell makes them need
        compaction, unless it is recorded as `whole` too.
        """
        at = 0
        closed_s = self._closed_s if whole else max(self._closed_s, self._whole_s)
        while at < len(puts):
            if self._compiled:
                at = self._record_compiled(puts, at, closed_s, whole=whole)
            if at < len(puts):
                self._record_row(puts[at].row, closed_s, whole=whole)
                at += 1
        if whole and puts:
            self._whole_s = max(self._whole_s, self.base_s(puts[0].row))

    def _record_compiled(self, puts: Sequence[Put], at: int, closed_s: int, *, whole: bool) -> int:
        """Record the simple cases in the compiled loop; return the index of the first other put."""
        room = self.room
        last_s = LAST_BASE if room else self._base(-1)
        at, new, begun, dropped = _queue.record_rows(
            puts, at, self._buckets, self._salt, self._start, closed_s, whole, room, last_s
        )
        self._size += new
        self.waiting += begun
        self.dropped += dropped
        return at

    def _base(self, at: int) -> int:
        """Return the base time of a bucket by its index."""
        return int.from_bytes(self._buckets.peekitem(at)[0][:BASE_BYTES], "big")

    def _record_row(self, row: bytes, closed_s: int, *, whole: bool) -> None:
        """Record a cell of a row. Without a recorded cell it needs compaction in hours up to `closed_s`."""
        if len(row) < self._end:
            raise ValueError(f"got a row of {len(row)} bytes, wanted {self._end} or more")
        place, key = bucket_key(row, self._salt, self._start), row[: self._start] + row[self._end :]
        bucket = self._buckets.get(place)
        state = GONE if bucket is None else bucket.state(key)
        if state == WAITING:
            return
        needed = int.from_bytes(place[:BASE_BYTES], "big") <= closed_s
        if bucket is None or state != SINGLE:
            if whole and not needed:
                return
            if not self._make_room(place[:BASE_BYTES]):
                return
            self._size += 1
            bucket = self._buckets.setdefault(place, bucket or HourBucket())
            if not needed:
                bucket.add_single(key)
                return
        bucket.set_waiting(key)
        self.waiting += 1

    def _make_room(self, base: bytes) -> bool:
        """Return whether a row with this base time can be added. A full queue drops a row of a later hour to make room:
        otherwise points with times years ahead would block all others."""
        if self.room > 0:
            return True
        self.dropped += 1
        place, bucket = self._buckets.peekitem(-1)
        if place[:BASE_BYTES] <= base:
            return False
        if bucket.single:
            bucket.pop(SINGLE)
        else:
            bucket.pop(WAITING)
            self.waiting -= 1
        self._size -= 1
        if not bucket.single and not bucket.waiting:
            del self._buckets[place]
        return True

    def take(self, count: int, ended_s: int, run: int = 1) -> list[bytes]:
        """Remove and return up to `count` rows of hours that ended by `ended_s`, oldest hours first.

        Rows come from random buckets of each hour, up to `run` of each in the order of their records: these are often
        neighbours. Rows of these hours with a single cell are removed."""
        for _ in self.close(ended_s):
            pass
        taken: list[bytes] = []
        while self._buckets and len(taken) < count:
            base_s = self._base(0)
            if base_s > ended_s - HOUR_S:
                break
            taken += self._take_hour(base_bytes(base_s), count - len(taken), run)
        return taken

    def close(self, ended_s: int) -> Iterator[None]:
        """Close the hours that ended by `ended_s`, with a pause after each bucket that had rows to remove: any later
        cell makes their rows need compaction."""
        last_s = ended_s - HOUR_S
        self._closed_s = max(self._closed_s, last_s)
        for place in list(self._buckets.irange(maximum=base_bytes(last_s + 1), inclusive=(True, False))):
            bucket = self._buckets.get(place)
            if bucket is None or not bucket.single:
                continue
            self._size -= bucket.single
            bucket.close()
            if not bucket.waiting:
                del self._buckets[place]
            yield

    def put_back(self, rows: Iterable[bytes]) -> None:
        """Queue rows that were taken."""
        closed_s, self._closed_s = self._closed_s, LAST_BASE  # they need compaction, whatever their hour
        try:
            self.record([Put(row, b"", b"") for row in rows])
        finally:
            self._closed_s = closed_s

    def _take_hour(self, base: bytes, count: int, run: int) -> list[bytes]:
        """Remove and return rows of one hour."""
        taken: list[bytes] = []
        places = list(self._buckets.irange(base, base + b"\xff" * (self._salt + 2)))
        while places and len(taken) < count:
            left = count - len(taken)
            for place in random.sample(places, min(-(-left // run), len(places))):
                bucket = self._buckets[place]
                keys = [bucket.pop(WAITING) for _ in range(min(run, bucket.waiting, count - len(taken)))]
                taken += [key[: self._start] + base + key[self._start :] for key in keys]
                if not bucket.waiting:
                    del self._buckets[place]
            places = [place for place in places if place in self._buckets]
        self._size -= len(taken)
        self.waiting -= len(taken)
        return taken
