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
    owners: NDArray[np.int32],
    owner: int,
) -> Buffers: ...
def widen(
    flags: NDArray[np.uint8],
    bits: NDArray[np.int64],
    wide: NDArray[np.int64],
    floats: NDArray[np.uint8],
) -> None: ...
def shorten(bits: NDArray[np.int64], floats: NDArray[np.uint8], flags: NDArray[np.uint8]) -> None: ...
