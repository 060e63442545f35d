"""A row's cells and a span of time → what takes the span's points out of the row, and leaves all others.

A cell that holds points of both sides is written anew without those of the span, at its old write time: of several
cells that hold a point, the one that counted still does. A row that lies in the span whole goes whole, with its notes,
its histograms and what cannot be read; of one that is cut, only points and notes go. A row that holds a point or a note
beyond its hour (no tidy writer leaves one, and each reader shows it at its own time) lies in the span if that does too.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tsd.codec.annotation import annotation_offset_ms
from tsd.codec.cell import CellKind, Point, join, join_append, kind_of, split_append
from tsd.codec.checks import inspect
from tsd.codec.columns import CELL_POINTS
from tsd.codec.merge import MergeRules, StoredCell, cell_points, join_all, merge, point_cells
from tsd.codec.times import HOUR_S
from tsd.errors import CorruptRow

NEWEST = MergeRules(fix_duplicates=True)
HOUR_MS = HOUR_S * 1000


class Span(NamedTuple):
    """Milliseconds after a row's base time: from `start` to before `end`. Either may lie outside the hour."""

    start: int
    end: int

    def __contains__(self, offset_ms: object) -> bool:
        return isinstance(offset_ms, int) and self.start <= offset_ms < self.end

    @property
    def whole(self) -> bool:
        """Whether it holds the whole hour."""
        return self.start <= 0 and self.end >= HOUR_MS


class Removal(NamedTuple):
    """What is to be done to a row: first the change of the append column, then the puts, and once they can be read, the
    deletes. Dying in between removes nothing but what was to go, and doing it again does the rest."""

    points: tuple[int, ...]  # offsets in ms of the points that a reader will miss; none of a row that cannot be read
    puts: tuple[StoredCell, ...] | None  # what is left of cells, each with the write time to give it; None: see `spare`
    spare: tuple[Point, ...]  # all points that stay, to be written as the newest where `puts` is None or does not show
    append: tuple[StoredCell, bytes] | None  # the append column as it was read, and what it is to hold then
    obsolete: tuple[StoredCell, ...]  # to delete, each where it is no newer than it was read

    @property
    def changes(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.obsolete or self.append)


def removal(key: bytes, cells: Iterable[StoredCell], span: Span) -> Removal:
    """What takes a span out of a row, from all its cells, each column once. Raises CorruptRow where the row would have
    to be cut, and cannot be read.

    >>> row = [StoredCell(bytes.fromhex("00000010"), b"\\x2a\\x2b\\0", 7)]
    >>> done = removal(b"", row, Span(1000, 9000))
    >>> done.points, done.puts, done.obsolete == tuple(row)
    ((1000,), (StoredCell(qualifier=b'\\x00\\x00', value=b'*', time_ms=7),), True)
    """
    chosen = list(cells)
    if span.whole and all(time in span for time in _times(key, chosen)):
        return Removal(_readable_times(key, chosen), (), (), None, tuple(chosen))
    seen = merge(key, chosen, NEWEST)
    staying = [point for point in seen.points if point.offset_ms not in span]
    puts, append, obsolete = _changes(point_cells(key, chosen), span)
    gone = {cell.qualifier for cell in obsolete}
    after = [cell for cell in chosen if cell.qualifier not in gone] + puts
    if append is not None:
        latest_ms = max(cell.time_ms for cell in chosen) + 1  # of what the store itself stamps
        after = [StoredCell(cell.qualifier, append[1], latest_ms) if cell is append[0] else cell for cell in after]
    # Of equally new cells the lowest column counts, which may be another's now; and no column may be written twice.
    same = len({cell.qualifier for cell in after}) == len(after) and merge(key, after, NEWEST).points == staying
    if (
        append is not None and not same
    ):  # replaced, it would be newer than all that is written anew: that holds its points
        obsolete, append = [*obsolete, append[0]], None
    return Removal(
        points=tuple([point.offset_ms for point in seen.points if point.offset_ms in span]),
        puts=tuple(puts) if same else None,
        spare=tuple([join_all(staying[at : at + CELL_POINTS]) for at in range(0, len(staying), CELL_POINTS)]),
        append=append,
        obsolete=tuple(obsolete + [cell for cell in chosen if _note_ms(cell) in span]),
    )


def _changes(
    cells: Iterable[StoredCell], span: Span
) -> tuple[list[StoredCell], tuple[StoredCell, bytes] | None, list[StoredCell]]:
    """Of cells that hold points: what is left of them, how the append column changes, and which go."""
    puts: list[StoredCell] = []
    obsolete: list[StoredCell] = []
    append = None
    for cell in cells:
        if kind_of(cell.qualifier) is CellKind.APPEND:
            value = join_append(point for point in split_append(cell.value) if point.offset_ms not in span)
            if not value:
                obsolete.append(cell)
            elif value != cell.value:
                append = cell, value
            continue
        points = cell_points(cell)
        left = [point for point in points if point.offset_ms not in span]
        if len(left) < len(points):
            obsolete.append(cell)
            if left:
                puts.append(StoredCell(*join(sorted(left, key=lambda point: point.offset_ms)), cell.time_ms))
    return puts, append, obsolete


def _times(key: bytes, cells: list[StoredCell]) -> Iterator[int]:
    """The times of a row's points and notes, of a row that cannot be read those that can be made out."""
    try:
        yield from _joint_times(key, cells)
    except CorruptRow:
        yield from (point.offset_ms for cell in cells for point in inspect(cell).points)
    yield from (time for cell in cells if (time := _note_ms(cell)) is not None)


def _readable_times(key: bytes, cells: list[StoredCell]) -> tuple[int, ...]:
    try:
        return _joint_times(key, cells)
    except CorruptRow:
        return ()


def _joint_times(key: bytes, cells: list[StoredCell]) -> tuple[int, ...]:
    return tuple([point.offset_ms for point in merge(key, cells, NEWEST).points])


def _note_ms(cell: StoredCell) -> int | None:
    """The time of a note; None for other cells, and for a note whose column says none."""
    if not cell.qualifier or kind_of(cell.qualifier) is not CellKind.ANNOTATION:
        return None
    try:
        return annotation_offset_ms(cell.qualifier)
    except CorruptRow:
        return None
