import numpy as np
from numpy.typing import NDArray

def record(
    instants: NDArray[np.int64],
    flags: NDArray[np.uint8],
    bits: NDArray[np.int64],
    ends: NDArray[np.int64],
    numbers: NDArray[np.int32],
    generations: NDArray[np.int64],
    known: NDArray[np.int64],
    slots: NDArray[np.int32],
    times_ms: NDArray[np.int64],
    values: NDArray[np.int64],
    floats: NDArray[np.uint8],
    held: NDArray[np.uint8],
    is_held: bool,
) -> list[int]: ...
