"""Pages of stored cells → batches of points: the hot path of every query.

The usual row is one joined cell, or a few that do not interleave; numpy decodes all such rows of a page at once.
Whatever is not plainly simple (cells that overlap, append columns, duplicates, historic encodings) goes row by row
through `tsd.codec.row`, which alone decides about duplicates. A row that cannot be read becomes a warning, never the
end of a query.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import compress
from operator import eq
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tsd.codec.annotation import ANNOTATION, Annotation, decode_annotation
from tsd.codec.cell import APPEND, COLUMN, MS_MARK
from tsd.codec.merge import READABLE, MergeRules, StoredCell, merge
from tsd.codec.words import FLOAT, LENGTH
from tsd.errors import CorruptRow
from tsd.query import compiled
from tsd.query.points import Batch, Int64
from tsd.store.cells import CellPage

# Of several values of one time the newest counts, whatever the configuration says of compaction: a query shows what
# is there, and says how often it had to choose.
RULES = MergeRules(fix_duplicates=True)
WARNINGS = 100  # of one page; more say nothing new

_FLAGS = FLOAT | LENGTH
_SIZE_OF = np.array([(flags & LENGTH) + 1 if flags in READABLE else 0 for flags in range(16)], np.int64)
_SINGLE, _DOUBLE = FLOAT | 3, FLOAT | 7


class Note(NamedTuple):
    """An annotation, and of which series."""

    series: int
    note: Annotation


class Decoded(NamedTuple):
    """What a page held of the chosen series."""

    batch: Batch
    rows: int  # of the chosen series, points or not
    size: int  # bytes of their cells
    notes: list[Note]
    warnings: list[str]
    duplicates: int  # points dropped for others of their time
    keys: Sequence[bytes]  # of those rows
    row_of: NDArray[np.intp]  # of each of their cells
    plain: NDArray[np.bool_]  # of each row: whether it has nothing but points, and none of them twice


class _Piece(NamedTuple):
    """Points of some of a page's rows, row by row."""

    rows: NDArray[np.intp]  # which rows, ascending
    counts: Int64  # of points of each
    times: Int64
    bits: Int64
    floats: NDArray[np.bool_]


class _Rows(NamedTuple):
    """A page's cells, those of the chosen series."""

    series: NDArray[np.int32]  # of each row
    bases_ms: Int64  # of each row
    row_of: NDArray[np.intp]  # of each cell
    row_keys: Sequence[bytes]  # of each row
    keys: Sequence[bytes]  # of each cell
    columns: list[bytes]
    values: list[bytes]
    at: Sequence[int]  # its place in the page
    ahead: int


def decode(
    page: CellPage,
    number_of: Callable[[bytes], int],
    *,
    base_at: int,
    with_notes: bool = True,
    by_loop: bool = compiled.HAS,
) -> Decoded:
    """The points of the rows of a page that are wanted. `by_loop`: read what can be read by rote in the compiled loop.

    `number_of` says which series the pairs of a key (what follows its base time, which stands at `base_at`) belong to,
    a negative number where that one is not wanted. It is asked once a cell, so it had better be a dictionary's method.
    """
    rows = _chosen(page, number_of, base_at)
    warnings: list[str] = []
    notes: list[Note] = []
    size = sum(map(len, rows.columns)) + sum(map(len, rows.values)) - rows.ahead * len(rows.values)
    lengths = np.fromiter(map(len, rows.columns), np.int64, len(rows.columns)) - len(COLUMN)
    odd = (lengths & 1).astype(np.bool_) | (lengths <= 0)
    slow, plain = np.zeros(len(rows.series), np.bool_), np.ones(len(rows.series), np.bool_)
    if odd.any():
        plain[rows.row_of[odd]] = False
        for at in np.flatnonzero(odd).tolist():
            qualifier = rows.columns[at][len(COLUMN) :]
            if qualifier[:1] == APPEND[:1]:
                slow[rows.row_of[at]] = True
            elif with_notes and qualifier[:1] == ANNOTATION:
                _note(rows, at, notes, warnings)
    duplicates = 0
    with np.errstate(invalid="ignore"):  # a NaN of the kind that signals is a value like others
        pieces = _by_loop(rows, odd, slow) if by_loop else _fast_pieces(rows, np.flatnonzero(~odd), lengths, slow)
        if slow.any():
            piece, duplicates = _slow_piece(page, rows, np.flatnonzero(slow), warnings, plain)
            pieces.append(piece)
    batch, warnings = _together(rows, pieces), warnings[:WARNINGS]
    return Decoded(batch, len(rows.series), size, notes, warnings, duplicates, rows.row_keys, rows.row_of, plain)


