"""Rows of events and days on several engines: the schema guide's tables, queries, rewrites and deletes."""

from collections import Counter
from collections.abc import AsyncIterator, Collection
from pathlib import Path

import pytest

from tests.flaky_store import Fault
from tests.interfering_store import InterferingStore
from tests.peers.bigtable import RunningBigtable
from tests.unit.tables.interned_layout import Found, put, read
from tsd.codec.names import Kind
from tsd.codec.putline import HOUR_S
from tsd.codec.tall.rules import parse_rules
from tsd.config.retention import parse_rules as parse_ages
from tsd.errors import BadQuery, NoTable, StoreDown
from tsd.store import Page, Put, Store
from tsd.store.memory import MemoryStore
from tsd.store.rocksdb.engine import EmbeddedStore
from tsd.tables import Tables
from tsd.tables.catalog import SeriesSelector
from tsd.tables.checkpoint import Checkpoint
from tsd.tables.filters import make_filter
from tsd.tables.reading import EncodedPage, PointPage, ScanRange, SeriesRequest
from tsd.tables.tall.export import DayCopy, copy_day, drop, expired_copies
from tsd.tables.tall.layout import TallTableSettings, build, make_retention, tall_tables
from tsd.tables.tall.tables import TallTables
from tsd.tables.writing import SeriesKeys, SeriesText

ENGINES = [
    "memory",
    "embedded",
    pytest.param("bigtable", marks=pytest.mark.bigtable),
]
RULES = parse_rules(
    "QUOTE {exchange:6}#{symbol:5}#{ts} QUOTE.*; TRADE {exchange:6}#{symbol:5}#{ts} TRADE.*; "
    "SENSOR {meter:010=ID}#{day} meter.kwh; METRIC {host}#{ts} *"
)
TABLES = tall_tables(RULES, "listed")
NOW_MS = 1_426_540_000_000
EVENT_MS = 1_426_535_612_045
DAY_MS = 86_400_000
FIRST_DAY_MS = 1_389_312_000_000  # 2014-01-10
CPU = SeriesText(b"CPU/CPU1_USR", b"host=server0001.bbb.com")
READS = SeriesText(b"IO/BLK_READ", b"host=server0001.bbb.com")
METER = SeriesText(b"meter.kwh", b"meter=987654321")
Points = tuple[SeriesText, int, int | float]


class Interrupted(Exception):
    """Ends a copy."""


