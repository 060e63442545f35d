"""Whatever happens to points, rollups and the daemon, queries that read rollups give the answers of points."""

import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.property.layout_worlds import PagedMemory, PagedStore, differs, shown_of
from tests.seeds import FACTOR
from tests.unit.query.engines import DATA, START_S, make_query
from tests.unit.tables.rollup_parts import DAY_S, HOUR_S, ROLLUPS, RULES, Rolled, environment
from tests.unit.tables.test_retention import remove_all
from tsd.codec.opentsdb.merge import MergeRules
from tsd.codec.opentsdb.rowkey import BASE_BYTES, KeyLayout
from tsd.config.retention import parse_rules
from tsd.errors import CorruptRow
from tsd.ingest.metric_points import points_of_metric
from tsd.ingest.open_window import OpenWindow
from tsd.ingest.series import SeriesTable
from tsd.query.engine import EngineSettings, QueryEngine
from tsd.query.rollups import RAW
from tsd.store import Store, scan
from tsd.tables.open_points import OpenPoints
from tsd.tables.opentsdb.compaction.compactor import RowCompactor
from tsd.tables.opentsdb.data_table import DataTable
from tsd.tables.opentsdb.retention import Retention, RetentionPolicy

STEPS, QUERIES = 12, 6
SEEDS = [range(at, at + 6) for at in range(0, 18 * FACTOR, 6)]
KEPT_D = 4
POLICY = RetentionPolicy(parse_rules(f"m={KEPT_D}d"), parse_rules(""), None)
FUNCTIONS = "sum count min max avg zimsum mimmin mimmax".split()
INTERVALS = "10m 30m 1h 2h 6h 1d 2d".split()
TAGS = [f"host={host}{dc}" for host in ("a", "b", "c", "d") for dc in ("", " dc=x", " dc=y")]
LAYOUTS = [KeyLayout(), KeyLayout(salt_width=1, salt_buckets=3)]


class Crash(Exception):
    """Ends a daemon."""


class Hooked:
    """Of a store: `hook` is called before each sync, which ends each part of a build."""

    hook: Callable[[], Awaitable[None]] | None = None


class HookedMemory(Hooked, PagedMemory):
    """A store in memory."""

    async def sync(self) -> None:
        """See Store."""
        if self.hook is not None:
            await self.hook()
        await super().sync()


class HookedStore(Hooked, PagedStore):
    """An embedded store."""

    async def sync(self) -> None:
        """See Store."""
        if self.hook is not None:
            await self.hook()
        await super().sync()


class OpenRows:
    """Points in memory that a query reads."""

    def __init__(self, rolled: Rolled) -> None:
        self._rolled = rolled
        self.open_window = OpenWindow(SeriesTable(), RULES)

    async def open_points(self, metric: bytes, *_: object) -> OpenPoints:
        """See OpenPointSource."""
        parts, table = self.open_window.peek(), self.open_window.table
        found = points_of_metric(table.metric_number(metric), None, parts, table.metric_numbers()[: table.texts.count])
        return found.open_points(table.keys(found.numbers))

    def known_series(self, _: bytes) -> None:
        """See OpenPointSource."""

    def points_now(self, *_: object) -> None:
        """See OpenPointSource."""

    async def flush(self, *, patient: bool = True) -> bool:
        """See OpenPointSource."""
        await self._rolled.write(self.open_window)
        return True


