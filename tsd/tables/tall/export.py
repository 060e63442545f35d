"""Copies of one day: the rows of a day of a table, in a table of that day, such as SENSOR_20140110.

Rows are read by their keys, from the prefixes that the index lists: a scan of the table would read every day, because
the day is at the end of row keys. A copy may be repeated, and then has what came late, was amended or deleted since.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import trio

from tsd.codec.names import Kind
from tsd.codec.tall.rules import TableRule, rule_of
from tsd.codec.tall.times import day_text, parse_day
from tsd.store import Put, Store, scan
from tsd.tables.checkpoint import Checkpoint
from tsd.tables.name_list import forget_oldest
from tsd.tables.tall.index import SeriesList
from tsd.tables.tall.tables import TallTables, copy_name, tall_tables

ROWS = 500  # of one request
MOST_METRICS = 1 << 30
MOST_COPIED = 1_000_000  # prefixes that are cached, so that a row of several metrics is copied once


@dataclass
class DayCopy:
    """What a copy found and did."""

    rows: int = 0
    cells: int = 0
    written: int = 0  # cells that were missing or different in the copy
    removed: int = 0  # cells that only the copy had


@runtime_checkable
class DropsTables(Protocol):
    """A store that can delete tables."""

    async def drop_tables(self, tables: Iterable[str]) -> None:
        """Delete these tables and their contents."""
        ...


async def copy_day(
    tables: TallTables,
    rule: TableRule,
    day_ms: int,
    checkpoint: Checkpoint,
    *,
    compression: str,
    pause_ratio: float = 0.0,
    on_rows: Callable[[int], None] = lambda _: None,
) -> DayCopy:
    """Copy the rows of a day, and return what was done since the start or since the checkpoint of an interrupted copy.

    After each request, sleep for `pause_ratio` times as long as it took. Raise StoreError.
    """
    target = copy_name(rule.table, day_ms)
    await tables.store.create_tables(tall_tables([], target), compression=compression)
    index, done = SeriesList(tables), DayCopy()
    copied: dict[bytes, None] = {}  # prefixes; the oldest first
    with checkpoint.lock():
        state = checkpoint.load() or {}
        after = str(state.get("metric", "")), bytes.fromhex(str(state.get("prefix", "")))
        start = rule.metrics.rstrip("*")
        for metric in await index.names(Kind.METRIC, start, MOST_METRICS):
            if rule_of(tables.rules, metric) != rule or metric.encode("latin-1") < after[0].encode("latin-1"):
                continue
            prefixes = index.prefixes(metric, after[1] if metric == after[0] else b"", ROWS)
            async with aclosing(prefixes) as parts:
                async for part in parts:
                    begun = trio.current_time()
                    new = [prefix for prefix in part if prefix not in copied]
                    if new:
                        rows = [prefix + day_text(day_ms) for prefix in new]
                        await _copy_rows(tables.store, rule, target, rows, done)
                    copied.update(dict.fromkeys(new))
                    forget_oldest(copied, MOST_COPIED)
                    checkpoint.save({"metric": metric, "prefix": part[-1].hex()})
                    on_rows(len(new))
                    await trio.sleep((trio.current_time() - begun) * pause_ratio)
        await tables.store.sync()
        checkpoint.clear()
    return done


async def _copy_rows(store: Store, rule: TableRule, target: str, keys: Sequence[bytes], done: DayCopy) -> None:
    """Copy rows, as far as the copy differs."""
    found, copied = await store.get(rule.table, keys), await store.get(target, keys)
    puts: list[Put] = []
    old: dict[bytes, list[bytes]] = {}
    for key in keys:
        values = {cell.column: cell.value for cell in found.get(key, ())}
        own: Mapping[bytes, bytes] = {cell.column: cell.value for cell in copied.get(key, ())}
        puts += [Put(key, column, value) for column, value in values.items() if own.get(column) != value]
        if gone := [column for column in own if column not in values]:
            old[key] = gone
        done.rows += bool(values)
        done.cells += len(values)
    if puts:
        await store.put(target, puts)
    if old:
        await store.delete(target, old, up_to_ms=None)
    done.written += len(puts)
    done.removed += sum(map(len, old.values()))


def expired_copies(existing: Iterable[str], rule: TableRule, first_ms: int) -> list[str]:
    """Return the copies of days before a day.

    >>> from tsd.codec.tall.rules import parse_rules
    >>> rule = parse_rules("SENSOR {meter:010}#{day} meter.kwh")[0]
    >>> expired_copies(["SENSOR", "SENSOR_20140109", "SENSOR_20140110", "SENSOR_2014"], rule, 1389312000000)
    ['SENSOR_20140109']
    """
    found = []
    for name in sorted(existing):
        table, _, day = name.rpartition("_")
        try:
            if table == rule.table and parse_day(day.encode()) < first_ms:
                found.append(name)
        except ValueError:
            continue
    return found


async def drop(store: Store, table: str) -> bool:
    """Delete a table, or all of its rows where the engine keeps its tables. Return whether there was anything. Raise
    StoreError."""
    if isinstance(store, DropsTables):
        await store.drop_tables([table])
        return True
    had_rows = False
    async with aclosing(scan(store, table)) as pages:
        async for page in pages:
            had_rows = True
            await store.delete(table, {row.key: [cell.column for cell in row.cells] for row in page}, up_to_ms=None)
    return had_rows
