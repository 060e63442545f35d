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
