import numpy as np
from numpy.typing import NDArray

from tsd.store import Put

def encode(
    series: NDArray[np.int32],
    instants: NDArray[np.int64],
    flags: NDArray[np.uint8],
    bits: NDArray[np.int64],
    keys: bytes,
    bounds: NDArray[np.int64],
    cell_points: int,
    column: bytes,
    put_type: type[Put],
) -> list[Put]: ...
