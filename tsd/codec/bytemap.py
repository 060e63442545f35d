"""Bytes → bytes where there may be millions: in C two pieces of memory, a third of what a `dict` takes."""

import os
from collections.abc import Callable
from itertools import islice
from typing import Any

try:
    from tsd import _bytemap
except ImportError:  # no C compiler when it was installed
    HAS = False
else:
    HAS = not os.environ.get("TSD_PURE")  # to compare the two


class _Numbers(dict[bytes, Any]):
    """What has no number has -1: only such are asked for in Python."""

    def __missing__(self, _: bytes) -> int:
        return -1


class PlainByteMap:
    """Bytes → bytes, or → numbers, in order of entry. In C: `tsd._bytemap.ByteMap`.

    >>> names = PlainByteMap()
    >>> names.put(b"host", b"\\0\\0\\1"), names.get(b"host"), names.get(b"cpu"), names.number(b"cpu")
    (None, b'\\x00\\x00\\x01', None, -1)
    """

    def __init__(self) -> None:
        self._held = _Numbers()
        self.get = self._held.get  # what a key leads to; None: it is not there
        self.put = self._held.__setitem__
        self.number: Callable[[bytes], int] = self._held.__getitem__  # of a key; -1: none
        self.put_number = self._held.__setitem__  # numbers from 0 on; all of a map are numbers, or none
        self.rebuilt = 0
        self.looked_up = 0  # by the compiled way in, which never looks here

    def __len__(self) -> int:
        return len(self._held)

    def enter(self, keys: list[bytes], number: int) -> tuple[list[int], int]:
        """The number of each key, and the first one that is not given: who had none has `number`, the next one more.

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
        """All keys, in order of entry."""
        return list(self._held)

    def items(self, start: int, count: int) -> tuple[list[tuple[bytes, bytes]], int]:
        """The next keys and values from a place on, in order of entry, `count` at most; and where those behind them
        are. Places are good, the first is 0, until `rebuilt` changes."""
        found = list(islice(self._held.items(), start, start + count))
        return found, start + len(found)

    def keep_number(self, number: int) -> None:
        """Forget the keys that have another number.

        >>> states = PlainByteMap()
        >>> states.enter([b"a", b"b"], 1), states.keep_number(2), states.keys()
        (([1, 2], 3), None, [b'b'])
        """
        kept = {key: had for key, had in self._held.items() if had == number}
        self._held.clear()
        self._held.update(kept)
        self.rebuilt += 1

    def drop_half(self) -> None:
        """Forget the keys that came first: half of all."""
        for key in self.keys()[: len(self) // 2]:
            del self._held[key]
        self.rebuilt += 1

    def clear(self) -> None:
        """Forget all keys."""
        self._held.clear()
        self.rebuilt += 1


if HAS:  # noqa: SIM108 - as types they must be named so
    ByteMap = _bytemap.ByteMap
else:
    ByteMap = PlainByteMap  # type: ignore[misc,assignment]
