"""The series of a metric as arrays: filters find in them what the test of each series finds."""

import random
import tracemalloc
from itertools import product

import numpy as np
import pytest

from tests.seeds import seeds
from tsd.codec.names import Kind, Widths
from tsd.codec.opentsdb.rowkey import KeyLayout
from tsd.store import Family, Put, Table
from tsd.store.memory import MemoryStore
from tsd.tables.filters import TYPES, make_filter
from tsd.tables.opentsdb.selection import FilterResolver, FilterRules, SeriesMatcher
from tsd.tables.opentsdb.series_index import SeriesIndex
from tsd.tables.opentsdb.tag_table import PASSED, UNTESTED, TagTable, TagTests
from tsd.tables.opentsdb.uids import Uids
from tsd.tables.reading import UNWANTED, SeriesRequest

INDEX, UID = "series", "uid"
NAMES = ["a", "A", "ab", "web01", "Web02", "lga"]
TAGKS = ["host", "dc", "cpu"]
EXPRESSIONS = {
    "regexp": ["b", "^[aA]$", "w.*1", "x"],
    "wildcard": ["*", "a*", "*b*", "w*1"],
    "iwildcard": ["A*", "*WEB*"],
    "not_literal_or": ["a|ab", "gone"],
}


async def a_store() -> MemoryStore:
    store = MemoryStore(lambda: 1)
    await store.create_tables([Table(INDEX, (Family(b"t"),)), Table(UID, (Family(b"id"), Family(b"name")))])
    return store


@pytest.mark.parametrize("seed", seeds(20, fast=5))
async def test_filters_find_the_series_that_match_one_by_one(seed: int) -> None:
    chance = random.Random(seed)
    uids = Uids(await a_store(), UID, Widths())
    tagks = await uids.find_or_assign(Kind.TAGK, [name.encode() for name in TAGKS])
    tagvs = await uids.find_or_assign(Kind.TAGV, [name.encode() for name in NAMES])
    await uids.find_or_assign(Kind.METRIC, [b"m"])
    every = []
    for values in product([None, *tagvs.values()], repeat=len(TAGKS)):
        tags = sorted((uid, value) for uid, value in zip(tagks.values(), values, strict=True) if value is not None)
        every.append(b"".join(bytes(tagk) + bytes(value) for tagk, value in tags))  # type: ignore[arg-type]
    pairs = chance.sample([one for one in every if one], 120)
    table = TagTable.of(pairs[:60], Widths()).with_added(pairs[40:])
    assert table.count == 120
    tests = TagTests()
    for _ in range(30):
        filters = []
        for _ in range(chance.randint(1, 3)):
            kind = chance.choice(TYPES)
            expression = chance.choice(
                EXPRESSIONS.get(kind, ["a", "a|lga", "WEB01|ab"] if kind[0] in "in" else ["a", "a|lga"])
            )
            filters.append(make_filter(chance.choice(TAGKS), kind, expression))
        request = SeriesRequest("m", filters=tuple(filters), explicit_tags=chance.random() < 0.3)
        resolved = await FilterResolver(uids, Widths(), FilterRules()).resolve(request)
        one_by_one = SeriesMatcher(resolved, KeyLayout(), uids)
        await one_by_one.match(sorted(pairs))
        wanted = [one for one in sorted(pairs) if one_by_one.numbers[one] != UNWANTED]
        assert table.series_pairs(await SeriesMatcher(resolved, KeyLayout(), uids, tests).find(table)) == wanted


def test_values_of_a_tag_that_some_series_lack() -> None:
    host, dc = b"\0\0\1", b"\0\0\2"
    table = TagTable.of([host + b"\0\0\7", host + b"\0\0\7" + dc + b"\1\0\0"], Widths())
    assert table.column(host).codes.tolist() == [0, 0]
    assert table.column(dc).codes.tolist() == [-1, 0]
    assert table.column(dc).values.tolist() == [1 << 16]
    assert table.column(b"\0\0\3").codes.tolist() == [-1, -1]
    assert table.tag_counts().tolist() == [1, 2]


