"""Columns of numbers of many series: which form the values of a row take, and their bytes.

A row's values have one form. Decimal numbers are stored as integers: 21.37 as 2137 if no value of the row has more than
two decimals. Decoding returns every bit. The bytes of a column are made by pcodec, which gives the interpreter's lock
back while it works. A compiled loop chooses the forms; the Python code does the same with numpy.
"""

import os
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pcodec import ChunkConfig, DeltaSpec, ModeSpec, standalone

from tsd.codec.points import Bool, Float64, Int64, spread, starts_of
from tsd.errors import CorruptRow

try:
    from tsd.codec import _number_forms
except ImportError:  # installed without a C compiler
    HAS_LOOP = False
else:
    HAS_LOOP = not os.environ.get("TSD_PURE")  # TSD_PURE selects the Python code, to compare both

UInt8: TypeAlias = NDArray[np.uint8]

INTEGERS, DECIMALS, DOUBLES, MIXED = range(4)  # forms of values
MOST_DECIMALS = 6
_DECIMAL_BOUND = float(1 << 52)  # a larger decimal number is stored as a double
_POWERS = np.array([10.0**places for places in range(MOST_DECIMALS + 1)])
_SLICE_POINTS = 8192
_LEVEL = 6
_STEPS = ChunkConfig(_LEVEL, ModeSpec.classic(), DeltaSpec.try_consecutive(1))
_VALUES = ChunkConfig(_LEVEL, ModeSpec.classic(), DeltaSpec.no_op())
_CHOSEN = ChunkConfig(_LEVEL, ModeSpec.auto(), DeltaSpec.auto())


class Forms(NamedTuple):
    """The form of each row's values. Rows with equal entries are stored together."""

    form: UInt8
    decimals: UInt8
    steps: Bool  # differences of neighbours are smaller than the values
    numbers: Int64  # of each point: what is stored


def choose_forms(bits: Int64, floats: Bool, starts: Int64, *, compiled: bool = HAS_LOOP) -> Forms:
    """Return the form of each row. Every row has a point; `starts` has the index of each row's first point, then the
    number of points. `compiled` selects the compiled loop."""
    if compiled:
        rows = len(starts) - 1
        form, decimals, steps = np.empty(rows, np.uint8), np.empty(rows, np.uint8), np.empty(rows, np.bool_)
        numbers = np.empty(len(bits), np.int64)
        given = np.ascontiguousarray(bits), np.ascontiguousarray(floats).view(np.uint8), np.ascontiguousarray(starts)
        _number_forms.choose(*given, _POWERS, _DECIMAL_BOUND, form, decimals, steps.view(np.uint8), numbers)
        return Forms(form, decimals, steps, numbers)
    counts = np.diff(starts)
    parts = [
        _choose(bits[starts[at] : starts[to]], floats[starts[at] : starts[to]], starts[at : to + 1] - starts[at])
        for at, to in cuts(counts, _SLICE_POINTS)
    ]
    return parts[0] if len(parts) == 1 else Forms(*map(np.concatenate, zip(*parts, strict=True)))


def _choose(bits: Int64, floats: Bool, starts: Int64) -> Forms:
    """Return the form of each row, see `choose_forms`. All points fit in the processor's caches."""
    first, counts = starts[:-1], np.diff(starts)
    any_float = np.logical_or.reduceat(floats, first)
    all_float = np.logical_and.reduceat(floats, first)
    form = np.where(any_float, np.where(all_float, DOUBLES, MIXED), INTEGERS).astype(np.uint8)
    decimals = np.zeros(len(counts), np.uint8)
    numbers = bits.copy()
    left = form == DOUBLES
    with np.errstate(all="ignore"):
        for places in range(MOST_DECIMALS + 1):
            if not left.any():
                break
            _to_decimals(bits, first, counts, left, places, numbers, form, decimals)
    return Forms(form, decimals, _have_small_steps(numbers, starts), numbers)


def _to_decimals(
    bits: Int64, first: Int64, counts: Int64, left: Bool, places: int, numbers: Int64, form: UInt8, decimals: UInt8
) -> None:
    """Give the form DECIMALS to those rows of `left` whose values have at most `places` decimals."""
    rows = np.flatnonzero(left)
    part: slice | Int64 = slice(None) if len(rows) == len(left) else spread(first[rows], counts[rows])
    values = bits[part].view(np.float64)
    scaled = np.rint(values * 10.0**places)
    whole = np.where(np.abs(scaled) < _DECIMAL_BOUND, scaled, 0.0).astype(np.int64)
    exact = to_doubles(whole, places).view(np.int64) == bits[part]
    starts = starts_of(counts[rows])[:-1]
    fits = np.logical_and.reduceat(exact, starts)
    done = rows[fits]
    numbers[spread(first[done], counts[done])] = whole[np.repeat(fits, counts[rows])]
    form[done], decimals[done], left[done] = DECIMALS, places, False


def to_doubles(whole: Int64, places: int) -> Float64:
    """Return decimal numbers that were stored as integers."""
    return whole / 10.0**places


def _have_small_steps(numbers: Int64, starts: Int64) -> Bool:
    """Return for each row whether the differences of neighbours are smaller than the distances from its first value."""
    first, counts = starts[:-1], np.diff(starts)
    with np.errstate(over="ignore"):
        steps = np.abs(np.diff(numbers, prepend=numbers[:1]).astype(np.float64))
        distances = np.abs((numbers - np.repeat(numbers[first], counts)).astype(np.float64))
    steps[first] = 0.0
    smaller: Bool = np.add.reduceat(steps, first) <= 0.5 * np.add.reduceat(distances, first)
    return (counts > 1) & smaller


def encode_numbers(numbers: Int64, form: int, *, steps: bool) -> bytes:
    """Return the bytes of the numbers of one form."""
    if form == DOUBLES:
        return bytes(standalone.simple_compress(numbers.view(np.float64), _CHOSEN))
    return bytes(standalone.simple_compress(numbers, _STEPS if steps else _VALUES))


def decode_numbers(stored: bytes, form: int, decimals: int, bits: Int64) -> None:
    """Fill `bits` with the values of one form. Raise CorruptRow unless `stored` has exactly as many."""
    if form == DOUBLES:
        fill(stored, bits.view(np.float64))
    elif form == DECIMALS:
        whole = np.empty(len(bits), np.int64)
        fill(stored, whole)
        np.divide(whole, 10.0**decimals, out=bits.view(np.float64))
    else:
        fill(stored, bits)


def fill(stored: bytes, numbers: NDArray[np.int64] | Float64) -> None:
    """Decode a column into an array of its length. Raise CorruptRow if it does not fit."""
    try:
        done = standalone.simple_decompress_into(stored, numbers)
    except (RuntimeError, TypeError) as exc:
        raise CorruptRow(f"a column of a block cannot be decoded: {exc}") from exc
    if done.n_processed != len(numbers) or not done.finished:
        raise CorruptRow(f"got a column of {done.n_processed} numbers, wanted {len(numbers)}")


def cuts(counts: Int64, most: int) -> Iterator[tuple[int, int]]:
    """Cut rows, given by their numbers of points, into runs of about `most` points.

    >>> list(cuts(np.array([3, 3, 3, 3, 3]), 6))
    [(0, 2), (2, 4), (4, 5)]
    """
    run = (np.cumsum(counts) - counts) // most
    bounds = [0, *(np.flatnonzero(np.diff(run)) + 1).tolist(), len(counts)]
    yield from pairwise(bounds)
