"""A point of our own, taken in as agents' are and read back out of the store, over and over: does all of it still work?

One round: the line is taken in (names, open row, journal), it is on disk, its window is in the store, it is read there.
The store is asked directly and not by a query: queries wait for each other, and no restart makes a slow one faster.
"""

import re
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import NamedTuple

import structlog
import trio

from tsd.codec.merge import MergeRules
from tsd.codec.row import data_cells, points
from tsd.codec.rowkey import Layout, join_pairs, row_key
from tsd.codec.uid import Kind
from tsd.errors import StoreError, TsdError
from tsd.ingest.intake import Intake
from tsd.store import Store
from tsd.uids import Uids

log = structlog.get_logger(__name__)

METRIC = b"tsd.canary"
HOUR_S = 3600
RULES = MergeRules(fix_duplicates=True)  # two rounds in one second are no damage
_ILLEGAL = re.compile(r"[^a-zA-Z0-9\-_./]")


class Stage(Enum):
    """What a round waits for."""

    IDLE = "the next round"
    NAMES = "its names"
    DISK = "the journal's disk"
    WRITTEN = "its window to be written"
    READ = "the store to be read"


class Statistics(NamedTuple):
    """The canary's numbers at a moment."""

    rounds: int  # that came to their end
    missed: int  # at whose end the point was not there
    latency_ms: int  # of the latest round: from the line to the point that was read


class Home(NamedTuple):
    """Where the point is kept."""

    store: Store
    table: str
    layout: Layout
    uids: Uids
    show: Callable[[bytes], Awaitable[bool]]  # has a metric's open rows written


class Canary:
    """The rounds of one daemon."""

    def __init__(self, intake: Intake, home: Home, host: str, daemon: str, now_ms: Callable[[], int]) -> None:
        """Its series has the tags `host` and `daemon`: daemons that share tables have points of their own."""
        self._intake = intake
        self._home = home
        tags = {b"daemon": daemon, b"host": host}
        self._tags = {tagk: (_ILLEGAL.sub("_", text) or "unknown").encode() for tagk, text in tags.items()}
        self._now_ms = now_ms
        self._rounds = self._missed = 0
        self._latency_ms = 0
        self.stage = Stage.IDLE
        self.steps = 0  # that came to their end
        self.missing = 0  # rounds without the point, since the last one that had it
        self.excuse = ""  # why the latest round had no end

    async def run(self, every_s: float) -> None:
        """One round after the other, for ever."""
        while True:
            await self.go_around()
            await trio.sleep(every_s)

    async def go_around(self) -> None:
        """One round. What keeps it from its end, and is known to who looks after that, is its excuse."""
        if held := self._intake.gate.held:
            self.excuse = ", ".join(sorted(held))
            return
        started = trio.current_time()
        try:
            there = await self._round()
        except StoreError as error:
            error.with_traceback(None)  # trio's frame of a call in a thread holds the error
            self.excuse = str(error)
            return
        except (
            TsdError
        ) as error:  # the operator's to mend: a row or a UID table that is damaged, UIDs that have run out
            if self.excuse != str(error):
                log.warning("the canary's point cannot be written, or read", because=str(error))
            self.excuse = str(error)
            return
        finally:
            self.stage = Stage.IDLE
        self._latency_ms = round((trio.current_time() - started) * 1000)
        if there is None:
            self.excuse = "its window is not in the store"
            return
        self._rounds += 1
        self.excuse = ""
        self.missing = 0 if there else self.missing + 1
        if not there:
            self._missed += 1
            log.error("the canary's point is not in the store, which took it", rounds=self.missing)

    async def _round(self) -> bool | None:
        """Whether the point is there; None where the store does not take its window for now."""
        home = self._home
        self.stage = Stage.NAMES
        metric, pairs = await self._key_parts()
        now_s = self._now_ms() // 1000
        tags = b" ".join(b"%s=%s" % tag for tag in self._tags.items())
        line = b"put %s %d 1 %s\n" % (METRIC, now_s, tags)  # one value: where the clock goes back, points agree
        taken = await self._intake.take_in(line)
        for _, error in taken.rejects:
            raise error
        self.stage = Stage.DISK
        await self._intake.synced(taken.position)
        self.stage = Stage.WRITTEN
        if not await home.show(METRIC):
            return None
        self.stage = Stage.READ
        base = now_s - now_s % HOUR_S
        key = row_key(home.layout, metric, base, pairs)
        cells = (await home.store.get(home.table, [key])).get(key, [])
        stored = points(key, data_cells((cell.column, cell.value, cell.time_ms) for cell in cells), RULES)
        return any(point.offset_ms == (now_s - base) * 1000 for point in stored)

    async def _key_parts(self) -> tuple[bytes, bytes]:
        """The UIDs of its names, assigned where they have none, whatever unknown names get; raises TsdError."""
        metric = await self._uid(Kind.METRIC, METRIC)
        pairs = [
            (await self._uid(Kind.TAGK, tagk), await self._uid(Kind.TAGV, tagv)) for tagk, tagv in self._tags.items()
        ]
        return metric, join_pairs(pairs)

    async def _uid(self, kind: Kind, name: bytes) -> bytes:
        found = (await self._home.uids.find_or_assign(kind, [name]))[name]
        self.steps += 1
        if isinstance(found, TsdError):
            raise found
        return found

    def statistics(self) -> Statistics:
        """The numbers of this moment."""
        return Statistics(self._rounds, self._missed, self._latency_ms)
