"""The series of one metric as arrays, so that a filter is tested on distinct tag values and not on series.

`TagTable` holds the joined tag pairs of all series; `TagTests` remembers which tag values passed a filter.
"""

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from cachetools import LRUCache
from numpy.typing import NDArray

from tsd.codec.names import Widths
from tsd.codec.points import Bool, Int64
from tsd.tables.reading import Places

Uint64 = NDArray[np.uint64]
Joined = NDArray[np.bytes_]

_NO_SERIES = np.empty(0, "S1")
MAX_RESULTS = 64  # cached results of filters on one table
MAX_RESULT_ROWS = 1_000_000  # series in all of them
OBJECTS_BYTES = 2500  # of a table, besides its arrays: many metrics have few series
RESULT_BYTES = 500  # of a cached result, besides its rows


class TagColumn(NamedTuple):
    """The values of one tag name."""

    codes: NDArray[np.int32]  # (series,): place of the value in `values`; -1: the series lacks the name
    values: Uint64  # distinct UIDs as numbers, ascending

    def code_of(self, uid: bytes) -> int:
        """Return the code of a value; -2 if no series has it.

        >>> TagColumn(np.zeros(1, np.int32), np.array([7], np.uint64)).code_of(b"\\0\\0\\7")
        0
        """
        number = np.uint64(int.from_bytes(uid, "big"))
        place = int(np.searchsorted(self.values, number))
        return place if place < len(self.values) and self.values[place] == number else -2


