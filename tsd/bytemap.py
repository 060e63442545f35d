"""Bytes → bytes where there may be millions: in C two pieces of memory, a third of what a `dict` takes."""

import os
from collections.abc import Sequence
from itertools import islice
from typing import Any

try:
    from tsd import _bytemap
except ImportError:  # no C compiler when it was installed
    HAS = False
else:
    HAS = not os.environ.get("TSD_PURE")  # to compare the two


class PlainByteMap:
    """Bytes → bytes, or → numbers, in order of entry. In C: `tsd._bytemap.ByteMap`.

    >>> names = PlainByteMap()
    >>> names.put(b"host", b"\\0\\0\\1"), names.get(b"host"), names.get(b"cpu"), names.number(b"cpu")
    (None, b'\\x00\\x00\\x01', None, -1)
    """

    def __init__(self) -> None:
        self._held: dict[bytes, Any] = {}
        self.get = self._held.get  # what a key leads to; None: it is not there
        self.put = self._held.__setitem__
        self.put_number = self._held.__setitem__  # numbers from 0 on; all of a map are numbers, or none
        self.rebuilt = 0
        self.looked_up = 0  # by the compiled way in, which never looks here

    def __len__(self) -> int:
        return len(self._held)

    def number(self, key: bytes) -> int:
        """The number of a key; -1: none."""
        return self._held.get(key, -1)  # type: ignore[no-any-return]

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

    def put_rest(
        self, cells: Sequence[tuple[bytes, bytes, bytes]], at: int, head: int, number: int, passed: int, most: int
    ) -> tuple[int, int]:
        """Take the rows of cells from a place on, for as long as their first `head` bytes are the same: what is behind
        is a key. One that is not there is given a number, `most` of them; one that has `passed` is passed over. The
        place of the row that is the first not to be dealt with so, and how many got their number.

        >>> PlainByteMap().put_rest([(b"ab", b"", b""), (b"ac", b"", b""), (b"bc", b"", b"")], 0, 1, 7, 8, 100)
        (2, 2)
        """
        first, entered, held = cells[at][0][:head], 0, self._held
        for place in range(at, len(cells)):
            row = cells[place][0]
            if row[:head] != first:
                return place, entered
            known = held.get(row[head:])
            if known is None and entered < most:
                held[row[head:]] = number
                entered += 1
            elif known != passed:
                return place, entered
        return len(cells), entered

    def keys(self) -> list[bytes]:
        """All keys, in order of entry."""
        return list(self._held)

    def items(self, start: int, count: int) -> tuple[list[tuple[bytes, bytes]], int]:
        """The next keys and values from a place on, in order of entry, `count` at most; and where those behind them
        are. Places are good, the first is 0, until `rebuilt` changes."""
        found = list(islice(self._held.items(), start, start + count))
        return found, start + len(found)

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
