"""Deletes expired points of rows of events and days, by the rules of tsd.retention.

An event goes with the hour it is in, a point in a row of a day with the day. Row keys of one prefix are in order of
time, so what has expired of it is mostly found by one read. The index keeps the series; its metrics tell which ages the
points of a table have.
"""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import NamedTuple

from tsd.codec.names import Kind
from tsd.codec.tall.fields import COLUMN, parse_day_column, parse_field
from tsd.codec.tall.rules import TableRule, rule_of
from tsd.codec.tall.template import RowTime
from tsd.codec.tall.times import DAY_MS
from tsd.config.retention import RetentionRule, RetentionRules, expired_until_ms
from tsd.errors import CorruptRow
from tsd.store import Row, scan
from tsd.tables.retention_task import Amount
from tsd.tables.tall.index import SeriesList
from tsd.tables.tall.tables import TallTables

PAGE_ROWS = 200  # read and deleted at once
AFTER_TIMES = b":"  # follows the digits
ALL = 1 << 62
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
        self._metrics = SeriesList(tables).name_list
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
        for table, ages_s in (await self._ages()).items():
            for keep_s in sorted(ages_s):
                until_ms = expired_until_ms(keep_s, now_s)
                first_ms = max(expired_until_ms(keep_s, done_s) - DAY_MS, 0)
                reading = _TableReading(table, self._rule_reader(table), keep_s)
                async with aclosing(self._expired_rows(table, first_ms, until_ms)) as pages:
                    async for rows in pages:
                        for expired in reading.expired(rows):
                            yield expired

    async def _ages(self) -> dict[TableRule, set[int]]:
        """Return how long points of each table are kept, without tables whose points all stay."""
        found: dict[TableRule, set[int]] = {}
        async with aclosing(self._metrics.each(Kind.METRIC, "", ALL)) as metrics:
            async for metric in metrics:
                rule, table = self._rules.find(metric), rule_of(self._tables.rules, metric)
                if table is not None and rule is not None and rule.keep_s is not None:
                    found.setdefault(table, set()).add(rule.keep_s)
        return found

    async def _expired_rows(self, table: TableRule, first_ms: int, until_ms: int) -> AsyncGenerator[list[Row], None]:
        """Yield the rows whose points all are from one time to before another."""
        template, store = table.template, self._tables.store
        first, until = template.row_time(first_ms), template.row_time(until_ms)
        at: bytes | None = b""
        expected = 0  # rows of the next prefix, as of the last one
        while at is not None:
            page = await store.page(table.table, at, None, limit=expected + 1)
            if not page.rows:
                at = page.next_start
                continue
            key = page.rows[0].key
            try:
                prefix, row_ms = template.parse_key(key)
            except CorruptRow:  # `tsd index build` reports it
                at = key + b"\0"
                continue
            at, end = prefix + AFTER_TIMES, prefix + template.time_text(until)
            expected = 0
            if row_ms >= until:
                continue
            rest: bytes | None = prefix + template.time_text(max(first, row_ms))
            rows = [row for row in page.rows if row.key < end]
            has_all = len(rows) < len(page.rows) or page.next_start is None
            if row_ms >= first and (has_all or len(rows) > 1):  # a single row comes with the others once more
                expected = min(len(rows), PAGE_ROWS)
                rest = None if has_all else page.next_start
                yield rows
            if rest is not None and rest < end:
                async with aclosing(scan(store, table.table, rest, end, limit=PAGE_ROWS)) as pages:
                    async for rows in pages:
                        expected = min(expected + len(rows), PAGE_ROWS)
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
