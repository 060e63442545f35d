"""The way in without a socket: intake, journal and writer on a store that fails when it is told to."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from tests.wavering import WaveringStore
from tsd.codec.cell import FAMILY
from tsd.codec.merge import MergeRules
from tsd.codec.putline import NameRules
from tsd.codec.row import data_cells, points, problems
from tsd.codec.rowkey import Layout
from tsd.codec.uid import ID_FAMILY, NAME_FAMILY, Widths
from tsd.ingest.intake import Gate, Intake, Taken
from tsd.ingest.journal import Journal
from tsd.ingest.ledger import Ledger
from tsd.ingest.names import Creates, SeriesNames
from tsd.ingest.rows import OpenRows
from tsd.ingest.series import SeriesTable
from tsd.ingest.summaries import Summaries, SummaryRules
from tsd.ingest.writer import Writer
from tsd.store import Family, Table, scan
from tsd.store.memory import MemoryStore
from tsd.uids import Uids

BASE = 1356998400
SERIES = b"\0\0\1" + b"\0\0\1" + b"\0\0\1"


class Parts:
    """The way in, without a socket. `run` runs it."""

    def __init__(self, folder: Path, store: WaveringStore, **settings: object) -> None:
        chosen = {
            "join": True,
            "memory_limit": 64 << 20,
            "max_bytes": 1 << 30,
            "metrics": True,
            "most_unsettled": 1000,
            "rules": SummaryRules(NameRules(), "tsdb"),
            **settings,
        }
        self.store = store
        self.folder = folder
        self.now_s = 1_000_000  # the wall clock
        self.uptime_s = 1_000_000
        self.gate = Gate()
        self.ledger = Ledger()
        self.journal = Journal(
            folder / "journal", sync_interval_s=0.001, max_bytes=int(str(chosen["max_bytes"])), owner="0" * 32
        )
        self.uids = Uids(store, "tsdb-uid", Widths())
        self.rows = OpenRows(SeriesTable(), NameRules())
        names = SeriesNames(self.uids, Layout(), NameRules(), Creates(bool(chosen["metrics"]), True, True))
        rules = chosen["rules"]
        assert isinstance(rules, SummaryRules)
        self.summaries = Summaries(names, rules)
        self.writer = Writer(
            self.rows,
            names,
            self.journal,
            store,
            self.ledger,
            self.gate,
            table="tsdb",
            summaries=self.summaries,
            interval_s=3600,
            memory_limit=int(str(chosen["memory_limit"])),
            series_idle_s=7200,
            join=bool(chosen["join"]),
            refused_folder=folder / "refused",
            now_s=lambda: self.now_s,
            uptime_s=lambda: self.uptime_s,
        )
        self.intake = Intake(
            self.rows,
            names,
            self.journal,
            self.ledger,
            self.gate,
            self.writer.regulate,
            most_unsettled=int(str(chosen["most_unsettled"])),
            summaries=self.summaries,
        )

    async def take(self, *lines: bytes) -> Taken:
        return await self.intake.take_in(b"".join(line + b"\n" for line in lines))

    async def stored(self) -> dict[tuple[bytes, int], int | float]:
        """Every stored point, by its row key without base time, and its time in ms; rows are sound."""
        found = {}
        async for rows in scan(self.store.store, "tsdb"):
            for row in rows:
                cells = data_cells(row.cells)
                assert problems(row.key, cells) == [] or len(cells) > 1
                base = int.from_bytes(row.key[3:7], "big")
                for point in points(row.key, cells, MergeRules(fix_duplicates=True)):
                    found[row.key[:3] + row.key[7:], base * 1000 + point.offset_ms] = point.number
        return found

    def check_ledger(self) -> None:
        assert self.ledger.balance(self.writer.waiting_points) == 0


async def make_store() -> WaveringStore:
    store = WaveringStore(MemoryStore(lambda: 1))  # a clock that stands still: the order of windows must do
    await store.create_tables(
        [Table("tsdb", (Family(FAMILY),)), Table("tsdb-uid", (Family(ID_FAMILY), Family(NAME_FAMILY)))]
    )
    return store


@asynccontextmanager
async def going(parts: Parts) -> AsyncIterator[Parts]:
    """The journal and the writer run; at the end everything that can be written is."""
    segments = parts.journal.recover()
    async with trio.open_nursery() as disk:
        disk.start_soon(parts.journal.run)
        async with trio.open_nursery() as writers:
            parts.writer.adopt(segments)
            writers.start_soon(parts.writer.write_windows)
            async with trio.open_nursery() as doors:
                doors.start_soon(parts.writer.watch_journal)
                yield parts
                doors.cancel_scope.cancel()
            parts.writer.finish()
        parts.journal.close()
    parts.check_ledger()


def line(offset: int, value: object, host: str = "a", metric: str = "m") -> bytes:
    return f"put {metric} {BASE + offset} {value} host={host}".encode()
