"""Rows of the data table: points for readers, compaction, and deletion of a time span (FORMATS.md §6).

Reading and compaction use the same merge, so a compaction changes nothing that a reader sees. A row that cannot be read
completely is never rewritten.

A deletion removes the points of a span and keeps all others. A cell with points inside and outside the span is replaced
by one without the former. That cell is newer than all cells of the row. So a compaction that runs meanwhile never takes
it for a duplicate of a cell that the deletion removes. One cell with all remaining points replaces them if another
value would otherwise count for any time, or if two such cells had different values for one time.

A row inside the span is deleted completely, with its annotations, histograms and unreadable cells; from other rows only
points and annotations are deleted. A row with a point or annotation beyond its hour, which readers show at its own
time, is inside the span only if that is too.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tsd.codec.opentsdb.annotation import annotation_offset_ms
from tsd.codec.opentsdb.cell import COLUMN, CellKind, Point, join, join_append, kind_of, split, split_append
from tsd.codec.opentsdb.check import Problem, cell_problems, inspect, key_problems, repeated_times
from tsd.codec.opentsdb.columns import CELL_POINTS
from tsd.codec.opentsdb.merge import (
    DEFAULT_RULES,
    MergedRow,
    MergeRules,
    StoredCell,
    cell_points,
    join_all,
    merge,
    point_cells,
)
from tsd.codec.opentsdb.rowkey import KeyLayout
from tsd.codec.putline import HOUR_MS
from tsd.errors import CorruptRow


class Compaction(NamedTuple):
    """Changes that compact a row: first the puts, in one step, and after their acknowledgement the deletes.

    A crash in between loses no point: the merged cells are the newest, with the same points.
    """

    merged: tuple[Point, ...]  # cells to write, in time order, without those that exist already
    obsolete: tuple[StoredCell, ...]  # cells to delete, unless they are newer than when they were read
    time_ms: int | None  # timestamp of the merged cells; None: set by the store
    row: MergedRow  # the row's points, and the number of duplicates

    @property
    def changes(self) -> bool:
        """Return whether there is anything to do."""
        return bool(self.merged or self.obsolete)


def data_cells(cells: Iterable[tuple[bytes, bytes, int]]) -> list[StoredCell]:
    """Return cells of the data table (column, value, timestamp in ms) with their columns without the family.

    >>> data_cells([(b"t:\\0\\0", b"\\x2a", 1600000000000)])
    [StoredCell(qualifier=b'\\x00\\x00', value=b'*', time_ms=1600000000000)]
    """
    skip = len(COLUMN)
    return [StoredCell(column[skip:], value, time_ms) for column, value, time_ms in cells]


def points(key: bytes, cells: Iterable[StoredCell], rules: MergeRules = DEFAULT_RULES) -> list[Point]:
    """Return the row's points in time order, one for each time. Raise as `merge` does.

    >>> [p.number for p in points(b"", [StoredCell(b"\\0\\x10", b"\\x2b", 0), StoredCell(b"\\0\\0", b"\\x2a", 0)])]
    [42, 43]
    """
    return merge(key, cells, rules).points


def compact(key: bytes, cells: Iterable[StoredCell], rules: MergeRules = DEFAULT_RULES) -> Compaction:
    """Return the compaction of a row with all its cells, each column once. Raise as `merge` does.

    Annotations, histograms and other cells are unchanged. A row with an append column is unchanged: the column may grow
    in the store at any time. A row with a cell of more points than a merged cell may have is unchanged too: an OpenTSDB
    wrote it, which has no such limit. If it were split while OpenTSDB deletes the parts as duplicates of the cell,
    points would be lost.

    >>> done = compact(b"", [StoredCell(b"\\0\\0", b"\\x2a", 7), StoredCell(b"\\0\\x10", b"\\x2b", 8)])
    >>> done.merged, [(cell.qualifier.hex(), cell.time_ms) for cell in done.obsolete]
    ((Point(qualifier=b'\\x00\\x00\\x00\\x10', value=b'*+\\x00'),), [('0000', 7), ('0010', 8)])
    """
    row = merge(key, cells, rules)
    if row.appended or not row.size or _has_larger(row, rules.cell_points):
        return Compaction((), (), None, row)
    cells_after = cut(row, rules.cell_points)
    there = {cell.qualifier: cell.value for cell in row.cells}
    names = {cell.qualifier for cell in cells_after}
    return Compaction(
        merged=tuple([cell for cell in cells_after if there.get(cell.qualifier) != cell.value]),
        obsolete=tuple([cell for cell in row.cells if cell.qualifier not in names]),
        time_ms=max([cell.time_ms for cell in row.cells]) if rules.use_otsdb_timestamp else None,
        row=row,
    )


def _has_larger(row: MergedRow, size: int) -> bool:
    """Return whether a cell of the row has more than `size` points."""
    if row.size <= size:
        return False
    return any(len(cell.qualifier) > 2 * size and len(cell_points(cell)) > size for cell in row.cells)


def cut(row: MergedRow, size: int) -> list[Point]:
    """Return the row's points as cells of at most `size` points, in time order."""
    assert size > 0, size
    if row.size <= size:
        return [row.joined] * bool(row.size)
    chosen = split(*row.joined)
    return [join_all(chosen[at : at + size]) for at in range(0, len(chosen), size)]


