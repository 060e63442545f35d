"""Read points from HBase under their names, through happybase and with code that shares nothing with the product."""

from collections.abc import Iterator
from typing import NamedTuple

from tests.conformance.put_lines import FLOAT, HOUR_S, Series
from tests.peers.hbase import RunningHbase
from tests.peers.tables import Cells, Tables

KINDS = (b"metrics", b"tagk", b"tagv")
COUNTERS = b"\0"


class Shape(NamedTuple):
    """Lengths of the parts of a row key in bytes."""

    metric: int = 3
    tagk: int = 3
    tagv: int = 3
    salt: int = 0


class NamedRow(NamedTuple):
    """Identifies a row."""

    series: Series
    base: int


class Piece(NamedTuple):
    """One point of a cell, as a cell of its own would hold it."""

    qualifier: bytes
    value: bytes

    @property
    def offset_ms(self) -> int:
        """Offset from the row's base time."""
        number = int.from_bytes(self.qualifier, "big")
        return (number & 0x0FFFFFFF) >> 6 if len(self.qualifier) == 4 else (number >> 4) * 1000

    @property
    def flags(self) -> int:
        """Type and length of the value."""
        return self.qualifier[-1] & 15


def named_rows(hbase: RunningHbase, tables: Tables, shape: Shape | None = None) -> dict[NamedRow, Cells]:
    """Return qualifiers and values of the data table by row."""
    shape = shape or Shape()
    names = names_of(hbase, tables)
    rows = {}
    for key, cells in hbase.tables.rows(tables.data).items():
        row = _named(key, names, shape)
        assert row not in rows, f"two row keys for {row}"
        rows[row] = {column.removeprefix(b"t:"): value for column, value in cells.items()}
    return rows


def names_of(hbase: RunningHbase, tables: Tables) -> dict[bytes, dict[bytes, bytes]]:
    """Return the name of each assigned UID by kind."""
    found: dict[bytes, dict[bytes, bytes]] = {kind: {} for kind in KINDS}
    rows = hbase.tables.rows(tables.uid)
    for name, cells in rows.items():
        for kind in KINDS if name != COUNTERS else ():
            if uid := cells.get(b"id:" + kind):
                assert uid not in found[kind], f"{name!r} and {found[kind][uid]!r} are both {uid.hex()}"
                assert rows[uid][b"name:" + kind] == name, f"{uid.hex()} is not called {name!r}"
                found[kind][uid] = name
    return found


def _named(key: bytes, names: dict[bytes, dict[bytes, bytes]], shape: Shape) -> NamedRow:
    base_at = shape.salt + shape.metric
    pair = shape.tagk + shape.tagv
    pairs = [key[at : at + pair] for at in range(base_at + 4, len(key), pair)]
    assert pairs == sorted(pairs), key.hex()
    assert len(key) == base_at + 4 + pair * len(pairs), key.hex()
    base = int.from_bytes(key[base_at : base_at + 4], "big")
    assert base % HOUR_S == 0, key.hex()
    tags = [(names[b"tagk"][text[: shape.tagk]], names[b"tagv"][text[shape.tagk :]]) for text in pairs]
    return NamedRow(Series(names[b"metrics"][key[shape.salt : base_at]], tuple(sorted(tags))), base)


def pieces(qualifier: bytes, value: bytes) -> list[Piece]:
    """Return the points of a cell in order. Assert that the cell has the format of single or compacted cells."""
    assert qualifier, "a cell without a qualifier"
    assert len(qualifier) % 2 == 0, qualifier.hex()
    found = list(_pieces(qualifier, value))
    used = sum(len(piece.value) for piece in found)
    assert value[used:] == _last_byte(found), f"{qualifier.hex()} = {value.hex()}"
    offsets = [piece.offset_ms for piece in found]
    assert offsets == sorted(set(offsets)), f"not in order: {qualifier.hex()}"
    return found


def _pieces(qualifier: bytes, value: bytes) -> Iterator[Piece]:
    while qualifier:
        name, qualifier = (qualifier[:4], qualifier[4:]) if qualifier[0] >= 0xF0 else (qualifier[:2], qualifier[2:])
        length = (name[-1] & 7) + 1
        assert length in ((4, 8) if name[-1] & FLOAT else (1, 2, 4, 8)), name.hex()
        assert len(value) >= length, f"{name.hex()}: {len(value)} bytes are left"
        yield Piece(name, value[:length])
        value = value[length:]


def _last_byte(found: list[Piece]) -> bytes:
    """Return the byte after the values: none after a single value, else whether both time units occur."""
    if len(found) == 1:
        return b""
    return b"\1" if len({len(piece.qualifier) for piece in found}) == 2 else b"\0"
