"""A row's cells → its points, or what a compaction writes and deletes (FORMATS.md §6).

Both come from one merge, so compacting a row changes nothing that a reader sees. A row that cannot be read whole is
never rewritten.
"""

from collections.abc import Iterable
from typing import NamedTuple

from tsd.codec.cell import COLUMN, Point, join_append, split
from tsd.codec.checks import Problem, cell_problems, key_problems, repeated_times
from tsd.codec.merge import (
    DEFAULT_RULES,
    Merged,
    MergeRules,
    StoredCell,
    cell_points,
    join_all,
    merge,
)
from tsd.codec.rowkey import Layout


class Compaction(NamedTuple):
    """What turns a row into its compacted form: first the puts, in one step; once they are acknowledged, the deletes.

    Dying in between leaves every point where a reader finds it: the merged cells are the newest, and say the same.
    """

    merged: tuple[Point, ...]  # cells to write, in time order; those that stand there already are left out
    obsolete: tuple[StoredCell, ...]  # to delete, each where it is no newer than it was read
    time_ms: int | None  # the write time to give the merged cells; None: the store's own
    row: Merged  # the row's points, and how many stood there more than once

    @property
    def changes(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.merged or self.obsolete)


def data_cells(cells: Iterable[tuple[bytes, bytes, int]]) -> list[StoredCell]:
    """A store's cells (column, value, write time in ms) of the data table, their columns without the family.

    >>> data_cells([(b"t:\\0\\0", b"\\x2a", 1600000000000)])
    [StoredCell(qualifier=b'\\x00\\x00', value=b'*', time_ms=1600000000000)]
    """
    skip = len(COLUMN)
    return [StoredCell(column[skip:], value, time_ms) for column, value, time_ms in cells]


def points(key: bytes, cells: Iterable[StoredCell], rules: MergeRules = DEFAULT_RULES) -> list[Point]:
    """The row's points in time order, each time once; raises as `merge` does.

    >>> [p.number for p in points(b"", [StoredCell(b"\\0\\x10", b"\\x2b", 0), StoredCell(b"\\0\\0", b"\\x2a", 0)])]
    [42, 43]
    """
    return merge(key, cells, rules).points


def compact(key: bytes, cells: Iterable[StoredCell], rules: MergeRules = DEFAULT_RULES) -> Compaction:
    """The compaction of a row, from all its cells, each column once; raises as `merge` does.

    Notes, histograms and cells of other kinds stay as they are. A row with an append column stays whole: the column
    grows at any time, in the store, so what was read of it is no ground to delete anything. So does one with a cell of
    more points than a merged one may hold: an OpenTSDB made it, which knows no such bound, and were it cut while that
    deletes the parts, because it found them in the cell, both would be gone.

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


def _has_larger(row: Merged, size: int) -> bool:
    """Whether one of the row's cells holds more than `size` points."""
    if row.size <= size:
        return False
    return any(len(cell.qualifier) > 2 * size and len(cell_points(cell)) > size for cell in row.cells)


def cut(row: Merged, size: int) -> list[Point]:
    """The row's points as cells of at most `size` points, in time order."""
    assert size > 0, size
    if row.size <= size:
        return [row.joined] * bool(row.size)
    chosen = split(*row.joined)
    return [join_all(chosen[at : at + size]) for at in range(0, len(chosen), size)]


def repair_append(value: bytes) -> bytes:
    """An append column's value in time order, each time's last append only; raises CorruptRow.

    Equal to `value` where nothing is to repair. The column may grow meanwhile: OpenTSDB writes this back only an hour
    after the row's hour began.

    >>> repair_append(bytes.fromhex("00102b00002a00102c")).hex()
    '00002a00102c'
    """
    return join_append(cell_points(StoredCell(b"\5\0\0", value, 0)))


def problems(key: bytes, cells: Iterable[StoredCell], layout: Layout = Layout()) -> list[Problem]:  # noqa: B008
    """Everything about a row of the data table that breaks FORMATS.md, or that a tidy writer would not leave.

    >>> key = bytes.fromhex("00000150e22700000001000001")
    >>> [p.trouble.value for p in problems(key, [StoredCell(b"\\0\\7", b"\\1", 0)])]
    ['old encoding']
    """
    chosen = list(cells)
    found = key_problems(layout, key)
    for cell in sorted(chosen):
        found += cell_problems(cell)
    return found + repeated_times(chosen)
