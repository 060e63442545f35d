import numpy as np
from numpy.typing import NDArray

def parse(
    values: list[bytes], bits: NDArray[np.int64], doubles: NDArray[np.float64], floats: NDArray[np.uint8]
) -> list[int]: ...
