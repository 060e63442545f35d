"""Decodes pages of cells to batches of points: the hot path of every query.

The usual row is one joined cell, or a few that do not interleave: the compiled loop, or numpy, decodes all such rows of
a page together. All other rows (overlapping cells, append columns, duplicates, historic encodings) are decoded one by
one by `tsd.codec.opentsdb.merge`, which alone decides about duplicates. A row that cannot be read becomes a warning and
does not end the query.

`HAS_LOOP` says whether the compiled loop was built. Without it numpy reads the same points, slower.
"""

import os
from collections.abc import Iterable, Sequence
from itertools import compress
from operator import ne
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tsd.codec.opentsdb.annotation import ANNOTATION, decode_annotation
from tsd.codec.opentsdb.cell import APPEND, COLUMN, MS_MARK, READABLE
from tsd.codec.opentsdb.merge import MergeRules, StoredCell, merge
from tsd.codec.opentsdb.rowkey import BASE_BYTES
from tsd.codec.points import Batch, Bool, Int64, starts_of
from tsd.codec.text import FLOAT, LENGTH
from tsd.errors import CorruptRow
from tsd.store import CellPage
from tsd.tables.reading import UNWANTED, SeriesAnnotation, SeriesSet

try:
    from tsd.tables.opentsdb import _decode
except ImportError:  # no C compiler at installation
    HAS_LOOP = False
else:
    HAS_LOOP = not os.environ.get("TSD_PURE")  # to compare both


class Read(NamedTuple):
    """Points of simple rows, row by row."""

    times: Int64
    bits: Int64
    floats: Bool
    counts: Int64  # of points of each row
    slow: Bool  # rows that are not simple, without points here


class NumberedRows(NamedTuple):
    """The series of cells or rows of a page, by their keys."""

    numbers: NDArray[np.int32]  # of each key's series
    bases_s: Int64  # of each key; 0 for one that is too short
    fresh: Bool  # whether the key differs from the one before
    unnumbered: list[bytes]  # the tag pairs of keys without a number, which is negative then


class NumberedSeries(NamedTuple):
    """The numbers of some series."""

    numbers: NDArray[np.int32]
    unnumbered: list[bytes]  # series without a number, which is negative then


UNNUMBERED = -2


def number_series(series_pairs: list[bytes], series: SeriesSet, *, compiled: bool = HAS_LOOP) -> NumberedSeries:
    """Return the number of each series, given by its tag pairs. Where tag names tell which series match, those without
    a number get one."""
    known, numbers, required, widths = series.series_pairs, series.numbers, series.required_tagks, series.widths
    if compiled:
        found, width = np.empty(len(series_pairs), np.int32), widths.pair if required is not None else 0
        names = b"".join(required or ())
        unnumbered = _decode.number_series(series_pairs, numbers, known, names, widths.tagk, width, found)
        return NumberedSeries(found, unnumbered)
    for one in series_pairs if required is not None else ():
        if one and one not in numbers and not len(one) % widths.pair:
            own = {one[at : at + widths.tagk] for at in range(0, len(one), widths.pair)}
            numbers[one] = len(known) if own.issuperset(required or ()) else UNWANTED
            if numbers[one] != UNWANTED:
                known.append(one)
    found = np.fromiter([numbers.get(one, UNNUMBERED) for one in series_pairs], np.int32, len(series_pairs))
    return NumberedSeries(found, list(dict.fromkeys(one for one in series_pairs if one not in numbers)))


def number_rows(keys: list[bytes], pairs_start: int, series: SeriesSet, *, compiled: bool = HAS_LOOP) -> NumberedRows:
    """Return the number of each row's series, found by the tag pairs in its key. Where tag names tell which series
    match, those without a number get one."""
    known, numbers, required, widths = series.series_pairs, series.numbers, series.required_tagks, series.widths
    if compiled:
        count, names = len(keys), b"".join(required or ())
        found, bases_s, fresh = np.empty(count, np.int32), np.empty(count, np.int64), np.empty(count, np.uint8)
        width = widths.pair if required is not None else 0
        unnumbered = _decode.number_rows(
            keys, pairs_start, numbers, known, names, widths.tagk, width, found, bases_s, fresh
        )
        return NumberedRows(found, bases_s, fresh.view(np.bool_), unnumbered)
    found, unnumbered = number_series([key[pairs_start:] for key in keys], series, compiled=False)
    bases = [
        int.from_bytes(key[pairs_start - BASE_BYTES : pairs_start], "big") if len(key) >= pairs_start else 0
        for key in keys
    ]
    different = [True, *map(ne, keys[1:], keys)][: len(keys)]
    return NumberedRows(found, np.array(bases, np.int64), np.array(different, np.bool_), unnumbered)


