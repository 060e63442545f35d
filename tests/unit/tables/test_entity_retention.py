"""Expired points leave the tables of entities, and no others: on the stores that keep versions."""

import tracemalloc
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from tests.unit.tables.entity_parts import EntityPoint, FilledTables, Inner, Lookup
from tsd.codec.entity.records import EntitySeries
from tsd.codec.points import Columns
from tsd.config.retention import parse_rules
from tsd.store import VersionedCells
from tsd.store.memory import MemoryStore
from tsd.store.rocksdb.engine import EmbeddedStore
from tsd.tables.entity.newest import NewestValues
from tsd.tables.entity.removal import STEP_COLUMNS, STEP_VERSIONS
from tsd.tables.entity.retention import EntityRetention, Expiry
from tsd.tables.entity.tables import EntityTables
from tsd.tables.entity.writer import EntityWriter
from tsd.tables.retention_task import Amount
from tsd.tables.writing import SeriesText

NOW_S = 1_700_000_000
HOUR_S, DAY_S = 3600, 86_400
RULES = parse_rules("debug.*=7d; audit=forever; *=30d")
CUTOFF_S = {b"debug.x": NOW_S - 7 * DAY_S, b"sys.cpu": NOW_S - 30 * DAY_S, b"audit": 0}
END_S = {metric: at - at % HOUR_S for metric, at in CUTOFF_S.items()}  # of the last hour that has expired
ALL_AGES = [60, 6 * DAY_S, 8 * DAY_S, 29 * DAY_S, 31 * DAY_S, 400 * DAY_S]


@pytest.fixture(params=["memory", "embedded"])
async def cells(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[VersionedCells]:
    if request.param == "memory":
        yield MemoryStore(lambda: 1).versioned_cells
        return
    store = await EmbeddedStore.open(tmp_path, lambda: 1)
    yield store.versioned_cells
    await store.aclose()


def points(host: bytes, metric: bytes, times_s: Sequence[int], tags: int = 1) -> list[EntityPoint]:
    return [
        EntityPoint(host, EntitySeries(metric, ((b"n", b"%d" % tag),)), at * 1000, 0, b"\x07")
        for at in times_s
        for tag in range(tags)
    ]


async def removed(retention: EntityRetention) -> dict[str, Amount]:
    found: dict[str, Amount] = {}
    async for rule, amount in retention.remove(NOW_S):
        found[rule] = found.get(rule, Amount()).plus(amount)
    return found


async def counted(retention: EntityRetention) -> dict[str, Amount]:
    found: dict[str, Amount] = {}
    async for rule, amount in retention.count(NOW_S):
        found[rule] = found.get(rule, Amount()).plus(amount)
    return found


async def stored(tables: EntityTables, host: bytes) -> dict[bytes, list[int]]:
    entity = await tables.read(host, 0)
    return {} if entity is None else {s.metric: [at // 1000 for at, _ in found] for s, found in entity.series.items()}


async def test_points_and_newest_values_go_by_their_own_rules(cells: VersionedCells) -> None:
    tables, retention = FilledTables(cells), EntityRetention(cells, Expiry(RULES, lambda: NOW_S))
    await tables.create()
    times = [NOW_S - age for age in ALL_AGES]
    for metric in CUTOFF_S:
        bounds = [END_S[metric] - 1, END_S[metric]] if END_S[metric] else []
        await tables.write(points(b"a", metric, [*times, *bounds]))
        await tables.write(points(b"silent", metric, [NOW_S - 400 * DAY_S]))
    await tables.put_metadata(b"silent", {b"rack": "r1"}, 1000)
    expected = await counted(retention)
    assert await removed(retention) == expected
    assert expected["debug.*=7d in tsdb-entity"].points == 4 + 1 + 1
    assert {rule: amount.points for rule, amount in expected.items() if "current" in rule} == {
        "debug.*=7d in tsdb-current": 1,
        "*=30d in tsdb-current": 1,
    }
    assert await stored(tables, b"a") == {
        metric: sorted(at for at in {*times, END_S[metric]} if at >= END_S[metric] and at) for metric in CUTOFF_S
    }
    assert await stored(tables, b"silent") == {b"audit": [NOW_S - 400 * DAY_S]}
    assert await tables.metadata(b"silent") == {"rack": "r1"}
    found = (await tables.newest(b"", None, limit=10)).entities
    assert {entity.name: {one.metric for one in entity.series} for entity in found} == {
        b"a": {b"debug.x", b"audit", b"sys.cpu"},
        b"silent": {b"audit"},
    }
    assert await removed(retention) == {}


async def test_many_points_of_many_columns_are_counted_once(cells: VersionedCells) -> None:
    tables, retention = FilledTables(cells), EntityRetention(cells, Expiry(RULES, lambda: NOW_S))
    await tables.create()
    long = range(NOW_S - 90 * DAY_S, NOW_S - 90 * DAY_S + 100 * (2 * STEP_VERSIONS + 7), 100)
    tags = STEP_COLUMNS + 3
    await tables.write(points(b"a", b"sys.cpu", long, tags=2))
    await tables.write(points(b"a", b"sys.mem", long[:: STEP_VERSIONS // 20], tags=tags))
    await tables.write(points(b"a", b"sys.mem", [NOW_S], tags=tags))
    total = 2 * len(long) + tags * len(long[:: STEP_VERSIONS // 20])
    assert (await counted(retention))["*=30d in tsdb-entity"].points == total
    assert (await removed(retention))["*=30d in tsdb-entity"].points == total
    assert await stored(tables, b"a") == {b"sys.mem": [NOW_S]}


async def test_newest_values_in_memory_expire(cells: VersionedCells) -> None:
    newest = NewestValues(b"host")
    tables = EntityTables(cells, newest, Expiry(RULES, lambda: NOW_S).is_kept)
    await tables.create()
    writer = EntityWriter(Inner(), cells, newest)
    texts = [SeriesText(metric, b"host=" + host) for metric in (b"debug.x", b"sys.cpu") for host in (b"a", b"b")]
    ages_d = np.array([8, 8, 8, 31])
    window = Columns(np.arange(4, dtype=np.int32), (NOW_S - ages_d * DAY_S) * 2000, np.zeros(4, np.uint8), ages_d)
    await writer.write(window, Lookup(texts))
    await removed(EntityRetention(cells, Expiry(RULES, lambda: NOW_S)))
    found = (await tables.newest(b"", None, limit=10)).entities
    assert {entity.name: [one.metric for one in entity.series] for entity in found} == {b"a": [b"sys.cpu"]}


def test_memory_of_expiry_does_not_grow_with_metrics() -> None:
    """Regression: it kept the rule of each metric that it had ever seen."""
    expiry = Expiry(RULES, lambda: NOW_S)
    names = [b"made.up.%d" % number for number in range(40_000)]
    held = []
    tracemalloc.start()
    try:
        for part in (names[:20_000], names[20_000:]):
            assert {expiry.kept_from_ms(name) for name in part} == {1000 * END_S[b"sys.cpu"]}
            held.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert held[1] - held[0] < held[0] // 10
