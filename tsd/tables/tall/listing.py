"""Lists the series of stored rows again, for an index that is lost."""

from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing

from tsd.codec.tall.fields import COLUMN, parse_day_column
from tsd.codec.tall.rules import Place, TableRule
from tsd.codec.tall.template import RowTime
from tsd.errors import CorruptRow
from tsd.store import Row, Store, scan
from tsd.tables.tall.index import SeriesList
from tsd.tables.tall.series import Placing
from tsd.tables.tall.tables import TallTables
from tsd.tables.writing import SeriesKey


async def list_rows(
    store: Store, rules: Sequence[TableRule], index: str, wrong: list[str]
) -> AsyncGenerator[int, None]:
    """List the series of all rows, and yield how many rows have been read since. Add what cannot be read to `wrong`.
    Raise StoreError."""
    tables = TallTables(store, rules, index)
    await tables.check()
    listing, placing = SeriesList(tables), Placing(rules)
    for rule in rules:
        async with aclosing(scan(store, rule.table)) as pages:
            async for page in pages:
                await listing.ensure(_series_of(page, rule, placing, wrong), placing.listed)
                yield len(page)


def _series_of(rows: Sequence[Row], rule: TableRule, placing: Placing, wrong: list[str]) -> dict[SeriesKey, None]:
    """Return the keys of the series of rows, in order. Add what cannot be read to `wrong`."""
    keys: dict[SeriesKey, None] = {}
    for row in rows:
        try:
            for place in _places(rule, row):
                key = placing.key_at(rule, place)
                placing.names_of(key)  # raises CorruptRow
                keys[key] = None
        except CorruptRow as exc:
            wrong.append(f"table {rule.table}: {exc}")
    return keys


def _places(rule: TableRule, row: Row) -> Iterator[Place]:
    """Yield the places of the series of a row. Raise CorruptRow."""
    prefix, _ = rule.template.parse_key(row.key)
    labels = rule.labels
    for cell in row.cells:
        name = cell.column.removeprefix(COLUMN)
        if name not in labels:
            yield Place(prefix, name if rule.template.time is RowTime.EVENT else parse_day_column(cell.column)[0])
