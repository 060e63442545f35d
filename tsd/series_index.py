"""Which series a metric has, by each of their tags: so that a query for one host reads that host's rows alone.

A table of the daemon's own, beside OpenTSDB's, whose rows start with a metric's UID and a tag's pair of UIDs, or zeros
for the metric as a whole: see tsd.series_entries. Series are entered when they are first written; what was stored
before, or by others, is found in the data table's row keys by `rebuild`. Until that is done the index says that it is
not complete. Series whose rows were deleted stay: whoever looks for their rows finds none.

A series' own entry is written last: what breaks off before is done again when the series is next written, and the
store's sync, before the window with its points is done with, covers its entries, too.
"""

import math
import secrets
from collections import OrderedDict
from collections.abc import Collection, Iterable
from contextlib import aclosing
from typing import NamedTuple

import structlog
import trio

from tsd.codec.rowkey import Layout, after
from tsd.errors import StoreError
from tsd.series_entries import OWN, other_entries, own_entries, own_rows, series_in
from tsd.store import Put, Store
from tsd.store.cells import PAGE_BYTES, cell_pages

log = structlog.get_logger(__name__)

STATE_ROW = b"\0"  # no metric: UIDs count from 1, and rows of series are longer
WANTED, DONE = b"t:wanted", b"t:done"  # the index is complete where both say the same, the second behind its form
FIRST = b"0"
FORM = b"2:"  # without it: of a version that knew no shared entries, has none, and does not take this for complete
BATCH = 2000  # series to be entered with one call
MANY = 20_000  # series: to sort them takes long enough for others to notice
KNOWN = 1_000_000  # series remembered while the data table is read
ENTRY_BYTES = 20  # of an entry, at least
CHECK_S = 30.0  # from one look at whether the index is complete to the next
REMEMBERED_S = 5.0  # how long what was read may be used again; what this process enters shows at once
REMEMBERED = 200_000  # series, in all such answers


class _Answer(NamedTuple):
    """What was read of the index, and until when it may be used again."""

    series: list[bytes]
    until: float