class Schedule:
    """A daemon that builds rollups, and what happens to it."""

    def __init__(self, dice: random.Random, state: Path, layout: KeyLayout) -> None:
        self.dice, self.state, self.layout = dice, state, layout
        self.now_s = START_S + dice.randrange(DAY_S, 3 * DAY_S)
        self.series = {metric: dice.sample(TAGS, 3) for metric in ("m", "n")}
        self.expires = dice.random() < 0.4
        self.kept_from_s = START_S
        self.from_rollups = 0
        self.done: list[str] = []

    async def make(self, engine: str) -> Store:
        """Make the tables in a new store."""
        self.state.mkdir()
        self.store: Any = (
            await HookedStore.open(self.state / "db", self._now_ms)
            if engine == "embedded"
            else HookedMemory(self._now_ms)
        )
        self.env = await environment([], self.layout, self.store)
        self.start()
        await self.rolled.put([f"z {START_S} 1 {tags}" for tags in TAGS])  # all names exist
        await self.rolled.put([f"{metric} {START_S + 7} 1 {TAGS[0]}" for metric in self.series])
        await (self._put_everywhere() if self.dice.random() < 0.7 else self._put_past())
        return self.store

    def _now_ms(self) -> int:
        return self.now_s * 1000

    def start(self) -> None:
        """Start the daemon, again."""
        self.rolled = Rolled(self.env, self.state, self.now_s)
        self.rolled.keep_s = KEPT_D * DAY_S if self.expires else None
        self.open = OpenRows(self.rolled)
        self.engine = QueryEngine(
            self.rolled.reader,
            settings=EngineSettings(),
            flush=self._flush,
            now_ms=self._now_ms,
            open_points=self.open,
        )

    async def _flush(self, _: bytes) -> bool:
        return await self.open.flush()

    async def _put(self, lines: list[str]) -> None:
        """Accept points, and store them unless they stay in memory for now."""
        await self.rolled.accept(lines, self.open.open_window)
        if self.dice.random() < 0.7:
            await self.open.flush()

    async def step(self) -> None:
        """Let something happen."""
        ways: list[tuple[int, Callable[[], Awaitable[None]]]] = [
            (4, self._build), (3, self._put_new), (3, self._put_late), (1, self._put_past), (2, self._add_series),
            (2, self._delete), (1, self._compact), (1, self._fold), (2, self._restart), (2, self._wait),
            (1, self._crash), (2, self._put_while_building), (1, self._retain), (1, self._set_clock_back),
        ]  # fmt: skip
        [way] = self.dice.choices([way for _, way in ways], [weight for weight, _ in ways])
        self.done.append(way.__name__)
        await way()

    def _lines(self, first_s: int, last_s: int) -> list[str]:
        metric = self.dice.choice(["m", "m", "n"])
        chosen = self.dice.sample(self.series[metric], self.dice.randint(1, len(self.series[metric])))
        step = self.dice.choice([600, 1500, 3000, 20_000])
        return [
            f"{metric} {at} {self.dice.choice([0, 1, -5, 2.5, 1000, 0.25])} {tags}"
            for tags in chosen
            for at in range(first_s + self.dice.randrange(300), max(last_s, first_s + 301), step)[:400]
        ]

    async def _put_everywhere(self) -> None:
        """Give all series points in the same intervals: their rollups are stored with their times once."""
        times = range(START_S, self.now_s, self.dice.choice([600, 3000]))
        series = [(metric, tags) for metric in self.series for tags in self.series[metric]]
        await self._put([f"{metric} {at} {at % 1013} {tags}" for metric, tags in series for at in times])

    async def _put_past(self) -> None:
        await self._put(self._lines(START_S, self.now_s))

    async def _put_new(self) -> None:
        await self._put(self._lines(self.now_s - self.dice.choice([600, HOUR_S]), self.now_s))

    async def _put_late(self) -> None:
        at = self.dice.randrange(START_S, self.now_s)
        await self._put(self._lines(at, at + self.dice.choice([1, HOUR_S, DAY_S])))

    async def _add_series(self) -> None:
        metric = self.dice.choice(["m", "n"])
        new = [tags for tags in TAGS if tags not in self.series[metric]]
        if new:
            self.series[metric].append(self.dice.choice(new))
        await self._put_new()

    async def _build(self) -> None:
        await self.rolled.task.round()

    async def _put_while_building(self) -> None:
        lines, left = self._lines(self.dice.randrange(START_S, self.now_s), self.now_s), self.dice.randrange(4)

        async def put() -> None:
            nonlocal left
            left -= 1
            if left == 0:
                await self._put(lines)

        self.store.hook = put
        await self._build()
        self.store.hook = None

    async def _crash(self) -> None:
        left = self.dice.randrange(5)

        async def crash() -> None:
            nonlocal left
            left -= 1
            if left <= 0:
                raise Crash

        self.store.hook = crash
        with suppress(Crash):
            await self._build()
        self.store.hook = None
        await self._restart()

    async def _restart(self) -> None:
        open_window = self.open.open_window  # the journal has them
        self.start()
        await self.rolled.write(open_window)

    async def _wait(self) -> None:
        self.now_s += self.dice.choice([300, HOUR_S, 6 * HOUR_S, DAY_S])
        self.rolled.now_s = self.now_s

    async def _set_clock_back(self) -> None:
        self.now_s -= self.dice.choice([HOUR_S, 5 * HOUR_S])
        self.rolled.now_s = self.now_s

    async def _delete(self) -> None:
        at = self.dice.randrange(START_S, self.now_s)
        end_s = at + self.dice.choice([1, HOUR_S, DAY_S, 3 * DAY_S])
        m = f"none:{self.dice.choice(['m{host=a}', 'm', 'm{host=b|c}'])}"
        await self.engine.run(replace(make_query(m, start_ms=at * 1000, end_ms=end_s * 1000), delete=True))

    async def _compact(self) -> None:
        keys = [row.key async for rows in scan(self.store, DATA) for row in rows]
        rules, unreadable = MergeRules(fix_duplicates=True), list[CorruptRow]()
        compactor = RowCompactor(
            DataTable(self.store, DATA, self.layout), rules, self._now_ms, unreadable.append, settle_ms=0
        )
        await compactor.compact_keys(self.dice.sample(keys, len(keys) // 2))
        assert not unreadable

    async def _fold(self) -> None:
        blocks = self.store.column_blocks
        if blocks is None:
            return
        width = self.layout.metric_end + BASE_BYTES
        prefixes = sorted({row.key[:width] async for rows in scan(self.store, DATA) for row in rows})
        for prefix in self.dice.sample(prefixes, len(prefixes) // 3):
            await blocks.fold(DATA, prefix)

    async def _retain(self) -> None:
        if self.expires:
            retention = Retention(DataTable(self.store, DATA, self.layout), self.env.uids, POLICY, ROLLUPS)
            await remove_all(retention, self.now_s)

    async def look(self) -> None:
        """Compare the answers to a query."""
        fill = self.dice.choice(["", "", "-nan", "-zero"])
        m = ":".join([
            self.dice.choice(["none", "sum", "max", "avg", "count", "zimsum"]),
            *self.dice.choice([[], [], ["rate"]]),
            f"{self.dice.choice(INTERVALS)}-{self.dice.choice(FUNCTIONS)}{fill}",
            self.dice.choice(["m", "m", "n"]) + self.dice.choice(["", "{host=*}", "{host=a}", "{dc=*}", "{}{dc=x}"]),
        ])  # fmt: skip
        if self.expires:  # rollups may outlive expired points, or lack them if they were built later
            self.kept_from_s = max(self.kept_from_s, ((self.now_s - KEPT_D * DAY_S) // DAY_S + 2) * DAY_S)
        first_s = self.kept_from_s + self.dice.choice([0, 0, self.dice.randrange(2 * DAY_S)])
        last_s = first_s + self.dice.choice([HOUR_S, DAY_S, 5 * DAY_S, 20 * DAY_S, self.dice.randrange(1, 5 * DAY_S)])
        query = make_query(m, start_ms=first_s * 1000, end_ms=last_s * 1000 - self.dice.choice([0, 1]))
        raw = replace(query, queries=tuple(replace(sub, rollup_usage=RAW) for sub in query.queries))
        [found], [wanted] = [(await self.engine.run(one)).subs for one in (query, raw)]
        self.from_rollups += found.rollup_table != "raw"
        same = not differs([shown_of(found)], [shown_of(wanted)])
        assert same, (self.done, m, first_s - START_S, last_s - START_S, found.rollup_table)


async def play(schedule: Schedule) -> None:
    """Let things happen, and look after each."""
    for _ in range(STEPS):
        await schedule.step()
        for _ in range(QUERIES):
            await schedule.look()


@pytest.mark.slow
@pytest.mark.parametrize("seeds", SEEDS)
async def test_rollups_give_the_answers_of_points(tmp_path: Path, seeds: range) -> None:
    engine = "memory" if seeds.start % 12 else "embedded"
    from_rollups = 0
    for seed in seeds:
        schedule = Schedule(random.Random(seed), tmp_path / f"{seed}", LAYOUTS[seed % 2])
        store = await schedule.make(engine)
        try:
            await play(schedule)
        finally:
            await store.aclose()
        from_rollups += schedule.from_rollups
    assert from_rollups > 6 * len(seeds)
