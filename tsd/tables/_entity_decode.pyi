from collections.abc import Callable, Sequence

from tsd.codec.entity.records import EntitySeries
from tsd.codec.points import Int64

def decode_rows(
    places: Sequence[tuple[bytes, bytes]],
    bounds: Int64,
    times_ms: Int64,
    ends: Int64,
    values: bytes,
    series_of: Callable[[bytes], EntitySeries],
) -> list[tuple[bytes, dict[str, str], dict[EntitySeries, list[tuple[int, int | float]]]]] | None: ...
def numbers(ends: Int64, values: bytes) -> list[int | float] | None: ...
