"""Long cells as the embedded store keeps them: under a short name, and packed where they can be (FORMATS.md §12).

A cell of many points has a column of two bytes or more a point. In a key that would be kept with the index, be compared
and take more room than the numbers, so what stands in the key is a name of fifteen bytes that follows from the column:
its first six, a hash of all, and ff. The column itself stands in the value, packed with it by `tsd.codec.packed`, or as
it is where the cell has no packed form. Names sort as columns do but among those that start with the same six bytes.
Without the compiled loop cells are not packed, only read: that would cost more than all else that is done with a point.
"""

from hashlib import blake2b

from tsd.codec.packed import FORM, HAS_LOOP, pack, unpack
from tsd.errors import CorruptRow, StoreError
from tsd.store.keyvalue import TIME_BYTES

LONG_BYTES = 34  # of a column: sixteen points of a second each
NAME_BYTES = 15
_SHOWN_BYTES, _HASH_BYTES = 6, 8
_MARK = 0xFF
_FAMILY_BYTES = 2  # what a packed cell's column starts with stays as it is
_LENGTH_BYTES = 4
_AS_IT_IS = b"\0"
_PACKED = bytes((FORM,))


def is_name(column: bytes) -> bool:
    """Whether what stands in a key is the name of another column. No column that stands there as it is looks so."""
    return len(column) == NAME_BYTES and column[-1] == _MARK


def stands_as(column: bytes) -> bytes:
    """What stands in the key for a column: itself, or its name if it is long. Less than NAME_BYTES are never long.

    >>> stands_as(b"t:\\0\\0"), stands_as(bytes(34)).hex()
    (b't:\\x00\\x00', '0000000000003f027a2dc29b6cb7ff')
    """
    if len(column) < NAME_BYTES or (len(column) < LONG_BYTES and not is_name(column)):
        return column
    return b"%b%b\xff" % (column[:_SHOWN_BYTES], blake2b(column, digest_size=_HASH_BYTES).digest())


def closed(column: bytes, value: bytes, *, packing: bool = HAS_LOOP) -> bytes:
    """The content that stands under a name: column and value. `packing`: packed where that is less.

    >>> opened(stands_as(bytes(40)), bytes(8) + closed(bytes(40), b"v")) == (bytes(40), bytes(8) + b"v")
    True
    """
    size = len(column) + len(value)
    packed = pack(column[_FAMILY_BYTES:], value) if packing and len(column) >= LONG_BYTES else None
    if packed is not None and len(packed) < size:
        return packed
    return _AS_IT_IS + len(column).to_bytes(_LENGTH_BYTES, "big") + column + value


def opened(name: bytes, stored: bytes) -> tuple[bytes, bytes]:
    """The column of a name, and its value, each behind its write time. StoreError where they are damaged."""
    form = stored[TIME_BYTES : TIME_BYTES + 1]
    if form == _PACKED:
        try:
            return unpack(stored, TIME_BYTES, name[:_FAMILY_BYTES])
        except CorruptRow as exc:
            raise StoreError(f"a cell is damaged: {exc}") from exc
    start = TIME_BYTES + 1 + _LENGTH_BYTES
    end = start + int.from_bytes(stored[start - _LENGTH_BYTES : start], "big")
    if form != _AS_IT_IS or end > len(stored):
        raise StoreError(f"a cell is damaged: under a name stands {stored[TIME_BYTES : TIME_BYTES + 40].hex()}")
    return stored[start:end], stored[:TIME_BYTES] + stored[end:]


def open_all(keys: list[bytes], columns: list[bytes], values: list[bytes], since: int) -> int:
    """Put the columns that are named in the place of names, in lists of cells in the order of their keys, from one
    place on; how many bytes longer that makes them. Cells are in order of their columns then."""
    named = [at for at in range(since, len(columns)) if len(columns[at]) == NAME_BYTES and columns[at][-1] == _MARK]
    grown = 0
    for at in named:
        before = len(columns[at]) + len(values[at])
        columns[at], values[at] = opened(columns[at], values[at])
        grown += len(columns[at]) + len(values[at]) - before
    if 0 < since < len(keys):
        named.append(since)  # the last one before may have been named, and had none behind it yet
    for at in named:
        if _is_out_of_place(keys, columns, at):
            _sort_row(keys, columns, values, at)
    return grown


def _is_out_of_place(keys: list[bytes], columns: list[bytes], at: int) -> bool:
    """Whether a cell stands before or after one of its row that it should not."""
    before, after = max(at - 1, 0), min(at + 1, len(keys) - 1)
    if keys[before] == keys[at] and columns[before] > columns[at]:
        return True
    return keys[after] == keys[at] and columns[after] < columns[at]


def _sort_row(keys: list[bytes], columns: list[bytes], values: list[bytes], at: int) -> None:
    first = last = at
    while first and keys[first - 1] == keys[at]:
        first -= 1
    while last < len(keys) and keys[last] == keys[at]:
        last += 1
    cells = sorted(zip(columns[first:last], values[first:last], strict=True))
    columns[first:last] = [column for column, _ in cells]
    values[first:last] = [value for _, value in cells]
