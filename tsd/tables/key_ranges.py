"""Ranges of row keys as a table layout divides them: what `tsd hot` counts, and how it shows them."""

from collections.abc import Mapping, Sequence
from typing import Protocol

RangeName = Mapping[str, str | int]  # what all rows of a range share: of metric, tags, salt and time


class KeyRanges(Protocol):
    """How the row keys of a layout's tables are divided into ranges."""

    def split(self, table: str, key: bytes) -> Sequence[bytes]:
        """Return the prefixes of a row key whose ranges are counted, shorter ones first. Raise nothing."""
        ...

    async def names(self, places: Sequence[tuple[str, bytes]]) -> list[RangeName]:
        """Return what the rows of each range share: table and prefix. It is empty if the prefix has no names. Raise
        StoreError."""
        ...
