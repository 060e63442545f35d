"""After any writes, an engine with a result cache answers like one without."""

import random
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio

from tests.peers.hbase import RunningHbase
from tests.seeds import groups
from tests.unit.query.engines import comparable
from tsd.codec.metadata import Annotation
from tsd.codec.names import Kind
from tsd.codec.opentsdb.annotation import annotation_qualifier, encode_annotation
from tsd.codec.opentsdb.cell import COLUMN, FAMILY, Point, join, ms_qualifier, seconds_qualifier
from tsd.codec.opentsdb.merge import MergeRules
from tsd.codec.opentsdb.rowkey import KeyLayout, join_pairs, row_key
from tsd.codec.opentsdb.uid import ID_FAMILY, NAME_FAMILY
from tsd.codec.text import encode_float
from tsd.errors import CorruptRow
from tsd.query.engine import EngineSettings, QueryEngine
from tsd.query.parse.uri import read_uri
from tsd.store import Family, Put, Row, Store, Table
from tsd.store.hbase.engine import HBaseStore
from tsd.store.memory import MemoryStore
from tsd.store.rocksdb.engine import EmbeddedStore
from tsd.tables.opentsdb.compaction.compactor import RowCompactor
from tsd.tables.opentsdb.data_table import DataTable
from tsd.tables.opentsdb.delete import remove_rows
from tsd.tables.opentsdb.reader import OpenTsdbReader, ReadRules, ReadTable
from tsd.tables.opentsdb.uids import Uids
from tsd.tables.quirks import quirks_for

START_S = 1_356_998_400
HOURS = 3
NOW_MS = 1_700_000_000_000
LAYOUTS = [KeyLayout(), KeyLayout(salt_width=1, salt_buckets=3)]
QUESTIONS = (
    "sum:10m-avg:m",
    "sum:10m-avg:m{host=*}",
    "max:10m-avg-zero:m{host=a|b}",
    "none:10m-avg:m{}{host=not_literal_or(a)}",
    "sum:rate:30m-max:m{host=*}",
    "avg:1h-p50:m",
    "sum:10m-avg:m{dc=x}",
)


class World:
    """A metric of a few series over a few hours; those who write to it, and those who ask."""

    def __init__(
        self, store: Store, others: Store, prefix: str, layout: KeyLayout, seed: int, now_ms: Callable[[], int]
    ):
        """`others` is by which way all but the engine's own process write."""
        self.dice = random.Random(seed)
        self.layout, self._store, self._others, self._now_ms = layout, store, others, now_ms
        self._data, self._uid = prefix + "data", prefix + "uid"
        self._uids = Uids(store, self._uid, layout.widths)
        self._keys: list[bytes] = []
        self.done: Counter[str] = Counter()

    async def build(self) -> None:
        """Make the tables, the names and an engine."""
        families = (Family(ID_FAMILY), Family(NAME_FAMILY))
        await self._store.create_tables([Table(self._data, (Family(FAMILY),)), Table(self._uid, families)])
        [metric] = await self._named(Kind.METRIC, [b"m"])
        host, dc = await self._named(Kind.TAGK, [b"host", b"dc"])
        a, b, c, x, y = await self._named(Kind.TAGV, [b"a", b"b", b"c", b"x", b"y"])
        for pairs in ([(host, a), (dc, x)], [(host, b), (dc, y)], [(host, c), (dc, x)], [(dc, y)]):
            joined = join_pairs(pairs)
            self._keys += [row_key(self.layout, metric, START_S + hour * 3600, joined) for hour in range(HOURS)]
        self.engine = self._engine(EngineSettings(cache_bytes=1 << 20))

    async def _named(self, kind: Kind, names: list[bytes]) -> list[bytes]:
        found = await self._uids.find_or_assign(kind, names)
        return [uid for name in names if isinstance(uid := found[name], bytes)]

    def _engine(self, settings: EngineSettings) -> QueryEngine:
        async def flush(_: bytes) -> bool:
            await trio.lowlevel.checkpoint()
            return True

        reader = OpenTsdbReader(ReadTable(self._store, self._data, self.layout, ReadRules(scans=2)), self._uids)
        return QueryEngine(reader, settings=settings, flush=flush, now_ms=self._now_ms)

    async def look(self) -> None:
        """Ask both."""
        first, stop = sorted(self.dice.sample(range(HOURS * 6 + 1), 2))
        texts = {
            "start": [str(START_S + first * 600)],
            "end": [str(START_S + stop * 600 - 1)],
            "m": [self.dice.choice(QUESTIONS)],
        }
        query = read_uri(texts, NOW_MS, quirks=quirks_for(self.dice.random() < 0.2))
        wanted = await self._engine(EngineSettings()).run(query)
        assert comparable(await self.engine.run(query)) == comparable(wanted), texts

    async def query(self) -> None:
        """Ask without a look at the answer, which may be of either side of a write."""
        texts = {"start": [str(START_S)], "end": [str(START_S + 7199)], "m": [self.dice.choice(QUESTIONS)]}
        await self.engine.run(read_uri(texts, NOW_MS))

    async def change(self) -> None:
        """Write something."""
        ways: list[tuple[int, Callable[[], Awaitable[None]]]] = [
            (8, self._put), (2, self._put_old), (3, self._delete), (2, self._compact), (1, self._note),
            (1, self._remove),
        ]  # fmt: skip
        [way] = self.dice.choices([way for _, way in ways], [weight for weight, _ in ways])
        self.done[way.__name__] += 1
        await way()

    def _cell(self) -> Point:
        """A cell of several points, or a single one; at some times that other cells may have, too."""
        step = self.dice.choice([1, 7, 60])
        times = range(self.dice.randrange(1200), 3600, step)[: self.dice.choice([1, 6, 6])]
        in_ms = self.dice.random() < 0.2
        points = []
        for time in times:
            flags, value = encode_float(self.dice.choice([0.1, 1.7]) + time)
            points.append(
                Point(ms_qualifier(time * 1000 + 5, flags) if in_ms else seconds_qualifier(time, flags), value)
            )
        return join(points) if len(points) > 1 else points[0]

    async def _put(self, time_ms: int | None = None) -> None:
        cells = []
        for key in self.dice.sample(self._keys, self.dice.randint(1, 4)):
            cell = self._cell()
            cells.append(Put(key, COLUMN + cell.qualifier, cell.value))
        await self._others.put(self._data, cells, time_ms=time_ms)

    async def _put_old(self) -> None:
        await self._put(self.dice.randint(1, 1 << 40))

    async def _some_row(self) -> Row | None:
        key = self.dice.choice(self._keys)
        found = await self._others.get(self._data, [key])
        return Row(key, found[key]) if key in found else None

    async def _delete(self) -> None:
        row = await self._some_row()
        if row is not None:
            columns = [cell.column for cell in self.dice.sample(row.cells, self.dice.randint(1, len(row.cells)))]
            await self._others.delete(self._data, {row.key: columns}, up_to_ms=None)

    async def _remove(self) -> None:
        row = await self._some_row()
        if row is not None:
            await remove_rows(self._others, self._data, [row], read_ms=1 << 62)

    async def _compact(self) -> None:
        rules = MergeRules(fix_duplicates=True)
        compactor = RowCompactor(
            DataTable(self._others, self._data, self.layout), rules, lambda: 0, _raise, settle_ms=0
        )
        await compactor.compact_keys(self.dice.sample(self._keys, 4))

    async def _note(self) -> None:
        key = self.dice.choice(self._keys)
        base_s = int.from_bytes(key[self.layout.metric_end : self.layout.pairs_start], "big")
        note = Annotation(base_s + 7, description="here")
        column = COLUMN + annotation_qualifier(note.start_time)
        await self._others.put(self._data, [Put(key, column, encode_annotation(note))])


