"""Points whose rollups are built: by a builder alone, or by the task of a daemon, with a clock."""

import json
import struct
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import trio

from tests.unit.query.engines import DATA, START_S, UID, QueryEnvironment, make_query
from tsd.codec.names import Kind
from tsd.codec.opentsdb.cell import FAMILY
from tsd.codec.opentsdb.rollup import Rollups, decode_rollup, parse_config, rollup_time
from tsd.codec.opentsdb.rowkey import KeyLayout, split_key
from tsd.codec.points import Columns
from tsd.codec.putline import NameRules
from tsd.ingest.intake import absorb_whole
from tsd.ingest.open_window import OpenWindow
from tsd.ingest.series import SeriesTable
from tsd.query.engine import EngineSettings, QueryEngine
from tsd.query.result import SubAnswer
from tsd.query.rollups import NO_FALLBACK
from tsd.server import control
from tsd.store import Family, Store, Table, scan
from tsd.store.cells import prefix_end
from tsd.tables.opentsdb.data_table import DataTable
from tsd.tables.opentsdb.delete import remove_rows
from tsd.tables.opentsdb.reader import OpenTsdbReader, ReadTable, SummarySources
from tsd.tables.opentsdb.resolver import AutoCreate, UidResolver
from tsd.tables.opentsdb.rollup_builder import BuildRules, BuildStep, RollupBuilder
from tsd.tables.opentsdb.rollup_progress import START, BuildPosition, BuildRange, LateDay, RollupProgress, days_of
from tsd.tables.opentsdb.rollup_sums import intervals_to_build
from tsd.tables.opentsdb.rollup_task import RollupTask
from tsd.tables.opentsdb.summaries import SummaryRules
from tsd.tables.opentsdb.uids import Uids
from tsd.tables.opentsdb.writer import CellWriter
from tsd.tables.writing import SeriesLookup

HOUR_S, DAY_S = 3600, 86_400
SPANS = {"1m": "1h", "10m": "6h", "1h": "1d", "1d": "1n"}
CONFIG = {
    "aggregationIds": {"sum": 0, "count": 1, "min": 2, "max": 3},
    "intervals": [
        {"interval": name, "table": DATA if name == "1m" else f"r{name}", "preAggregationTable": "agg",
         "rowSpan": span, "defaultInterval": name == "1m"}
        for name, span in SPANS.items()
    ],
}  # fmt: skip
ROLLUPS = Rollups(parse_config(json.dumps(CONFIG).encode()))
EVERYTHING = BuildRange(0, START_S + 400 * DAY_S)
Found = dict[tuple[str, str, int], dict[str, float]]  # interval, host, time since START_S → aggregates


async def environment(
    lines: Sequence[str], layout: KeyLayout | None = None, store: Store | None = None
) -> QueryEnvironment:
    env = await QueryEnvironment.build(lines, layout=layout or KeyLayout(), store=store)
    await env.store.create_tables([Table(name, (Family(FAMILY),)) for name in ("r10m", "r1h", "r1d")])
    return env


def builder(
    env: QueryEnvironment,
    *names: str,
    rollups: Rollups = ROLLUPS,
    keep_s: int | None = None,
    now_s: int = START_S + 400 * DAY_S,
    store: Store | None = None,
    warnings: list[str] | None = None,
) -> RollupBuilder:
    used = store or env.store
    uids = Uids(used, UID, env.layout.widths)
    return RollupBuilder(
        DataTable(used, DATA, env.layout),
        uids,
        OpenTsdbReader(ReadTable(used, DATA, env.layout), uids),
        BuildRules(rollups, intervals_to_build(rollups.config, names), lambda _: keep_s),
        lambda: now_s * 1000,
        on_warning=(warnings if warnings is not None else []).append,
    )


async def build(made: RollupBuilder, span: BuildRange = EVERYTHING, position: BuildPosition = START) -> list[BuildStep]:
    return [step async for step in made.run(span, position)]


async def rollups(env: QueryEnvironment) -> Found:
    """All rollups, with the tag values of their series joined."""
    found: Found = {}
    for interval in ROLLUPS.config.intervals[1:]:
        async for rows in scan(env.store, interval.table):
            for row in rows:
                key = split_key(env.layout, row.key)
                values = [value for _, value in key.series.pairs]
                names = await env.uids.names(Kind.TAGV, values)
                tags = b",".join(sorted(name for name in names.values() if isinstance(name, bytes))).decode()
                for cell in row.cells:
                    part = decode_rollup(ROLLUPS.config, cell.column[2:])
                    time_s = rollup_time(key.base, interval, part.offset) - START_S
                    is_float = part.flags & 8
                    number = struct.unpack(">d", cell.value)[0] if is_float else int.from_bytes(cell.value, "big")
                    found.setdefault((interval.name, tags, time_s), {})[part.aggregator] = number
    return found


def aggregates(*numbers: float) -> dict[str, float]:
    return {"sum": sum(numbers), "count": len(numbers), "min": min(numbers), "max": max(numbers)}


LINES = [
    f"m {START_S + 30} 1 host=a",
    f"m {START_S + 700} 2.5 host=a",
    f"m {START_S + HOUR_S} -4 host=a",
    f"m {START_S + 30} 7 host=b",
    f"m {START_S + 40 * DAY_S} 9 host=b",
    f"other {START_S + DAY_S} 3 host=c",
]
BUILT: Found = {
    ("10m", "a", 0): aggregates(1),
    ("10m", "a", 600): aggregates(2.5),
    ("10m", "a", HOUR_S): aggregates(-4),
    ("10m", "b", 0): aggregates(7),
    ("10m", "b", 40 * DAY_S): aggregates(9),
    ("10m", "c", DAY_S): aggregates(3),
    ("1h", "a", 0): aggregates(1, 2.5),
    ("1h", "a", HOUR_S): aggregates(-4),
    ("1h", "b", 0): aggregates(7),
    ("1h", "b", 40 * DAY_S): aggregates(9),
    ("1h", "c", DAY_S): aggregates(3),
    ("1d", "a", 0): aggregates(1, 2.5, -4),
    ("1d", "b", 0): aggregates(7),
    ("1d", "b", 40 * DAY_S): aggregates(9),
    ("1d", "c", DAY_S): aggregates(3),
}
LAYOUTS = [KeyLayout(), KeyLayout(salt_width=1, salt_buckets=3)]