def problems(key: bytes, cells: Iterable[StoredCell], layout: KeyLayout = KeyLayout()) -> list[Problem]:  # noqa: B008
    """Return all deviations of a row from FORMATS.md, and everything that a correct writer would not write.

    >>> key = bytes.fromhex("00000150e22700000001000001")
    >>> [p.trouble.value for p in problems(key, [StoredCell(b"\\0\\7", b"\\1", 0)])]
    ['old encoding']
    """
    chosen = list(cells)
    found = key_problems(layout, key)
    for cell in sorted(chosen):
        found += cell_problems(cell)
    return found + repeated_times(chosen)


NEWEST = MergeRules(fix_duplicates=True)


class Span(NamedTuple):
    """Offsets in ms from a row's base time: `start` to before `end`. Both may be outside the hour."""

    start: int
    end: int

    def __contains__(self, offset_ms: object) -> bool:
        return isinstance(offset_ms, int) and self.start <= offset_ms < self.end

    @property
    def whole(self) -> bool:
        """Return whether the span contains the whole hour."""
        return self.start <= 0 and self.end >= HOUR_MS


class Removal(NamedTuple):
    """Changes that delete a span from a row: first the append column, then the puts, and once they can be read back,
    the deletes. A crash in between deletes only points of the span, and a repetition completes the deletion."""

    points: tuple[int, ...]  # offsets in ms of the deleted points; empty if the row cannot be read
    puts: tuple[StoredCell, ...] | None  # remaining parts of cells, newer than all cells; None: use `spare`
    spare: tuple[
        Point, ...
    ]  # all remaining points, to be written with a new timestamp if `puts` is None or not visible
    append: tuple[StoredCell, bytes] | None  # the append column as read, and its new value
    obsolete: tuple[StoredCell, ...]  # cells to delete, unless they are newer than when they were read

    @property
    def changes(self) -> bool:
        """Return whether there is anything to do."""
        return bool(self.obsolete or self.append)


def removal(key: bytes, cells: Iterable[StoredCell], span: Span) -> Removal:
    """Return the changes that delete a span from a row with all its cells, each column once. Raise CorruptRow if only
    a part of an unreadable row is in the span.

    >>> row = [StoredCell(bytes.fromhex("00000010"), b"\\x2a\\x2b\\0", 7)]
    >>> done = removal(b"", row, Span(1000, 9000))
    >>> done.points, done.puts, done.obsolete == tuple(row)
    ((1000,), (StoredCell(qualifier=b'\\x00\\x00', value=b'*', time_ms=8),), True)
    """
    chosen = list(cells)
    if span.whole and all(time in span for time in _times(key, chosen)):
        return Removal(_readable_times(key, chosen), (), (), None, tuple(chosen))
    seen = merge(key, chosen, NEWEST)
    staying = [point for point in seen.points if point.offset_ms not in span]
    latest_ms = max([cell.time_ms for cell in chosen], default=0)
    puts, append, obsolete = _changes(point_cells(key, chosen), span, latest_ms + 1)
    gone = {cell.qualifier for cell in obsolete}
    after = [cell for cell in chosen if cell.qualifier not in gone] + puts
    if append is not None:
        now_ms = latest_ms + 2  # the store sets a timestamp, which is newer than those of the puts
        after = [StoredCell(cell.qualifier, append[1], now_ms) if cell is append[0] else cell for cell in after]
    # Among equal timestamps the lowest column counts, which may have changed; no column may be written twice.
    same = len({cell.qualifier for cell in after}) == len(after) and merge(key, after, NEWEST).points == staying
    same = same and not _differ(puts)  # as equally new cells they would not tell which value is the newest
    if append is not None and not same:  # rewritten, it would be newer than `spare`, which has its points
        obsolete, append = [*obsolete, append[0]], None
    return Removal(
        points=tuple([point.offset_ms for point in seen.points if point.offset_ms in span]),
        puts=tuple(puts) if same else None,
        spare=tuple([join_all(staying[at : at + CELL_POINTS]) for at in range(0, len(staying), CELL_POINTS)]),
        append=append,
        obsolete=tuple(obsolete + [cell for cell in chosen if _note_ms(cell) in span]),
    )


def _differ(cells: Iterable[StoredCell]) -> bool:
    """Return whether well-formed cells have different values for one time."""
    values: dict[int, Point] = {}
    points = [point for cell in cells for point in split(cell.qualifier, cell.value)]
    return any(values.setdefault(point.offset_ms, point).number != point.number for point in points)


def _changes(
    cells: Iterable[StoredCell], span: Span, time_ms: int
) -> tuple[list[StoredCell], tuple[StoredCell, bytes] | None, list[StoredCell]]:
    """Return the remaining parts of cells with points, with the timestamp `time_ms`, the change of the append column,
    and the cells to delete."""
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
                puts.append(StoredCell(*join(sorted(left, key=lambda point: point.offset_ms)), time_ms))
    return puts, append, obsolete


def _times(key: bytes, cells: list[StoredCell]) -> Iterator[int]:
    """Yield the times of a row's points and annotations; of an unreadable row those that can be decoded."""
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
    """Return the time of an annotation; None for other cells, and for an invalid column."""
    if not cell.qualifier or kind_of(cell.qualifier) is not CellKind.ANNOTATION:
        return None
    try:
        return annotation_offset_ms(cell.qualifier)
    except CorruptRow:
        return None
