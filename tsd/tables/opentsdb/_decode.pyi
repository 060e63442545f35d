import numpy as np
from numpy.typing import NDArray

def decode_cells(
    columns: list[bytes],
    values: list[bytes],
    skip: int,
    ahead: int,
    row_of: NDArray[np.int64],
    bases_ms: NDArray[np.int64],
    times: NDArray[np.int64],
    bits: NDArray[np.int64],
    floats: NDArray[np.uint8],
    counts: NDArray[np.int64],
    slow: NDArray[np.uint8],
) -> int: ...
def number_series(
    every: list[bytes],
    numbers: dict[bytes, int],
    known: list[bytes],
    names: bytes,
    tagk: int,
    width: int,
    found: NDArray[np.int32],
) -> list[bytes]: ...
def number_rows(
    keys: list[bytes],
    start: int,
    numbers: dict[bytes, int],
    known: list[bytes],
    names: bytes,
    tagk: int,
    width: int,
    found: NDArray[np.int32],
    bases_s: NDArray[np.int64],
    fresh: NDArray[np.uint8],
) -> list[bytes]: ...
