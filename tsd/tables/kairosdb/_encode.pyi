from tsd.codec.points import Int64, UInt8, UInt32

def first_rows(joined: bytes, bounds: Int64) -> bytearray | None: ...
def encode_rows(
    joined: bytes,
    bounds: Int64,
    numbers: Int64,
    row_times: Int64,
    columns: UInt32,
    floats: UInt8,
    bits: Int64,
    stamps: Int64,
    known: dict[bytes, dict[bytes, float]],
    now_s: float,
    most_ttl_s: int,
    limits: tuple[int, int, int],
) -> tuple[list[tuple[list[bytes], bytes | None]], dict[bytes, dict[bytes, int]], set[bytes]]: ...