class Tall:
    """The layout on a store."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.tables = self.opened()

    def opened(self, *, creates_metrics: bool = True) -> Tables:
        """Return the layout without what it has cached."""
        return build(self.store, TallTableSettings(RULES, "listed", creates_metrics), lambda: NOW_MS)

    async def put(self, *points: Points) -> None:
        """Put the points of one window."""
        await put(self.tables, *points)

    async def read(self, request: SeriesRequest, first_ms: int, last_ms: int) -> Found:
        """Return the points of each series by its tags."""
        return await read(self.tables, request, first_ms, last_ms)

    async def shown(self, table: str) -> dict[str, dict[str, str]]:
        """Return the rows of a table as texts."""
        page = await self.store.page(table, b"", None, limit=1000)
        assert page.next_start is None
        return {
            row.key.decode(): {cell.column.decode(): cell.value.decode() for cell in row.cells} for row in page.rows
        }


@pytest.fixture(params=ENGINES)
async def tall(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Tall]:
    store: Store
    if request.param == "memory":
        store = MemoryStore(lambda: NOW_MS)
    elif request.param == "embedded":
        store = await EmbeddedStore.open(tmp_path, lambda: NOW_MS)
    else:
        bigtable: RunningBigtable = request.getfixturevalue("bigtable")
        store = bigtable.store(bigtable.unused_instance())
    await store.create_tables(TABLES)
    yield Tall(store)
    await store.aclose()


async def test_rows_of_the_guide(tall: Tall) -> None:
    nasdaq, nyse = b"exchange=NASDAQ symbol=ZXZZT", b"symbol=IBM exchange=NYSE"
    await tall.put(
        (CPU, EVENT_MS, 0.82),
        (READS, EVENT_MS, 253_453_634),
        (SeriesText(b"QUOTE.BID", nasdaq), EVENT_MS, 600.55),
        (SeriesText(b"QUOTE.ASK", nasdaq), EVENT_MS, 600.6),
        (SeriesText(b"TRADE.LASTSALE", nasdaq), EVENT_MS, 600.58),
        (SeriesText(b"TRADE.LASTSIZE", nasdaq), EVENT_MS, 300),
        (SeriesText(b"TRADE.LASTSIZE", nyse), EVENT_MS, 100),
        (METER, FIRST_DAY_MS, 1.5),
        (METER, FIRST_DAY_MS + 900_000, 2),
        (METER, FIRST_DAY_MS + DAY_MS - 900_000, 0.25),
        (METER, FIRST_DAY_MS + DAY_MS, 7),
    )
    assert await tall.shown("METRIC") == {
        "server0001.bbb.com#1426535612045": {"t:CPU/CPU1_USR": "0.82", "t:IO/BLK_READ": "253453634"}
    }
    assert await tall.shown("QUOTE") == {"NASDAQ#ZXZZT#1426535612045": {"t:ASK": "600.6", "t:BID": "600.55"}}
    assert await tall.shown("TRADE") == {
        "NASDAQ#ZXZZT#1426535612045": {"t:LASTSALE": "600.58", "t:LASTSIZE": "300"},
        "NYSE  #IBM  #1426535612045": {"t:LASTSIZE": "100"},
    }
    assert await tall.shown("SENSOR") == {
        "0987654321#20140110": {"t:0000": "1.5", "t:0015": "2", "t:2345": "0.25", "t:ID": "987654321"},
        "0987654321#20140111": {"t:0000": "7", "t:ID": "987654321"},
    }


async def test_points_come_back_with_their_tags(tall: Tall) -> None:
    other = SeriesText(b"CPU/CPU1_USR", b"host=server0002.bbb.com dc=lga")
    times = [EVENT_MS + 5000 * number for number in range(300)]
    await tall.put(*((text, time_ms, time_ms % 1000 + 0.5) for text in (CPU, other) for time_ms in times))
    await tall.put((READS, EVENT_MS, 5))
    wanted = dict.fromkeys(times, 45.5)
    one, two = (("host", "server0001.bbb.com"),), (("dc", "lga"), ("host", "server0002.bbb.com"))
    request = SeriesRequest("CPU/CPU1_USR")
    assert await tall.read(request, 0, NOW_MS) == {one: wanted, two: wanted}
    few = dict.fromkeys(times[10:21], 45.5)
    assert await tall.read(request, times[10], times[20]) == {one: few, two: few}
    named = request._replace(filters=(make_filter("host", "literal_or", "server0002.bbb.com|absent|a#b"),))
    tall.tables = tall.opened()
    assert await tall.read(named, 0, NOW_MS) == {two: wanted}
    outside = request._replace(filters=(make_filter("dc", "wildcard", "l*", group_by=True),))
    assert await tall.read(outside, 0, NOW_MS) == {two: wanted}
    with pytest.raises(BadQuery, match="absent"):
        await tall.read(SeriesRequest("absent"), 0, NOW_MS)


async def test_series_without_a_key_matches_nothing(tall: Tall) -> None:
    await tall.put((CPU, EVENT_MS, 1))
    selection = await tall.tables.reader.select(SeriesRequest("CPU/CPU1_USR"))
    assert selection.pairs_of(SeriesKeys.of([None])) == [None]


@pytest.mark.parametrize("days", [3, 40])
async def test_days_are_read_by_key_or_as_a_scan(tall: Tall, days: int) -> None:
    second = SeriesText(b"meter.kwh", b"meter=5")
    points = {FIRST_DAY_MS + number * 7_200_000 + number: number for number in range(12 * days)}
    await tall.put(*((text, time_ms, value) for text in (METER, second) for time_ms, value in points.items()))
    last_ms = FIRST_DAY_MS + days * DAY_MS
    both = (("meter", "5"),), (("meter", "987654321"),)
    assert await tall.read(SeriesRequest("meter.kwh"), FIRST_DAY_MS, last_ms) == dict.fromkeys(both, points)
    cut = {time_ms: value for time_ms, value in points.items() if FIRST_DAY_MS + 10**7 <= time_ms <= last_ms - 10**7}
    one = SeriesRequest("meter.kwh", filters=(make_filter("meter", "literal_or", "5"),))
    assert await tall.read(one, FIRST_DAY_MS + 10**7, last_ms - 10**7) == {both[0]: cut}


async def test_rewrites_add_nothing_and_the_last_counts(tall: Tall) -> None:
    await tall.put((CPU, EVENT_MS, 1), (CPU, EVENT_MS, 2.5))
    before = await tall.shown("METRIC"), await tall.shown("listed")
    await tall.put((CPU, EVENT_MS, 2.5))
    assert (await tall.shown("METRIC"), await tall.shown("listed")) == before
    padded = SeriesText(b"meter.kwh", b"meter=0000000005")
    await tall.put((padded, FIRST_DAY_MS, 1), (SeriesText(b"meter.kwh", b"meter=5"), FIRST_DAY_MS, 2))
    assert await tall.shown("SENSOR") == {"0000000005#20140110": {"t:0000": "2", "t:ID": "5"}}


async def test_series_and_newest_points_are_listed(tall: Tall) -> None:
    await tall.put((CPU, EVENT_MS, 0.5), (CPU, EVENT_MS - 10**9, 9), (READS, 5_000, 3), (METER, FIRST_DAY_MS, 2))
    tall.tables = tall.opened()
    catalog = tall.tables.catalog
    assert await catalog.suggest(Kind.METRIC, "", 10) == ["CPU/CPU1_USR", "IO/BLK_READ", "meter.kwh"]
    assert await catalog.suggest(Kind.TAGV, "server", 10) == ["server0001.bbb.com"]
    selected = await catalog.select(SeriesSelector("*", []))
    found = [series async for page in selected.pages() for series in page]
    newest = await catalog.last_points(found, None)
    assert [point and (point.time_ms, point.number) for point in newest.points] == [
        (EVENT_MS, 0.5),
        (5_000, 3),
        (FIRST_DAY_MS, 2),
    ]
    assert (await catalog.last_points(found[1:], 24)).points == [None, None]
    key = await tall.tables.resolver.assign(CPU)
    points = await tall.tables.series_reader.read_series(key, EVENT_MS, EVENT_MS)
    assert points.times.tolist() == [EVENT_MS]


async def test_a_query_deletes_what_it_read(tall: Tall) -> None:
    await tall.put((METER, FIRST_DAY_MS, 1), (METER, FIRST_DAY_MS + 900_000, 2), (METER, FIRST_DAY_MS + DAY_MS, 3))
    selection = await tall.tables.reader.select(SeriesRequest("meter.kwh", delete=True))

    async def take(page: EncodedPage[PointPage]) -> None:
        await selection.series.match(page.series())

    first_s = FIRST_DAY_MS // 1000
    await selection.read(ScanRange(first_s, first_s + HOUR_S), take, annotations=False)
    await tall.put((METER, FIRST_DAY_MS + 900_000, 5))
    await selection.delete(NOW_MS)
    assert await tall.shown("SENSOR") == {
        "0987654321#20140110": {"t:0015": "5", "t:ID": "987654321"},
        "0987654321#20140111": {"t:0000": "3", "t:ID": "987654321"},
    }


async def test_deletes_leave_other_points(tall: Tall) -> None:
    await tall.put((CPU, EVENT_MS, 1), (CPU, EVENT_MS + 1, 2), (READS, EVENT_MS, 3), (METER, FIRST_DAY_MS, 1))
    deleter = tall.tables.deleter
    assert deleter is not None
    await deleter.delete(SeriesRequest("CPU/CPU1_USR"), EVENT_MS, EVENT_MS)
    assert await tall.shown("METRIC") == {
        "server0001.bbb.com#1426535612045": {"t:IO/BLK_READ": "3"},
        "server0001.bbb.com#1426535612046": {"t:CPU/CPU1_USR": "2"},
    }
    await deleter.delete_metric("meter.kwh")
    assert await tall.shown("SENSOR") == {}
    assert await tall.tables.catalog.suggest(Kind.METRIC, "m", 10) == []
    await tall.put((METER, FIRST_DAY_MS, 4))
    assert await tall.read(SeriesRequest("meter.kwh"), 0, NOW_MS) == {(("meter", "987654321"),): {FIRST_DAY_MS: 4}}


async def test_series_are_listed_again_after_an_interrupted_delete() -> None:
    store = InterferingStore(MemoryStore(lambda: NOW_MS))
    await store.create_tables(TABLES)
    tall = Tall(store)
    await tall.put((CPU, EVENT_MS, 1))
    deleter = tall.tables.deleter
    assert deleter is not None
    await deleter.delete(SeriesRequest("CPU/CPU1_USR"), 0, NOW_MS)

    assert store.calls[-1] == "sync"  # after a loss of power, too, they are deleted
    selection = await tall.tables.reader.select(SeriesRequest("CPU/CPU1_USR", delete=True))
    await selection.delete(NOW_MS)
    assert store.calls[-1] == "sync"

    async def fail() -> None:
        store.plan = [Fault.ANSWER_LOST]

    store.before["delete"] = fail
    with pytest.raises(StoreDown):
        await deleter.delete_metric("CPU/CPU1_USR")
    await tall.put((CPU, EVENT_MS, 2))
    found = await tall.read(SeriesRequest("CPU/CPU1_USR"), 0, NOW_MS)
    assert list(found.values()) == [{EVENT_MS: 2}]


async def test_expired_points_go_by_their_rules(tall: Tall) -> None:
    """A row of a day goes when the day is over; columns of a row may have other ages."""
    events = [EVENT_MS - 3 * DAY_MS, EVENT_MS - DAY_MS, EVENT_MS]
    await tall.put(
        *((CPU, time_ms, 1) for time_ms in events),
        *((READS, time_ms, 2) for time_ms in events),
        *((METER, FIRST_DAY_MS + day * DAY_MS, day) for day in range(3)),
    )
    now_s = (EVENT_MS + 2 * DAY_MS) // 1000
    meters_s = now_s - (FIRST_DAY_MS + 2 * DAY_MS) // 1000 + 3600
    rules = parse_ages(f"CPU/*=2d; meter.*={meters_s // 3600}h; IO/*=forever")
    retention = make_retention(tall.store, RULES, "listed", rules)
    before = await tall.shown("METRIC"), await tall.shown("SENSOR")
    counted = [step async for step in retention.count(now_s)]
    assert (await tall.shown("METRIC"), await tall.shown("SENSOR")) == before
    assert [step async for step in retention.remove(now_s)] == counted
    assert [(rule, amount.rows, amount.points) for rule, amount in counted] == [
        ("CPU/*=2d", 2, 2),
        (rules.rules[1].text, 1, 1),
    ]
    rows = {key[-13:]: set(cells) for key, cells in (await tall.shown("METRIC")).items()}
    assert rows == {
        str(events[0]): {"t:IO/BLK_READ"},
        str(events[1]): {"t:IO/BLK_READ"},
        str(events[2]): {"t:IO/BLK_READ", "t:CPU/CPU1_USR"},
    }
    assert [key[-8:] for key in await tall.shown("SENSOR")] == ["20140111", "20140112"]
    assert [step async for step in retention.remove(now_s)] == []
    await tall.put((CPU, events[1], 1), (CPU, events[0], 1))
    late = [amount.points async for _, amount in retention.remove(now_s + 60)]
    assert late == [1]  # of the day before; others go with a round that reads all
    assert [step async for step in retention.remove(now_s + DAY_MS // 1000)]
    assert all(cells.keys() == {"t:IO/BLK_READ"} for cells in (await tall.shown("METRIC")).values())
    whole = make_retention(tall.store, RULES, "listed", parse_ages("*=1h"))
    assert [rule async for rule, _ in whole.remove(now_s)]
    assert (await tall.shown("METRIC"), await tall.shown("SENSOR")) == ({}, {})
    assert await tall.read(SeriesRequest(CPU.metric.decode()), 0, NOW_MS) == {}


class CountingStore(MemoryStore):
    """Counts the pages that are read of each table."""

    def __init__(self) -> None:
        super().__init__(lambda: NOW_MS)
        self.pages: Counter[str] = Counter()

    async def page(
        self, table: str, start: bytes, stop: bytes | None, *, limit: int, columns: Collection[bytes] | None = None
    ) -> Page:
        self.pages[table] += 1
        return await super().page(table, start, stop, limit=limit, columns=columns)


async def test_retention_asks_once_for_each_prefix_with_points_of_one_age() -> None:
    store = CountingStore()
    tall = Tall(store)
    await store.create_tables(TABLES)
    hosts = [SeriesText(b"CPU/CPU1_USR", b"host=h%02d" % number) for number in range(20)]
    await tall.put((METER, FIRST_DAY_MS, 4))
    await tall.put(*((host, EVENT_MS + at * 3_600_000, at) for host in hosts for at in range(4)))
    retention = make_retention(store, RULES, "listed", parse_ages("CPU/*=2h; QUOTE.*=1h; meter.*=forever"))
    store.pages.clear()
    done = [step async for step in retention.remove(EVENT_MS // 1000 + 5 * 3600)]
    assert sum(amount.points for _, amount in done) == 3 * len(hosts)
    assert len(await tall.shown("METRIC")) == len(hosts)
    assert store.pages["METRIC"] == len(hosts) + 3  # the first prefix again, the end, and the line above
    assert not store.pages["QUOTE"] + store.pages["SENSOR"]


async def test_a_days_copy_has_what_the_day_has(tall: Tall, tmp_path: Path) -> None:
    names = [SeriesText(b"meter.kwh", b"meter=%d" % number) for number in range(1, 1202)]
    await tall.put(*((name, FIRST_DAY_MS + 900_000, number) for number, name in enumerate(names)))
    await tall.put((names[0], FIRST_DAY_MS, 5), (names[0], FIRST_DAY_MS + DAY_MS, 5), (CPU, FIRST_DAY_MS, 1))
    file, parts = Checkpoint(tmp_path / "mark.json", ["job"]), 0

    async def copied(most_parts: int = 100) -> DayCopy:
        def count(_: int) -> None:
            nonlocal parts
            parts += 1
            if parts == most_parts:
                raise Interrupted

        tables = TallTables(tall.store, RULES, "listed")
        return await copy_day(tables, RULES[2], FIRST_DAY_MS, file, compression="NONE", on_rows=count)

    with pytest.raises(Interrupted):
        await copied(2)
    assert await copied() == DayCopy(rows=201, cells=402, written=402)  # the first 1,000 rows were done
    assert not file.path.exists()
    page = await tall.store.page("SENSOR_20140110", b"", None, limit=2000)
    assert len(page.rows) == len(names)
    assert {cell.column: cell.value for cell in page.rows[0].cells} == {
        b"t:0000": b"5", b"t:0015": b"0", b"t:ID": b"1",
    }  # fmt: skip

    await tall.put((names[0], FIRST_DAY_MS, 6), (names[1], FIRST_DAY_MS + 1_800_000, 7))
    assert tall.tables.deleter is not None
    await tall.tables.deleter.delete(
        SeriesRequest("meter.kwh", filters=(make_filter("meter", "literal_or", "3"),)), 0, NOW_MS
    )
    assert await copied() == DayCopy(rows=1200, cells=2402, written=2, removed=2)
    assert await copied() == DayCopy(rows=1200, cells=2402)
    assert expired_copies(await tall.store.tables(), RULES[2], FIRST_DAY_MS) == []
    assert await drop(tall.store, "SENSOR_20140110")
    if "SENSOR_20140110" in await tall.store.tables():
        assert not await drop(tall.store, "SENSOR_20140110")


async def test_a_days_row_of_several_metrics_is_copied_once(tmp_path: Path) -> None:
    store, rules = MemoryStore(lambda: NOW_MS), parse_rules("HOSTS {host}#{day} *")
    await store.create_tables(tall_tables(rules, "listed"))
    tables = build(store, TallTableSettings(rules, "listed", creates_metrics=True), lambda: NOW_MS)
    for metric in (b"cpu", b"mem", b"net"):
        await put(tables, *((SeriesText(metric, b"host=h%d" % host), FIRST_DAY_MS, 1) for host in range(3)))
    file = Checkpoint(tmp_path / "mark.json", ["job"])
    done = await copy_day(TallTables(store, rules, "listed"), rules[0], FIRST_DAY_MS, file, compression="NONE")
    assert done == DayCopy(rows=3, cells=9, written=9)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (SeriesText(b"cpu", b"dc=lga"), "metric cpu, table METRIC: got no tag host"),
        (SeriesText(b"QUOTE.BID", b"exchange=TOOLONG symbol=A"), "wanted up to 6 bytes"),
        (SeriesText(b"meter.kwh", b"meter=12a"), "wanted digits"),
    ],
)
async def test_series_without_a_place_are_refused(text: SeriesText, wanted: str) -> None:
    tall = Tall(MemoryStore(lambda: NOW_MS))
    await tall.store.create_tables(TABLES)
    resolved = await tall.tables.resolver.resolve([text, CPU])
    assert list(resolved.refused) == [0]
    assert wanted in str(resolved.refused[0])
    strict = tall.opened(creates_metrics=False).resolver
    assert list((await strict.resolve([CPU, SeriesText(b"new", b"host=a")])).refused) == [1]


async def test_values_that_cannot_be_read_are_named() -> None:
    tall = Tall(MemoryStore(lambda: NOW_MS))
    await tall.store.create_tables(TABLES)
    await tall.put((CPU, EVENT_MS, 1), (CPU, EVENT_MS + 1, 2))
    [row, _] = (await tall.store.page("METRIC", b"", None, limit=2)).rows
    await tall.store.put("METRIC", [Put(row.key, row.cells[0].column, b"x")])
    selection = await tall.tables.reader.select(SeriesRequest("CPU/CPU1_USR"))
    pages: list[PointPage] = []

    async def take(page: EncodedPage[PointPage]) -> None:
        await selection.series.match(page.series())
        pages.append(page.decode())

    await selection.read(ScanRange(0, NOW_MS // 1000), take, annotations=False)
    [page] = pages
    assert page.batch.times.tolist() == [EVENT_MS + 1]
    assert "wanted the text of a number" in page.warnings[0]


async def test_row_with_a_digit_too_many_is_of_no_series() -> None:
    tall = Tall(MemoryStore(lambda: NOW_MS))
    await tall.store.create_tables(TABLES)
    await tall.put((CPU, EVENT_MS, 1))
    [row] = (await tall.store.page("METRIC", b"", None, limit=2)).rows
    await tall.store.put("METRIC", [Put(row.key + b"0", row.cells[0].column, b"2")])
    [points] = (await tall.read(SeriesRequest(CPU.metric.decode()), 0, NOW_MS)).values()
    assert points == {EVENT_MS: 1}


async def test_missing_tables_are_named() -> None:
    with pytest.raises(NoTable, match="QUOTE, TRADE, SENSOR, METRIC, listed"):
        await Tall(MemoryStore(lambda: NOW_MS)).tables.check()


async def test_ranges_are_the_rows_of_the_same_tags() -> None:
    ranges = Tall(MemoryStore(lambda: NOW_MS)).tables.key_ranges
    assert ranges is not None
    [prefix] = ranges.split("METRIC", b"server0001.bbb.com#1426535612045")
    assert await ranges.names([("METRIC", prefix), ("listed", b"sCPU")]) == [
        {"tags": "host=server0001.bbb.com"},
        {},
    ]