def _raise(error: CorruptRow) -> None:
    raise error


async def play(world: World, rounds: int) -> None:
    """Change something, or not, and look."""
    await world.build()
    for _ in range(rounds):
        if world.dice.random() < 0.6:
            await world.change()
        await world.look()


async def play_at_once(world: World, rounds: int) -> None:
    """Change and ask side by side, and look when both are done."""
    await world.build()

    async def change() -> None:
        for _ in range(3):
            for _ in range(world.dice.randrange(12)):
                await trio.lowlevel.checkpoint()
            await world.change()

    async def run_queries() -> None:
        for _ in range(2):
            await world.query()

    for _ in range(rounds // 2):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(change)
            nursery.start_soon(run_queries)
            nursery.start_soon(run_queries)
        for _ in range(3):
            await world.look()


def served(worlds: list[World]) -> None:
    """Fails where a run tested nothing."""
    counts = Counter[str]()
    done = Counter[str]()
    for world in worlds:
        counts.update(world.engine.cache.statistics())
        done.update(world.done)
    assert counts["hits"] > len(worlds)
    assert counts["invalidated"] > len(worlds)
    assert len(done) >= 5


@pytest.mark.parametrize("layout", LAYOUTS, ids=["plain", "salted"])
@pytest.mark.parametrize("schedule", [play, play_at_once])
@pytest.mark.parametrize("seeds", groups(8, fast=3, size=5))
async def test_cache_on_the_memory_store(
    schedule: Callable[[World, int], Awaitable[None]], layout: KeyLayout, seeds: range
) -> None:
    worlds = []
    for seed in seeds:
        clock = iter(range(NOW_MS, NOW_MS + 10**9))
        store = MemoryStore(lambda clock=clock: next(clock))  # type: ignore[misc]
        worlds.append(World(store, store, "", layout, seed, lambda: NOW_MS * 2))
        await schedule(worlds[-1], 10)
    served(worlds)


@pytest.mark.slow
@pytest.mark.parametrize("schedule", [play, play_at_once])
async def test_cache_on_the_embedded_store(schedule: Callable[[World, int], Awaitable[None]], tmp_path: Path) -> None:
    store = await EmbeddedStore.open(tmp_path, lambda: NOW_MS)
    try:
        worlds = []
        for seed in range(4):
            worlds.append(World(store, store, f"w{seed}-", LAYOUTS[seed % 2], seed, lambda: NOW_MS * 2))
            await schedule(worlds[-1], 10)
        served(worlds)
    finally:
        await store.aclose()


def test_cache_on_hbase_with_other_writers(hbase: RunningHbase) -> None:
    async def run() -> None:
        mine, others = (HBaseStore([(hbase.host, hbase.thrift_port)], connections=3) for _ in range(2))
        worlds = []
        for seed, layout in enumerate(LAYOUTS):
            prefix = f"{hbase.unused_tables().data}-"
            worlds.append(World(mine, others, prefix, layout, seed, lambda: NOW_MS * 2))
            await play(worlds[-1], 30)
        served(worlds)
        for store in (mine, others):
            await store.aclose()

    trio.run(run)
