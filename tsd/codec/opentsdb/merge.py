"""Merge of a row's cells into its points in time order, one for each time (FORMATS.md §6).

Only this module decides which of several cells a point is taken from. Readers and the compactor use it, so a compaction
keeps what readers see. Cells without points are ignored.

Most rows are simple: the points of each cell ascend, and no two cells have a point of one time. Their bytes are checked
and joined without decoding single points (`_join_runs`); those of cells that interleave are sorted (`_interleave`). The
compiled _merge.pyx does the same for rows whose times are all in seconds, or all in milliseconds. All other rows are
merged point by point (`_merge_points`), the only place that chooses between duplicates and raises.
"""

import os
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import lt
from typing import NamedTuple

import numpy as np

from tsd.codec.opentsdb.cell import (
    APPEND,
    MIXED,
    MS_MARK,
    READABLE,
    UNIFORM,
    VALUE_SIZES,
    CellKind,
    Point,
    kind_of,
    offset_ms,
    split,
    split_append,
)
from tsd.codec.opentsdb.columns import CELL_POINTS
from tsd.codec.text import show_signed
from tsd.errors import CorruptRow

try:
    from tsd.codec.opentsdb import _merge
except ImportError:  # installed without a C compiler
    HAS_MERGE_LOOP = False
else:
    HAS_MERGE_LOOP = not os.environ.get("TSD_PURE")  # TSD_PURE selects the Python code, to compare both

NO_POINT = Point(b"", b"")

# The time bits of a qualifier's last byte.
_SECONDS_TIME = bytes(low & 0xF0 for low in range(256))
_MS_TIME = bytes(low & 0xC0 for low in range(256))


class StoredCell(NamedTuple):
    """One cell of a data row, its column without the family."""

    qualifier: bytes
    value: bytes
    time_ms: int  # write timestamp


@dataclass(frozen=True)
class MergeRules:
    """Choice between duplicates, points with equal times, named as OpenTSDB's settings (`tsd.storage.…`)."""

    fix_duplicates: bool = False  # choose the newest cell's point; otherwise different values are an error
    use_otsdb_timestamp: bool = False  # timestamps are the points' times, so the value decides, without an error
    use_max_value: bool = True  # with use_otsdb_timestamp: choose the highest value, otherwise the lowest
    cell_points: int = CELL_POINTS  # most points of a merged cell


DEFAULT_RULES = MergeRules()


class DuplicateTimestamp(CorruptRow):
    """Two cells have different values for one time. The text is OpenTSDB's: *older* is the value that would be kept,
    from the newest cell, and *newer* the one that would be dropped."""

    def __init__(self, key: bytes, kept: Point, dropped: Point) -> None:
        super().__init__(
            f"Duplicate timestamp for key={show_signed(key)}, ms_offset={kept.offset_ms}, "
            f"older={show_signed(kept.value)}, newer={show_signed(dropped.value)}; "
            "set tsd.storage.fix_duplicates=true to fix automatically or run Fsck"
        )
        self.key = key
        self.kept = kept
        self.dropped = dropped


class MergedRow(NamedTuple):
    """A row's points, and the numbers of duplicates."""

    joined: Point  # all points as one cell, of any size; NO_POINT if there is none
    size: int  # number of points
    cells: Sequence[StoredCell]  # the cells with points, in the given order
    identical: int = 0  # dropped points with the same value as the one kept
    variant: int = 0  # dropped points with another value

    @property
    def appended(self) -> bool:
        """Whether one of the cells is an append column: then the row must not be rewritten."""
        return any(len(cell.qualifier) == len(APPEND) for cell in self.cells)

    @property
    def points(self) -> list[Point]:
        """The points, in time order."""
        return split(*self.joined) if self.size > 1 else [self.joined] * self.size


class _Run(NamedTuple):
    """Points whose times ascend, in bytes: qualifiers and values joined, without a last byte."""

    first_ms: int
    last_ms: int
    qualifier: bytes
    value: bytes
    size: int
    widths: frozenset[int]  # lengths of its qualifiers


