from collections.abc import Sequence

from tsd.store import Put

def record_rows(
    puts: Sequence[Put],
    at: int,
    buckets: object,
    salt: int,
    start: int,
    closed_s: int,
    whole: bool,
    room: int,
    last_s: int,
) -> tuple[int, int, int, int]: ...
