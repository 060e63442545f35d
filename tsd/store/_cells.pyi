import numpy as np
from numpy.typing import NDArray

def split_cells(
    part: list[tuple[bytes, bytes]], keys: list[bytes], columns: list[bytes], values: list[bytes]
) -> int: ...
def parse_rows(
    room: memoryview,
    at: int,
    have: int,
    wanted: int,
    keys: list[bytes],
    columns: list[bytes],
    values: list[bytes],
    times_ms: list[int],
) -> tuple[int, int, bool]: ...
def sign_cells(
    keys: list[bytes],
    columns: list[bytes],
    lengths: NDArray[np.int64],
    times_ms: list[int],
    width: int,
    secret_low: int,
    secret_high: int,
    groups: dict[bytes, tuple[int, int]],
) -> None: ...
def sign_rows(
    room: memoryview,
    at: int,
    have: int,
    wanted: int,
    width: int,
    secret_low: int,
    secret_high: int,
    before: bytes,
    groups: dict[bytes, tuple[int, int]],
) -> tuple[int, int, bool, bytes]: ...
