"""Counters as HBase keeps them: 8 bytes, signed, big-endian; past either end they go on at the other."""

from tsd.errors import StoreError


def add(held: bytes | None, by: int) -> int:
    """The sum of a counter (None: it is absent and counts from 0) and `by`. StoreError where it is no counter.

    >>> add(None, 1), add(bytes.fromhex("7fffffffffffffff"), 1) == -(2**63)
    (1, True)
    """
    if held is not None and len(held) != 8:
        raise StoreError(f"a counter has 8 bytes, this cell {len(held)}: {held[:32].hex()}")
    total = int.from_bytes(held or b"", "big", signed=True) + by
    return (total + 2**63) % 2**64 - 2**63


def bytes_of(total: int) -> bytes:
    """The counter's cell.

    >>> bytes_of(-1).hex()
    'ffffffffffffffff'
    """
    return total.to_bytes(8, "big", signed=True)
