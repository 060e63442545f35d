"""Values of Heroic's distribution points: t-digests in their small form (FORMATS.md in this folder)."""

import struct
from collections.abc import Sequence
from typing import NamedTuple

from tsd.errors import CorruptRow

SMALL = 2  # the form
_HEAD = struct.Struct(">iddfhhh")
_CENTROID = struct.Struct(">ff")


class Digest(NamedTuple):
    """A distribution of values."""

    least: float
    largest: float
    compression: float
    buffers: tuple[int, int]  # sizes in the program that wrote it
    centroids: Sequence[tuple[float, float]]  # how many values near each other, and their mean; by mean

    def encode(self) -> bytes:
        """Return the small form."""
        head = (self.least, self.largest, self.compression, *self.buffers, len(self.centroids))
        return _HEAD.pack(SMALL, *head) + b"".join(_CENTROID.pack(*one) for one in self.centroids)


def parse_digest(value: bytes) -> Digest:
    """Return a distribution. Raise CorruptRow."""
    if len(value) < _HEAD.size:
        raise CorruptRow(f"distribution: got {value.hex()}, wanted {_HEAD.size} bytes or more")
    form, least, largest, compression, *buffers, count = _HEAD.unpack_from(value)
    wanted = _HEAD.size + count * _CENTROID.size
    if form != SMALL or count < 0 or len(value) != wanted:
        raise CorruptRow(
            f"distribution: got {value.hex()} of form {form} and {len(value)} bytes, wanted form {SMALL} and {wanted}"
        )
    centroids = [(weight, mean) for weight, mean in _CENTROID.iter_unpack(value[_HEAD.size :])]
    return Digest(least, largest, compression, (buffers[0], buffers[1]), centroids)
