"""Protocol buffers: fields as bytes, and back.

Writers return the bytes of one field, readers iterate over the fields of a message. Groups are not supported.
"""

from collections.abc import Iterator

from tsd.errors import StoreError

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5  # types of fields


def varint(number: int) -> bytes:
    """Return a number; negative ones have ten bytes.

    >>> varint(127).hex(), varint(300).hex(), varint(-1).hex()
    ('7f', 'ac02', 'ffffffffffffffffff01')
    """
    if 0 <= number < len(_SHORT):
        return _SHORT[number]
    return _long_varint(number)


def _long_varint(number: int) -> bytes:
    number &= (1 << 64) - 1
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


_SHORT = [_long_varint(number) for number in range(2048)]


def chunk(field: int, data: bytes) -> bytes:
    """Return a field of bytes, a text or a message, also if it is empty.

    >>> chunk(1, b"ab").hex(), chunk(2, b"").hex()
    ('0a026162', '1200')
    """
    return varint(field << 3 | LENGTH) + varint(len(data)) + data


def number(field: int, value: int) -> bytes:
    """Return a field with a number."""
    return varint(field << 3 | VARINT) + varint(value)


def signed(value: int) -> int:
    """Return a number that was read as unsigned.

    >>> signed(2**64 - 1), signed(7)
    (-1, 7)
    """
    return value - (1 << 64) if value >> 63 else value


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a number and the position after it. Raise IndexError at the end of the data."""
    value = data[at]
    at += 1
    if value < 0x80:
        return value, at
    value &= 0x7F
    shift = 7
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def fields(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Yield number, value and bytes of each field; the value of bytes is 0, the bytes of a number are empty. Raise
    StoreError for a message that ends too early.

    >>> list(fields(bytes.fromhex("0a0261621003")))
    [(1, 0, b'ab'), (2, 3, b'')]
    """
    at, end = 0, len(data)
    try:
        while at < end:
            tag, at = read_varint(data, at)
            kind = tag & 7
            if kind == LENGTH:
                size, at = read_varint(data, at)
                yield tag >> 3, 0, data[at : at + size]
                at += size
            elif kind == VARINT:
                value, at = read_varint(data, at)
                yield tag >> 3, value, b""
            elif kind in (FIXED64, FIXED32):
                size = 8 if kind == FIXED64 else 4
                yield tag >> 3, int.from_bytes(data[at : at + size], "little"), b""
                at += size
            else:
                raise StoreError(f"Bigtable: got a field of type {kind}, wanted 0, 1, 2 or 5")
    except IndexError:
        at = end + 1
    if at != end:
        raise StoreError(f"Bigtable: a message of {end} bytes ends too early")
