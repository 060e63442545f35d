"""Reads the rows of a request page by page: with scans, several in parallel if the store is another process, or by key
if there are few rows. The next page is read while the caller processes one.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from itertools import islice
from typing import Generic, NamedTuple, TypeAlias, TypeVar

from tsd.codec.opentsdb.rowkey import LAST_BASE, KeyLayout, base_bytes, row_key, row_pattern, salts
from tsd.codec.putline import HOUR_S
from tsd.store import CELL_PAGE_BYTES, CellPage, Store, cell_pages, cells_of_keys
from tsd.store.cells import prefix_end
from tsd.tables.opentsdb.selection import Condition, ResolvedRequest, SeriesMatcher
from tsd.tables.opentsdb.series_index import SeriesIndex
from tsd.tables.read_ahead import take_ahead, take_pages
from tsd.tables.reading import UNWANTED, ScanRange

PATTERN_LITERALS = 50  # most literals of one tag name in a key pattern: the server tests each key for all of them
FILTERED_SCAN_H = 2  # hours of one filtered scan: the server must answer in time even if no row matches
LARGE_BYTES = CELL_PAGE_BYTES // 2  # of a range before its rest is split
MOST_SPLIT = 16  # parts of a large range that are read at once: each costs a call, and there may be no rows in it
MAX_PARTS = 500  # of a filtered scan: each costs a call, and a range may be decades long
GET_ROWS = 400  # rows read with one call
P = TypeVar("P")
T = TypeVar("T")
TakeCells = Callable[[CellPage], Awaitable[None]]


class KeyRange(NamedTuple):
    """Rows from `start` to before `stop` (None: to the table's end)."""

    start: bytes
    stop: bytes | None


OpenRange: TypeAlias = Callable[[KeyRange], AsyncGenerator[P, None]]


class EncodedCells(Generic[T]):
    """Cells of whole rows, and how to decode them: EncodedPage."""

    def __init__(self, page: CellPage, layout: KeyLayout, decode_page: Callable[[CellPage], T]) -> None:
        self._page = page
        self._pairs_start = layout.pairs_start
        self._decode = decode_page
        self.cells = len(page.keys)

    def series(self) -> dict[bytes, None]:
        """Return the distinct series, by their tag pairs, in order of rows: sorting them takes little time then."""
        start = self._pairs_start
        return dict.fromkeys([key[start:] for key in self._page.keys])

    def decode(self) -> T:
        """Decode the rows of matching series."""
        return self._decode(self._page)


def hour_range(layout: KeyLayout, key: bytes) -> tuple[bytes, bytes] | None:
    """Return the first key of a row's salt, metric and hour, and that of the next hour; None for the last hours, and a
    key that is too short.

    >>> [key.hex() for key in hour_range(KeyLayout(), bytes.fromhex("00000150e22700000001000001")) or ()]
    ['00000150e22700', '00000150e23510']
    """
    first, end = layout.metric_end, layout.pairs_start
    base_s = int.from_bytes(key[first:end], "big")
    if len(key) < end or base_s > LAST_BASE - HOUR_S:
        return None
    start_s = base_s - base_s % HOUR_S
    return key[:first] + base_bytes(start_s), key[:first] + base_bytes(start_s + HOUR_S)


def key_ranges(layout: KeyLayout, resolved: ResolvedRequest, span: ScanRange, parts: int = 1) -> list[KeyRange]:
    """Return the ranges to scan: for each salt the hours of the span, split into `parts`, in order of time."""
    if resolved.metric is None or resolved.impossible:
        return []
    found = []
    for salt in salts(layout):
        prefix = salt + resolved.metric
        bounds = [prefix + base_bytes(base) for base in _part_starts(span, parts)]
        stop: bytes | None = prefix + base_bytes(span.stop_s)
        if span.stop_s > LAST_BASE:  # that of the last hour has the last base time
            stop = prefix_end(prefix + base_bytes(span.stop_s))
        found += [KeyRange(start, end) for start, end in zip(bounds, [*bounds[1:], stop], strict=True)]
    return found


def scan_parts(layout: KeyLayout, hours: int, scans: int, pattern: str) -> int:
    """Return the number of parts to split the range of each salt into for parallel `scans`. Salted ranges are already
    parallel, and each has its share of the rows of an hour."""
    parts = 1 if layout.salt_width else scans
    return max(parts, min(hours // FILTERED_SCAN_H, MAX_PARTS) // len(salts(layout))) if pattern else parts


def key_pattern(conditions: Sequence[Condition]) -> str:
    """Return a pattern of the conditions' literals, by which the server filters row keys; empty without suitable
    ones."""
    named = [one for one in conditions if one.literals and len(one.literals) <= PATTERN_LITERALS]
    return row_pattern([[one.tagk + value for value in sorted(one.literals or ())] for one in named])


def _part_starts(span: ScanRange, parts: int) -> list[int]:
    """Return the start times of the parts of a range."""
    each = -(-max(span.hours, 1) // parts) * HOUR_S
    return list(range(span.start_s, max(span.stop_s, span.start_s + 1), each))


def row_keys(
    layout: KeyLayout, resolved: ResolvedRequest, span: ScanRange, series_pairs: Sequence[bytes]
) -> list[bytes]:
    """Return the keys of all rows that some series may have, in order."""
    if resolved.metric is None or resolved.impossible:
        return []
    stop_s = min(span.stop_s, LAST_BASE + 1)
    metric, bases = resolved.metric, range(span.start_s, stop_s, HOUR_S)
    if not layout.salt_width:
        prefixes = [metric + base_bytes(base) for base in bases]
        return sorted([prefix + pairs for prefix in prefixes for pairs in series_pairs])
    return sorted(row_key(layout, metric, base, pairs) for pairs in series_pairs for base in bases)


async def read_rows(store: Store, table: str, keys: Sequence[bytes], take: TakeCells) -> None:
    """Pass the existing rows among `keys` to `take`. Raise StoreError and what `take` raises."""
    left = iter(keys)
    while part := list(islice(left, GET_ROWS)):
        if (page := await cells_of_keys(store, table, part)).keys:
            await take(page)


class LargeRest(NamedTuple):
    """The rest of a large range: parts of about a page, in order of time, and last what follows them."""

    parts: Sequence[KeyRange]
    row_bytes: int  # of a row's values, on average


async def read_ranges(
    store: Store,
    table: str,
    ranges: Sequence[KeyRange],
    take: TakeCells,
    *,
    parallel: int,
    pattern: str = "",
    hours_of: KeyLayout | None = None,
) -> None:
    """Pass all pages of the ranges to `take`, in order. Rows with a key that does not match `pattern` may be missing.
    Raise as `read_pages` does.

    Ranges are taken one after the other, and each is read a page ahead: most of the time only one is read. With
    `hours_of`, the layout of keys by the hour, a range may be larger than a page. Its rest is then split into parts
    that are read in parallel, too.
    """

    def open_range(part: KeyRange, row_bytes: int = 0) -> AsyncGenerator[CellPage, None]:
        return cell_pages(store, table, part.start, part.stop, key_pattern=pattern, row_bytes=row_bytes)

    if hours_of is None or parallel == 1:
        await read_pages(open_range, ranges, take, parallel=parallel)
        return
    layout = hours_of

    async def take_or_split(found: CellPage | LargeRest) -> None:
        rests = [found] if isinstance(found, LargeRest) else []

        async def take_one(one: CellPage | LargeRest) -> None:
            await take(one) if isinstance(one, CellPage) else rests.append(one)

        if isinstance(found, CellPage):
            await take(found)
        while rests:  # a rest has at most one of its own, which comes last
            parts, row_bytes = rests.pop()
            opened = [open_range(part, row_bytes) for part in parts[:-1]]
            after_these = _until_large(open_range(parts[-1], row_bytes), layout, parts[-1].stop)
            await take_ahead([*opened, after_these], take_one, parallel)

    await read_pages(
        lambda part: _until_large(open_range(part), layout, part.stop), ranges, take_or_split, parallel=parallel
    )


async def _until_large(
    opened: AsyncGenerator[CellPage, None], layout: KeyLayout, stop: bytes | None
) -> AsyncGenerator[CellPage | LargeRest, None]:
    """Yield the pages of a range up to `stop`, or the first ones and the rest."""
    first, rows, size = None, 0, 0
    async with aclosing(opened) as pages:
        async for page in pages:
            yield page
            if first is None:
                first = page.keys[0]
            if size >= LARGE_BYTES or page.next_start is None:
                continue
            rows += len(set(page.keys))
            size += sum(map(len, page.values))
            if size >= LARGE_BYTES:
                parts = _parts_of_rest(layout, first, page.keys[-1], KeyRange(page.next_start, stop), size)
                if len(parts) > 1:
                    yield LargeRest(parts, max(size // rows, 1))
                    return


def _parts_of_rest(layout: KeyLayout, first: bytes, last: bytes, rest: KeyRange, size: int) -> list[KeyRange]:
    """Split the rest of a range at hours into parts of about a page; `size` bytes are between `first` and `last`."""
    at, end = layout.metric_end, layout.pairs_start
    first_s, last_s = (int.from_bytes(key[at:end], "big") // HOUR_S * HOUR_S for key in (first, last))
    step = max((last_s - first_s) * CELL_PAGE_BYTES // size // HOUR_S, 1) * HOUR_S
    bounds = [rest.start]
    for base_s in range(last_s + step, min(last_s + MOST_SPLIT * step, LAST_BASE) + 1, step):
        bound = rest.start[:at] + base_bytes(base_s)
        if rest.stop is None or bound >= rest.stop:
            break
        bounds.append(bound)
    return list(map(KeyRange, bounds, [*bounds[1:], rest.stop]))


async def read_pages(
    open_range: OpenRange[P], ranges: Sequence[KeyRange], take: Callable[[P], Awaitable[None]], *, parallel: int
) -> None:
    """Pass all pages of the ranges to `take`, in order.

    Up to `parallel` ranges are read at once, each one page ahead. Raise StoreError, and any TsdError of `take`.
    """
    if len(ranges) == 1:
        await take_pages(open_range(ranges[0]), take)
    else:
        await take_ahead([open_range(part) for part in ranges], take, parallel)


GET_COST = 6  # rows that a scan reads in the time that one row is read by its key
SERIES_BY_KEY = 64  # up to this many series, rows are read by key, whatever the size of the metric


async def few_series(
    index: SeriesIndex, resolved: ResolvedRequest, matcher: SeriesMatcher, hours: int, max_rows: int
) -> Sequence[bytes] | None:
    """Return the matching series if reading their rows by key is faster than a scan, and they have at most `max_rows`;
    else None. Raise BadQuery, StoreError."""
    if resolved.metric is None or resolved.impossible or not resolved.conditions or not await index.complete():
        return None
    most = max_rows // max(hours, 1)
    candidates = await _by_literals(index, resolved.metric, resolved.conditions, most)
    if candidates is None:
        return await _by_table(index, resolved.metric, matcher, most)
    every = len(candidates) * GET_COST + 1
    if len(candidates) > SERIES_BY_KEY:  # the limit stops counting as soon as the outcome is clear
        others = await index.with_tag(resolved.metric, b"", len(candidates) * GET_COST)
        every = every if others is None else len(others)
    await matcher.match(candidates)
    wanted = [pairs for pairs in candidates if matcher.numbers[pairs] != UNWANTED]
    return wanted if len(wanted) * GET_COST < every and len(wanted) <= most else None


async def _by_table(index: SeriesIndex, metric: bytes, matcher: SeriesMatcher, most: int) -> Sequence[bytes] | None:
    """Return the matching series of all series of a metric; None if they are too many to read rows by key."""
    table = await index.table(metric) if matcher.excludes else None
    if table is None:
        return None
    rows = await matcher.find(table)
    if len(rows) * GET_COST >= table.count or len(rows) > most:
        return None
    series_pairs = table.series_pairs(rows)
    matcher.accept(series_pairs)
    return series_pairs


async def _by_literals(
    index: SeriesIndex, metric: bytes, conditions: Sequence[Condition], most: int
) -> list[bytes] | None:
    """Return the series that match the literals of the most selective condition; None if each matches over `most`."""
    best: list[bytes] | None = None
    for condition in conditions:
        if condition.literals is None or (best is not None and len(best) <= SERIES_BY_KEY):
            continue
        limit = most if best is None else len(best) - 1
        found: list[bytes] = []
        for value in condition.literals if len(condition.literals) <= limit else ():
            some = await index.with_tag(metric, condition.tagk + value, limit - len(found))
            if some is None:
                break
            found += some
        else:
            if len(condition.literals) <= limit:
                best = found
    return best
