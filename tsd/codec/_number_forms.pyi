import numpy as np
from numpy.typing import NDArray

def choose(
    bits: NDArray[np.int64],
    floats: NDArray[np.uint8],
    starts: NDArray[np.int64],
    powers: NDArray[np.float64],
    bound: float,
    form: NDArray[np.uint8],
    decimals: NDArray[np.uint8],
    steps: NDArray[np.uint8],
    numbers: NDArray[np.int64],
) -> None: ...
