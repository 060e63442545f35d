from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from tsd.store import Put
from tsd.store.rocksdb.keys import CellIterator

def put_cells(
    put: Callable[[bytes, bytes], None],
    cells: Sequence[Put],
    stamp: bytes,
    short_bytes: int,
    long_bytes: int,
    longest_row: int,
    digest_of: Callable[[bytes], bytes],
    pack: Callable[[bytes, bytes], bytes | None],
    put_other: Callable[[Put], None],
) -> None: ...
def row_cells(
    at: CellIterator,
    row: bytes,
    most: int,
    is_after_row: bool,
    digest_bytes: int,
    mark: int,
    decode: Callable[[bytes, bytes], tuple[bytes, bytes]],
) -> tuple[list[bytes], list[tuple[bytes, bytes, int]], int] | None: ...
def keys_of(places: Sequence[tuple[bytes, bytes]], short_bytes: int, others: list[int]) -> list[bytes]: ...
def find_digests(columns: list[bytes], since: int, size: int, mark: int) -> list[int]: ...
def slices(text: bytes, ends: NDArray[np.int32], first: int, last: int) -> list[bytes]: ...
