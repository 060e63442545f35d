from collections.abc import Sequence

from tsd.store.cells import Put

def find_each(body: bytes, count: int) -> tuple[bytearray, bytearray, int]: ...
def take_cells(
    body: bytes,
    count: int,
    partition: bytes,
    keys: list[bytes],
    columns: list[bytes],
    values: list[bytes],
    times_ms: list[int],
) -> int: ...
def batches_of(
    cells: Sequence[Put],
    families: tuple[bytes, ...],
    width: int,
    longest: int,
    stamp: bytes,
    most_cells: int,
    most_bytes: int,
) -> dict[bytes, list[list[bytes]]] | None: ...
