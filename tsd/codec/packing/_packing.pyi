import numpy as np
from numpy.typing import NDArray

def pack(qualifier: bytes, value: bytes) -> bytes | None: ...
def unpack(stored: bytes, ahead: int, prefix: bytes) -> tuple[bytes, bytes]: ...
def count_points(stored: list[bytes], since: int, ahead: int) -> int: ...
def unpack_points(
    stored: list[bytes],
    ahead: int,
    counts: NDArray[np.int64],
    times: NDArray[np.int64],
    bits: NDArray[np.int64],
    floats: NDArray[np.uint8],
) -> bool: ...
