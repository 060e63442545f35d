"""Index rows: written before their points, and renewed so that they outlive them.

KairosDB writes an index row once, with the first point's time to live. Here the expiry of each written row is known,
and the row is written again before a point that would live longer. Other programs may delete rows, too. Then the index
of the rows that were just written is read from time to time, and what is missing is written again.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import trio

from tsd.codec.kairosdb.index import METRIC_NAMES, TAG_NAMES, TAG_VALUES
from tsd.codec.kairosdb.keys import TIME_BYTES, DataRow, parse_row_key, parse_tags
from tsd.codec.kairosdb.rows import RowSpec, Unit
from tsd.errors import StoreError
from tsd.lazy import LazyLogger
from tsd.store.retry import run_bounded
from tsd.tables.kairosdb.tables import CONCURRENT, NEVER, KairosTables, SeriesRow

log = LazyLogger(__name__)

MOST_KNOWN = 400_000  # rows of points
CHECK_S = 60.0  # between two readings of the index

# A row key of points in two parts: metric and row time, where its index row is; type and tags, which the index row has.
Wanted = dict[bytes, dict[bytes, int]]  # → time to live of the longest-lived point, in seconds
Expiries = dict[bytes, float]  # by the second part


class RowTime(NamedTuple):
    """The rows of a metric that begin at one time."""

    metric: str
    row_ms: int


def split_key(key: bytes) -> tuple[bytes, bytes]:
    """Return the two parts of a row key of points.

    >>> split_key(DataRow("m", 5, "t", b"a=b:").encode())
    (b'm\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x05', b'\\x00\\x01ta=b:')
    """
    end = key.index(b"\0") + 1 + TIME_BYTES
    return key[:end], key[end:]


class IndexRows:
    """Writes index rows, and caches when they expire."""

    def __init__(self, tables: KairosTables, *, by_tag: Callable[[str], bool]) -> None:
        """`by_tag` returns whether the rows of a metric are also listed by each tag."""
        self.lock = trio.Lock()  # held while points and their index rows are written, and while both are deleted
        self._tables = tables
        self._by_tag = by_tag
        self.known: dict[bytes, Expiries] = {}  # of row_keys, by place, in Unix seconds; the oldest first
        self._times: dict[bytes, float] = {}  # of row_key_time_index, by place
        self._names: dict[bytes, set[str]] = {METRIC_NAMES: set(), TAG_NAMES: set(), TAG_VALUES: set()}
        self._count = 0
        self._touched: set[bytes] = set()  # places written to since the last check

    async def ensure(self, spec: RowSpec, wanted: Wanted, places: Iterable[bytes] = ()) -> None:
        """Return when every row is in the index for at least as long as its points live. `places` are those of further
        points, whose rows are known. Raise StoreError."""
        if wanted:
            now_s = self._tables.now_s()
            await self._list_names(spec, wanted)

            async def write(place: bytes) -> None:
                await self._write(spec, place, wanted[place], now_s)

            await run_bounded(wanted, write, limit=CONCURRENT)
        self._touched.update(wanted, places)
        self._forget_oldest()

    async def _list_names(self, spec: RowSpec, wanted: Wanted) -> None:
        names = {METRIC_NAMES: {place_of(place).metric for place in wanted}}
        if spec.unit is Unit.LEGACY:
            tags = {parse_row_key(place + one).tags for place, rows in wanted.items() for one in rows}
            pairs = [pair for one in tags if one for pair in parse_tags(one).items()]
            names |= {TAG_NAMES: {tagk for tagk, _ in pairs}, TAG_VALUES: {tagv for _, tagv in pairs}}
        for kind, found in names.items():
            if new := found - self._names[kind]:
                await self._tables.put_strings(kind, sorted(new), self._tables.stamps())
                if len(self._names[kind]) > MOST_KNOWN:
                    self._names[kind].clear()
                self._names[kind] |= new

    async def _write(self, spec: RowSpec, place: bytes, rows: Mapping[bytes, int], now_s: int) -> None:
        """Write the rows of one row time that are missing, or expire before their points."""
        known = self.known.get(place, {})
        new = {one: ttl_s for one, ttl_s in rows.items() if known.get(one, -math.inf) < expiry(now_s, ttl_s)}
        if not new:
            return
        at = place_of(place)
        stamp = self._tables.stamps()
        lives = {ttl_s: self._lifetime(spec, ttl_s) for ttl_s in new.values()}
        longest = max(new.values(), key=lambda ttl_s: expiry(0, ttl_s))
        if self._times.get(place, -math.inf) < expiry(now_s, longest):
            await self._tables.put_row_time(*at, lives[longest], stamp)
            self._times[place] = expiry(now_s, lives[longest])
        listed = [(_listed(place + one), lives[ttl_s]) for one, ttl_s in new.items()]
        await self._tables.put_row_keys(*at, listed, stamp, by_tag=self._by_tag(at.metric))
        if spec.unit is Unit.LEGACY:
            old = [(place + one, lives[ttl_s]) for one, ttl_s in new.items()]
            await self._tables.put_old_keys(at.metric, old, stamp)
        entries = self.known.setdefault(place, {})
        self._count += len(new.keys() - entries.keys())
        entries.update((one, expiry(now_s, lives[ttl_s])) for one, ttl_s in new.items())

    def _lifetime(self, spec: RowSpec, ttl_s: int) -> int:
        """Return the time to live of an index row: a row's width longer than the point's, as in KairosDB."""
        return min(ttl_s + spec.width_s, self._tables.most_ttl_s()) if ttl_s else NEVER

    def _forget_oldest(self) -> None:
        excess, oldest = self._count - MOST_KNOWN, list[bytes]()
        places = iter(self.known.items())
        while excess > 0:
            place, entries = next(places)
            excess -= len(entries)
            oldest.append(place)
        for place in oldest:  # after one pass: a dict skips deleted entries one by one
            self._forget_place(place)

    def _forget_place(self, place: bytes) -> None:
        self._count -= len(self.known.pop(place))
        self._times.pop(place, None)

    def forget(self, metric: str | None = None) -> None:
        """Forget what is in the index: of a metric, or all."""
        if metric is None:
            self.known.clear()
            self._times.clear()
            self._count = 0
            for names in self._names.values():
                names.clear()
            return
        self._names[METRIC_NAMES].discard(metric)
        for place in [place for place in self.known if place_of(place).metric == metric]:
            self._forget_place(place)

    async def restore(self) -> int:
        """Write again the rows of points written since the last call that others removed from the index. Return how
        many. Raise StoreError."""
        spec = await self._tables.spec()
        places, self._touched = self._touched, set()
        counts: list[int] = []

        async def check(place: bytes) -> None:
            counts.append(await self._restore(spec, place))

        try:
            async with self.lock:
                await run_bounded(sorted(places), check, limit=CONCURRENT)
        except StoreError:
            self._touched |= places
            raise
        return sum(counts)

    async def _restore(self, spec: RowSpec, place: bytes) -> int:
        now_s = self._tables.now_s()
        metric, row_ms = place_of(place)
        known = dict(self.known.get(place, {}))
        listed = await self._tables.row_keys(metric, row_ms)
        stored = {DataRow(metric, row_ms, one.type, one.encoded).encode() for one in listed}
        missing = {one: at for one, at in known.items() if place + one not in stored and at > now_s}
        has_time = bool(await self._tables.row_times(metric, row_ms, row_ms))
        is_listed = await self._tables.metric_exists(metric)
        if not missing and (has_time or not known) and is_listed:
            return 0
        rows = missing or known
        entries = self.known.setdefault(place, {})
        self._times.pop(place, None)
        self._names[METRIC_NAMES].discard(metric)
        for one in rows:
            self._count -= entries.pop(one, None) is not None
        lives = {one: NEVER if math.isinf(at) else max(int(at) - now_s, 1) for one, at in rows.items()}
        await self._list_names(spec, {place: lives})
        await self._write(spec, place, lives, now_s)
        return len(rows)

    async def keep(self) -> None:
        """Restore the index from time to time, until cancelled."""
        while True:
            await trio.sleep(CHECK_S)
            try:
                if count := await self.restore():
                    log.warning("kairosdb.index_restored", rows=count)
            except StoreError as error:
                log.debug("kairosdb.index_not_checked", error=str(error))


def place_of(place: bytes) -> RowTime:
    """Return the first part of a row key.

    >>> place_of(split_key(DataRow("m", 5, "t", b"a=b:").encode())[0])
    RowTime(metric='m', row_ms=5)
    """
    end = len(place) - TIME_BYTES
    return RowTime(place[: end - 1].decode("utf-8", "surrogatepass"), int.from_bytes(place[end:], "big", signed=True))


def _listed(key: bytes) -> SeriesRow:
    """Return what is listed of a row key of points."""
    row = parse_row_key(key)
    return SeriesRow(row.type, parse_tags(row.tags))


def expiry(now_s: int, ttl_s: int) -> float:
    """Return when a row with a time to live expires."""
    return now_s + ttl_s if ttl_s else math.inf


def longest(lives: Iterable[int]) -> int:
    """Return the longest of times to live, 0 (forever) before all others.

    >>> longest([60, 90]), longest([60, 0])
    (90, 0)
    """
    found = list(lives)
    return NEVER if NEVER in found else max(found)