class SeriesIndex:
    """The index over one data table."""

    def __init__(self, store: Store, table: str, layout: Layout) -> None:
        self._store = store
        self._table = table
        self._layout = layout
        self._all = bytes(layout.widths.pair)
        self._answers: OrderedDict[bytes, _Answer] = OrderedDict()  # by metric and tag
        self._held = 0  # series in them
        self._entered = 0  # times that series were: what was read across one may be without them
        self._is_of_form = False  # whether no older version takes it for complete
        self._complete_until = -math.inf

    async def add(self, series: dict[bytes, list[bytes]], *, again: bool = False) -> None:
        """Enter up to BATCH series, of each metric's UID joined tag pairs; `again` also where they seem to be there,
        which does no harm. Raises StoreError."""
        await self._take_over()
        widths = self._layout.widths
        rows = own_rows(series, widths)
        known = {} if again else await self._store.get(self._table, rows, columns=[OWN])
        new = [row for row in rows if row not in known] if known else rows
        shared = other_entries(new, widths)
        self._forget_all(series)
        if new:
            await self._store.put(self._table, shared)
            await self._store.put(self._table, own_entries(new))
        self._entered += 1
        self._forget_all(series)  # what was read meanwhile may be without them; others may have entered them, too

    def _forget_all(self, series: dict[bytes, list[bytes]]) -> None:
        """Forget the answers that should have these series."""
        if not self._answers:
            return
        width = self._layout.widths.pair
        for metric, some in series.items():
            self._forget(metric + self._all)
            for pair in {one[at : at + width] for one in some for at in range(0, len(one), width)}:
                self._forget(metric + pair)

    def _forget(self, prefix: bytes) -> None:
        if prefix in self._answers:
            self._held -= len(self._answers.pop(prefix).series)

    async def complete(self) -> bool:
        """Whether every series that has rows is in it, or was some seconds ago. Raises StoreError."""
        now = trio.current_time()
        if now < self._complete_until:
            return True
        await self._take_over()
        wanted, done = await self._state()
        if done == FORM + wanted:
            self._complete_until = now + REMEMBERED_S
        return done == FORM + wanted

    async def _state(self) -> tuple[bytes, bytes | None]:
        rows = await self._store.get(self._table, [STATE_ROW])
        cells = {cell.column: cell.value for cell in rows.get(STATE_ROW, ())}
        return cells.get(WANTED, FIRST), cells.get(DONE)

    async def _take_over(self) -> None:
        """Say of an index that an older version made complete that it has another form from now on."""
        if not self._is_of_form:
            wanted, done = await self._state()
            if done == wanted:
                await self._say_done(wanted)
            self._is_of_form = True

    async def _say_done(self, wanted: bytes) -> None:
        await self._store.put(self._table, [Put(STATE_ROW, DONE, FORM + wanted)])

    async def outdate(self) -> None:
        """Say that rows of other series come in from elsewhere: all of the data table is to be read again. Raises
        StoreError."""
        self._complete_until = -math.inf
        await self._store.put(self._table, [Put(STATE_ROW, WANTED, secrets.token_bytes(8))])

    async def with_tag(self, metric: bytes, pair: bytes, most: int) -> list[bytes] | None:
        """The series of a metric with one tag (a pair of UIDs; empty: all series), as joined pairs in order; None where
        there are more than `most`. What others entered may be missing for some seconds. Raises StoreError."""
        prefix = metric + (pair or self._all)
        if (known := self._answers.get(prefix)) and known.until > trio.current_time():
            return known.series if len(known.series) <= most else None
        found: set[bytes] = set()
        until, entered = trio.current_time() + REMEMBERED_S, self._entered
        limit = min(PAGE_BYTES, (most + 1) * ENTRY_BYTES)
        pages_of = cell_pages(self._store, self._table, prefix, after(prefix), limit_bytes=limit)
        async with aclosing(pages_of) as pages:
            async for page in pages:
                found.update(series_in(page, len(prefix)))
                if len(found) > most:
                    return None
        series = await trio.to_thread.run_sync(sorted, found) if len(found) > MANY else sorted(found)
        if entered == self._entered:
            self._remember(prefix, _Answer(series, until))
        return series

    def _remember(self, prefix: bytes, answer: "_Answer") -> None:
        self._forget(prefix)
        if len(answer.series) <= REMEMBERED:
            self._answers[prefix] = answer
            self._held += len(answer.series)
        while self._held > REMEMBERED or len(self._answers) > REMEMBERED:
            self._held -= len(self._answers.popitem(last=False)[1].series)

    async def series_of(self, metric: bytes, pairs: Iterable[bytes]) -> Collection[bytes] | None:
        """The series of a metric that have all of some tags; None where it does not know all of them. Raises
        StoreError."""
        if not await self.complete():
            return None
        first, *others = [*pairs] or [b""]
        found = await self.with_tag(metric, first, 1 << 62) or []
        width = self._layout.widths.pair
        if not others:
            return found
        wanted = frozenset(others)
        return [one for one in found if wanted <= {one[at : at + width] for at in range(0, len(one), width)}]

    async def keep_complete(self, data_table: str) -> None:
        """Rebuild it whenever it is not complete, for ever."""
        while True:
            try:
                if not await self.complete():
                    await self.rebuild(data_table)
            except StoreError as error:
                log.warning("the series index cannot be rebuilt now; queries scan", error=str(error))
            await trio.sleep(CHECK_S)

    async def rebuild(self, data_table: str) -> int:
        """Enter every series that has a row; how many. It rests as long as it reads. Raises StoreError."""
        wanted, _ = await self._state()
        count = 0
        known: set[bytes] = set()
        start, base_at, pairs_at = self._layout.salt_width, self._layout.metric_end, self._layout.pairs_start
        width = self._layout.widths.pair
        async with aclosing(cell_pages(self._store, data_table, b"", None)) as pages:
            began = trio.current_time()
            async for page in pages:
                tsuids = {key[start:base_at] + key[pairs_at:] for key in page.keys} - known
                if len(known) > KNOWN:
                    known.clear()
                known |= tsuids
                cut = base_at - start
                new = [one for one in tsuids if len(one) > cut and not (len(one) - cut) % width]
                for at in range(0, len(new), BATCH):
                    await self.add(_by_metric(new[at : at + BATCH], cut), again=True)
                count += len(new)
                await trio.sleep(trio.current_time() - began)
                began = trio.current_time()
        await self._say_done(wanted)
        if count:
            log.info("the series index is complete", series=count)
        return count


def _by_metric(tsuids: Iterable[bytes], width: int) -> dict[bytes, list[bytes]]:
    found: dict[bytes, list[bytes]] = {}
    for one in tsuids:
        found.setdefault(one[:width], []).append(one[width:])
    return found
