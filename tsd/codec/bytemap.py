"""Map from bytes to bytes for millions of entries. The compiled one needs a third of the memory of a `dict`."""

import os
from collections.abc import Callable
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

try:
    from tsd.codec import _bytemap
except ImportError:  # installed without a C compiler
    HAS_BYTEMAP_LOOP = False
else:
    HAS_BYTEMAP_LOOP = not os.environ.get("TSD_PURE")  # TSD_PURE selects the Python code, to compare both


class _Numbers(dict[bytes, Any]):
    """Returns -1 for missing keys."""

    def __missing__(self, _: bytes) -> int:
        return -1


class PlainByteMap:
    """Map from bytes to bytes, or to numbers, in insertion order. Compiled: `tsd.codec._bytemap.ByteMap`.

    >>> names = PlainByteMap()
    >>> names.put(b"host", b"\\0\\0\\1"), names.get(b"host"), names.get(b"cpu"), names.number(b"cpu")
    (None, b'\\x00\\x00\\x01', None, -1)
    """

    def __init__(self) -> None:
        self._held = _Numbers()
        self.get = self._held.get  # value of a key, None if it is missing
        self.put = self._held.__setitem__
        self.number: Callable[[bytes], int] = self._held.__getitem__  # number of a key, -1 if it is missing
        self.put_number = self._held.__setitem__  # a map has only numbers, from 0 on, or no numbers
        self.rebuilt = 0
        self.looked_up = 0  # by the compiled parser, which does not use this class

    def __len__(self) -> int:
        return len(self._held)

    def enter(self, keys: list[bytes], number: int) -> tuple[list[int], int]:
        """Return the number of each key, and the next free number. New keys get `number` and following ones.

        >>> PlainByteMap().enter([b"a", b"b", b"a"], 7)
        ([7, 8, 7], 9)
        """
        found = []
        for key in keys:
            had = self._held.setdefault(key, number)
            number += had == number
            found.append(had)
        return found, number

    def keys(self) -> list[bytes]:
        """Return all keys in insertion order."""
        return list(self._held)

    def items(self, start: int, count: int) -> tuple[list[tuple[bytes, bytes]], int]:
        """Return up to `count` keys and values from a position on, in insertion order, and the next position. The first
        position is 0. Positions are valid until `rebuilt` changes."""
        found = list(islice(self._held.items(), start, start + count))
        return found, start + len(found)

    def keep_number(self, number: int) -> None:
        """Remove the keys with another number.

        >>> states = PlainByteMap()
        >>> states.enter([b"a", b"b"], 1), states.keep_number(2), states.keys()
        (([1, 2], 3), None, [b'b'])
        """
        kept = {key: had for key, had in self._held.items() if had == number}
        self._held.clear()
        self._held.update(kept)
        self.rebuilt += 1

    def renumber(self, numbers: NDArray[np.int32]) -> None:
        """Replace each number by the element of `numbers` at its index, and remove the keys for which that is negative.

        >>> slots = PlainByteMap()
        >>> slots.enter([b"a", b"b"], 0), slots.renumber(np.array([-1, 0], np.int32)), slots.keys(), slots.number(b"b")
        (([0, 1], 2), None, [b'b'], 0)
        """
        kept = {key: number for key, had in self._held.items() if (number := int(numbers[had])) >= 0}
        self._held.clear()
        self._held.update(kept)
        self.rebuilt += 1

    def drop_half(self) -> None:
        """Remove the older half of the keys."""
        for key in self.keys()[: len(self) // 2]:
            del self._held[key]
        self.rebuilt += 1

    def clear(self) -> None:
        """Remove all keys."""
        self._held.clear()
        self.rebuilt += 1


if HAS_BYTEMAP_LOOP:  # noqa: SIM108 - mypy accepts no conditional expression as a type
    ByteMap = _bytemap.ByteMap
else:
    ByteMap = PlainByteMap  # type: ignore[misc,assignment]