def _chosen(page: CellPage, number_of: Callable[[bytes], int], base_at: int) -> _Rows:
    keys = page.keys
    pairs_at = base_at + 4
    numbers = np.fromiter((number_of(key[pairs_at:]) for key in keys), np.int32, len(keys))
    new_row = np.ones(len(keys), np.bool_)
    if len(keys) > 1:
        new_row[1:] = ~np.fromiter(map(eq, keys[1:], keys), np.bool_, len(keys) - 1)
    columns, values = page.columns, page.values
    at: Sequence[int] = range(len(keys))
    wanted = numbers >= 0
    if not wanted.all():
        chosen = wanted.tolist()
        keys, columns, values = (list(compress(part, chosen)) for part in (keys, columns, values))
        at = np.flatnonzero(wanted).tolist()
        new_row, numbers = new_row[wanted], numbers[wanted]
    if new_row.all():
        row_of, firsts = np.arange(len(keys)), keys
    else:
        row_of, firsts = np.cumsum(new_row) - 1, list(compress(keys, new_row.tolist()))
    bases = np.frombuffer(b"".join([key[base_at:pairs_at] for key in firsts]), ">u4").astype(np.int64)
    return _Rows(numbers[new_row], bases * 1000, row_of, firsts, keys, columns, values, at, page.ahead)


def _note(rows: _Rows, at: int, notes: list[Note], warnings: list[str]) -> None:
    try:
        note = decode_annotation(rows.values[at][rows.ahead :])
    except CorruptRow as exc:
        warnings.append(f"annotation in row {rows.keys[at].hex()}: {exc}")
    else:
        notes.append(Note(int(rows.series[rows.row_of[at]]), note))


def _by_loop(rows: _Rows, odd: NDArray[np.bool_], slow: NDArray[np.bool_]) -> list[_Piece]:
    """The points of all rows but those that are, or become, `slow`: in the compiled loop."""
    columns, values, row_of = rows.columns, rows.values, rows.row_of
    if odd.any():
        even = (~odd).tolist()
        columns, values, row_of = list(compress(columns, even)), list(compress(values, even)), row_of[~odd]
    read = compiled.read_cells(columns, values, len(COLUMN), rows.ahead, row_of, rows.bases_ms, slow)
    slow |= read.slow
    present = np.flatnonzero(read.counts)
    return [_Piece(present, read.counts[present], read.times, read.bits, read.floats)]


def _fast_pieces(rows: _Rows, cells: NDArray[np.intp], lengths: Int64, slow: NDArray[np.bool_]) -> list[_Piece]:
    """The points of all rows but those that are, or become, `slow`."""
    if slow.any():
        cells = cells[~slow[rows.row_of[cells]]]
    if not len(cells):
        return []
    in_ms = np.fromiter((rows.columns[at][len(COLUMN)] >= MS_MARK for at in cells.tolist()), np.bool_, len(cells))
    if not in_ms.any():
        return _pieces_of_width(rows, cells, lengths[cells], 2, slow)
    seconds = np.zeros(len(slow), np.bool_)
    seconds[rows.row_of[cells[~in_ms]]] = True
    slow[rows.row_of[cells[in_ms]]] |= seconds[rows.row_of[cells[in_ms]]]  # both widths in one row
    pieces = []
    for width, chosen in ((2, cells[~in_ms]), (4, cells[in_ms])):
        left = chosen[~slow[rows.row_of[chosen]]]
        if len(left):
            pieces += _pieces_of_width(rows, left, lengths[left], width, slow)
    return pieces


class _Cells(NamedTuple):
    """Cells of one width of qualifiers, taken apart as far as their qualifiers go."""

    offsets_ms: Int64  # of each point
    flags: NDArray[np.uint8]  # of each point
    counts: Int64  # of points, of each cell
    starts: Int64  # each cell's first point


