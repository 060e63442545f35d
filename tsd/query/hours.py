"""The hours of a plan: those that are remembered are taken from there once it is certain that they are as they were,
the others are read and, where that can be, remembered.

What can be: hours that are over, whose buckets end with them, read whole, with nothing in them but points. On an engine
that tells of writes a remembered hour is right as long as nothing was told of it. On one that signs what it holds the
signatures are asked for with each query, which moves a fifth of the bytes; an hour whose signature is another is read.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby

import trio

from tsd.codec.rowkey import Layout, base_bytes, salts
from tsd.codec.times import HOUR_S
from tsd.query.gathering import Gathering
from tsd.query.model import Query
from tsd.query.plan import Plan
from tsd.query.ranges import ScanRange
from tsd.query.reading import hours, key_ranges, read_ranges, scan_parts
from tsd.query.recording import Recording
from tsd.query.remembered import Hour, How, Remembered
from tsd.query.threads import Threads
from tsd.store import Store
from tsd.store.changes import Signs, TellsWrites
from tsd.store.together import together

SIGNED_BYTES = 4 << 20  # of keys and columns that are signed with one call
MOST_HOURS = 10_000  # of a query that looks here: there may be little in each, and none is free
SMALL = 1 << 20  # bytes of buckets that are put in order at once, without a thread
MOST_GAPS = 4  # between remembered hours: each is read on its own, one after the other


class Hours:
    """Reads the hours of plans of one data table."""

    def __init__(
        self,
        store: Store,
        table: str,
        layout: Layout,
        limit: int,
        *,
        scans: int,
        threads: Threads,
        now_ms: Callable[[], int],
    ) -> None:
        """`limit`: bytes of what is remembered; 0: nothing, as where the engine cannot tell. `scans` are made side by
        side; `now_ms` is the wall clock."""
        self._threads = threads
        self._store = store
        self._table = table
        self._layout = layout
        self._scans = scans
        self._now_ms = now_ms
        self.remembered = Remembered(limit, layout)
        self._signs = store if isinstance(store, Signs) else None
        self._can = bool(limit) and (self._signs is not None or isinstance(store, TellsWrites))
        if self._can and isinstance(store, TellsWrites):
            store.on_write(table, self.remembered.told)

    def how(self, query: Query, plan: Plan) -> How | None:
        """How the hours of a plan are downsampled; None where they are not to be remembered."""
        spec = plan.sub.downsample
        if not self._can or spec is None or spec.is_all or spec.calendar or HOUR_S * 1000 % spec.interval_ms:
            return None
        if query.delete or plan.fuzzy or plan.metric is None or plan.impossible or hours(plan) > MOST_HOURS:
            return None
        return How(spec.interval_ms, spec.function, query.corrected)

    async def read(self, plan: Plan, how: How, gathering: Gathering, *, sieve: str) -> None:
        """All rows of a plan, perhaps without some that do not pass `sieve`. Raises BadQuery, StoreError."""
        assert plan.metric is not None
        bases = range(plan.scan.start_s, plan.scan.stop_s, HOUR_S)
        held = self._few_gaps(bases, self.remembered.held(plan.metric, bases, how))
        stale = await self._stale(plan.metric, held)
        self.remembered.outdated(plan.metric, how, stale)
        held = self._few_gaps(bases, {base_s: hour for base_s, hour in held.items() if base_s not in stale})
        self.remembered.count(hits=len(held), misses=len(bases) - len(held))
        for is_held, run in groupby(bases, held.__contains__):
            if is_held:
                for base_s in run:
                    await gathering.recall(held[base_s])
                    await trio.lowlevel.checkpoint()
            else:
                await self._read_gap(plan, how, list(run), gathering, sieve)

    def _few_gaps(self, bases: range, held: dict[int, Hour]) -> dict[int, Hour]:
        """Some of the held hours, so that what is left is read in a few scans."""
        gaps = [list(run) for is_held, run in groupby(bases, held.__contains__) if not is_held]
        if len(gaps) <= MOST_GAPS:
            return held
        first, last = gaps[MOST_GAPS - 1][0], gaps[-1][-1]
        return {base_s: hour for base_s, hour in held.items() if not first <= base_s <= last}

    async def _read_gap(self, plan: Plan, how: How, bases: Sequence[int], gathering: Gathering, sieve: str) -> None:
        """Read consecutive hours and remember those that are over."""
        assert plan.metric is not None
        part = plan._replace(scan=ScanRange(bases[0], bases[-1] + HOUR_S))
        now_ms = self._now_ms()
        over = [base_s for base_s in bases if (base_s + HOUR_S) * 1000 <= now_ms and not sieve]
        ranges = key_ranges(self._layout, part, scan_parts(self._layout, part, self._scans, sieve))
        recording = Recording(
            self._layout, over, signs=self._signs is not None, now_ms=now_ms, room=self.remembered.most_of_one
        )
        with self.remembered.reading(plan.metric, over) as reading:
            gathering.recording = recording
            try:
                await read_ranges(self._store, self._table, ranges, gathering.take, at_once=self._scans, sieve=sieve)
            finally:
                gathering.recording = None
            if recording.size <= SMALL:
                read = recording.finish()
            else:
                read = await self._threads.run(recording.finish)
            self.remembered.keep(reading, plan.metric, how, read)

    async def _stale(self, metric: bytes, held: Mapping[int, Hour]) -> set[int]:
        """Those of some hours that are not as they were."""
        if self._signs is None:
            return set()
        stale: set[int] = set()

        async def check(part: Sequence[Hour]) -> None:
            stale.update(await self._unlike(metric, part))

        await together(_portions(list(held.values())), check, at_once=self._scans)
        return stale

    async def _unlike(self, metric: bytes, hours: Sequence[Hour]) -> set[int]:
        """Those of some consecutive hours whose cells have other signatures."""
        assert self._signs is not None
        found: dict[bytes, bytes] = {}
        for salt in salts(self._layout):
            start, stop = (
                salt + metric + base_bytes(base_s) for base_s in (hours[0].base_s, hours[-1].base_s + HOUR_S)
            )
            found |= await self._signs.signatures(
                self._table, start, stop, width=self._layout.pairs_start, rows=sum(len(hour.pairs) for hour in hours)
            )
        first, end = self._layout.metric_end, self._layout.pairs_start
        now: dict[int, dict[bytes, bytes]] = {hour.base_s: {} for hour in hours}
        for prefix, signature in found.items():
            now[int.from_bytes(prefix[first:end], "big")][prefix] = signature
        return {hour.base_s for hour in hours if now[hour.base_s] != hour.signatures}


def _portions(hours: Sequence[Hour]) -> Iterator[Sequence[Hour]]:
    """Consecutive hours that are signed with one call."""
    part: list[Hour] = []
    size = 0
    for hour in hours:
        if part and (hour.base_s != part[-1].base_s + HOUR_S or size + hour.names_size > SIGNED_BYTES):
            yield part
            part, size = [], 0
        part.append(hour)
        size += hour.names_size
    if part:
        yield part