def read_cells(
    columns: list[bytes], values: list[bytes], ahead: int, row_of: Int64, bases_ms: Int64, slow: Bool
) -> Read:
    """Decode cells, those of a row next to each other and in order of their columns.

    `row_of` is the row of each cell, `bases_ms` the base time of each row. A value starts after `ahead` bytes. Rows
    that are `slow` are skipped.
    """
    skip = len(COLUMN)
    room = (sum(map(len, columns)) - skip * len(columns)) // 2
    times, bits, floats = np.empty(room, np.int64), np.empty(room, np.int64), np.empty(room, np.uint8)
    counts, marked = np.zeros(len(bases_ms), np.int64), slow.astype(np.uint8)
    size = 0
    if columns:
        size = _decode.decode_cells(columns, values, skip, ahead, row_of, bases_ms, times, bits, floats, counts, marked)
    return Read(times[:size], bits[:size], floats[:size].view(np.bool_), counts, marked.view(np.bool_))


# Of several values for one time a query uses the newest, even if the configuration forbids compaction to drop the
# others. It counts the duplicates.
RULES = MergeRules(fix_duplicates=True)
WARNINGS = 100  # of one page
FEW_CELLS = 8  # of a page whose rows are looked at one by one

_FLAGS = FLOAT | LENGTH
_SIZE_OF = np.array([(flags & LENGTH) + 1 if flags in READABLE else 0 for flags in range(16)], np.int64)
_SINGLE = FLOAT | 3


class Decoded(NamedTuple):
    """The decoded rows of matching series in a page."""

    batch: Batch
    rows: int  # of matching series, also without points
    size: int  # bytes of their cells
    notes: list[SeriesAnnotation]
    warnings: list[str]
    duplicates: int  # points dropped in favour of newer ones of the same time
    keys: Sequence[bytes]  # of these rows
    row_of: NDArray[np.intp]  # index of the row of each cell
    plain: NDArray[np.bool_]  # of each row: it has only points, and no time twice
    bases_ms: Int64  # of each row


class _DecodedRows(NamedTuple):
    """Points of some of a page's rows, row by row."""

    rows: NDArray[np.intp]  # indexes of the rows, ascending
    counts: Int64  # of points of each
    times: Int64
    bits: Int64
    floats: NDArray[np.bool_]


class _Rows(NamedTuple):
    """The cells of matching series in a page."""

    series: NDArray[np.int32]  # of each row
    bases_ms: Int64  # of each row
    row_of: NDArray[np.intp]  # of each cell
    row_keys: Sequence[bytes]  # of each row
    keys: Sequence[bytes]  # of each cell
    columns: list[bytes]
    values: list[bytes]
    at: Sequence[int]  # index of each cell in the page
    ahead: int


def decode(page: CellPage, numbered: NumberedRows, *, with_notes: bool = True, compiled: bool = HAS_LOOP) -> Decoded:
    """Decode the rows of matching series. `numbered` has the series of each cell, a negative number if it does not
    match. `compiled`: decode simple rows in the compiled loop."""
    if compiled and len(page.keys) <= FEW_CELLS and (few := _decode_few(page, numbered)) is not None:
        return few
    rows = _matching_rows(page, numbered)
    warnings: list[str] = []
    notes: list[SeriesAnnotation] = []
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
    with np.errstate(invalid="ignore"):  # a signaling NaN is a value like others
        pieces = (
            _compiled_pieces(rows, odd, slow) if compiled else _numpy_pieces(rows, np.flatnonzero(~odd), lengths, slow)
        )
        if slow.any():
            piece, duplicates = _slow_piece(page, rows, np.flatnonzero(slow), warnings, plain)
            pieces.append(piece)
    batch, warnings = _join_pieces(rows, pieces), warnings[:WARNINGS]
    return Decoded(
        batch, len(rows.series), size, notes, warnings, duplicates, rows.row_keys, rows.row_of, plain, rows.bases_ms
    )


