"""Names without use are deleted, and no others; so are series without rows in the series index and the meta table."""

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.flaky_store import Fault, FlakyStore
from tests.unit.tables.compaction.parts import TABLE
from tsd.codec.metadata import Leaf, TsMeta, UidMeta
from tsd.codec.names import Kind
from tsd.codec.opentsdb.cell import COLUMN, seconds_qualifier
from tsd.codec.opentsdb.meta import NO_COUNT, TS_COUNTER, TS_META, encode_ts_meta, encode_uid_meta
from tsd.codec.opentsdb.rowkey import KeyLayout, join_pairs, row_key
from tsd.codec.opentsdb.tree import branch_row, encode_leaf, leaf_column
from tsd.codec.opentsdb.uid import ID_FAMILY, NAME_FAMILY, meta_column
from tsd.errors import StoreError
from tsd.store import Family, Put, Store, Table, scan
from tsd.store.memory import MemoryStore
from tsd.store.rocksdb.engine import EmbeddedStore
from tsd.tables.opentsdb.prune import Ages, NamePruner, Pruned, PrunedTables
from tsd.tables.opentsdb.series_index import SeriesIndex
from tsd.tables.opentsdb.uids import Uids

UID, INDEX, META, TREE, ROLLUPS = "tsdb-uid", "tsdb-series", "tsdb-meta", "tsdb-tree", "tsdb-1h"
WRITTEN_MS, LATER_MS, LAST_MS = 10_000, 50_000, 90_000  # a store may count up from them
ALL_OLD = Ages(LATER_MS - 1, LATER_MS - 1)
HOUR_S = 3600
POINT, ANNOTATION = COLUMN + seconds_qualifier(0, 0), COLUMN + b"\1\0\0"
ENGINES = ["memory", "embedded"]
LAYOUTS = [KeyLayout(), KeyLayout(salt_width=1, salt_buckets=4)]
Series = tuple[str, tuple[tuple[str, str], ...]]  # metric, tags


class Clock:
    """The store's clock."""

    ms = WRITTEN_MS

    def __call__(self) -> int:
        return self.ms


class Tables:
    """Tables with named series."""

    def __init__(self, store: Store, clock: Clock, layout: KeyLayout) -> None:
        self.store = store
        self.clock = clock
        self.layout = layout
        self.index = SeriesIndex(store, INDEX, layout)

    async def uids(self, kind: Kind, names: Iterable[str]) -> list[bytes]:
        """Return the UIDs of names, which are assigned if they have none."""
        wanted = [name.encode() for name in names]
        found = await Uids(self.store, UID, self.layout.widths).find_or_assign(kind, wanted)
        return [bytes(found[name]) for name in wanted]  # type: ignore[arg-type]

    async def split(self, series: Series) -> tuple[bytes, bytes]:
        """Return the metric's UID and the joined tag pairs of a series."""
        [metric] = await self.uids(Kind.METRIC, [series[0]])
        tagks = await self.uids(Kind.TAGK, [tagk for tagk, _ in series[1]])
        tagvs = await self.uids(Kind.TAGV, [tagv for _, tagv in series[1]])
        return metric, join_pairs(zip(tagks, tagvs, strict=True))

    async def put(self, series: Series, hour: int = 0, table: str = TABLE, column: bytes = POINT) -> None:
        """Store a row of a series."""
        metric, pairs = await self.split(series)
        await self.store.put(table, [Put(row_key(self.layout, metric, hour * HOUR_S, pairs), column, b"\1")])

    async def record(self, batch: Sequence[Series]) -> None:
        """Add series to the index together."""
        found: dict[bytes, list[bytes]] = {}
        for series in batch:
            metric, pairs = await self.split(series)
            found.setdefault(metric, []).append(pairs)
        await self.index.add(found)

    async def indexed(self, metric: bytes, pair: bytes = b"") -> list[bytes]:
        """Return the series of a metric with a tag that a new reader finds in the index."""
        return await SeriesIndex(self.store, INDEX, self.layout).with_tag(metric, pair, 1 << 40) or []

    def pruner(self, ages: Ages = ALL_OLD, store: Store | None = None) -> NamePruner:
        """Return a pruner of all these tables."""
        tables = PrunedTables([TABLE, ROLLUPS], UID, INDEX, META, TREE)
        return NamePruner(store or self.store, tables, self.layout, ages)

    async def prune(self, ages: Ages = ALL_OLD) -> Pruned:
        """Delete what is not used."""
        return await self.pruner(ages).run(list(Kind), delete=True)

    async def names(self) -> dict[Kind, set[str]]:
        """Return all names."""
        found: dict[Kind, set[str]] = {kind: set() for kind in Kind}
        async for rows in scan(self.store, UID):
            for row in rows:
                for kind in Kind:
                    found[kind] |= {
                        cell.value.decode() for cell in row.cells if cell.column == b"name:" + kind.value.encode()
                    }
        return found


