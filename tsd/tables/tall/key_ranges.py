"""Ranges of row keys: of each table the rows with the same tags."""

from collections.abc import Sequence
from typing import Final

from tsd.codec.tall.rules import TableRule
from tsd.errors import CorruptRow
from tsd.tables.key_ranges import RangeName

OTHER_BYTES: Final = 8  # of the prefix of a key in another form


class TallKeyRanges:
    """Ranges of the tables of the rules; those of other tables have no names."""

    def __init__(self, rules: Sequence[TableRule]) -> None:
        self._rules = {rule.table: rule for rule in rules}

    def split(self, table: str, key: bytes) -> Sequence[bytes]:
        """See KeyRanges."""
        if table in self._rules:
            try:
                return (self._rules[table].template.parse_key(key)[0],)
            except CorruptRow:
                pass  # readers report such rows
        return (key[:OTHER_BYTES],)

    async def names(self, places: Sequence[tuple[str, bytes]]) -> list[RangeName]:
        """See KeyRanges."""
        return [self._name(table, prefix) for table, prefix in places]

    def _name(self, table: str, prefix: bytes) -> RangeName:
        if table not in self._rules:
            return {}
        try:
            tags = self._rules[table].template.parse_prefix(prefix)
        except CorruptRow:
            return {}
        return {"tags": ",".join(f"{name}={value}" for name, value in tags.items())}
