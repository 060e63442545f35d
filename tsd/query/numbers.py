"""Numbers → their texts in OpenTSDB's JSON (query.md §13): integers as digits, doubles as Java prints them.

Java has a point in every double, and from 10^7 up and below 10^-3 an exponent: `42.0`, `1.0E12`, `2.5E-7`. The digits
are the fewest that tell the double, as those of newer Javas; older ones print some with one more, which read the same.
"""

import msgspec
import numpy as np

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
    odd = ~plain & (sizes > 0)
    if odd.all():
        return _with_exponents(texts, values)
    where = np.flatnonzero(odd).tolist()
    for at, text in zip(where, _with_exponents([texts[at] for at in where], values[odd]), strict=True):
        texts[at] = text
    for at in np.flatnonzero(np.isnan(values)).tolist():
        texts[at] = nan
    return texts


def _with_exponents(texts: list[bytes], values: Float64) -> list[bytes]:
    """Texts of doubles out of the plain range, with Java's exponents."""
    sizes = np.abs(values)
    pointed = (sizes >= _POINTED_FROM) & (sizes < _POINTED_BELOW)
    if pointed.all():
        return _moved(texts, values) if texts else []
    where = np.flatnonzero(pointed).tolist()
    moved = dict(zip(where, _with_exponents([texts[at] for at in where], values[pointed]), strict=True))
    return [moved[at] if at in moved else _java_exponent(text) for at, text in enumerate(texts)]


def _java_exponent(text: bytes) -> bytes:
    """`1e16` as `1.0E16`."""
    digits, _, exponent = text.partition(b"e")
    return digits + (b"E" if b"." in digits else b".0E") + exponent


def _moved(texts: list[bytes], values: Float64) -> list[bytes]:
    """Plain decimals, `12345678.5` and `0.00012`, with one digit before the point: all whose first digit is in the same
    place at a time."""
    cells = np.array(texts)
    negative = values < 0
    if negative.any():
        cells = np.strings.lstrip(cells, b"-")
    width = cells.dtype.itemsize
    bytes_of = cells.view(np.uint8).reshape(len(cells), width)
    zeros = np.argmax((bytes_of != ord("0")) & (bytes_of != ord(".")), axis=1)  # before the first digit of a small one
    exponents = np.where(np.abs(values) >= 1, np.strings.find(cells, b".") - 1, 1 - zeros)
    moved = np.empty(len(cells), f"S{width + 5}")
    for exponent in np.unique(exponents).tolist():
        mine = exponents == exponent
        rows = bytes_of[mine]
        digits = np.zeros((len(rows), width + 1), np.uint8)
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
    if negative.any():
        moved = np.where(negative, np.strings.add(b"-", moved), moved)
    shown: list[bytes] = moved.tolist()
    return shown
