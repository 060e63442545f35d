"""Deletes expired points of rows of events and days, by the rules of tsd.retention.

An event goes with the hour it is in, a point in a row of a day with the day. Row keys of one prefix are in order of
time, so what has expired of it is found by two reads. The index keeps the series.
"""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import NamedTuple

from tsd.codec.tall.fields import COLUMN, parse_day_column, parse_field
from tsd.codec.tall.rules import TableRule
from tsd.codec.tall.template import RowTime
from tsd.codec.tall.times import DAY_MS
from tsd.config.retention import RetentionRule, RetentionRules, expired_until_ms
from tsd.errors import CorruptRow
from tsd.store import Row, scan
from tsd.tables.opentsdb.retention import Amount
from tsd.tables.tall.tables import TallTables

PAGE_ROWS = 200  # read and deleted at once
AFTER_TIMES = b":"  # follows the digits
WHOLE_S = 86_400  # between two rounds that read all that has expired; others read what has expired since


class ExpiredColumns(NamedTuple):
    """Columns of some rows whose points have expired."""

    rule: str  # as written
    table: TableRule
    columns: dict[bytes, list[bytes]]  # by row
    newest_ms: int  # when the last of them was written
    amount: Amount


class TallRetention:
    """Finds, counts and deletes expired points. Calls raise StoreError."""

    def __init__(self, tables: TallTables, rules: RetentionRules) -> None:
        self._tables = tables
        self._rules = rules
        self._ages_s = sorted({rule.keep_s for rule in rules.rules if rule.keep_s is not None})
        self._whole_s = self._done_s = 0  # when all was read last, and when something was

    async def remove(self, now_s: int) -> AsyncGenerator[tuple[str, Amount], None]:
        """Delete what has expired at `now_s`. Yield the rule and what each step deleted, so that the caller can pause
        between steps. The call may be repeated after an error.

        Where points of a row stay longer than others, each round would read them again. So all rounds but one a day
        read only what has expired since the last one, and late points of the day before.
        """
        is_whole = not 0 <= now_s - self._whole_s < WHOLE_S
        async with aclosing(self._expired(now_s, 0 if is_whole else self._done_s)) as found:
            async for expired in found:
                await self._tables.delete(expired.table, expired.columns, expired.newest_ms)
                yield expired.rule, expired.amount
        self._done_s = now_s
        if is_whole:
            self._whole_s = now_s

    async def count(self, now_s: int) -> AsyncGenerator[tuple[str, Amount], None]:
        """Yield the rule and what each step of `remove` would delete."""
        async with aclosing(self._expired(now_s, 0)) as found:
            async for expired in found:
                yield expired.rule, expired.amount

    async def _expired(self, now_s: int, done_s: int) -> AsyncGenerator[ExpiredColumns, None]:
        """Yield what has expired at `now_s` and, roughly, had not yet at `done_s`."""
        for keep_s in self._ages_s:
            until_ms = expired_until_ms(keep_s, now_s)
            first_ms = max(expired_until_ms(keep_s, done_s) - DAY_MS, 0)
            for table in self._tables.rules:
                reading = _TableReading(table, self._rule_reader(table), keep_s)
                async with aclosing(self._expired_rows(table, first_ms, until_ms)) as pages:
                    async for rows in pages:
                        for expired in reading.expired(rows):
                            yield expired

    async def _expired_rows(self, table: TableRule, first_ms: int, until_ms: int) -> AsyncGenerator[list[Row], None]:
        """Yield the rows whose points all are from one time to before another."""
        template, store = table.template, self._tables.store
        first, until = template.row_time(first_ms), template.row_time(until_ms)
        at: bytes | None = b""
        while at is not None:
            page = await store.page(table.table, at, None, limit=1)
            if not page.rows:
                at = page.next_start
                continue
            key = page.rows[0].key
            try:
                prefix, row_ms = template.parse_key(key)
            except CorruptRow:  # `tsd index build` tells of it
                at = key + b"\0"
                continue
            at = prefix + AFTER_TIMES
            if row_ms >= until:
                continue
            bounds = prefix + template.time_text(max(first, row_ms)), prefix + template.time_text(until)
            async with aclosing(scan(store, table.table, *bounds, limit=PAGE_ROWS)) as pages:
                async for rows in pages:
                    yield rows

    def _rule_reader(self, table: TableRule) -> Callable[[bytes], RetentionRule | None]:
        """Return a function that returns the rule for a field of a table, None if its points stay."""
        known: dict[bytes, RetentionRule | None] = {}

        def rule_of(field: bytes) -> RetentionRule | None:
            if field not in known:
                try:
                    known[field] = self._rules.find(table.metric_of(parse_field(field)[0]))
                except CorruptRow:  # it stays: `tsd scan` shows it
                    known[field] = None
            return known[field]

        return rule_of


class _TableReading(NamedTuple):
    """Finds columns of one table with one age."""

    table: TableRule
    rule_of: Callable[[bytes], RetentionRule | None]  # by field
    keep_s: int

    def expired(self, rows: list[Row]) -> list[ExpiredColumns]:
        """Return the expired columns of expired rows, by rule."""
        labels = {COLUMN + label for label in self.table.labels}
        is_day = self.table.template.time is RowTime.DAY
        found: dict[str, ExpiredColumns] = {}
        for row in rows:
            for cell in row.cells:
                if cell.column in labels:
                    continue
                try:
                    field = parse_day_column(cell.column)[0] if is_day else cell.column.removeprefix(COLUMN)
                except CorruptRow:
                    continue
                rule = self.rule_of(field)
                if rule is None or rule.keep_s != self.keep_s:
                    continue
                one = found.get(rule.text) or ExpiredColumns(rule.text, self.table, {}, 0, Amount())
                is_new = row.key not in one.columns
                one.columns.setdefault(row.key, []).append(cell.column)
                size = len(cell.column) + len(cell.value) + (len(row.key) if is_new else 0)
                amount = one.amount.plus(Amount(int(is_new), 1, size))
                found[rule.text] = one._replace(newest_ms=max(one.newest_ms, cell.time_ms), amount=amount)
        return list(found.values())
