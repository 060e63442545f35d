import numpy as np
from numpy.typing import NDArray

def pack(qualifier: bytes, value: bytes) -> bytes | None: ...
def unpack(stored: bytes, ahead: int, prefix: bytes) -> tuple[bytes, bytes]: ...
def count_points(stored: list[bytes], since: int, ahead: int) -> int: ...
def unpack_points(
    stored: list[bytes],
    ahead: int,
    bases_s: NDArray[np.int64],
    counts: NDArray[np.int64],
    times: NDArray[np.int64],
    bits: NDArray[np.int64],
    floats: NDArray[np.uint8],
) -> bool: ...
def unpack_table(
    stored: list[bytes],
    ahead: int,
    times: NDArray[np.int64],
    bits: NDArray[np.int64],
    floats: NDArray[np.uint8],
) -> bool: ...
def downsample_cells(
    stored: list[bytes],
    ahead: int,
    bases_s: NDArray[np.int64],
    interval_ms: int,
    function: int,
    points: NDArray[np.int64],
    lasts: NDArray[np.int64],
    bounds: NDArray[np.int64],
    stamps: NDArray[np.int64],
    counts: NDArray[np.int64],
    results: NDArray[np.float64],
) -> int: ...
def downsample_joined(
    text: bytes,
    ends: NDArray[np.int32],
    rows: NDArray[np.int64],
    base_s: int,
    interval_ms: int,
    function: int,
    lasts: NDArray[np.int64],
    bounds: NDArray[np.int64],
    stamps: NDArray[np.int64],
    counts: NDArray[np.int64],
    results: NDArray[np.float64],
) -> int: ...
def continue_buckets(
    lasts: NDArray[np.int64],
    bounds: NDArray[np.int64],
    stamps: NDArray[np.int64],
    counts: NDArray[np.int64],
    results: NDArray[np.float64],
    is_even: bool,
    starts: NDArray[np.int64],
    times: NDArray[np.int64],
    bits: NDArray[np.int64],
    floats: NDArray[np.uint8],
    added_of: NDArray[np.int64],
    interval_ms: int,
    function: int,
    to_points: NDArray[np.int64],
    to_lasts: NDArray[np.int64],
    to_bounds: NDArray[np.int64],
    to_stamps: NDArray[np.int64],
    to_counts: NDArray[np.int64],
    to_results: NDArray[np.float64],
) -> int: ...
def check_joined(text: bytes, ends: NDArray[np.int32], counts: NDArray[np.int32]) -> bool: ...
def unpack_joined(
    text: bytes,
    ends: NDArray[np.int32],
    rows: NDArray[np.int64],
    most: int,
    times: NDArray[np.int64],
    bits: NDArray[np.int64],
    floats: NDArray[np.uint8],
) -> bool: ...
def unpack_joined_table(
    text: bytes,
    ends: NDArray[np.int32],
    rows: NDArray[np.int64],
    times: NDArray[np.int64],
    bits: NDArray[np.int64],
    floats: NDArray[np.uint8],
) -> bool: ...