def _decode_few(page: CellPage, numbered: NumberedRows) -> Decoded | None:
    """Decode a page of few rows with one cell each, as queries for one series often read. None: some are not simple,
    or do not match."""
    keys, columns, values = page.keys, page.columns, page.values
    count, lengths = len(keys), [len(column) - len(COLUMN) for column in columns]
    if np.count_nonzero(numbered.fresh) < count or np.count_nonzero(numbered.numbers < 0):
        return None
    if any(length <= 0 or length & 1 for length in lengths):
        return None
    size = sum(lengths) + count * (len(COLUMN) - page.ahead) + sum(map(len, values))
    bases = numbered.bases_s * 1000
    row_of = np.arange(count)
    read = read_cells(columns, values, page.ahead, row_of, bases, np.zeros(count, np.bool_))
    if np.count_nonzero(read.slow):
        return None
    batch = Batch(numbered.numbers, starts_of(read.counts), read.times, read.bits, read.floats)
    return Decoded(batch, count, size, [], [], 0, keys, row_of, np.ones(count, np.bool_), bases)


def _matching_rows(page: CellPage, numbered: NumberedRows) -> _Rows:
    keys, numbers, bases_s, new_row = page.keys, numbered.numbers, numbered.bases_s, numbered.fresh
    columns, values = page.columns, page.values
    at: Sequence[int] = range(len(keys))
    wanted = numbers >= 0
    if not wanted.all():
        chosen = wanted.tolist()
        keys, columns, values = (list(compress(part, chosen)) for part in (keys, columns, values))
        at = np.flatnonzero(wanted).tolist()
        new_row, numbers, bases_s = new_row[wanted], numbers[wanted], bases_s[wanted]
    if new_row.all():
        row_of, firsts = np.arange(len(keys)), keys
    else:
        row_of, firsts = np.cumsum(new_row) - 1, list(compress(keys, new_row.tolist()))
    return _Rows(numbers[new_row], bases_s[new_row] * 1000, row_of, firsts, keys, columns, values, at, page.ahead)


def _note(rows: _Rows, at: int, notes: list[SeriesAnnotation], warnings: list[str]) -> None:
    try:
        note = decode_annotation(rows.values[at][rows.ahead :])
    except CorruptRow as exc:
        warnings.append(f"annotation in row {rows.keys[at].hex()}: {exc}")
    else:
        notes.append(SeriesAnnotation(int(rows.series[rows.row_of[at]]), note))


def _compiled_pieces(rows: _Rows, odd: NDArray[np.bool_], slow: NDArray[np.bool_]) -> list[_DecodedRows]:
    """Decode all rows except `slow` ones in the compiled loop; rows that are not simple become slow."""
    columns, values, row_of = rows.columns, rows.values, rows.row_of
    if odd.any():
        even = (~odd).tolist()
        columns, values, row_of = list(compress(columns, even)), list(compress(values, even)), row_of[~odd]
    read = read_cells(columns, values, rows.ahead, row_of, rows.bases_ms, slow)
    slow |= read.slow
    present = np.flatnonzero(read.counts)
    return [_DecodedRows(present, read.counts[present], read.times, read.bits, read.floats)]


def _numpy_pieces(rows: _Rows, cells: NDArray[np.intp], lengths: Int64, slow: NDArray[np.bool_]) -> list[_DecodedRows]:
    """Decode all rows except `slow` ones with numpy; rows that are not simple become slow."""
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
    """The qualifiers of cells of one qualifier width."""

    offsets_ms: Int64  # of each point
    flags: NDArray[np.uint8]  # of each point
    counts: Int64  # of points, of each cell
    starts: Int64  # each cell's first point


