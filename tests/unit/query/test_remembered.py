"""Hours that are remembered: what is, for how long, and that no answer is another for it."""

from dataclasses import replace

import numpy as np
import pytest
import trio

from tests.unit.query.engines import DATA, START_S, House, asked, told
from tsd.codec.annotation import Annotation
from tsd.codec.cell import COLUMN
from tsd.codec.rowkey import Layout, tsuid
from tsd.errors import BadQuery
from tsd.query.bucketed import Bucketed
from tsd.query.engine import Settings
from tsd.query.limits import Bounds, Limits
from tsd.query.model import Query
from tsd.query.remembered import Hour, How, Remembered
from tsd.store import Put

LAYOUTS = [Layout(), Layout(salt_width=1, salt_buckets=4)]
REMEMBERS = Settings(remember_bytes=1 << 20)
HOW = How(60_000, "avg", corrected=False)
LINES = [
    f"sys.cpu {START_S + at * 600 + host} {host + at * 0.5} host=web{host} dc={'lga' if host % 2 else 'sjc'}"
    for host in range(5)
    for at in range(12)
]
HOURS = 3  # that are read for two: what follows the last bucket, too, as OpenTSDB does (query.md §7)
M = "sum:10m-avg:sys.cpu{host=*}"


async def remembering(layout: Layout = LAYOUTS[0], **settings: object) -> House:
    """A house whose engine remembers."""
    return await House.build(LINES, layout=layout, settings=replace(REMEMBERS, **settings))  # type: ignore[arg-type]


def counted(house: House) -> tuple[int, int, int]:
    """Hours taken from memory, read, and found to be other ones."""
    numbers = house.engine.hours.remembered.statistics()
    return numbers["hits"], numbers["misses"], numbers["invalidated"]


async def agree(house: House, query: Query) -> None:
    """The answer is what an engine finds that remembers nothing."""
    assert told(await house.engine.run(query)) == told(await house.new_engine(Settings()).run(query))


@pytest.mark.parametrize("layout", LAYOUTS, ids=["plain", "salted"])
async def test_an_hour_is_read_once(layout: Layout) -> None:
    house = await remembering(layout)
    await agree(house, asked(M))
    assert counted(house) == (0, HOURS, 0)
    read = house.store.statistics()["page"]
    await house.run(M)
    assert counted(house) == (HOURS, HOURS, 0)
    assert house.store.statistics()["page"] == read
    await agree(house, asked(M))


@pytest.mark.parametrize("layout", LAYOUTS, ids=["plain", "salted"])
@pytest.mark.parametrize(
    "m",
    [
        "sum:10m-avg:sys.cpu{dc=*}",
        "sum:10m-avg:sys.cpu{host=web1}",
        "max:10m-avg-zero:sys.cpu{host=web1|web3}",
        "none:10m-avg:sys.cpu{}{host=wildcard(*3)}",
        "sum:rate:10m-avg:sys.cpu{}{host=not_literal_or(web1)}",
    ],
)
async def test_filters_groups_and_fills_come_afterwards(m: str, layout: Layout) -> None:
    house = await remembering(layout)
    await house.run(M)
    await agree(house, asked(m))
    assert counted(house) == (HOURS, HOURS, 0)


async def test_what_changes_the_buckets_is_another_memory() -> None:
    house = await remembering()
    for m in (M, "sum:10m-max:sys.cpu{host=*}", "sum:20m-avg:sys.cpu{host=*}", "sum:10m-p50:sys.cpu{host=*}"):
        for _ in range(2):
            await agree(house, asked(m))
    await agree(house, asked(M, corrected=True))
    assert counted(house) == (4 * HOURS, 5 * HOURS, 0)


@pytest.mark.parametrize("m", ["sum:sys.cpu", "sum:7m-avg:sys.cpu", "sum:0all-avg:sys.cpu", "sum:2h-avg:sys.cpu"])
async def test_buckets_that_do_not_end_with_the_hour_are_not_remembered(m: str) -> None:
    house = await remembering()
    await house.run(m)
    assert house.engine.hours.remembered.statistics()["hours"] == 0


async def test_hours_of_which_some_rows_are_wanted_only_are_not_remembered() -> None:
    house = await remembering()
    await house.run("sum:10m-avg:sys.cpu{host=web1}")
    assert house.engine.hours.remembered.statistics()["hours"] == 1  # the empty one


