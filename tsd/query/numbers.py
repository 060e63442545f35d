"""Numbers → their texts in OpenTSDB's JSON (query.md §13): integers as digits, doubles as Java prints them.

Java has a point in every double, and from 10^7 up and below 10^-3 an exponent: `42.0`, `1.0E12`, `2.5E-7`. The digits
are the fewest that tell the double, as those of newer Javas; older ones print some with one more, which read the same.
"""

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from tsd.query.points import Float64, Points

NAN = b'"NaN"'
NULL = b"null"
PLAIN_FROM = 1e-3
PLAIN_BELOW = 1e7
_POINTED_BELOW = 1e16  # msgspec's own limit: from here on it writes an exponent
_POINTED_FROM = 1e-5
_encode = msgspec.json.Encoder().encode


def number_texts(points: Points, nan: bytes = NAN) -> list[bytes]:
    """The JSON text of each value; `nan` is what stands for NaN.

    >>> number_texts(Points(np.arange(3), np.array([5, 0, 4607182418800017408]), np.array([False, True, True])))
    [b'5', b'0.0', b'1.0']
    """
    if points.floats.all():
        return double_texts(points.bits.view(np.float64), nan)
    integers = _encode(points.bits.tolist())[1:-1].split(b",") if len(points.bits) else []
    if not points.floats.any():
        return integers
    doubles = np.flatnonzero(points.floats)
    for at, text in zip(doubles.tolist(), double_texts(points.bits[doubles].view(np.float64), nan), strict=True):
        integers[at] = text
    return integers


def double_texts(values: Float64, nan: bytes = NAN) -> list[bytes]:
    """The JSON text of each double, none of which is infinite.

    >>> double_texts(np.array([42.0, 1e12, 12345678.5, 2.5e-7, 0.00012, -0.0, float("nan")]))
    [b'42.0', b'1.0E12', b'1.23456785E7', b'2.5E-7', b'1.2E-4', b'-0.0', b'"NaN"']
    """
    if not len(values):
        return []
    texts = _encode(values.tolist())[1:-1].split(b",")
    sizes = np.abs(values)
    plain = (sizes >= PLAIN_FROM) & (sizes < PLAIN_BELOW)
    if plain.all():
        return texts
    odd = np.flatnonzero(~plain & (sizes > 0))
    for at, text in zip(odd.tolist(), _with_exponents([texts[at] for at in odd.tolist()], sizes[odd]), strict=True):
        texts[at] = text
    for at in np.flatnonzero(np.isnan(values)).tolist():
        texts[at] = nan
    return texts


def _with_exponents(texts: Sequence[bytes], sizes: Float64) -> list[bytes]:
    """Texts of doubles out of the plain range, with Java's exponents."""
    if not texts:
        return []
    found = np.array(texts, object)
    pointed = (sizes >= _POINTED_FROM) & (sizes < _POINTED_BELOW)
    for at in np.flatnonzero(~pointed).tolist():
        found[at] = _java_exponent(texts[at])
    if pointed.any():
        cells = np.array([text.lstrip(b"-") for text in found[pointed].tolist()])
        moved = _moved(cells, np.char.find(cells, b"."), sizes[pointed] >= 1)
        signed = [b"-" + text if old[:1] == b"-" else text for old, text in zip(found[pointed], moved, strict=True)]
        found[pointed] = signed
    return list(found.tolist())


def _java_exponent(text: bytes) -> bytes:
    """`1e16` as `1.0E16`."""
    digits, _, exponent = text.partition(b"e")
    return digits + (b"E" if b"." in digits else b".0E") + exponent


def _moved(cells: NDArray[np.bytes_], points: NDArray[np.intp], large: NDArray[np.bool_]) -> list[bytes]:
    """Plain decimals, `12345678.5` and `0.00012`, with one digit before the point: all with the point, or the first
    digit, in the same place at a time."""
    width = cells.dtype.itemsize
    bytes_of = cells.view(np.uint8).reshape(len(cells), width)
    zeros = np.argmax((bytes_of != ord("0")) & (bytes_of != ord(".")), axis=1)  # before the first digit of a small one
    moved = np.empty(len(cells), object)
    exponents = np.where(large, points - 1, 1 - zeros)
    for exponent in np.unique(exponents).tolist():
        mine = np.flatnonzero(exponents == exponent)
        rows = bytes_of[mine]
        digits = np.zeros((len(mine), width + 1), np.uint8)
        if exponent > 0:
            digits[:, 0] = rows[:, 0]
            digits[:, 2 : exponent + 2] = rows[:, 1 : exponent + 1]
            digits[:, exponent + 2 : width] = rows[:, exponent + 2 :]
        else:
            first = 1 - exponent
            digits[:, 0] = rows[:, first]
            digits[:, 2 : width + 1 - first] = rows[:, first + 1 :]
        digits[:, 1] = ord(".")
        short = np.strings.rstrip(digits.view(f"S{width + 1}")[:, 0], b"0")
        short = np.where(np.strings.endswith(short, b"."), np.strings.add(short, b"0"), short)
        moved[mine] = np.strings.add(short, f"E{exponent}".encode())
    return list(moved.tolist())
