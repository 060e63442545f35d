ChunkPart = tuple[int, bytes, bytes, bytes]

def chunk_part(start_ms: int, stored: bytes, since_ms: int, until_ms: int, most: int) -> ChunkPart | None: ...
def split_newest(
    entries: list[tuple[bytes, bytes]],
    prefix: bytes,
    row: bytes,
    most: int,
    latest_ms: int,
    places: list[tuple[bytes, bytes]],
) -> tuple[int, int, bytes, bytes, bytes | None, bytes, bytes, bytes] | None: ...
