"""The tables of the rules, and a table that lists the series."""

from collections.abc import Mapping, Sequence

from tsd.codec.tall.fields import COLUMN, FAMILY
from tsd.codec.tall.rules import TableRule
from tsd.codec.tall.template import RowTime
from tsd.codec.tall.times import DAY_BYTES, day_text
from tsd.store import Family, Store, Table, check_tables
from tsd.store.cassandra.keys import Prefixes

DELETE_CELLS = 10_000  # of one request
EVENT_PARTITION, DAY_PARTITION = 6, 4  # bytes of times that name a partition on Cassandra
INDEX_PARTITION = 8  # bytes of a row key of the index that name one


def tall_tables(rules: Sequence[TableRule], index: str) -> list[Table]:
    """Return the tables."""
    return [Table(name, (Family(FAMILY),)) for name in (*(rule.table for rule in rules), index)]


def partition_widths(rules: Sequence[TableRule], table: str) -> Prefixes:
    """Return the prefixes of row keys that name directories and partitions of a table on Cassandra. A partition has the
    rows of events of one prefix in 2.8 hours, or the days of a year. The hours are six of the 13 digits of a time in
    milliseconds.

    >>> from tsd.codec.tall.rules import parse_rules
    >>> partition_widths(parse_rules("SENSOR {meter:010}#{day} meter.kwh"), "SENSOR")
    Prefixes(directory=7, partition=15)
    >>> partition_widths(parse_rules("SENSOR {meter:010}#{day} meter.kwh"), "SENSOR_20140110")
    Prefixes(directory=7, partition=15)
    """
    found = [rule.template for rule in rules if table in (rule.table, f"{rule.table}{table[-DAY_BYTES - 1 :]}")]
    if not found:
        return Prefixes(0, INDEX_PARTITION)
    width = found[0].prefix_bytes
    return Prefixes(width * 2 // 3, width + (EVENT_PARTITION if found[0].time is RowTime.EVENT else DAY_PARTITION))


def copy_name(table: str, day_ms: int) -> str:
    """Return the name of the table with a copy of one day.

    >>> copy_name("SENSOR", 1389312000000)
    'SENSOR_20140110'
    """
    return f"{table}_{day_text(day_ms).decode()}"


class TallTables:
    """The tables in a store."""

    def __init__(self, store: Store, rules: Sequence[TableRule], index: str) -> None:
        self.store = store
        self.rules = rules
        self.index = index

    @property
    def names(self) -> list[str]:
        """All tables."""
        return [*(rule.table for rule in self.rules), self.index]

    async def check(self) -> None:
        """Raise StoreError unless all tables exist."""
        await check_tables(self.store, self.names)

    async def delete(self, rule: TableRule, cells: Mapping[bytes, Sequence[bytes]], up_to_ms: int | None) -> None:
        """Delete columns of rows that were written by a time; None: by now. A row that has only columns of tags then is
        deleted. Raise StoreError."""
        some: dict[bytes, list[bytes]] = {}
        count = 0
        for row, columns in cells.items():
            for at in range(0, len(columns), DELETE_CELLS):
                part = columns[at : at + DELETE_CELLS]
                if count + len(part) > DELETE_CELLS:
                    await self.store.delete(rule.table, some, up_to_ms=up_to_ms)
                    some, count = {}, 0
                some.setdefault(row, []).extend(part)
                count += len(part)
        if some:
            await self.store.delete(rule.table, some, up_to_ms=up_to_ms)
        labels = {COLUMN + label for label in rule.labels}
        if not labels:
            return
        for row, left in (await self.store.get(rule.table, list(cells))).items():
            if labels.issuperset(cell.column for cell in left):  # points that arrive now write these again, and later
                newest_ms = max(cell.time_ms for cell in left)
                await self.store.delete(rule.table, {row: list(labels)}, up_to_ms=newest_ms)
