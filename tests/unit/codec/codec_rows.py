"""Rows as text, for the tests of the codec: `0000=2a@5 00100020=2b2c00@6` is two cells written at 5 and 6 ms."""

from collections.abc import Iterable

from tsd.codec.opentsdb.cell import Point
from tsd.codec.opentsdb.merge import StoredCell

KEY = bytes.fromhex("00000150e22700000001000001")


def cells(text: str) -> list[StoredCell]:
    """The cells a text names, in its order; a cell without a time was written at 0."""
    found = []
    for word in text.split():
        cell, _, time_ms = word.partition("@")
        qualifier, _, value = cell.partition("=")
        found.append(StoredCell(bytes.fromhex(qualifier), bytes.fromhex(value), int(time_ms or 0)))
    return found


def show(row: Iterable[StoredCell | Point]) -> str:
    """Qualifiers and values as text, in order of the qualifiers."""
    return " ".join(f"{cell.qualifier.hex()}={cell.value.hex()}" for cell in sorted(row, key=lambda c: c.qualifier))


def applied(
    row: Iterable[StoredCell], puts: Iterable[Point], deletes: Iterable[StoredCell], time_ms: int
) -> list[StoredCell]:
    """The row after `puts`, written at `time_ms`, and then `deletes`, each of cells no newer than it says."""
    after = {cell.qualifier: cell for cell in row}
    after |= {put.qualifier: StoredCell(put.qualifier, put.value, time_ms) for put in puts}
    for gone in deletes:
        if after[gone.qualifier].time_ms <= gone.time_ms:
            del after[gone.qualifier]
    return [after[qualifier] for qualifier in sorted(after)]