@asynccontextmanager
async def opened(engine: str, folder: Path, layout: KeyLayout = LAYOUTS[0]) -> AsyncIterator[Tables]:
    families, clock = (Family(b"t"), Family(ID_FAMILY), Family(NAME_FAMILY)), Clock()
    store: Store = MemoryStore(clock) if engine == "memory" else await EmbeddedStore.open(folder / "store", clock)
    try:
        await store.create_tables([Table(name, families) for name in (TABLE, UID, INDEX, META, TREE, ROLLUPS)])
        yield Tables(store, clock, layout)
    finally:
        await store.aclose()


def names_of(series: Iterable[Series]) -> dict[Kind, set[str]]:
    found = list(series)
    return {
        Kind.METRIC: {metric for metric, _ in found},
        Kind.TAGK: {tagk for _, tags in found for tagk, _ in tags},
        Kind.TAGV: {tagv for _, tags in found for _, tagv in tags},
    }


SOME_SERIES = st.tuples(
    st.sampled_from(["cpu", "mem", "disk"]),
    st.dictionaries(st.sampled_from(["host", "dc", "rack"]), st.sampled_from("abcdef"), min_size=1).map(
        lambda tags: tuple(sorted(tags.items()))
    ),
)


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS, ids=["plain", "salted"])
@pytest.mark.parametrize("engine", ENGINES)
@settings(deadline=None, max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    batches=st.lists(st.lists(SOME_SERIES, min_size=1, max_size=8), max_size=4),
    stored=st.lists(st.tuples(SOME_SERIES, st.integers(0, 5), st.sampled_from([TABLE, ROLLUPS])), max_size=8),
)
def test_exactly_unused_names_are_deleted(
    tmp_path_factory: pytest.TempPathFactory,
    engine: str,
    layout: KeyLayout,
    batches: list[list[Series]],
    stored: list[tuple[Series, int, str]],
) -> None:
    async def run() -> None:
        async with opened(engine, tmp_path_factory.mktemp("store"), layout) as tables:
            for batch in batches:
                await tables.record(batch)
            live = {series for series, _, _ in stored}
            for series, hour, table in stored:
                await tables.put(series, hour, table)
            await tables.record(list(live))
            before = await tables.names()
            preview = await tables.pruner().run(list(Kind), delete=False)
            assert await tables.names() == before
            done = await tables.prune()
            assert {kind: set(map(bytes.decode, found.unused)) for kind, found in done.names.items()} == {
                kind: names - names_of(live)[kind] for kind, names in before.items()
            }
            assert (preview.names, preview.indexed) == (done.names, done.indexed)
            assert await tables.names() == names_of(live)
            splits = [await tables.split(series) for series in sorted(live)]
            for metric, pairs in splits:
                width = layout.widths.pair
                for at in range(0, len(pairs), width):
                    assert pairs in await tables.indexed(metric, pairs[at : at + width])
            for metric in {metric for metric, _ in splits}:
                assert set(await tables.indexed(metric)) == {pairs for own, pairs in splits if own == metric}
            again = await tables.prune()
            assert (again.indexed, [found.unused for found in again.names.values()]) == (0, [{}, {}, {}])

    trio.run(run)


A, B = ("cpu", (("dc", "x"), ("host", "a"))), ("cpu", (("dc", "x"), ("host", "b")))


@pytest.mark.parametrize("engine", ENGINES)
async def test_uids_are_not_assigned_again(engine: str, tmp_path: Path) -> None:
    async with opened(engine, tmp_path) as tables:
        old = await tables.uids(Kind.TAGV, ["a", "b", "c"])
        await tables.prune()
        assert not set(await tables.uids(Kind.TAGV, ["a", "b", "c"])) & set(old)


@pytest.mark.parametrize("engine", ENGINES)
async def test_returning_series_is_indexed_again(engine: str, tmp_path: Path) -> None:
    async with opened(engine, tmp_path) as tables:
        await tables.record([A, B])
        await tables.put(B)
        await tables.prune()
        await tables.record([A])
        metric, pairs = await tables.split(A)
        width = tables.layout.widths.pair
        for at in range(0, len(pairs), width):
            assert pairs in await tables.indexed(metric, pairs[at : at + width])


