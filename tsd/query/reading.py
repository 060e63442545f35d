"""The rows of a plan, page by page: scans, several side by side where the engine is another process, or the very rows
where few are wanted. The next page is read while one is worked on."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from itertools import islice
from typing import NamedTuple

import trio

from tsd.codec.rowkey import LAST_BASE, Layout, after, base_bytes, row_key, salts
from tsd.codec.sieve import row_pattern
from tsd.codec.times import HOUR_S
from tsd.errors import TsdError
from tsd.query.plan import Plan
from tsd.query.ranges import ScanRange
from tsd.store import Row, Store
from tsd.store.cells import CellPage, cell_pages, cells_of_rows

MOST_SIFTED = 50  # literals of one tag name that a server is to look for in every key
SIFTED_H = 2  # of one scan, where a server sifts: it may find nothing for long, and must answer in time
MOST_PARTS = 500  # of a scan that is sifted: each is a call, found or not, and a range may be of decades
GET_ROWS = 400  # asked for with one call
Take = Callable[[CellPage], Awaitable[None]]


class KeyRange(NamedTuple):
    """Rows from `start` to before `stop` (None: to the table's end)."""

    start: bytes
    stop: bytes | None


def key_ranges(layout: Layout, plan: Plan, parts: int = 1) -> list[KeyRange]:
    """What to scan for a plan: for each salt its hours, cut into so many parts, in order of time."""
    if plan.metric is None or plan.impossible:
        return []
    found = []
    for salt in salts(layout):
        prefix = salt + plan.metric
        bounds = [prefix + base_bytes(base) for base in _cut(plan.scan, parts)]
        stop: bytes | None = prefix + base_bytes(plan.scan.stop_s)
        if plan.fuzzy or plan.scan.stop_s > LAST_BASE:  # with the hour that begins where the range ends (§6.4)
            stop = after(prefix + base_bytes(plan.scan.stop_s))
        found += [KeyRange(start, end) for start, end in zip(bounds, [*bounds[1:], stop], strict=True)]
    return found


def scan_parts(layout: Layout, plan: Plan, scans: int, sieve: str) -> int:
    """Into how many parts a plan's hours are cut, for `scans` side by side; salts are scanned side by side anyway."""
    parts = 1 if layout.salt_width else scans
    return max(parts, min(hours(plan) // SIFTED_H, MOST_PARTS)) if sieve else parts


def sieve_of(plan: Plan) -> str:
    """What the plan's literals say of its rows' keys, for a server to sift them; empty where that is little."""
    named = [one for one in plan.conditions if one.literals and len(one.literals) <= MOST_SIFTED]
    return row_pattern([[one.tagk + value for value in sorted(one.literals or ())] for one in named])


def hours(plan: Plan) -> int:
    """How many rows a series of the plan may have."""
    return (plan.scan.stop_s - plan.scan.start_s) // HOUR_S + plan.fuzzy


def _cut(scan: ScanRange, parts: int) -> list[int]:
    """Where parts of a scan begin."""
    hours = max((scan.stop_s - scan.start_s) // HOUR_S, 1)
    each = -(-hours // parts) * HOUR_S
    return list(range(scan.start_s, max(scan.stop_s, scan.start_s + 1), each))


def row_keys(layout: Layout, plan: Plan, pairs: Iterable[bytes]) -> list[bytes]:
    """The keys of all rows that some series may have in a plan's hours, in order."""
    if plan.metric is None or plan.impossible:
        return []
    stop_s = min(plan.scan.stop_s + plan.fuzzy, LAST_BASE + 1)
    metric, bases = plan.metric, range(plan.scan.start_s, stop_s, HOUR_S)
    return sorted(row_key(layout, metric, base, joined) for joined in pairs for base in bases)


async def read_rows(store: Store, table: str, keys: Sequence[bytes], take: Take) -> None:
    """Give `take` the rows that exist of those. Raises StoreError and whatever `take` raises."""
    left = iter(keys)
    while part := list(islice(left, GET_ROWS)):
        rows = await store.get(table, part)
        await take(cells_of_rows(Row(key, rows[key]) for key in part if key in rows))


async def read_ranges(
    store: Store, table: str, ranges: Sequence[KeyRange], take: Take, *, at_once: int, sieve: str = ""
) -> None:
    """Give `take` all pages of the ranges, in order, perhaps without rows that do not pass `sieve`; up to `at_once`
    ranges are read side by side, each a page ahead. Raises StoreError and whatever TsdError `take` raises."""
    errors: list[TsdError] = []
    async with trio.open_nursery() as nursery:
        queue, channels = trio.open_memory_channel[trio.MemoryReceiveChannel[CellPage]](max(at_once - 1, 0))
        nursery.start_soon(_start_readers, store, table, ranges, sieve, queue, nursery, errors)
        try:
            async for pages in channels:
                async for page in pages:
                    await take(page)
        except TsdError as exc:
            errors.append(exc)
            nursery.cancel_scope.cancel()
    if errors:
        try:
            raise errors[0]
        finally:
            errors.clear()  # or the error and this frame would hold each other


async def _start_readers(
    store: Store,
    table: str,
    ranges: Sequence[KeyRange],
    sieve: str,
    queue: trio.MemorySendChannel[trio.MemoryReceiveChannel[CellPage]],
    nursery: trio.Nursery,
    errors: list[TsdError],
) -> None:
    """Start the reader of each range when there is room for its channel among those that wait to be taken."""
    async with queue:
        for part in ranges:
            pages, channel = trio.open_memory_channel[CellPage](1)
            nursery.start_soon(_read, store, table, part, sieve, pages, nursery, errors)
            await queue.send(channel)


async def _read(
    store: Store,
    table: str,
    part: KeyRange,
    sieve: str,
    pages: trio.MemorySendChannel[CellPage],
    nursery: trio.Nursery,
    errors: list[TsdError],
) -> None:
    try:
        async with pages, aclosing(cell_pages(store, table, part.start, part.stop, sieve=sieve)) as found:
            async for page in found:
                await pages.send(page)
    except TsdError as exc:
        errors.append(exc)
        nursery.cancel_scope.cancel()
