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
