"""The result cache: downsampled hours of a metric, for all its series, before filters, groups and fills.

Only past hours are cached, and only while they are known to be unchanged. Either the reader reports each write
(`ResultCache.invalidate`), or each query compares the signatures of an hour's cells.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tsd.codec.points import Int64
from tsd.query.buckets import Bucketed, joined
from tsd.store.cells import CellSigner
from tsd.tables.reading import HourKeys, PageRows, Signatures, SignatureSource

LARGEST_SHARE = 2  # one query fills at most half of the memory
PAIRS_BYTES = 60  # of a row's tag pairs, besides their text
ROW_BYTES = 16  # of a row's number of points, stored bytes and place
HOUR_BYTES = 1000  # of an hour, besides its arrays
_NONE: Mapping[bytes, bytes] = {}


class Bucketing(NamedTuple):
    """How the points of an hour were downsampled."""

    interval_ms: int
    function: str
    plain_percentiles: bool  # the quirk of that name


class CacheKey(NamedTuple):
    """What identifies a cached hour."""

    hour: bytes  # the metric and the hour, as the reader reports changes
    bucketing: Bucketing


class CachedHour(NamedTuple):
    """The rows of one hour of a metric."""

    base_s: int
    series_pairs: tuple[bytes, ...]  # of each row's series
    points: NDArray[np.int32]  # of each row
    sizes: NDArray[np.int64]  # stored bytes of each row
    buckets: Bucketed  # uneven stamps as offsets from the base time, in 32 bits
    names_size: int  # bytes of keys and columns
    signatures: Signatures = _NONE
    pairs_bytes: int = 0  # of memory for the pairs, as if they were its own

    def unpacked(self) -> Bucketed:
        """Return the buckets with their stamps."""
        starts, stamps, values = self.buckets
        return Bucketed(starts.astype(np.int64), stamps.astype(np.int64) + self.base_s * 1000, values)

    @property
    def size(self) -> int:
        """About how many bytes it takes."""
        rows, values = len(self.series_pairs), len(self.buckets.values)
        arrays = ROW_BYTES * rows + 8 * values + 4 * len(self.buckets.stamps)
        signatures = sum(map(len, self.signatures.values())) if self.signatures else 0
        return arrays + self.pairs_bytes + signatures + HOUR_BYTES


class JoinedHours(NamedTuple):
    """Consecutive hours with the same rows."""

    buckets: Bucketed  # a row has those of all hours
    points: Int64  # of each row
    sizes: Int64  # of each row


def join_hours(hours: Sequence[CachedHour]) -> JoinedHours:
    """Join hours that have rows of the same series, and in each of which all rows have the same buckets."""
    rows, count = len(hours[0].series_pairs), len(hours)
    offsets = [hour.buckets.stamps for hour in hours]
    lengths = [len(some) for some in offsets]
    bases_ms = np.array([hour.base_s for hour in hours], np.int64) * 1000
    stamps = np.repeat(bases_ms, lengths)
    stamps += np.concatenate(offsets)
    if rows == 1:
        values = np.concatenate([hour.buckets.values for hour in hours])
    else:
        values = np.concatenate([hour.buckets.values.reshape(rows, -1) for hour in hours], axis=1).reshape(-1)
    starts = np.arange(rows + 1, dtype=np.int64) * len(stamps)
    points = np.concatenate([hour.points for hour in hours]).reshape(count, rows).sum(axis=0, dtype=np.int64)
    sizes = np.concatenate([hour.sizes for hour in hours]).reshape(count, rows).sum(axis=0)
    return JoinedHours(Bucketed(starts, stamps, values), points, sizes)


class PendingRead:
    """Hours of a metric that are being read. Hours that change during the read are not cached."""

    def __init__(self, hours: Iterable[bytes]) -> None:
        self.hours = frozenset(hours)
        self.changed: set[bytes] = set()


class ResultCache:
    """Cached hours, least recently used first. Not thread-safe: only the event loop uses it."""

    def __init__(self, limit: int) -> None:
        """`limit`: bytes of all hours together."""
        self.limit = limit
        self._hours: OrderedDict[CacheKey, CachedHour] = OrderedDict()
        self._keys: dict[bytes, set[CacheKey]] = {}  # by hour
        self._pending: set[PendingRead] = set()
        self._size = 0
        self._count: Counter[str] = Counter()

    @property
    def query_limit(self) -> int:
        """Bytes that one query may add, so that it does not evict the whole cache."""
        return self.limit // LARGEST_SHARE

    def get(self, keys: Iterable[CacheKey]) -> dict[int, CachedHour]:
        """Return those of the hours that are cached, by base time."""
        find, used, found = self._hours.get, self._hours.move_to_end, {}
        for key in keys:
            if (hour := find(key)) is not None:
                used(key)
                found[hour.base_s] = hour
        return found

    def count(self, *, hits: int, misses: int) -> None:
        """Count the hours that a query took from the cache, and those that it read."""
        self._count["hits"] += hits
        self._count["misses"] += misses

    @contextmanager
    def reading(self, hours: Iterable[bytes]) -> Iterator[PendingRead]:
        """Watch hours for changes while they are read."""
        pending = PendingRead(hours)
        self._pending.add(pending)
        try:
            yield pending
        finally:
            self._pending.discard(pending)

    def put(self, pending: PendingRead, hours: Iterable[tuple[CacheKey, CachedHour]]) -> None:
        """Cache what was read, except hours that changed. Call it before the read ends."""
        assert pending in self._pending
        room = self.query_limit
        for key, hour in hours:
            if key.hour in pending.changed:
                continue
            size = hour.size
            room -= size
            if room < 0:
                break
            self._drop(key)
            self._hours[key] = hour
            self._keys.setdefault(key.hour, set()).add(key)
            self._size += size
        while self._size > self.limit:
            self._drop(next(iter(self._hours)))

    def remove(self, keys: Iterable[CacheKey]) -> None:
        """Remove hours that have changed."""
        for key in keys:
            if self._drop(key):
                self._count["invalidated"] += 1

    def invalidate(self, changed: HourKeys | None) -> None:
        """Remove changed hours; None: any hour may have changed. Called on every write, so it returns at once while the
        cache is empty."""
        if changed is None:
            for pending in self._pending:
                pending.changed |= pending.hours
            self.clear()
        elif self._keys or self._pending:
            hours = changed()
            for pending in self._pending:
                pending.changed |= hours & pending.hours
            for hour in hours & self._keys.keys():
                self.remove(list(self._keys[hour]))

    def clear(self) -> None:
        """Remove everything."""
        self._hours.clear()
        self._keys.clear()
        self._size = 0

    def _drop(self, key: CacheKey) -> bool:
        """Remove one hour; return whether it was cached."""
        hour = self._hours.pop(key, None)
        if hour is None:
            return False
        self._size -= hour.size
        keys = self._keys[key.hour]
        keys.discard(key)
        if not keys:
            del self._keys[key.hour]
        return True

    def statistics(self) -> Mapping[str, int]:
        """Return current numbers."""
        counted = {name: self._count[name] for name in ("hits", "misses", "invalidated")}
        return {**counted, "hours": len(self._hours), "bytes": self._size}


MIN_AGE_MS = 10_000  # a younger cell may be overwritten within the same millisecond


class _HourRows(NamedTuple):
    """Some rows of an hour."""

    series_pairs: Sequence[bytes]  # of each row
    points: NDArray[np.int32]  # of each row
    sizes: Int64  # of each row
    buckets: Bucketed
    names_size: int


class CacheFiller:
    """Collects the hours of a range while they are read. `add` may be called in a thread."""

    def __init__(self, bases: Sequence[int], signatures: SignatureSource | None, *, now_ms: int, room: int) -> None:
        """`bases` are the hours to cache, in order, until their buckets take `room` bytes. With `signatures`, hours
        are cached only if signatures detect every change. `now_ms` is when reading began."""
        self._room = self._limit = room
        self._pieces: dict[int, list[_HourRows]] = {base: [] for base in bases}
        self._signatures = signatures
        self._signing: CellSigner | None = signatures.signing() if signatures else None
        self._newest_ms = now_ms - MIN_AGE_MS

    def add(self, rows: PageRows, points: NDArray[np.int32], buckets: Bucketed) -> None:
        """Add the rows of a page in order, with the number of points and the buckets of each."""
        if not rows.complete:
            for base_s in [base_s for base_s in self._pieces if rows.first_s <= base_s <= rows.last_s]:
                self._skip(base_s)
            return
        bases = rows.bases_s
        if not len(bases):
            return
        firsts = [0, *(np.flatnonzero(bases[1:] != bases[:-1]) + 1).tolist()]
        hours = bases[firsts].tolist()
        every = slice(0, len(bases))
        series_pairs, sizes = rows.series(every), rows.sizes(every)
        is_plain = bool(rows.plain.all())
        for base_s, first, stop in zip(hours, firsts, [*firsts[1:], len(bases)], strict=True):
            part = slice(first, stop)
            if base_s not in self._pieces:
                continue
            if not (is_plain or rows.plain[part].all()) or not self._signed(rows, part):
                self._skip(base_s)
                continue
            piece = _HourRows(
                series_pairs[part],
                points[part],
                sizes[part],
                buckets.between(first, stop),
                0 if self._signing is None else rows.names_size(part),
            )
            self._pieces[base_s].append(piece)
            self._room -= piece.buckets.values.nbytes
        while self._room < 0:
            self._skip(next(reversed(self._pieces)))

    def _signed(self, rows: PageRows, part: slice) -> bool:
        return self._signing is None or rows.sign(part, self._signing, self._newest_ms)

    def _skip(self, base_s: int) -> None:
        """Drop the rows of an hour that cannot be cached."""
        self._room += sum(piece.buckets.values.nbytes for piece in self._pieces.pop(base_s))

    @property
    def size(self) -> int:
        """Bytes of buckets collected."""
        return self._limit - self._room

    def finish(self) -> list[CachedHour]:
        """Return the hours that can be cached, also those without rows."""
        signed: Mapping[int, Signatures] = {}
        if self._signatures is not None and self._signing is not None:
            signed = self._signatures.by_hour(self._signing, self._pieces)
        hours: list[CachedHour] = []
        known: tuple[bytes, ...] = ()  # pairs of the hour before, shared by hours with equal ones
        known_bytes = 0
        for base_s, pieces in self._pieces.items():
            if len(pieces) == 1:
                series_pairs, points, sizes, (starts, stamps, values), names_size = pieces[0]
                values = values.copy()  # not a part of the page's
            else:
                series_pairs = [one for piece in pieces for one in piece.series_pairs]
                points = np.concatenate([_NO_POINTS, *(piece.points for piece in pieces)])
                sizes = np.concatenate([_NO_SIZES, *(piece.sizes for piece in pieces)])
                starts, stamps, values = joined([piece.buckets for piece in pieces])
                names_size = sum(piece.names_size for piece in pieces)
            own = tuple(series_pairs)
            if own != known:
                known, known_bytes = own, len(own) * PAIRS_BYTES + sum(map(len, own))
            hours.append(
                CachedHour(
                    base_s,
                    known,
                    points.copy(),
                    sizes.copy(),
                    Bucketed(starts.astype(np.int32), (stamps - base_s * 1000).astype(np.uint32), values),
                    names_size,
                    signed.get(base_s, _NONE),
                    known_bytes,
                )
            )
        return hours


_NO_POINTS, _NO_SIZES = np.empty(0, np.int32), np.empty(0, np.int64)
