"""Ranges of Heroic's row keys: a metric, and of these the rows of one combination of tags."""

from collections.abc import Sequence
from typing import Final

from tsd.codec.heroic.keys import metric_prefix, parse_head
from tsd.errors import CorruptRow
from tsd.tables.key_ranges import RangeName

OTHER_BYTES: Final = 8  # of the prefix of a key in another form


class HeroicKeyRanges:
    """Ranges of the table of points; those of other tables have no names."""

    def __init__(self, points: str) -> None:
        self._points = points

    def split(self, table: str, key: bytes) -> Sequence[bytes]:
        """See KeyRanges."""
        if table == self._points:
            try:
                metric, _, end = parse_head(key)
                return metric_prefix(metric), key[:end]
            except (CorruptRow, ValueError):
                pass  # readers report such rows
        return (key[:OTHER_BYTES],)

    async def names(self, places: Sequence[tuple[str, bytes]]) -> list[RangeName]:
        """See KeyRanges."""
        return [self._name(prefix) if table == self._points else {} for table, prefix in places]

    def _name(self, prefix: bytes) -> RangeName:
        try:
            metric, tags, _ = parse_head(prefix)
        except (CorruptRow, ValueError):
            return self._metric_name(prefix)
        return {"metric": metric, "tags": ",".join(f"{name}={value}" for name, value in tags)}

    def _metric_name(self, prefix: bytes) -> RangeName:
        """Return the name of the range of a metric: its prefix lacks the tags."""
        try:
            return {"metric": parse_head(prefix + b"\0")[0]}
        except (CorruptRow, ValueError):
            return {}
