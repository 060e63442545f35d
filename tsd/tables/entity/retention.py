"""Deletes expired points from the tables of entities, by the rules of tsd.retention.

The rules are those of the layout's points, and a point goes with the hour it is in. Times of cells are those of points,
so a delete up to a time needs no list of cells. Metadata stays: its times are later than any point.
"""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from functools import lru_cache
from typing import NamedTuple

from tsd.codec.entity.records import parse_series_column
from tsd.config.retention import RetentionRule, RetentionRules, expired_until_ms
from tsd.errors import CorruptRow
from tsd.store import VersionedCells
from tsd.store.versions import Wanted
from tsd.tables.entity.removal import PAGE_ROWS, STEP_COLUMNS, RowPart, measure, remove_part
from tsd.tables.entity.tables import ENTITIES, NEWEST
from tsd.tables.retention_task import Amount
from tsd.tables.stored_windows import TimeRange

CACHED = 10_000  # metrics


class ExpiredColumns(NamedTuple):
    """Columns of a row that have expired points."""

    rule: str  # as written
    part: RowPart

    @property
    def name(self) -> str:
        """What was deleted by which rule."""
        return f"{self.rule} in {self.part.table}"


class Expiry:
    """How long the points of each metric are kept."""

    def __init__(self, rules: RetentionRules, now_s: Callable[[], int]) -> None:
        self.ages_s = sorted({rule.keep_s for rule in rules.rules if rule.keep_s is not None})  # that rules name
        self._rules = rules
        self._now_s = now_s
        self.rule_of = lru_cache(CACHED)(self._rule_of)

    def until_ms(self, keep_s: int) -> int:
        """Return the end of the last hour whose points have expired, 0 if none has."""
        return expired_until_ms(keep_s, self._now_s())

    def _rule_of(self, metric: bytes) -> RetentionRule | None:
        """Return the rule for a metric, None if its points stay."""
        found = self._rules.find(metric.decode("latin-1"))
        return None if found is None or found.keep_s is None else found

    def kept_from_ms(self, metric: bytes) -> int:
        """Return the time before which the points of a metric have expired, 0 if none has."""
        rule = self.rule_of(metric)
        return 0 if rule is None or rule.keep_s is None else self.until_ms(rule.keep_s)

    def is_kept(self, metric: bytes, time_ms: int) -> bool:
        """Return whether a point has not expired."""
        if not self.ages_s or time_ms >= self.until_ms(self.ages_s[0]):
            return True
        return time_ms >= self.kept_from_ms(metric)


class EntityRetention:
    """Finds, counts and deletes expired points in the tables of entities. Calls raise StoreError."""

    def __init__(self, cells: VersionedCells, expiry: Expiry) -> None:
        self._cells = cells
        self._expiry = expiry

    async def remove(self, now_s: int) -> AsyncGenerator[tuple[str, Amount], None]:
        """Delete what has expired at `now_s`. Yield the rule and what each step deleted, so that the caller can pause
        between steps. The call may be repeated after an error."""
        async with aclosing(self.expired(now_s)) as found:
            async for expired in found:
                yield expired.name, await remove_part(self._cells, expired.part)

    async def count(self, now_s: int) -> AsyncGenerator[tuple[str, Amount], None]:
        """Yield the rule and what each step of `remove` would delete."""
        async with aclosing(self.expired(now_s)) as found:
            async for expired in found:
                yield expired.name, (await measure(self._cells, expired.part))[0]

    async def expired(self, now_s: int) -> AsyncGenerator[ExpiredColumns, None]:
        """Yield the columns that have expired points at `now_s`."""
        for keep_s in self._expiry.ages_s:
            if not (until_ms := expired_until_ms(keep_s, now_s)):
                continue
            for table in (ENTITIES.name, NEWEST.name):
                async with aclosing(self._expired_in(table, keep_s, until_ms)) as found:
                    async for expired in found:
                        yield expired

    async def _expired_in(self, table: str, keep_s: int, until_ms: int) -> AsyncGenerator[ExpiredColumns, None]:
        at: bytes | None = b""
        while at is not None:
            wanted = Wanted(until_ms=until_ms, versions=1)
            page = await self._cells.page_columns(table, at, None, limit=PAGE_ROWS, wanted=wanted)
            at = page.next_start
            columns: dict[tuple[str, bytes], list[bytes]] = {}
            for row, column in page.columns.places:
                rule = self._rule_of(column)
                if rule is not None and rule.keep_s == keep_s:
                    columns.setdefault((rule.text, row), []).append(column)
            for (text, row), of_row in columns.items():
                for start in range(0, len(of_row), STEP_COLUMNS):
                    some = of_row[start : start + STEP_COLUMNS]
                    yield ExpiredColumns(text, RowPart(table, row, some, TimeRange(0, until_ms)))

    def _rule_of(self, column: bytes) -> RetentionRule | None:
        try:
            return self._expiry.rule_of(parse_series_column(column).metric)
        except CorruptRow:  # `tsd entity NAME` reports it
            return None
