"""Which series there are: as the meta table says, as this daemon writes them, and as rows of the last hours show."""

import math
from collections.abc import AsyncGenerator, Callable, Collection, Iterable
from typing import NamedTuple, Protocol

import trio

from tsd.codec.rowkey import Layout, after, base_bytes, salts, split_pairs
from tsd.codec.times import HOUR_S
from tsd.codec.uid import COUNTER_ROW, Kind
from tsd.metadata.selection import Wanted
from tsd.store import Store, scan

SIFTED = 1000  # series given at once: some milliseconds' work, for us and for who shows them
PAGE = 5000  # rows
REMEMBERED = 2_000_000  # series found in rows, of all metrics together


class Live(Protocol):
    """Series that were written of late, by metric UID; each by its tag pairs."""

    def metrics(self) -> Collection[bytes]:
        """The metrics."""
        ...

    def pairs_of(self, metric: bytes) -> Collection[bytes]:
        """The series of one."""
        ...


class Index(Protocol):
    """All series, wherever it is kept."""

    async def series_of(self, metric: bytes, pairs: Iterable[bytes]) -> Collection[bytes] | None:
        """The tag pairs of a metric's series that have all of some pairs; None where it does not know all of them."""
        ...


class _Found(NamedTuple):
    """What a look at a metric's rows found."""

    series: set[bytes]
    since_s: int  # the first hour
    at_s: int  # when it was


class KnownSeries:
    """Series by what they are called."""

    def __init__(
        self,
        store: Store,
        layout: Layout,
        live: Live,
        now_s: Callable[[], int],
        *,
        data_table: str,
        uid_table: str,
        meta_table: str | None,
        look_back_h: int,
        trust_s: int | None,
        index: Index | None = None,
    ) -> None:
        """`meta_table` where series are entered into it. Rows are looked at `look_back_h` hours back, again after
        `trust_s` seconds (None: never, because nobody else writes)."""
        self._store = store
        self._layout = layout
        self._live = live
        self._now_s = now_s
        self._data_table = data_table
        self._uid_table = uid_table
        self._meta_table = meta_table
        self._look_back_h = look_back_h
        self._trust_s = trust_s
        self._index = index
        self._found: dict[bytes, _Found] = {}

    def forget(self) -> None:
        """Look again from now on."""
        self._found.clear()

    async def select(self, wanted: Wanted, limit: int | None = None) -> AsyncGenerator[list[tuple[bytes, bytes]], None]:
        """The series that are wanted, (metric UID, tag pairs) in order of their TSUIDs, `limit` at most, in parts."""
        left = limit
        metrics = [wanted.metric] if wanted.metric is not None else await self._metrics()
        for metric in metrics:
            series = sorted(await self._of_metric(metric, wanted, left))
            for at in range(0, len(series), SIFTED):
                part = self._sifted(metric, series[at : at + SIFTED], wanted)[:left]
                await trio.lowlevel.checkpoint()
                if part:
                    yield part
                if left is not None:
                    left -= len(part)
                    if left <= 0:
                        return

    def _sifted(self, metric: bytes, series: Iterable[bytes], wanted: Wanted) -> list[tuple[bytes, bytes]]:
        if not wanted.values:
            return [(metric, pairs) for pairs in series]
        widths = self._layout.widths
        return [(metric, pairs) for pairs in series if wanted.takes(split_pairs(widths, pairs))]

    async def _metrics(self) -> list[bytes]:
        """Metrics of which there may be series, in order."""
        found = {*self._live.metrics(), *self._found}
        if self._index is not None:
            async for rows in scan(self._store, self._uid_table, columns=[Kind.METRIC.id_column]):
                found.update(row.cells[0].value for row in rows if row.key != COUNTER_ROW)
        if self._meta_table is not None:
            width = self._layout.widths.metric
            async for rows in scan(self._store, self._meta_table):
                found.update(row.key[:width] for row in rows)
        return sorted(found)

    async def _of_metric(self, metric: bytes, wanted: Wanted, enough: int | None) -> Collection[bytes]:
        """The series of a metric, at least those that are wanted, or of them `enough`."""
        if self._index is not None:
            indexed = await self._index.series_of(metric, wanted.fixed_pairs())
            if indexed is not None:
                return indexed
        if self._meta_table is not None:
            return {*self._live.pairs_of(metric), *await self._tracked(self._meta_table, metric)}
        return {*self._live.pairs_of(metric), *await self._in_rows(metric, wanted, enough)}

    async def _tracked(self, table: str, metric: bytes) -> set[bytes]:
        """The series of a metric in the meta table."""
        width, pair = self._layout.widths.metric, self._layout.widths.pair
        found: set[bytes] = set()
        async for rows in scan(self._store, table, metric, after(metric), limit=PAGE):
            found.update(row.key[width:] for row in rows if not (len(row.key) - width) % pair)
        return found

    async def _in_rows(self, metric: bytes, wanted: Wanted, enough: int | None) -> set[bytes]:
        """The series of a metric that have rows in the last hours, or of those that are wanted `enough`: the present
        hour is looked at first."""
        now = self._now_s()
        this_hour = now - now % HOUR_S
        since = this_hour - self._look_back_h * HOUR_S
        before = self._found.get(metric)
        if before is not None:
            if self._trust_s is None or now - before.at_s < self._trust_s:
                return before.series
            since = max(since, before.at_s - before.at_s % HOUR_S)
        found = set(before.series) if before else set[bytes]()
        missing = math.inf if enough is None else enough
        for base in range(this_hour, since - 1, -HOUR_S):
            for salt in salts(self._layout):
                prefix = salt + metric + base_bytes(base)
                at: bytes | None = prefix
                while at is not None:
                    page = await self._store.page(self._data_table, at, after(prefix), limit=PAGE)
                    at = page.next_start
                    new = {row.key[len(prefix) :] for row in page.rows if len(row.key) > len(prefix)} - found
                    found |= new
                    missing -= len(self._sifted(metric, new, wanted))
                    if missing <= 0:
                        return found  # there may be more: the next one looks again
        self._remember(metric, _Found(found, since, now))
        return found

    def _remember(self, metric: bytes, found: _Found) -> None:
        self._found.pop(metric, None)
        while self._found and sum(len(one.series) for one in self._found.values()) + len(found.series) > REMEMBERED:
            del self._found[next(iter(self._found))]
        self._found[metric] = found