def test_cached_results_are_bounded() -> None:
    table = TagTable.of([b"\0\0\1\0\0\1"], Widths())
    for key in range(1000):
        table.remember(key, np.zeros(1, np.intp))
    assert table.result(0) is None
    assert table.result(999) is not None


def test_cached_tests_of_few_values_are_bounded() -> None:
    tests, values = TagTests(), np.array([7], np.uint64)
    for key in range(10_000):
        tests.states(key, values)[0] = PASSED
    assert tests.states(9_999, values).tolist() == [PASSED]
    assert tests.states(0, values).tolist() == [UNTESTED]


async def test_table_of_a_metric_gets_series_that_others_write_to_the_store() -> None:
    store, metric = await a_store(), b"\0\0\1"
    index, other = (SeriesIndex(store, INDEX, KeyLayout()) for _ in range(2))
    pairs = [b"\0\0\1\0\0" + bytes([value]) for value in range(1, 100)]
    await index.add({metric: pairs[:10]})
    for count in (10, 11, 40, 99):
        await other.add({metric: pairs[:count]})
        table = await index.table(metric)
        assert table is not None
        assert table.series_pairs(np.arange(table.count)) == pairs[:count]
    assert await index.table(b"\0\0\2") is not None
    await store.put(INDEX, [Put(b"\0", b"t:wanted", b"x")])  # not a series
    assert index.table_bytes > 0


def pairs_of(first: int, count: int) -> list[bytes]:
    return [b"\0\0\1" + number.to_bytes(3, "big") for number in range(first, first + count)]


async def test_memory_of_many_small_metrics_is_counted() -> None:
    """Regression: tables of few series counted as a seventeenth of their memory, and new series of metrics that no
    query used any more did not count."""
    index = SeriesIndex(await a_store(), INDEX, KeyLayout())
    metrics = [number.to_bytes(3, "big") for number in range(1, 200)]
    for metric in metrics:
        await index.add({metric: pairs_of(1, 10)})
    first = await index.table(metrics[0])  # imports modules, whose memory does not count
    assert first is not None
    first.column(b"\0\0\1")
    tracemalloc.start()
    try:
        for metric in metrics:
            table = await index.table(metric)
            assert table is not None
            table.column(b"\0\0\1")
        taken = tracemalloc.get_traced_memory()[0]
        assert taken / 2 < index.table_bytes < taken * 2
    finally:
        tracemalloc.stop()


async def test_new_series_of_unused_metrics_take_bounded_memory() -> None:
    """Hosts come and go for months, and most metrics are asked for once."""
    limit = 1 << 20
    index = SeriesIndex(await a_store(), INDEX, KeyLayout(), tables_bytes=limit)
    metrics = [number.to_bytes(3, "big") for number in range(1, 50)]
    for metric in metrics:
        await index.add({metric: pairs_of(1, 1)})
        await index.table(metric)
    for first in range(2, 1000, 50):
        await index.add({metric: pairs_of(first, 50) for metric in metrics[:25]})
        await index.add({metric: pairs_of(first, 50) for metric in metrics[25:]})
        assert index.table_bytes < limit * 1.2
    for metric in metrics:
        table = await index.table(metric)
        assert table is not None
        assert table.count == 1 + 1000


async def test_metrics_are_held_without_a_look_at_all_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: each metric that was read added up the sizes of tens of thousands, in one step of the event loop."""
    looks, size_of = 0, vars(TagTable)["nbytes"].fget

    def nbytes(table: TagTable) -> int:
        nonlocal looks
        looks += 1
        size: int = size_of(table)
        return size

    index = SeriesIndex(await a_store(), INDEX, KeyLayout())
    metrics = [number.to_bytes(3, "big") for number in range(1, 200)]
    for metric in metrics:
        await index.add({metric: pairs_of(1, 1)})
    monkeypatch.setattr(TagTable, "nbytes", property(nbytes))
    for metric in metrics:
        await index.table(metric)
    assert looks < 10 * len(metrics)