@pytest.mark.parametrize("engine", ENGINES)
async def test_young_names_and_series_stay(engine: str, tmp_path: Path) -> None:
    async with opened(engine, tmp_path) as tables:
        await tables.uids(Kind.METRIC, ["old"])
        await tables.uids(Kind.TAGV, ["a"])
        tables.clock.ms = LATER_MS
        await tables.record([A])
        await tables.uids(Kind.METRIC, ["young"])
        done = await tables.prune()
        assert await tables.names() == {**names_of([A]), Kind.METRIC: {"cpu", "young"}}
        assert (set(done.names[Kind.METRIC].unused), done.names[Kind.METRIC].young, done.kept) == ({b"old"}, 1, 1)
        await tables.prune(Ages(LAST_MS, None))
        assert await tables.names() == names_of([A])
        await tables.prune(Ages(LAST_MS, LAST_MS))
        assert await tables.names() == {kind: set() for kind in Kind}


@pytest.mark.parametrize("column", [ANNOTATION, POINT])
async def test_annotations_and_points_use_names(column: bytes, tmp_path: Path) -> None:
    async with opened("memory", tmp_path) as tables:
        await tables.put(A, column=column)
        await tables.prune()
        assert await tables.names() == names_of([A])


async def test_trees_use_names(tmp_path: Path) -> None:
    async with opened("memory", tmp_path) as tables:
        metric, pairs = await tables.split(A)
        leaf = encode_leaf(Leaf("a", (metric + pairs).hex().upper()))
        await tables.store.put(TREE, [Put(branch_row(1, ["x"]), leaf_column("a"), leaf)])
        await tables.prune()
        assert await tables.names() == names_of([A])


@pytest.mark.parametrize("is_edited", [False, True])
@pytest.mark.parametrize("engine", ENGINES)
async def test_only_metadata_that_a_user_wrote_keeps_names(engine: str, is_edited: bool, tmp_path: Path) -> None:
    async with opened(engine, tmp_path) as tables:
        metric, pairs = await tables.split(A)
        [lonely] = await tables.uids(Kind.METRIC, ["lonely"])
        notes = "by hand" if is_edited else ""
        series = TsMeta((metric + pairs).hex().upper(), created_s=1, notes=notes)
        name = UidMeta(Kind.METRIC, created_s=1, notes=notes)
        await tables.store.put(META, [
            Put(metric + pairs, TS_COUNTER, NO_COUNT), Put(metric + pairs, TS_META, encode_ts_meta(series))
        ])  # fmt: skip
        await tables.store.put(UID, [Put(lonely, meta_column(Kind.METRIC), encode_uid_meta(name))])
        await tables.record([A])
        done = await tables.prune()
        kept = names_of([A])
        kept[Kind.METRIC].add("lonely")
        assert await tables.names() == (kept if is_edited else {kind: set() for kind in Kind})
        assert (done.described, done.names[Kind.METRIC].described) == ((0, 1) if is_edited else (1, 0))
        assert bool(await tables.indexed(metric)) == is_edited
        assert bool([rows async for rows in scan(tables.store, META)]) == is_edited


async def test_broken_names_are_left_to_fsck(tmp_path: Path) -> None:
    async with opened("memory", tmp_path) as tables:
        [uid] = await tables.uids(Kind.METRIC, ["a"])
        await tables.store.put(UID, [Put(b"b", b"id:metrics", uid), Put(b"c", b"id:metrics", b"\0\0\7")])
        done = await tables.prune()
        assert (done.names[Kind.METRIC].unused, done.names[Kind.METRIC].inconsistent) == ({}, 3)


@pytest.mark.parametrize("kind", list(Kind))
async def test_only_chosen_kinds_are_deleted(kind: Kind, tmp_path: Path) -> None:
    async with opened("memory", tmp_path) as tables:
        await tables.split(A)
        await tables.pruner().run([kind], delete=True)
        assert await tables.names() == {**names_of([A]), kind: set()}


@pytest.mark.parametrize("last", [Fault.REFUSED, Fault.ANSWER_LOST])
async def test_interrupted_run_is_completed_by_the_next(last: Fault) -> None:
    is_done, calls = False, 0
    while not is_done:
        memory, clock = MemoryStore(Clock()), Clock()
        families = (Family(b"t"), Family(ID_FAMILY), Family(NAME_FAMILY))
        await memory.create_tables([Table(name, families) for name in (TABLE, UID, INDEX, META, TREE, ROLLUPS)])
        tables = Tables(memory, clock, LAYOUTS[0])
        await tables.record([A, B])
        await tables.put(B)
        await tables.uids(Kind.TAGV, ["lonely"])
        metric, pairs = await tables.split(B)
        flaky = FlakyStore(memory)
        flaky.plan = [Fault.NONE] * calls + [last]
        flaky.always = Fault.REFUSED
        try:
            await tables.pruner(store=flaky).run(list(Kind), delete=True)
            is_done = True
        except StoreError:
            calls += 1
        width = tables.layout.widths.pair
        for at in range(0, len(pairs), width):
            assert pairs in await tables.indexed(metric, pairs[at : at + width])
        await tables.prune()
        assert await tables.names() == names_of([B])
        assert await tables.indexed(metric) == [pairs]
    assert calls
