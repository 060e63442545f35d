"""Deletes expired points of Heroic's table, by the rules of tsd.retention. A point goes with the hour it is in.

The index keeps the series. Distributions stay.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import NamedTuple

from tsd.codec.names import Kind
from tsd.config.retention import RetentionRules, expired_until_ms
from tsd.tables.heroic.index import SeriesList
from tsd.tables.heroic.reader import SERIES_AT_ONCE
from tsd.tables.heroic.slices import StoredRow, slices
from tsd.tables.heroic.tables import HeroicTables
from tsd.tables.retention_task import Amount

ALL = 1 << 62


class ExpiredRows(NamedTuple):
    """Expired points of some rows."""

    rule: str  # as written
    rows: list[StoredRow]

    @property
    def amount(self) -> Amount:
        """What they are."""
        points = sum(len(row.cells) for row in self.rows)
        return Amount(len(self.rows), points, sum(len(row.row) + row.size for row in self.rows))


class HeroicRetention:
    """Finds, counts and deletes expired points. Calls raise StoreError."""

    def __init__(self, tables: HeroicTables, index: SeriesList, rules: RetentionRules) -> None:
        self._tables = tables
        self._index = index
        self._rules = rules

    async def remove(self, now_s: int) -> AsyncGenerator[tuple[str, Amount], None]:
        """Delete what has expired at `now_s`. Yield the rule and what each step deleted, so that the caller can pause
        between steps. The call may be repeated after an error."""
        async with aclosing(self._expired(now_s)) as found:
            async for expired in found:
                newest_ms = max(cell.time_ms for row in expired.rows for cell in row.cells)
                await self._tables.delete({row.row: row.cells for row in expired.rows}, newest_ms)
                yield expired.rule, expired.amount

    async def count(self, now_s: int) -> AsyncGenerator[tuple[str, Amount], None]:
        """Yield the rule and what each step of `remove` would delete."""
        async with aclosing(self._expired(now_s)) as found:
            async for expired in found:
                yield expired.rule, expired.amount

    async def _expired(self, now_s: int) -> AsyncGenerator[ExpiredRows, None]:
        async with aclosing(self._index.name_list.each(Kind.METRIC, "", ALL)) as metrics:
            async for metric in metrics:
                rule = self._rules.find(metric)
                if rule is None or rule.keep_s is None:
                    continue
                until_ms = expired_until_ms(rule.keep_s, now_s)
                listed = [one for one in await self._index.series(metric) if one.first_ms < until_ms]
                for at in range(0, len(listed), SERIES_AT_ONCE):
                    group = [one._replace(last_ms=until_ms) for one in listed[at : at + SERIES_AT_ONCE]]
                    async with aclosing(slices(self._tables, group, 0, until_ms - 1)) as parts:
                        async for part in parts:
                            yield ExpiredRows(rule.text, [row for rows in part.values() for row in rows])
