"""Series → the entries of their index (see tsd.series_index), and back (FORMATS.md §13).

Each series has an entry of its own, and by it is known to be entered: under the one of its tags whose value has the
highest UID, as of what there is much of the UIDs are high: under a host stand fewer series than under a data centre.
Under its other tags, and under none, the series that are entered together share entries, so that a new one costs one
entry and a part of a few, not one more than it has tags. Who reads meets a series again where it was entered twice.
"""

import os
from collections.abc import Iterable, Iterator
from hashlib import blake2b

from tsd.codec.uid import Widths
from tsd.store import Put
from tsd.store.cells import CellPage

try:
    from tsd import _entries
except ImportError:  # no C compiler when it was installed
    HAS_LOOP = False
else:
    HAS_LOOP = not os.environ.get("TSD_PURE")  # to compare the two

OWN = b"t:o"
ALONE = b"t:s"
SHARED = b"t:g"
PRESENT = b"\1"
_HASH_BYTES = 8  # of what a shared entry has: two of one row do not take each other's place


def own_rows(series: dict[bytes, list[bytes]], widths: Widths, *, by_loop: bool = HAS_LOOP) -> list[bytes]:
    """The row of its own entry for each series; of each metric's UID the joined tag pairs of its series are given.

    >>> host, dc = b"\\0\\0\\1\\0\\0\\7", b"\\0\\0\\2\\0\\0\\3"
    >>> own_rows({b"met": [dc + host]}, Widths()) == [b"met" + host + dc + host]
    True
    """
    if by_loop:
        return _entries.own_rows(series, widths.tagk, widths.pair)
    tagk, width = widths.tagk, widths.pair
    return [metric + _rarest(pairs, tagk, width) + pairs for metric, some in series.items() for pairs in some]


def _rarest(pairs: bytes, tagk: int, width: int) -> bytes:
    """The tag whose value has the highest UID."""
    best = pairs[:width]
    for at in range(width, len(pairs), width):
        if pairs[at + tagk : at + width] > best[tagk:]:
            best = pairs[at : at + width]
    return best


def own_entries(rows: Iterable[bytes]) -> list[Put]:
    """The entries of these rows, in their order: those that stand beside each other are written in less time."""
    return [Put(row, OWN, PRESENT) for row in sorted(rows)]


def other_entries(rows: list[bytes], widths: Widths, *, by_loop: bool = HAS_LOOP) -> list[Put]:
    """All other entries of series that are entered together, whose own ones have these rows."""
    found = (_entries.alike if by_loop else _alike)(rows, widths.metric, widths.pair)
    return sorted(entry for prefix, some in found.items() for entry in _of_one_length(prefix, some))


def _alike(rows: list[bytes], start: int, width: int) -> dict[bytes, list[bytes]]:
    """The series of own rows by all that rows of other entries start with: their metric and none of their tags, and
    each but their own."""
    found: dict[bytes, list[bytes]] = {}
    none = bytes(width)
    for row in rows:
        metric, own, pairs = row[:start], row[start : start + width], row[start + width :]
        found.setdefault(metric + none, []).append(pairs)
        for at in range(0, len(pairs), width):
            pair = pairs[at : at + width]
            if pair != own:
                found.setdefault(metric + pair, []).append(pairs)
    return found


def _of_one_length(prefix: bytes, some: list[bytes]) -> Iterator[Put]:
    """The entries of some series in rows that start alike: one, if all have as many tags."""
    sizes = {*map(len, some)}
    for size in sizes:
        same = some if len(sizes) == 1 else [pairs for pairs in some if len(pairs) == size]
        if len(same) == 1:
            yield Put(prefix + same[0], ALONE, PRESENT)
        else:
            joined = b"".join(same)
            yield Put(prefix + same[0], SHARED + blake2b(joined, digest_size=_HASH_BYTES).digest(), joined)


def series_in(page: CellPage, prefix_bytes: int) -> Iterator[bytes]:
    """The joined pairs of all series that a page of entries has, whose keys start with so many other bytes."""
    for key, column, value in zip(page.keys, page.columns, page.values, strict=True):
        if column in (OWN, ALONE):
            yield key[prefix_bytes:]
        elif column.startswith(SHARED):
            size = len(key) - prefix_bytes
            yield from (value[at : at + size] for at in range(page.ahead, len(value), size))
