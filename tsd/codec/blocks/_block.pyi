import numpy as np
from numpy.typing import NDArray

def rows_of(columns: bytes, at: int, rows: int, width: int) -> bytes: ...
def ascends(rows: bytes, width: int) -> bool: ...
def ends_of(sizes: bytes, ends: NDArray[np.int32]) -> int: ...
def stored_cells(
    heads: bytes,
    ahead: int,
    rests: bytes,
    ends: NDArray[np.int32],
    stamps: NDArray[np.int64],
    rows: NDArray[np.int64],
) -> list[bytes]: ...
