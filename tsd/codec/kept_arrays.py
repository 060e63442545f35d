"""Arrays by the number of a series or slot, which grow and are kept as long as the daemon runs.

A large one gets a mapping of its own. In a heap it would lie between arrays that are soon freed, and keep their memory
from the kernel. Each growth would leave a gap. Its unused end would take memory, because malloc clears it.
"""

from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

_MAPPED_BYTES = 256 << 10  # of the smallest array with its own mapping
_T = TypeVar("_T", bound=np.generic)


def kept_zeros(size: int, dtype: type[_T]) -> NDArray[_T]:
    """Return an array of `size` zeros. Those of a large one use no memory until they are written."""
    length = size * np.dtype(dtype).itemsize
    if length < _MAPPED_BYTES:
        return np.zeros(size, dtype)
    return np.frombuffer(mmap(-1, length, flags=MAP_PRIVATE | MAP_ANONYMOUS), dtype)


def grown(array: NDArray[_T], size: int) -> NDArray[_T]:
    """Return the array if it has `size` elements or more; else a copy with zeros behind them. It has a quarter more
    elements than the array at least: a million series take 10 to 22 bytes each."""
    if size <= len(array):
        return array
    more = kept_zeros(max(size, len(array) + len(array) // 4), array.dtype.type)
    more[: len(array)] = array
    return more