def merge(
    key: bytes, cells: Iterable[StoredCell], rules: MergeRules = DEFAULT_RULES, *, compiled: bool = HAS_MERGE_LOOP
) -> MergedRow:
    """Return the points of a row's cells, given in any order; each column once.

    Of several points with one time, that of the newest cell is kept. Of equally new cells it is that of the lowest
    qualifier, and within a cell the first, but of an append column the last. Raise DuplicateTimestamp if their values
    differ and `rules` do not decide, and CorruptRow if a cell violates FORMATS.md §4 or §5; both name the row.
    `compiled` selects the compiled loop.

    >>> merge(b"", [StoredCell(b"\\0\\x10", b"\\x2b", 5), StoredCell(b"\\0\\0", b"\\x2a", 4)]).joined
    Point(qualifier=b'\\x00\\x00\\x00\\x10', value=b'*+\\x00')
    """
    holders = point_cells(key, cells)
    if compiled and (joined := _merge.join_cells(holders)) is not None:
        qualifier, value, size = joined
        return MergedRow(Point(qualifier, value), size, holders)
    return _join_runs(holders) or _merge_points(key, holders, rules)


def join_simple(cells: Sequence[tuple[bytes, bytes, int]], family: bytes, most: int) -> Point | None:
    """Return the points of cells (column, value, timestamp) as the column and the value of one cell. None: it would
    have more than `most` points, a cell is of another family, they are not simple (see above), or there is no compiled
    loop.

    >>> join_simple([(b"t:\\0\\0", b"\\x2a", 7), (b"t:\\1\\0\\0", b"{}", 7)], b"t:", 2) is None
    True
    """
    joined = _merge.join_cells(cells if isinstance(cells, list) else list(cells), family) if HAS_MERGE_LOOP else None
    return None if joined is None or joined[2] > most else Point(joined[0], joined[1])


class CellTotals(NamedTuple):
    """Sums over cells, and the newest of them."""

    columns: int  # bytes
    values: int
    time_ms: int  # highest write timestamp; 0 without cells
    newest: int  # cells with that timestamp


def measure(cells: Sequence[tuple[bytes, bytes, int]], *, compiled: bool = HAS_MERGE_LOOP) -> CellTotals:
    """Return the totals of cells (column, value, timestamp). `compiled` selects the compiled loop.

    >>> measure([(b"t:ab", b"1", 5), (b"t:c", b"22", 7), (b"t:d", b"3", 7)])
    CellTotals(columns=10, values=4, time_ms=7, newest=2)
    """
    if compiled:
        return CellTotals(*_merge.measure(cells if isinstance(cells, list) else list(cells)))
    time_ms = max([time_ms for _, _, time_ms in cells], default=0)
    return CellTotals(
        sum([len(column) for column, _, _ in cells]),
        sum([len(value) for _, value, _ in cells]),
        time_ms,
        sum([each == time_ms for _, _, each in cells]),
    )


def point_cells(key: bytes, cells: Iterable[StoredCell]) -> list[StoredCell]:
    """Return the cells of a row that hold points. Raise CorruptRow for an invalid column of points.

    >>> point_cells(b"", [StoredCell(b"\\1\\0\\0", b"{}", 0), StoredCell(APPEND, b"", 0)])
    [StoredCell(qualifier=b'\\x05\\x00\\x00', value=b'', time_ms=0)]
    """
    holders = []
    for cell in cells:
        qualifier = cell.qualifier
        if len(qualifier) & 1:
            if qualifier[0] != APPEND[0]:
                continue
            if kind_of(qualifier) is not CellKind.APPEND:
                raise CorruptRow(f"row {key.hex()}: an append column has {len(APPEND)} bytes, got {qualifier.hex()}")
        if qualifier:
            holders.append(cell)
    return holders


