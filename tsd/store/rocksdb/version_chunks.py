"""Chunks: how the embedded store keeps many versions of a column together.

Families that keep all versions have an entry for each column and hour, not for each version. The key of a chunk has a
time: the start of the hour, in ms. The value has the versions of the hour in order of times. A long chunk is split, so
that a late version rewrites little: each further chunk has the time of its first version in its key. A version is in
the chunk with the latest time that is not after its own. The first chunk of an hour stays while others of it do.

A chunk has the number of versions, the time of each after that of the key, and the length of each value. All of these
are little-endian numbers of four bytes. The values follow.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from tsd.codec.points import Int64
from tsd.codec.putline import HOUR_MS
from tsd.errors import CorruptRow

MOST_BYTES = 64 << 10  # of a chunk; a longer one is split into chunks of half of that, if it has several versions
COUNT_BYTES = 4
HEAD_BYTES = 8  # of a version: its time and the length of its value


class Versions(NamedTuple):
    """Versions of one column, the oldest first."""

    times_ms: Int64
    lengths: Int64  # of each value
    values: bytes

    def at(self, start: int, end: int) -> "Versions":
        """Return a part of the versions."""
        if start == 0 and end == len(self.times_ms):
            return self
        first = int(self.lengths[:start].sum())
        last = first + int(self.lengths[start:end].sum())
        return Versions(self.times_ms[start:end], self.lengths[start:end], self.values[first:last])

    def between(self, since_ms: int, until_ms: int) -> "Versions":
        """Return the versions from one time to before another."""
        times = self.times_ms
        if not len(times) or (since_ms <= times[0] and times[-1] < until_ms):
            return self
        start, end = times.searchsorted((since_ms, until_ms)).tolist()
        return self.at(start, max(start, end))


def hour_of(time_ms: int) -> int:
    """Return the start of the hour of a time."""
    return time_ms - time_ms % HOUR_MS


def encode_chunk(start_ms: int, versions: Versions) -> bytes:
    """Return the stored form of a chunk with `start_ms` in its key.

    >>> encode_chunk(1000, Versions(np.array([1001]), np.array([1]), b"*")).hex()
    '0100000001000000010000002a'
    """
    times, lengths, values = versions
    count = len(times).to_bytes(COUNT_BYTES, "little")
    return b"".join((count, (times - start_ms).astype("<u4").tobytes(), lengths.astype("<u4").tobytes(), values))


def decode_chunk(start_ms: int, stored: bytes) -> Versions:
    """Return the versions of a chunk. Raise CorruptRow."""
    count = int.from_bytes(stored[:COUNT_BYTES], "little")
    begin = COUNT_BYTES + HEAD_BYTES * count
    if len(stored) < begin:
        raise CorruptRow(f"a chunk of {count} versions has {begin} bytes at least, got {len(stored)}")
    heads = np.frombuffer(stored, "<u4", 2 * count, COUNT_BYTES).astype(np.int64)
    lengths = heads[count:]
    if len(stored) != begin + int(lengths.sum()):
        raise CorruptRow(f"a chunk has values of {int(lengths.sum())} bytes, got {len(stored) - begin}")
    return Versions(heads[:count] + start_ms, lengths, stored[begin:])


def split_chunk(start_ms: int, versions: Versions) -> Iterator[tuple[int, bytes]]:
    """Yield the times and the stored forms of the chunks for all versions from `start_ms` to the next chunk."""
    count = len(versions.times_ms)
    if count < 2 or HEAD_BYTES * count + len(versions.values) <= MOST_BYTES:
        yield start_ms, encode_chunk(start_ms, versions)
        return
    parts = (np.cumsum(versions.lengths) + HEAD_BYTES * np.arange(1, count + 1) - 1) // (MOST_BYTES // 2)
    cuts = [0, *(np.flatnonzero(np.diff(parts)) + 1).tolist(), count]
    for start, end in itertools.pairwise(cuts):
        part = versions.at(start, end)
        time_ms = int(part.times_ms[0]) if start else start_ms
        yield time_ms, encode_chunk(time_ms, part)


def merged(old: Versions, new: Versions) -> Versions:
    """Return the versions of both. Of equal times the new one counts.

    >>> one, two = np.array([5]), np.array([1])
    >>> merged(Versions(one, two, b"a"), Versions(one, two, b"b")).values
    b'b'
    """
    times = np.concatenate((old.times_ms, new.times_ms))
    order = np.argsort(times, kind="stable")
    ordered = times[order]
    order = order[np.append(ordered[1:] != ordered[:-1], True)]
    lengths = np.concatenate((old.lengths, new.lengths))
    ends = np.cumsum(lengths)
    starts = ends - lengths
    joined = old.values + new.values
    values = b"".join(
        joined[start:end] for start, end in zip(starts[order].tolist(), ends[order].tolist(), strict=True)
    )
    return Versions(times[order], lengths[order], values)


def joined(parts: Sequence[Versions]) -> Versions:
    """Return versions in order of times, from parts in that order."""
    if len(parts) == 1:
        return parts[0]
    return Versions(
        np.concatenate([part.times_ms for part in parts]),
        np.concatenate([part.lengths for part in parts]),
        b"".join(part.values for part in parts),
    )
