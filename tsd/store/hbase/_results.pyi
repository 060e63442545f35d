class ResultParser:
    def __init__(self, at: int) -> None: ...
    def parse(
        self,
        room: memoryview,
        have: int,
        wanted: int,
        rows: list[bytes | None],
        places: list[tuple[bytes, bytes]],
        counts: list[int],
        arrays: list[tuple[bytes, bytes, bytes]],
    ) -> tuple[int, int, bool]: ...