def cell_points(cell: StoredCell) -> list[Point]:
    """Return the points of one cell in the cell's order; those of an append column sorted, one for each time. Raise
    CorruptRow.

    >>> cell_points(StoredCell(APPEND, bytes.fromhex("00102b00002a00102c"), 0))
    [Point(qualifier=b'\\x00\\x00', value=b'*'), Point(qualifier=b'\\x00\\x10', value=b',')]
    """
    if len(cell.qualifier) & 1:
        by_time = {point.offset_ms: point for point in split_append(cell.value)}  # the last append of each time
        points = [by_time[time] for time in sorted(by_time)]
    else:
        points = split(cell.qualifier, cell.value)
    for point in points:
        if point.flags not in READABLE:
            raise CorruptRow(f"qualifier {point.qualifier.hex()}: no number has the flags {point.flags:#x}")
    return points


def _merge_points(key: bytes, cells: list[StoredCell], rules: MergeRules) -> MergedRow:
    entries = []
    for rank, cell in enumerate(sorted(cells)):
        try:
            points = cell_points(cell)
        except CorruptRow as exc:
            raise CorruptRow(f"row {key.hex()}: {exc}") from exc
        newest_first = -cell.time_ms
        entries += [(p.offset_ms, newest_first, rank, at, p) for at, p in enumerate(points)]
    entries.sort()
    kept: list[Point] = []
    last_ms = -1
    identical = variant = 0
    for time_ms, _, _, _, point in entries:
        if time_ms != last_ms:
            kept.append(point)
            last_ms = time_ms
        elif point.value == kept[-1].value:
            identical += 1
        else:
            kept[-1] = _choose(key, kept[-1], point, rules)
            variant += 1
    return MergedRow(join_all(kept), len(kept), cells, identical, variant)


def _choose(key: bytes, kept: Point, other: Point, rules: MergeRules) -> Point:
    """Return the chosen one of two different points with one time; `kept` is from the newer cell."""
    if rules.use_otsdb_timestamp:
        ours, theirs = float(kept.number), float(other.number)  # compared as doubles, as OpenTSDB does
        return other if (theirs > ours if rules.use_max_value else theirs < ours) else kept
    if not rules.fix_duplicates:
        raise DuplicateTimestamp(key, kept, other)
    return kept


def join_all(points: Sequence[Point]) -> Point:
    """Return one cell of `points` in time order; NO_POINT for no points."""
    if len(points) < 2:
        return points[0] if points else NO_POINT
    qualifiers = [point.qualifier for point in points]
    last = UNIFORM if len(set(map(len, qualifiers))) == 1 else MIXED
    return Point(b"".join(qualifiers), b"".join([point.value for point in points]) + last)


def _join_runs(cells: list[StoredCell]) -> MergedRow | None:
    """Return the same as `_merge_points` for simple rows, None for other rows."""
    runs = _runs(cells)
    if runs is None:
        return None
    if len(runs) > 1:
        runs.sort()
        if not all(before.last_ms < after.first_ms for before, after in pairwise(runs)):
            return _interleave(runs, cells)
    size = sum(run.size for run in runs)
    qualifier = b"".join([run.qualifier for run in runs])
    value = b"".join([run.value for run in runs])
    if size > 1:
        value += UNIFORM if len(frozenset[int]().union(*(run.widths for run in runs))) == 1 else MIXED
    return MergedRow(Point(qualifier, value), size, cells)


