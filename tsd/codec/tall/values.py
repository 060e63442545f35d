"""Values of rows: a value is the text of a number (FORMATS.md in this folder)."""

import os
import re
from collections.abc import Sequence

import numpy as np

from tsd.codec.points import Bool, Int64
from tsd.errors import CorruptRow

try:
    from tsd.codec.tall import _values
except ImportError:  # no C compiler at installation
    HAS_LOOP = False
else:
    HAS_LOOP = not os.environ.get("TSD_PURE")  # to compare both

_INTEGER = re.compile(rb"-?[0-9]{1,20}")
_FLOAT = re.compile(rb"-?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?|nan|-?inf")
_LONGS = range(-(1 << 63), 1 << 63)


def number_texts(bits: Int64, floats: Bool) -> list[bytes]:
    """Return values as texts: whole numbers have digits only, others a point, an exponent or a name.

    >>> number_texts(np.array([42, np.float64(0.25).view(np.int64)]), np.array([False, True]))
    [b'42', b'0.25']
    """
    doubles = bits.view(np.float64)[floats].tolist()
    found = [b"%d" % number for number in bits.tolist()]
    for at, number in zip(np.flatnonzero(floats).tolist(), doubles, strict=True):
        found[at] = repr(number).encode()
    return found


def parse_numbers(values: Sequence[bytes], *, compiled: bool = HAS_LOOP) -> tuple[Int64, Bool]:
    """Return the bits of values, and which are doubles, see `Points`. Raise CorruptRow.

    >>> bits, floats = parse_numbers([b"42", b"600.58"])
    >>> bits[:1].tolist(), bits.view(np.float64)[1:].tolist(), floats.tolist()
    ([42], [600.58], [False, True])
    """
    bits = np.zeros(len(values), np.int64)
    floats = np.zeros(len(values), np.bool_)
    doubles = bits.view(np.float64)
    others: Sequence[int] = range(len(values))
    if compiled:
        others = _values.parse(list(values), bits, doubles, floats.view(np.uint8))
    for at in others:
        value = values[at]
        if _INTEGER.fullmatch(value) and (number := int(value)) in _LONGS:
            bits[at] = number
        elif _FLOAT.fullmatch(value):
            doubles[at] = float(value)
            floats[at] = True
        else:
            raise CorruptRow(f"value: got {value!r}, wanted the text of a number")
    return bits, floats