def _pieces_of_width(
    rows: _Rows, cells: NDArray[np.intp], lengths: Int64, width: int, slow: NDArray[np.bool_]
) -> list[_DecodedRows]:
    """Decode cells whose qualifiers have `width` bytes per point; rows that are not simple become slow."""
    while len(cells):
        picked = cells.tolist()
        values = [rows.values[at] for at in picked]
        sizes = np.fromiter(map(len, values), np.int64, len(values)) - rows.ahead
        split = _split_qualifiers([rows.columns[at] for at in picked], lengths, width)
        row_of = rows.row_of[cells]
        bad = _not_simple(split, lengths, sizes, row_of, width)
        if not bad.any():
            bits, floats = _numbers(split, values, rows.ahead), (split.flags & FLOAT).astype(np.bool_)
            counts = np.bincount(row_of, split.counts, len(rows.series)).astype(np.int64)
            present = np.flatnonzero(np.bincount(row_of, minlength=len(rows.series)))
            times = split.offsets_ms + np.repeat(rows.bases_ms[row_of], split.counts)
            return [_DecodedRows(present, counts[present], times, bits, floats)]
        slow[row_of[bad]] = True
        left = ~slow[row_of]
        cells, lengths = cells[left], lengths[left]
    return []


def _split_qualifiers(columns: list[bytes], lengths: Int64, width: int) -> _Cells:
    """Decode qualifiers together."""
    joined = b"".join([column[len(COLUMN) :] for column in columns])
    counts = lengths // width
    words = np.frombuffer(joined[: len(joined) // width * width], ">u2" if width == 2 else ">u4")
    if width == 2:
        offsets = (words >> 4).astype(np.int64) * 1000
    else:
        offsets = ((words & 0x0FFFFFC0) >> 6).astype(np.int64)
        offsets[words < MS_MARK << 24] = -1  # a qualifier of seconds among them fails the check for ascending times
    return _Cells(offsets, (words & _FLAGS).astype(np.uint8), counts, np.cumsum(counts) - counts)


def _not_simple(cells: _Cells, lengths: Int64, sizes: Int64, row_of: NDArray[np.intp], width: int) -> NDArray[np.bool_]:
    """Return which cells are not simple: their bytes are inconsistent, or times of the row do not ascend."""
    bad: NDArray[np.bool_] = lengths % width != 0
    if bad.any():
        return bad
    each = _SIZE_OF[cells.flags]
    wanted = np.add.reduceat(each, cells.starts)
    bad |= np.minimum.reduceat(each, cells.starts) == 0
    bad |= np.where(cells.counts > 1, (sizes < wanted) | (sizes > wanted + 1), sizes != wanted)
    falls = np.flatnonzero(cells.offsets_ms[1:] <= cells.offsets_ms[:-1]) + 1
    cell_of = np.searchsorted(cells.starts, falls, side="right") - 1
    follows = np.zeros(len(row_of), np.bool_)  # the previous cell is of the same row
    follows[1:] = row_of[1:] == row_of[:-1]
    bad[cell_of[(falls != cells.starts[cell_of]) | follows[cell_of]]] = True
    limit = 3_600_000 if width == 2 else 1 << 22
    out = (cells.offsets_ms < 0) | (cells.offsets_ms >= limit)
    if out.any():
        bad[np.searchsorted(cells.starts, np.flatnonzero(out), side="right") - 1] = True
    return bad


def _numbers(cells: _Cells, values: list[bytes], ahead: int) -> Int64:
    """Return the bits of all points of consistent cells: each value is read as 8 bytes and shifted down."""
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
) -> tuple[_DecodedRows, int]:
    """Decode rows one by one. A row that cannot be read has no points. A row with duplicates or errors is not
    `plain`."""
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
            merged = merge(key, _stored_cells(page, rows.at[start:end]), RULES)
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
    piece = _DecodedRows(
        chosen, np.array(counts, np.int64), np.array(times, np.int64), np.array(bits, np.int64), np.array(floats, bool)
    )
    return piece, duplicates


def _stored_cells(page: CellPage, places: Iterable[int]) -> list[StoredCell]:
    cells = (page.cell(at) for at in places)
    return [StoredCell(column[len(COLUMN) :], value, time_ms) for column, value, time_ms in cells]


def _bits(flags: int, value: bytes) -> int:
    if flags == _SINGLE:
        return int(np.frombuffer(value, ">f4").astype(np.float64).view(np.int64)[0])
    return int.from_bytes(value, "big", signed=True)


def _join_pieces(rows: _Rows, pieces: list[_DecodedRows]) -> Batch:
    """Join pieces to one batch, with rows in the page's order, also those without points."""
    counts = np.zeros(len(rows.series), np.int64)
    for piece in pieces:
        counts[piece.rows] = piece.counts
    starts = starts_of(counts)
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