INTERVALS = intervals_to_build(ROLLUPS.config)
TABLES = {one.name: one.table for one in INTERVALS}
RULES = NameRules(b"", 8)
LATER_S = START_S + 50 * DAY_S


class Rolled:
    """Points in memory, a task that builds their rollups, and a clock."""

    def __init__(self, env: QueryEnvironment, state: Path, now_s: int, tables: Mapping[str, str] = TABLES) -> None:
        self.env = env
        self.now_s = now_s
        self.keep_s: int | None = None
        self.task = RollupTask(
            lambda names: builder(env, *names, now_s=self.now_s, keep_s=self.keep_s),
            INTERVALS,
            RollupProgress(state / "rollup-progress.json", tables),
            env.layout.salt_width,
            lambda: self.now_s,
        )

        def deleting(rows: Sequence[bytes]) -> AbstractAsyncContextManager[None]:
            return self.task.changing(days_of(env.layout, rows), deleted=True)

        complete = self.task.progress.complete_until_s
        table = ReadTable(env.store, DATA, env.layout, deleting=deleting)
        self.reader = OpenTsdbReader(table, env.uids, summaries=SummarySources(ROLLUPS, complete))
        self.engine = QueryEngine(
            self.reader, settings=EngineSettings(), flush=flushed, now_ms=lambda: self.now_s * 1000
        )

    async def put(self, lines: Sequence[str]) -> None:
        """Store points as the daemon does."""
        open_window = OpenWindow(SeriesTable(), RULES)
        await self.accept(lines, open_window)
        await self.write(open_window)

    async def accept(self, lines: Sequence[str], open_window: OpenWindow) -> None:
        """Add points to an open window."""
        creates = AutoCreate(metrics=True, tagks=True, tagvs=True)
        text = "".join(f"put {line}\n" for line in lines).encode()
        await absorb_whole(open_window, UidResolver(self.env.uids, self.env.layout, creates), text)

    async def write(self, open_window: OpenWindow) -> None:
        """Store the points of an open window."""
        observed = self.task.observing(unobserved)
        writer = CellWriter(self.env.store, SummaryRules(RULES, DATA), join=True, on_points=observed)
        await writer.write(open_window.take(), open_window.table)

    async def delete(self, m: str, start_s: int, end_s: int) -> None:
        """Delete the hours that a query reads."""
        query = make_query(m, start_ms=start_s * 1000, end_ms=end_s * 1000)
        await self.engine.run(replace(query, delete=True))

    async def answer(self, m: str, *, usage: str = NO_FALLBACK, start_s: int = START_S, days: int = 3) -> SubAnswer:
        """The answer to a query of some days."""
        query = make_query(m, start_ms=start_s * 1000, end_ms=(START_S + days * DAY_S) * 1000 - 1)
        query = replace(query, queries=tuple(replace(sub, rollup_usage=usage) for sub in query.queries))
        return (await self.engine.run(query)).subs[0]


async def flushed(_: bytes) -> bool:
    """Return that all points are stored."""
    return True


async def unobserved(_: Columns, __: SeriesLookup) -> None:
    """Record nothing."""


def shown(answer: SubAnswer) -> list[tuple[dict[str, str], list[int], str]]:
    """Tags, times and values of an answer; the values as text, in which NaN equals itself."""
    return [
        (dict(group.tags), group.points.times.tolist(), str(np.round(group.points.doubles(), 9).tolist()))
        for group in answer.groups
    ]


def lines_of(days: float, *, step_s: int = 1500) -> list[str]:
    """Points of two series."""
    return [
        f"m {START_S + at} {at % 997 - 300.25} host={host}"
        for host in ("a", "b")
        for at in range(7 if host == "a" else 90_000, round(days * DAY_S), step_s)
    ]


LEFT = {place: found for place, found in BUILT.items() if place not in {(name, "c", DAY_S) for name in TABLES}}


async def uid_of(rolled: Rolled, metric: bytes) -> bytes:
    uid = (await rolled.env.uids.find(Kind.METRIC, [metric]))[metric]
    assert isinstance(uid, bytes)
    return uid


async def others(rolled: Rolled) -> set[LateDay]:
    """Return the days of the metric `other`."""
    return {LateDay(await uid_of(rolled, b"other"), START_S + DAY_S)}


async def delete_others(rolled: Rolled) -> None:
    """Delete the points of the metric `other`, and record nothing."""
    uid = await uid_of(rolled, b"other")
    async for rows in scan(rolled.env.store, DATA, uid, prefix_end(uid)):
        await remove_rows(rolled.env.store, DATA, rows, read_ms=LATER_S * 1000)


@asynccontextmanager
async def served(folder: Path, rolled: Rolled) -> AsyncIterator[Path]:
    """A daemon's control socket."""
    path = folder / "control.sock"
    listener = await control.open_listener(path)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(control.serve, listener, {}, rolled.task.operations)
        yield path
        nursery.cancel_scope.cancel()


async def built(tmp_path: Path) -> Rolled:
    rolled = Rolled(await environment(LINES), tmp_path, LATER_S)
    await rolled.task.round()
    return rolled
