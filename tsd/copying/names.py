"""The UID table into another one: names keep their UIDs, so that rows can be copied as they are.

A target that has other names under the same UIDs is left as it is. Its counters are moved up to the source's first, so
that no daemon there gives a UID away that is about to be copied; they are never moved back.
"""

from collections.abc import Iterator, Sequence
from contextlib import aclosing

from tsd.codec.uid import COUNTER_ROW, ID_FAMILY, NAME_FAMILY, decode_counter
from tsd.codec.words import show_signed
from tsd.copying.rows import PAGE_ROWS, Copied, Place, There, copy_rows
from tsd.errors import CorruptRow, TsdError
from tsd.store import Cell, Row, scan

SHOWN = 10  # contradictions told one by one


class NamesDiffer(TsdError):
    """The target has other names under the same UIDs."""


async def copy_names(source: Place, target: Place) -> Copied:
    """Copy the UID table. Raises NamesDiffer, before anything was written unless a daemon gives UIDs at this very
    moment; CorruptRow for a counter that is none; StoreError."""
    await check_names(source, target)
    await _raise_counters(source, target)
    total = Copied()
    async with aclosing(scan(source.store, source.table, limit=PAGE_ROWS)) as pages:
        async for rows in pages:
            total = total.plus(await _copy_page(rows, target))
    return total


async def _copy_page(rows: Sequence[Row], target: Place) -> Copied:
    keys = [row.key for row in rows]
    there = await target.store.get(target.table, keys)
    _refuse(list(_contradictions(rows, there)))
    copied = await copy_rows(list(_without_counters(rows)), there, target)
    _refuse(list(_contradictions(rows, await target.store.get(target.table, keys))))
    return copied


async def check_names(source: Place, target: Place) -> None:
    """Raise NamesDiffer where a name has another UID in the target, or a UID another name."""
    found: list[str] = []
    async with aclosing(scan(source.store, source.table, limit=PAGE_ROWS)) as pages:
        async for rows in pages:
            found += _contradictions(rows, await target.store.get(target.table, [row.key for row in rows]))
            if len(found) > SHOWN:
                break
    _refuse(found)


def _refuse(found: Sequence[str]) -> None:
    if found:
        more = [f"and {len(found) - SHOWN} more"] if len(found) > SHOWN else []
        raise NamesDiffer("the target has other names under the same UIDs: " + "; ".join([*found[:SHOWN], *more]))


def _contradictions(rows: Sequence[Row], there: There) -> Iterator[str]:
    for row in _without_counters(rows):
        held = {cell.column: cell.value for cell in there.get(row.key, ())}
        for cell in row.cells:
            theirs = held.get(cell.column, cell.value)
            if _is_mapping(cell.column) and theirs != cell.value:
                yield _told(row.key, cell, theirs)


def _is_mapping(column: bytes) -> bool:
    """Whether a column says what a name's UID is, or a UID's name; metadata stands beside it."""
    return column.startswith((ID_FAMILY + b":", NAME_FAMILY + b":")) and not column.endswith(b"_meta")


def _told(key: bytes, cell: Cell, theirs: bytes) -> str:
    family, _, kind = cell.column.partition(b":")
    if family == ID_FAMILY:
        name = key.decode("latin-1")
        return f"{kind.decode('latin-1')} {name} is {show_signed(cell.value)} here and {show_signed(theirs)} there"
    ours, other = cell.value.decode("latin-1"), theirs.decode("latin-1")
    return f"{kind.decode('latin-1')} {show_signed(key)} is {ours} here and {other} there"


def _without_counters(rows: Sequence[Row]) -> Iterator[Row]:
    for row in rows:
        if row.key != COUNTER_ROW:
            yield row
        elif cells := [cell for cell in row.cells if not cell.column.startswith(ID_FAMILY + b":")]:
            yield Row(row.key, cells)


async def _raise_counters(source: Place, target: Place) -> None:
    ours, theirs = await _counters(source), await _counters(target)
    for column, number in ours.items():
        if number > theirs.get(column, 0):
            await target.store.increment(target.table, COUNTER_ROW, column, number - theirs.get(column, 0))


async def _counters(place: Place) -> dict[bytes, int]:
    cells = (await place.store.get(place.table, [COUNTER_ROW])).get(COUNTER_ROW, [])
    try:
        return {cell.column: decode_counter(cell.value) for cell in cells if cell.column.startswith(ID_FAMILY + b":")}
    except ValueError as exc:
        raise CorruptRow(f"UID table {place.table}: {exc}; `tsd uid fsck` mends it") from exc