def _interleave(runs: list[_Run], cells: list[StoredCell]) -> MergedRow | None:
    """Return the merged row of runs that interleave. None: some points have equal times, or only some times have
    milliseconds."""
    widths = frozenset[int]().union(*(run.widths for run in runs))
    if len(widths) > 1:
        return None
    (width,) = widths
    qualifier = b"".join([run.qualifier for run in runs])
    heads = np.frombuffer(qualifier, ">u2" if width == 2 else ">u4")
    times = heads >> 4 if width == 2 else heads >> 6
    order = np.argsort(times, kind="stable")
    if not np.diff(times[order].astype(np.int64)).all():
        return None
    values = np.frombuffer(b"".join([run.value for run in runs]), np.uint8)
    sizes = np.frombuffer(qualifier[width - 1 :: width].translate(VALUE_SIZES), np.uint8).astype(np.int64)
    starts, ends = np.cumsum(sizes) - sizes, np.cumsum(sizes[order])
    sizes = sizes[order]
    index = np.repeat(starts[order] - (ends - sizes), sizes) + np.arange(ends[-1])
    return MergedRow(Point(heads[order].tobytes(), values[index].tobytes() + UNIFORM), len(order), cells)


def _runs(cells: list[StoredCell]) -> list[_Run] | None:
    """Return the runs of all cells, with single points of one width as one run; None if a cell is not simple."""
    seconds: list[StoredCell] = []
    millis: list[StoredCell] = []
    runs = []
    for cell in cells:
        size = len(cell.qualifier)
        if size == 2:
            seconds.append(cell)
        elif size == 4 and cell.qualifier[0] >= MS_MARK:
            millis.append(cell)
        else:
            run = _fat_run(cell)
            if run is None:
                return None
            runs.append(run)
    for width, lone in ((2, seconds), (4, millis)):
        if lone:
            run = _lone_run(lone, width)
            if run is None:
                return None
            runs.append(run)
    return runs


def _lone_run(cells: list[StoredCell], width: int) -> _Run | None:
    """Return the run of cells with one point each, ordered by column; None if a value does not match its flags."""
    qualifier = b"".join([cell.qualifier for cell in cells])
    sizes = qualifier[width - 1 :: width].translate(VALUE_SIZES)
    if list(sizes) != [len(cell.value) for cell in cells]:
        return None
    return _uniform_run(qualifier, b"".join([cell.value for cell in cells]), width, sizes)


def _fat_run(cell: StoredCell) -> _Run | None:
    """Return the run of a cell with many points, None if it is not simple."""
    qualifier, value, _ = cell
    if len(qualifier) & 1:
        return None
    if max(qualifier[::2]) < MS_MARK:
        width = 2
    elif len(qualifier) % 4 == 0 and min(qualifier[::4]) >= MS_MARK:
        width = 4
    else:
        return _mixed_run(cell)
    sizes = qualifier[width - 1 :: width].translate(VALUE_SIZES)
    end = sum(sizes)
    if not len(value) - 1 <= end <= len(value):
        return None
    return _uniform_run(qualifier, value[:end], width, sizes)


def _uniform_run(qualifier: bytes, value: bytes, width: int, sizes: bytes) -> _Run | None:
    """Return the run of qualifiers of one width; None if flags are invalid or times do not ascend."""
    times = bytearray(qualifier)
    times[width - 1 :: width] = qualifier[width - 1 :: width].translate(_SECONDS_TIME if width == 2 else _MS_TIME)
    moments = struct.unpack(f">{len(sizes)}{'H' if width == 2 else 'I'}", times)
    if 0 in sizes or not all(map(lt, moments, moments[1:])) or (width == 2 and qualifier[-2] >= MS_MARK):
        return None
    first, last = offset_ms(qualifier[:width]), offset_ms(qualifier[-width:])
    return _Run(first, last, qualifier, value, len(sizes), frozenset((width,)))


def _mixed_run(cell: StoredCell) -> _Run | None:
    """Return the run of a cell with seconds and milliseconds, None if it is not simple."""
    try:
        points = cell_points(cell)
    except CorruptRow:
        return None  # _merge_points raises it
    moments = [point.offset_ms for point in points]
    if not all(map(lt, moments, moments[1:])):
        return None
    value = b"".join([point.value for point in points])
    return _Run(moments[0], moments[-1], cell.qualifier, value, len(points), frozenset((2, 4)))
