from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

def downsample_rows(
    starts: NDArray[np.int64],
    times: NDArray[np.int64],
    bits: NDArray[np.int64],
    floats: NDArray[np.uint8],
    interval_ms: int,
    function: int,
    bounds: NDArray[np.int64],
    stamps: NDArray[np.int64],
    counts: NDArray[np.int64],
    results: NDArray[np.float64],
) -> bool: ...
def add_rows(
    function: int,
    bits: NDArray[np.int64],
    floats: NDArray[np.uint8],
    groups: NDArray[np.int64],
    doubles: NDArray[np.float64],
    integers: NDArray[np.int64],
    kinds: NDArray[np.uint8],
) -> bool: ...
def write_points(
    times: NDArray[np.int64],
    bits: NDArray[np.int64],
    floats: NDArray[np.uint8],
    divisor: int,
    last_only: bool,
    before: bytes,
    between: bytes,
    others_of: Callable[[list[int]], list[bytes]],
) -> bytes: ...
def write_only(
    all_times: NDArray[np.int64],
    all_bits: NDArray[np.int64],
    all_floats: NDArray[np.bool_],
    first_ms: int,
    last_ms: int,
    least_ms: int,
    most_ms: int,
    is_sum: bool,
    divisor: int,
    last_only: bool,
    head: bytes,
    before: bytes,
    skipped: int,
    between: bytes,
    tail: bytes,
    empty: bytes,
    others_of: Callable[[list[int]], list[bytes]],
) -> bytes | None: ...
def same_tags(
    series_pairs: list[bytes],
    members: NDArray[np.int64],
    bounds: NDArray[np.int64],
    width: int,
    tagk: int,
    values: NDArray[np.uint8],
) -> bool: ...
def values_as_numbers(
    series_pairs: list[bytes], places: NDArray[np.int64], size: int, found: NDArray[np.uint64]
) -> None: ...
def are_own_sums(bits: NDArray[np.int64], floats: NDArray[np.uint8]) -> bool: ...
