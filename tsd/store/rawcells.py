"""The cells of an answer of HBase's, as they were read: parallel lists, in whose order nobody should trust."""

from collections.abc import Collection, Iterator, Sequence
from itertools import groupby
from operator import itemgetter, lt
from typing import Any, NamedTuple

from tsd.store import Cell
from tsd.store.gateways import NoAnswer

TIME_BITS = 63  # beside the sign; the compact protocol bounds nothing


class RawCells(NamedTuple):
    """The cells of whole rows, in parallel lists, and how many rows they are."""

    keys: list[bytes]
    columns: list[bytes]
    values: list[bytes]
    times_ms: list[int]
    rows: int


def flat(results: Sequence[Any]) -> RawCells:
    """Rows as thriftpy2 reads them, cell by cell. NoAnswer where something is missing: a struct that is cut short, or
    has a field of another type, is whole to it."""
    cells = RawCells([], [], [], [], len(results))
    for result in results:
        if result.row is None or not result.columns:
            raise NoAnswer("got a row without all its fields: without a key, or without cells")
        for column, cell in result.columns.items():
            if cell.value is None or cell.timestamp is None or cell.timestamp.bit_length() > TIME_BITS:
                raise NoAnswer("got a cell without all its fields, or of a time that is none")
            cells.keys.append(result.row)
            cells.columns.append(column)
            cells.values.append(cell.value)
            cells.times_ms.append(cell.timestamp)
    return cells


def in_order(cells: RawCells, start: bytes, stop: bytes | None) -> RawCells:
    """The cells of a scan, those of a row sorted: the gateway sorts columns by signed bytes. NoAnswer where rows are
    not those of the scan, or not in order."""
    places = list(zip(cells.keys, cells.columns, strict=True))
    if not all(map(lt, places, places[1:])):
        order = sorted(range(len(places)), key=places.__getitem__)
        places = [places[at] for at in order]
        keys = [key for key, _ in places]
        if keys != cells.keys or not all(map(lt, places, places[1:])):
            raise NoAnswer(f"asked for rows from {start.hex()}, got others, or not in order")
        values, times_ms = [cells.values[at] for at in order], [cells.times_ms[at] for at in order]
        cells = RawCells(keys, [column for _, column in places], values, times_ms, cells.rows)
    if places and not start <= cells.keys[0]:
        raise NoAnswer(f"asked for rows from {start.hex()}, got others, or not in order")
    if places and stop is not None and cells.keys[-1] >= stop:
        raise NoAnswer(f"asked for rows before {stop.hex()}, got {cells.keys[-1].hex()}")
    return cells


def rows_of(raw: RawCells, columns: Collection[bytes] | None) -> Iterator[tuple[bytes, list[Cell]]]:
    """Rows with their cells in order. NoAnswer where there is one that was not asked for, or a row without any."""
    found = zip(raw.keys, map(Cell, raw.columns, raw.values, raw.times_ms), strict=True)
    rows = 0
    for key, group in groupby(found, key=itemgetter(0)):
        rows += 1
        cells = sorted(cell for _, cell in group)
        if columns is not None and any(cell.column not in columns for cell in cells):
            raise NoAnswer(f"row {key.hex()}: asked for columns {columns}, got {[c.column for c in cells[:8]]}")
        yield key, cells
    if rows != raw.rows:
        raise NoAnswer(f"got {raw.rows} rows, of which {raw.rows - rows} have no cells, or stand there twice")
