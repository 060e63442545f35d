"""Reads of rows that lie among tombstones. Cassandra refuses a request that meets over 100,000 of them, or the
number that its operator sets; the range or the list of rows is then read in halves.
"""

import sys
from collections.abc import Awaitable, Callable

from tsd.codec.opentsdb.rowkey import LONGEST_HBASE_KEY
from tsd.store.cassandra.schema import Statements
from tsd.store.cassandra.session import Parameters, TooManyTombstones, Value
from tsd.store.cassandra.wire import RawRows

MOST_REFUSED = 1000  # requests of one read: about two minutes
Ask = Callable[[str, Parameters], Awaitable[RawRows]]


async def read_range(
    ask: Ask, cql: Statements, partition: bytes, part: tuple[bytes, bytes | None], cells: int
) -> RawRows:
    """Return the first `cells` cells of a part of a partition, from a row key to before another (None: to the end).
    Raise StoreError, also if a row alone has too many tombstones."""

    async def read(low: bytes, high: bytes | None, limit: int) -> RawRows:
        statement, end = (cql.from_key, ()) if high is None else (cql.between, (high,))
        return await ask(statement, (partition, low, *end, limit))

    return await _read_in_parts(read, part, lambda middle: middle, cells)


async def _read_in_parts(
    read: Callable[[bytes, bytes | None, int], Awaitable[RawRows]],
    part: tuple[bytes, bytes | None],
    following: Callable[[bytes], bytes],
    most: int,
) -> RawRows:
    """Return up to `most` rows of a part, which is halved as long as it is refused. `following` is where the part after
    one with this end begins."""
    pieces = [part]
    found = RawRows(0, b"")
    refused = 0
    while pieces and found.rows < most:
        low, high = pieces.pop()
        try:
            raw = await read(low, high, most - found.rows)
        except TooManyTombstones:
            middle = between(low, high)
            refused += 1
            if middle is None or refused >= MOST_REFUSED:
                raise
            pieces += [(following(middle), high), (low, middle)]
        else:
            found = joined(found, raw)
    return found


def joined(first: RawRows, second: RawRows) -> RawRows:
    """Return the rows of two answers."""
    return RawRows(first.rows + second.rows, first.body + second.body) if first.rows else second


async def read_rows(ask: Ask, statement: str, partition: bytes, keys: list[bytes], *rest: Value) -> RawRows:
    """Return the cells of rows by their keys, with a statement that has a list of them as its second parameter. Raise
    StoreError, also if a row alone has too many tombstones."""
    try:
        return await ask(statement, (partition, keys, *rest))
    except TooManyTombstones:
        if len(keys) == 1:
            raise
    half = len(keys) // 2
    first = await read_rows(ask, statement, partition, keys[:half], *rest)
    second = await read_rows(ask, statement, partition, keys[half:], *rest)
    return RawRows(first.rows + second.rows, first.body + second.body)


async def read_columns(ask: Ask, statement: str, place: tuple[bytes, bytes], first: bytes, last: bytes) -> RawRows:
    """Return the cells of a row, by its partition and the rest of its key, between two columns, both included. Raise
    StoreError."""

    async def read(low: bytes, high: bytes | None, _: int) -> RawRows:
        assert high is not None
        return await ask(statement, (*place, low, high))

    return await _read_in_parts(read, (first, last), lambda middle: middle + b"\0", sys.maxsize)


def between(low: bytes, high: bytes | None) -> bytes | None:
    """Return a key in the middle of two; `high` None: of `low` and all keys. None: they are next to each other, or as
    long as a key can be.

    >>> [between(*part).hex() for part in ((b"", None), (b"\\0\\1", b"\\0\\3"), (b"a", b"b"))], between(b"a", b"a\\0")
    (['80', '0002', '6180'], None)
    """
    width = max(len(low), len(high or b""), 1)
    while width <= LONGEST_HBASE_KEY:
        least = int.from_bytes(low.ljust(width, b"\0"), "big")
        most = 1 << 8 * width if high is None else int.from_bytes(high.ljust(width, b"\0"), "big")
        middle = (least + most) // 2
        if middle > least:
            return middle.to_bytes(width, "big")
        if least == most:
            return None  # also if both are longer: nothing but zeros follows
        width += 1
    return None