def _pieces_of_width(
    rows: _Rows, cells: NDArray[np.intp], lengths: Int64, width: int, slow: NDArray[np.bool_]
) -> list[_Piece]:
    """Decode cells whose qualifiers should be of `width` bytes a point; rows that break a rule become slow."""
    while len(cells):
        picked = cells.tolist()
        values = [rows.values[at] for at in picked]
        sizes = np.fromiter(map(len, values), np.int64, len(values)) - rows.ahead
        taken = _take_apart([rows.columns[at] for at in picked], lengths, width)
        row_of = rows.row_of[cells]
        bad = _broken(taken, lengths, sizes, row_of, width)
        if not bad.any():
            bits, floats = _numbers(taken, values, rows.ahead)
            counts = np.bincount(row_of, taken.counts, len(rows.series)).astype(np.int64)
            present = np.flatnonzero(np.bincount(row_of, minlength=len(rows.series)))
            times = taken.offsets_ms + np.repeat(rows.bases_ms[row_of], taken.counts)
            return [_Piece(present, counts[present], times, bits, floats)]
        slow[row_of[bad]] = True
        left = ~slow[row_of]
        cells, lengths = cells[left], lengths[left]
    return []


def _take_apart(columns: list[bytes], lengths: Int64, width: int) -> _Cells:
    """Qualifiers, all at once: where every cell has the same, as series that are sent together do, it is read once."""
    skip = len(COLUMN)
    same = columns.count(columns[0]) == len(columns)
    joined = columns[0][skip:] if same else b"".join([column[skip:] for column in columns])
    counts = lengths // width
    words = np.frombuffer(joined[: len(joined) // width * width], ">u2" if width == 2 else ">u4")
    if width == 2:
        offsets = (words >> 4).astype(np.int64) * 1000
    else:
        offsets = ((words & 0x0FFFFFC0) >> 6).astype(np.int64)
        offsets[words < MS_MARK << 24] = -1  # a second's qualifier among them: found out of order
    flags = (words & _FLAGS).astype(np.uint8)
    if same:
        offsets, flags = np.tile(offsets, len(columns)), np.tile(flags, len(columns))
    return _Cells(offsets, flags, counts, np.cumsum(counts) - counts)


def _broken(cells: _Cells, lengths: Int64, sizes: Int64, row_of: NDArray[np.intp], width: int) -> NDArray[np.bool_]:
    """Which cells cannot be read by rote: their own bytes disagree, or the row's times do not ascend."""
    bad: NDArray[np.bool_] = lengths % width != 0
    if bad.any():
        return bad
    flags = cells.flags
    if len(flags) and flags[0] == flags[-1] and (flags == flags[0]).all():
        each = int(_SIZE_OF[flags[0]])
        wanted = cells.counts * each
        if not each:
            bad[:] = True
    else:
        each_size = _SIZE_OF[flags]
        wanted = np.add.reduceat(each_size, cells.starts)
        if not each_size.all():
            bad |= np.minimum.reduceat(each_size, cells.starts) == 0
    bad |= np.where(cells.counts > 1, (sizes < wanted) | (sizes > wanted + 1), sizes != wanted)
    falls = np.flatnonzero(cells.offsets_ms[1:] <= cells.offsets_ms[:-1]) + 1
    cell_of = np.searchsorted(cells.starts, falls, side="right") - 1
    follows = np.zeros(len(row_of), np.bool_)  # in its row, another cell
    follows[1:] = row_of[1:] == row_of[:-1]
    bad[cell_of[(falls != cells.starts[cell_of]) | follows[cell_of]]] = True
    limit = 3_600_000 if width == 2 else 1 << 22
    out = (cells.offsets_ms < 0) | (cells.offsets_ms >= limit)
    if out.any():
        bad[np.searchsorted(cells.starts, np.flatnonzero(out), side="right") - 1] = True
    return bad


def _numbers(cells: _Cells, values: list[bytes], ahead: int) -> tuple[Int64, NDArray[np.bool_]]:
    """Bits and types of all points, whose bytes are as their flags say."""
    flags = cells.flags
    first = int(flags[0])
    if (flags == first).all():
        each = (first & LENGTH) + 1
        ends = (cells.counts * each + ahead).tolist()
        joined = b"".join([value[ahead:end] for value, end in zip(values, ends, strict=True)])
        return _uniform(joined, first, each), np.full(len(flags), bool(first & FLOAT))
    return _mixed(cells, values, ahead), (flags & FLOAT).astype(np.bool_)


def _uniform(joined: bytes, flags: int, each: int) -> Int64:
    if flags == _SINGLE:
        return np.frombuffer(joined, ">f4").astype(np.float64).view(np.int64)
    return np.frombuffer(joined, f">i{each}").astype(np.int64)


def _mixed(cells: _Cells, values: list[bytes], ahead: int) -> Int64:
    """Values of different lengths: each is read as the 8 bytes that start with it, and shifted down."""
    joined = b"".join([*values, bytes(8)])
    lengths = np.fromiter(map(len, values), np.int64, len(values))
    value_at = np.cumsum(lengths) - lengths + ahead
    sizes = _SIZE_OF[cells.flags]
    places = np.cumsum(sizes) - sizes
    places += np.repeat(value_at - places[cells.starts], cells.counts)
    everywhere = np.ndarray((len(joined) - 7,), ">i8", joined, strides=(1,))
    bits: Int64 = everywhere[places].astype(np.int64)
    bits >>= (8 - sizes) * 8
    singles = cells.flags == _SINGLE
    if singles.any():
        bits[singles] = bits[singles].astype(np.int32).view(np.float32).astype(np.float64).view(np.int64)
    return bits


def _slow_piece(
    page: CellPage, rows: _Rows, chosen: NDArray[np.intp], warnings: list[str], plain: NDArray[np.bool_]
) -> tuple[_Piece, int]:
    """Rows one by one, each point by point; those that cannot be read have none. Where there is more to say of a row
    than its points, it is not `plain`."""
    starts = np.searchsorted(rows.row_of, chosen).tolist()
    ends = np.searchsorted(rows.row_of, chosen, side="right").tolist()
    times: list[int] = []
    bits: list[int] = []
    floats: list[bool] = []
    counts, duplicates = [], 0
    for row, start, end in zip(chosen.tolist(), starts, ends, strict=True):
        key = rows.keys[start]
        before = len(times)
        try:
            merged = merge(key, _stored(page, rows.at[start:end]), RULES)
            read = [(point.offset_ms, point.flags, point.value) for point in merged.points]
        except CorruptRow as exc:
            warnings.append(str(exc))
            plain[row] = False
        else:
            base_ms = int(rows.bases_ms[row])
            duplicates += merged.identical + merged.variant
            plain[row] &= not (merged.identical or merged.variant)
            for offset, flags, value in read:
                times.append(base_ms + offset)
                bits.append(_bits(flags, value))
                floats.append(bool(flags & FLOAT))
        counts.append(len(times) - before)
    piece = _Piece(
        chosen, np.array(counts, np.int64), np.array(times, np.int64), np.array(bits, np.int64), np.array(floats, bool)
    )
    return piece, duplicates


def _stored(page: CellPage, places: Iterable[int]) -> list[StoredCell]:
    cells = (page.cell(at) for at in places)
    return [StoredCell(column[len(COLUMN) :], value, time_ms) for column, value, time_ms in cells]


def _bits(flags: int, value: bytes) -> int:
    if flags == _SINGLE:
        return int(np.frombuffer(value, ">f4").astype(np.float64).view(np.int64)[0])
    return int.from_bytes(value, "big", signed=True)


def _together(rows: _Rows, pieces: list[_Piece]) -> Batch:
    """One batch of all pieces, its rows in the page's order; a row without points is among them."""
    counts = np.zeros(len(rows.series), np.int64)
    for piece in pieces:
        counts[piece.rows] = piece.counts
    starts = np.concatenate((np.zeros(1, np.int64), np.cumsum(counts)))
    if len(pieces) == 1:
        [one] = pieces
        return Batch(rows.series, starts, one.times, one.bits, one.floats)
    size = int(starts[-1])
    times, bits, floats = np.empty(size, np.int64), np.empty(size, np.int64), np.empty(size, np.bool_)
    for piece in pieces:
        within = np.arange(len(piece.times)) - np.repeat(np.cumsum(piece.counts) - piece.counts, piece.counts)
        places = within + np.repeat(starts[piece.rows], piece.counts)
        times[places], bits[places], floats[places] = piece.times, piece.bits, piece.floats
    return Batch(rows.series, starts, times, bits, floats)
