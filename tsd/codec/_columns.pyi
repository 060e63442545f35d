from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Buffers = tuple[memoryview[int], memoryview[int], memoryview[int], memoryview[int]]

def order(series: NDArray[np.int32], numbers: int) -> memoryview[int]: ...
def pick(
    series: NDArray[np.int32],
    instants: NDArray[np.int64],
    flags: NDArray[np.uint8],
    bits: NDArray[np.int64],
    places: NDArray[np.int32],
) -> tuple[Buffers, bool]: ...
def choose(
    series: NDArray[np.int32],
    instants: NDArray[np.int64],
    flags: NDArray[np.uint8],
    bits: NDArray[np.int64],
    wanted: NDArray[np.uint8],
) -> Buffers: ...
def count(
    series: NDArray[np.int32],
    place_of: NDArray[np.int32],
    counts: NDArray[np.int64],
    present: NDArray[np.uint8],
) -> None: ...
def gather(
    parts: Sequence[tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.uint8], NDArray[np.int64]]],
    row_of: NDArray[np.int32],
    rows: int,
    first: int,
    stop: int,
) -> tuple[memoryview[int], memoryview[int], memoryview[int], memoryview[int], memoryview[int]] | None: ...
def merge_rows(
    starts: NDArray[np.int64],
    times: NDArray[np.int64],
    bits: NDArray[np.int64],
    floats: NDArray[np.uint8],
    added_starts: NDArray[np.int64],
    added_times: NDArray[np.int64],
    added_bits: NDArray[np.int64],
    added_floats: NDArray[np.uint8],
    added_of: NDArray[np.int64],
    to_starts: NDArray[np.int64],
) -> tuple[memoryview[int], memoryview[int], memoryview[int], bool]: ...
def place_rows(
    values: NDArray[np.int64], chosen: NDArray[np.uint8], counts: NDArray[np.int64], whole: NDArray[np.int64]
) -> None: ...
def widen(
    flags: NDArray[np.uint8],
    bits: NDArray[np.int64],
    wide: NDArray[np.int64],
    floats: NDArray[np.uint8],
) -> None: ...
def shorten(bits: NDArray[np.int64], floats: NDArray[np.uint8], flags: NDArray[np.uint8]) -> None: ...
