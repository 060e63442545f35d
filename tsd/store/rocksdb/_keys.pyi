from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from tsd.store import Put

def put_cells(
    put: Callable[[bytes, bytes], None],
    cells: Sequence[Put],
    stamp: bytes,
    short_bytes: int,
    longest_row: int,
    put_other: Callable[[Put], None],
) -> None: ...
def keys_of(places: Sequence[tuple[bytes, bytes]], short_bytes: int, others: list[int]) -> list[bytes]: ...
def find_digests(columns: list[bytes], since: int, size: int, mark: int) -> list[int]: ...
def slices(text: bytes, ends: NDArray[np.int32], first: int, last: int) -> list[bytes]: ...