class TagTable:
    """The series of one metric. Not changed once made: `with_added` returns another table."""

    def __init__(self, blocks: Mapping[int, Joined], widths: Widths) -> None:
        """`blocks`: by their length in bytes, the joined tag pairs of series, distinct; ascending for `with_added`."""
        self._blocks = [blocks[size] for size in sorted(blocks)]
        self._widths = widths
        self._columns: dict[bytes, TagColumn] = {}
        self._results: OrderedDict[Hashable, Places] = OrderedDict()
        self._result_rows = 0
        self._starts = np.cumsum([0, *map(len, self._blocks)])
        self.count = int(self._starts[-1])

    @classmethod
    def of(cls, series_pairs: Iterable[bytes], widths: Widths) -> "TagTable":
        """Return the table of some series; `series_pairs` may have several of equal length joined, and duplicates.

        Each element of `series_pairs` must be whole tag pairs of one series. Elements of another length are ignored.

        >>> table = TagTable.of([b"\\0\\0\\1\\0\\0\\2", b"\\0\\0\\1\\0\\0\\1"], Widths())
        >>> [one.hex() for one in table.series_pairs(np.arange(table.count))]
        ['000001000001', '000001000002']
        """
        parts: dict[int, list[bytes]] = {}
        for one in series_pairs:
            parts.setdefault(len(one), []).append(one)
        return cls.of_parts(parts, widths)

    @classmethod
    def of_parts(cls, parts: Mapping[int, Sequence[bytes]], widths: Widths) -> "TagTable":
        """Return the table of series by the length of their tag pairs. Each bytes object has one or more series."""
        sizes = [size for size in parts if size and not size % widths.pair]
        blocks = {size: np.unique(np.frombuffer(b"".join(parts[size]), f"S{size}")) for size in sizes}
        return cls(blocks, widths)

    def with_added(self, series_pairs: Iterable[bytes]) -> "TagTable":
        """Return a table with more series, which may be in this one already."""
        added = TagTable.of(series_pairs, self._widths)
        blocks = {block.itemsize: block for block in self._blocks}
        for block in added._blocks:
            before = blocks.get(block.itemsize)
            blocks[block.itemsize] = block if before is None else _united(before, block)
        return TagTable(blocks, self._widths)

    @property
    def nbytes(self) -> int:
        """Bytes of memory, about."""
        columns = sum(column.codes.nbytes + column.values.nbytes for column in self._columns.values())
        results = RESULT_BYTES * len(self._results) + 8 * self._result_rows
        return OBJECTS_BYTES + sum(block.nbytes for block in self._blocks) + columns + results

    def has_column(self, tagk: bytes) -> bool:
        """Return whether `column` has been called for a tag name: its first call takes long."""
        return tagk in self._columns

    def column(self, tagk: bytes) -> TagColumn:
        """Return the values of a tag name by series."""
        found = self._columns.get(tagk)
        if found is None:
            numbers = np.zeros(self.count, np.uint64)
            present = np.zeros(self.count, np.bool_)
            for start, block in zip(self._starts.tolist(), self._blocks, strict=False):
                self._fill(block, tagk, numbers[start : start + len(block)], present[start : start + len(block)])
            values, places = np.unique(numbers[present], return_inverse=True)
            codes = np.full(self.count, -1, np.int32)
            codes[present] = places
            found = self._columns[tagk] = TagColumn(codes, values)
        return found

    def _fill(self, block: Joined, tagk: bytes, numbers: Uint64, present: Bool) -> None:
        """Write the numbers of a tag name's values, and which series have one."""
        table = block.view(np.uint8).reshape(len(block), -1)
        name = np.frombuffer(tagk, np.uint8)
        for at in range(0, block.itemsize, self._widths.pair):
            having = (table[:, at : at + self._widths.tagk] == name).all(axis=1)
            if having.any():
                numbers[having] = _numbers(table[having, at + self._widths.tagk : at + self._widths.pair])
                present |= having

    def tag_counts(self) -> Int64:
        """Return the number of tags of each series."""
        return np.repeat([block.itemsize // self._widths.pair for block in self._blocks], np.diff(self._starts))

    def series_pairs(self, rows: Places) -> list[bytes]:
        """Return the joined tag pairs of some series, ascending."""
        found: list[bytes] = []
        for start, block in zip(self._starts.tolist(), self._blocks, strict=False):
            own = rows[(rows >= start) & (rows < start + len(block))] - start
            size, joined = block.itemsize, block[own].tobytes()
            found += [joined[at : at + size] for at in range(0, len(joined), size)]
        return sorted(found)

    def find(self, series_pairs: Iterable[bytes]) -> Places:
        """Return the rows of those of some series that are in the table."""
        found = []
        by_size = {
            block.itemsize: (start, block) for start, block in zip(self._starts.tolist(), self._blocks, strict=False)
        }
        for one in series_pairs:
            start, block = by_size.get(len(one), (0, _NO_SERIES))
            joined = np.frombuffer(one, f"S{len(one)}") if len(one) else _NO_SERIES
            place = int(np.searchsorted(block, joined)[0]) if len(block) else 0
            if place < len(block) and block[place] == joined[0]:
                found.append(start + place)
        return np.array(found, np.intp)

    def result(self, key: Hashable) -> Places | None:
        """Return the rows that `remember` got for the same key."""
        found = self._results.get(key)
        if found is not None:
            self._results.move_to_end(key)
        return found

    def remember(self, key: Hashable, rows: Places) -> None:
        """Keep the rows of series that pass some filters."""
        if key in self._results:
            self._result_rows -= len(self._results.pop(key))
        self._results[key] = rows
        self._result_rows += len(rows)
        while len(self._results) > MAX_RESULTS or self._result_rows > MAX_RESULT_ROWS:
            self._result_rows -= len(self._results.popitem(last=False)[1])


def _united(before: Joined, added: Joined) -> Joined:
    """Return both ascending arrays as one, without duplicates."""
    places = np.searchsorted(before, added)
    inside = np.minimum(places, len(before) - 1)
    is_new = before[inside] != added
    return np.insert(before, places[is_new], added[is_new])


def _numbers(uids: NDArray[np.uint8]) -> Uint64:
    """Return big-endian numbers of up to 8 bytes.

    >>> _numbers(np.array([[0, 1, 2]], np.uint8)).tolist()
    [258]
    """
    wide = np.zeros((len(uids), 8), np.uint8)
    wide[:, 8 - uids.shape[1] :] = uids
    return wide.view(">u8").reshape(-1).astype(np.uint64)


UNTESTED, FAILED, PASSED = 0, 1, 2
MAX_TESTED = 4_000_000  # tag values in all cached tests
TEST_VALUES = 1000  # values that take as much memory as a filter


class _Tested(NamedTuple):
    values: Uint64  # UIDs as numbers, ascending
    states: NDArray[np.int8]  # of each: UNTESTED, FAILED or PASSED


class TagTests:
    """Results of tests of tag values by name, for filters that are used again."""

    def __init__(self) -> None:
        self._tested: LRUCache[Hashable, _Tested] = LRUCache(MAX_TESTED, getsizeof=_room_of)

    def states(self, key: Hashable, values: Uint64) -> NDArray[np.int8]:
        """Return the state of each of some ascending values, to be changed in place: it is cached."""
        known = self._tested.get(key)
        if known is None or known.values is not values:
            states = np.zeros(len(values), np.int8)
            if known is not None and len(known.values):
                places = np.minimum(np.searchsorted(known.values, values), len(known.values) - 1)
                states = np.where(known.values[places] == values, known.states[places], states)
            known = self._tested[key] = _Tested(values, states)
        return known.states


def _room_of(tested: _Tested) -> int:
    """Return how much of MAX_TESTED a test takes: at most all."""
    return min(len(tested.values) + TEST_VALUES, MAX_TESTED)


def uid_bytes(values: Iterable[Any], width: int) -> list[bytes]:
    """Return numbers as UIDs.

    >>> uid_bytes([258], 3)
    [b'\\x00\\x01\\x02']
    """
    return [int(number).to_bytes(width, "big") for number in values]
