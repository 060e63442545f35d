"""Annotations that a query shows: those of its series' rows, and global ones (query.md §14)."""

from collections.abc import Iterable

from tsd.codec.annotation import ANNOTATION, Annotation, decode_annotation
from tsd.codec.cell import COLUMN
from tsd.codec.rowkey import Layout, after, base_bytes
from tsd.codec.times import FIRST_MS, base_time
from tsd.errors import CorruptRow
from tsd.store import Store, scan


def start_ms(note: Annotation) -> int:
    """When a note starts."""
    return note.start_time if note.start_time >= FIRST_MS else note.start_time * 1000


def within(notes: Iterable[Annotation], first_ms: int, last_ms: int) -> list[Annotation]:
    """Those that start in a range, both ends included.

    >>> [n.start_time for n in within([Annotation(5), Annotation(6), Annotation(7)], 6000, 6500)]
    [6]
    """
    return [note for note in notes if first_ms <= start_ms(note) <= last_ms]


def in_order(notes: Iterable[Annotation], *, corrected: bool) -> list[Annotation]:
    """Notes by when they start. OpenTSDB goes by the number, whatever its unit: those in ms come last.

    >>> [n.start_time for n in in_order([Annotation(7_000_000_000), Annotation(8_000_000)], corrected=False)]
    [8000000, 7000000000]
    """
    return sorted(notes, key=start_ms if corrected else lambda note: note.start_time)


async def global_notes(
    store: Store, table: str, layout: Layout, first_ms: int, last_ms: int, *, corrected: bool
) -> list[Annotation]:
    """The global notes of the hours of a range. Raises StoreError.

    OpenTSDB compares a note's times, whatever their unit, with seconds: one that ends in ms it never finds. Corrected:
    those that begin in the range.
    """
    first_s, last_s = first_ms // 1000, last_ms // 1000
    prefix = bytes(layout.salt_width + layout.widths.metric)
    start, stop = prefix + base_bytes(base_time(first_s)), after(prefix + base_bytes(base_time(last_s)))
    found = []
    async for rows in scan(store, table, start, stop):
        for row in rows:
            if len(row.key) == layout.pairs_start:
                found += [note for cell in row.cells if (note := _note(cell.column, cell.value))]
    found = in_order(found, corrected=corrected)
    if corrected:
        return within(found, first_ms, last_ms)
    return [note for note in found if note.start_time >= first_s and note.end_time <= last_s]


def _note(column: bytes, value: bytes) -> Annotation | None:
    """The note in a cell; None where it is something else, or cannot be read."""
    qualifier = column[len(COLUMN) :]
    if qualifier[:1] != ANNOTATION or len(qualifier) not in (3, 5):
        return None
    try:
        return decode_annotation(value)
    except CorruptRow:
        return None
