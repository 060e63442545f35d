"""Rows of blocks for tests."""

from collections.abc import Sequence

import numpy as np

from tsd.codec.blocks.block import Rows
from tsd.codec.opentsdb.cell import seconds_qualifier
from tsd.codec.packing.cell import CHECKSUM_BYTES, pack
from tsd.codec.text import encode_float, encode_integer

PLACE = b"tsdb\0\0\1"


def packed_cell(times_s: Sequence[int], values: Sequence[float]) -> bytes:
    """The packed cell of some points, without its checksum."""
    numbers = [encode_float(one) if isinstance(one, float) else encode_integer(one) for one in values]
    qualifier = b"".join(seconds_qualifier(at, flags) for at, (flags, _) in zip(times_s, numbers, strict=True))
    tail = b"\0" if len(values) > 1 else b""
    found = pack(qualifier, b"".join(value for _, value in numbers) + tail)
    assert found is not None
    return found[:-CHECKSUM_BYTES]


def rows_of(series: Sequence[tuple[Sequence[int], Sequence[float]]]) -> Rows:
    """Rows of series, given by their times in s and their values."""
    return Rows(
        [b"%06d" % number for number in range(len(series))],
        np.arange(len(series)) + 10**12,
        [packed_cell(times_s, values) for times_s, values in series],
    )