async def test_an_hour_that_is_not_over_is_not_remembered() -> None:
    house = await remembering()
    house.now_ms = (START_S + 7199) * 1000
    await agree(house, asked(M))
    assert house.engine.hours.remembered.statistics()["hours"] == 1
    await agree(house, asked(M))
    assert counted(house) == (1, 2 * HOURS - 1, 0)


@pytest.mark.parametrize("layout", LAYOUTS, ids=["plain", "salted"])
async def test_every_kind_of_write_is_noticed(layout: Layout) -> None:
    house = await remembering(layout)
    page = await house.store.page(DATA, b"", None, limit=1)
    [row] = page.rows
    [cell] = row.cells
    writes = [
        house.put([f"sys.cpu {START_S + 7} 1000 host=web1 dc=lga"]),
        house.put([f"sys.cpu {START_S + 8} 1000 host=web9 dc=lga"]),
        house.store.delete(DATA, {row.key: [cell.column]}, up_to_ms=None),
        house.store.create(DATA, [Put(row.key, cell.column, cell.value)]),
        house.store.check_and_put(DATA, row.key, cell.column, cell.value[:-1] + b"\1", expected=cell.value),
        house.store.increment(DATA, row.key, COLUMN + b"\x01\x07", 1),
    ]
    for write in writes:
        await house.run(M)
        await write
        assert house.engine.hours.remembered.statistics()["hours"] == HOURS - 1
        await agree(house, asked(M))


async def test_a_write_elsewhere_costs_nothing() -> None:
    house = await remembering()
    await house.run(M)
    await house.put([f"sys.cpu {START_S + 10800} 1 host=web1 dc=lga", f"sys.mem {START_S} 1 host=web1"])
    await agree(house, asked(M))
    assert counted(house) == (HOURS, HOURS, 0)


async def test_a_write_while_an_hour_is_read_keeps_it_from_being_remembered() -> None:
    house = await remembering()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(house.run, M)
        for _ in range(40):
            await trio.lowlevel.checkpoint()
            await house.put([f"sys.cpu {START_S + 7} {trio.current_time()} host=web1 dc=lga"])
    assert house.engine.hours.remembered.statistics()["hours"] <= HOURS - 1
    await agree(house, asked(M))


async def test_notes_and_duplicates_are_read_again() -> None:
    house = await remembering()
    await house.put([f"sys.cpu {START_S} 1000 host=web1 dc=lga", f"sys.cpu {START_S + 1} 1000 host=web1 dc=lga"])
    await house.put([f"sys.cpu {START_S} 1000.5 host=web1 dc=lga"])
    page = await house.store.page(DATA, b"", None, limit=100)
    series = tsuid(house.layout, page.rows[-1].key).hex().upper()
    await house.annotate(Annotation(START_S + 3700, tsuid=series, description="here"))
    for _ in range(2):
        await agree(house, asked(M))
        await agree(house, asked(M, no_annotations=True))
    assert house.engine.hours.remembered.statistics()["hours"] == 1  # the empty one


async def test_limits_count_what_is_remembered() -> None:
    house = await remembering(limits=Limits(Bounds(points=59), points_override=True))
    await house.run(M, override_point_limit=True)
    with pytest.raises(BadQuery, match="more than our limit of 59 data points"):
        await house.run(M)
    assert counted(house) == (HOURS, HOURS, 0)


def hour(base_s: int, size: int) -> Hour:
    """One of a row."""
    none = np.zeros(0, np.int64)
    buckets = Bucketed(np.array([0, size]), none.astype(np.uint32), np.zeros(size))
    return Hour(base_s, (b"a",), none.astype(np.int32), none, buckets, 0)


def test_the_least_recently_used_goes_first_and_one_query_fills_half() -> None:
    memory = Remembered(100_000, Layout())
    with memory.reading(b"abc", range(0, 36_000, 3600)) as reading:
        memory.keep(reading, b"abc", HOW, [hour(base, 1500) for base in range(0, 36_000, 3600)])
    assert sorted(memory.held(b"abc", range(0, 36_000, 3600), HOW)) == [0, 3600, 7200]
    assert memory.statistics()["bytes"] <= 50_000
    for metric in (b"abd", b"abe"):
        memory.held(b"abc", [0, 7200], HOW)
        with memory.reading(metric, [0, 3600]) as reading:
            memory.keep(reading, metric, HOW, [hour(base, 1900) for base in (0, 3600)])
    assert memory.statistics()["bytes"] <= 100_000
    assert list(memory.held(b"abc", range(0, 36_000, 3600), HOW)) == [0, 7200]
    memory.told(None)
    assert memory.statistics()["hours"] == memory.statistics()["bytes"] == 0
