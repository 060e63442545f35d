"""One step: rows are written in their compacted form, or left as they are, and it is counted what became of them."""

import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from tests.flaky_store import Fault, FlakyStore
from tests.peers.cassandra import RunningCassandra
from tests.property.compaction_schedules import Graves, Stamps
from tests.unit.tables.compaction.parts import NEWEST, NOW_MS, TABLE, compactor, key, made, shown
from tsd.codec.opentsdb.cell import COLUMN, Point, join, ms_qualifier
from tsd.codec.opentsdb.merge import HAS_MERGE_LOOP, DuplicateTimestamp, MergeRules
from tsd.codec.opentsdb.row import Compaction, compact, data_cells, points
from tsd.codec.opentsdb.rowkey import KeyLayout
from tsd.daemon.settings import now_ms
from tsd.errors import CorruptRow, StoreDown
from tsd.store import Family, Put, Row, StampedSpan, Store, Table
from tsd.store.cassandra.keys import Prefixes
from tsd.store.memory import MemoryStore
from tsd.store.rocksdb.engine import EmbeddedStore
from tsd.tables.opentsdb.compaction.compactor import CompactionStats, RowCompactor
from tsd.tables.opentsdb.data_table import DataTable

SINGLES = "0000=2a@5 0010=2b@7 0020=2c@6"
NOTE = "010000=7b7d@4"  # an annotation: the row's cells are not joined in one step
MERGED = "000000100020=2a2b2c00"


@pytest.mark.difference(
    "annotated-rows",
    topic="rows",
    theirs="Rows with annotations are never compacted in the background",
    ours="They are, and the annotation stays",
)
async def test_row_becomes_one_cell_with_the_newest_timestamp() -> None:
    rows = {key(0): SINGLES, key(3600): "0000=2a@5", key(7200): "0000=2a@5 010000=7b7d@9 00000010=2a2b00@4"}
    store = await made(rows)
    did = compactor(store)
    assert await did.compact_keys([*rows, key(10800)]) == []
    assert await shown(store, rows) == [MERGED, "0000=2a", "00000010=2a2b00 010000=7b7d"]
    found = await store.get(TABLE, list(rows))
    assert [[cell.time_ms for cell in found[row]] for row in rows] == [[7], [5], [5, 9]]
    # a cell takes its key's 13 bytes, 2 of the family and 8 of the timestamp, in addition to qualifier and value
    assert did.stats == CompactionStats(
        rows=3, compacted=2, cells_before=7, cells_after=4, writes=2, deletes=4, identical=1,
        bytes_before=7 * 23 + 5 * 3 + 5 + 7, bytes_after=4 * 23 + 10 + 3 + 5 + 7,
    )  # fmt: skip
    again = compactor(store)
    await again.compact_keys(list(rows))
    assert (again.stats.rows, again.stats.compacted, again.stats.writes) == (3, 0, 0)


async def test_dry_run_only_counts() -> None:
    store = await made({key(0): SINGLES})
    did = compactor(store, dry=True)
    await did.compact_keys([key(0)])
    assert await shown(store, [key(0)]) == ["0000=2a 0010=2b 0020=2c"]
    assert (did.stats.compacted, did.stats.cells_after, did.stats.writes) == (1, 1, 0)


async def test_corrupt_row_is_reported_and_unchanged() -> None:
    rows = {
        key(0): "0000=2a@5 0012=010203@6",
        key(3600): "0000=2a@5 00000010=632b00@6",
        key(7200): "050000=00202c@5 0000=2a@6",
        key(0)[:9]: SINGLES,
    }
    store = await made(rows)
    before = await shown(store, rows)
    errors: list[CorruptRow] = []
    did = compactor(store, rules=MergeRules(fix_duplicates=False), corrupt=errors)
    await did.compact_keys(list(rows))
    assert await shown(store, rows) == before
    assert (did.stats.corrupt, did.stats.undecided, did.stats.writes) == (2, 1, 0)
    assert [isinstance(error, DuplicateTimestamp) for error in errors] == [False, True, False]
    assert all(row.hex() in str(error) for row, error in zip([key(0), key(0)[:9]], errors[::2], strict=True))


async def test_newest_duplicate_is_kept_and_counted() -> None:
    store = await made({key(0): "0000=2a@5 00000010=632b00@6 f0000000=2a@4"})
    did = compactor(store)
    await did.compact_keys([key(0)])
    assert await shown(store, [key(0)]) == ["00000010=632b00"]
    assert (did.stats.identical, did.stats.variant) == (0, 2)


async def test_row_with_recent_cell_is_skipped() -> None:
    rows = {key(0): f"0000=2a@5 0010=2b@{NOW_MS - 499}", key(3600): f"0000=2a@5 0010=2b@{NOW_MS - 500}"}
    store = await made(rows)
    did = compactor(store, settle_ms=500)
    assert await did.compact_keys(list(rows)) == [key(0)]
    assert await shown(store, rows) == ["0000=2a 0010=2b", "00000010=2a2b00"]


@pytest.mark.parametrize("call", ["put", "delete"])
@pytest.mark.parametrize("fault", [Fault.REFUSED, Fault.ANSWER_LOST])
async def test_store_error_is_counted_and_retry_succeeds(call: str, fault: Fault) -> None:
    store = FlakyStore(await made({key(0): SINGLES}))
    did = compactor(store)
    store.plan = [Fault.NONE] * {"put": 1, "delete": 3}[call] + [fault]  # get, put, get, delete
    with pytest.raises(StoreDown):
        await did.compact_keys([key(0)])
    assert did.stats.errors == {call: 1}
    store.plan = []
    await did.compact_keys([key(0)])
    assert await shown(store.store, [key(0)]) == [MERGED]


async def test_large_row_does_not_block_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    where: list[threading.Thread] = []

    def watched(*args: Any) -> Compaction:
        where.append(threading.current_thread())
        return compact(*args)

    monkeypatch.setattr("tsd.tables.opentsdb.compaction.compactor.compact", watched)
    points = [Point(ms_qualifier(time, 0), b"*") for time in range(2 * 4096)]
    store = await made({key(0): f"{SINGLES} {NOTE}", key(3600): ""})
    for cell in (join(points[:9]), join(points[9:])):
        await store.put(TABLE, [Put(key(3600), COLUMN + cell.qualifier, cell.value)], time_ms=5)
    await compactor(store).compact_keys([key(0), key(3600)])
    assert [thread is threading.main_thread() for thread in where] == [True, False]
    assert len((await store.get(TABLE, [key(3600)]))[key(3600)]) < 10


class Cut(FlakyStore):
    """Dies in its first delete, of which it does the first column of each row."""

    async def delete(self, table: str, columns: Mapping[bytes, Collection[bytes]], *, up_to_ms: int | None) -> None:
        await self.store.delete(table, {row: list(names)[:1] for row, names in columns.items()}, up_to_ms=up_to_ms)
        raise StoreDown("cut short, as the test wants")


async def test_interrupted_deletes_leave_equal_points() -> None:
    """Cells of one write contradict each other, in a row that is cut. Were the cell that counts gone first, the other
    would, having a lower column than the second merged cell."""
    store = await made({key(0): "00000030=010300@5 00100030=020900@5"})
    rules = MergeRules(fix_duplicates=True, cell_points=2)
    with pytest.raises(StoreDown):
        await compactor(Cut(store), rules=rules).compact_keys([key(0)])
    assert await shown(store, [key(0)]) == ["00000010=010200 00000030=010300 0030=03"]
    await compactor(store, rules=rules).compact_keys([key(0)])
    assert await shown(store, [key(0)]) == ["00000010=010200 0030=03"]


async def calls_of_rows(more: str) -> tuple[list[int], list[str]]:
    """Compact rows that have `more` cells, and return the numbers of calls, and the rows."""
    rows = {
        key(3600 * at): f"0000=2a@{at + 1} 0010={at:02x}@{at + 5} 00{at:x}0=2b@{at + 9} {more}" for at in range(2, 9)
    }
    store = await made(rows)
    before = store.statistics()
    did = compactor(store)
    await did.compact_keys(list(rows))
    after = store.statistics()
    assert (did.stats.compacted, did.stats.writes, did.stats.deletes) == (7, 7, 21)
    calls = ("join", "get", "rewrite", "put", "delete")
    assert await compactor(store).compact_keys(list(rows)) == []
    return [after.get(call, 0) - before.get(call, 0) for call in calls], await shown(store, rows)


async def test_rows_are_changed_in_one_call_whatever_their_columns() -> None:
    """Rows with late points have columns and timestamps of their own: calls by column or timestamp are calls by row."""
    (calls, rows), (calls_with_notes, rows_with_notes) = await calls_of_rows(""), await calls_of_rows(NOTE)
    if HAS_MERGE_LOOP:
        assert calls == [1, 0, 0, 0, 0]
        assert calls_with_notes == [1, 1, 1, 0, 0]
    assert rows_with_notes == [f"{row} {NOTE.partition('@')[0]}" for row in rows]
    assert rows[0] == "000000100020=2a022b00"


async def test_compacted_rows_are_read_once() -> None:
    """After a start all rows of its hour are read, because the run before it may have written to them."""
    rows = {key(0): "0000=2a@5", key(3600): "000000100020=2a2b2c00@7"}
    store, calls = await made(rows), ("join", "get", "rewrite", "put", "delete")
    before = store.statistics()
    did = compactor(store)
    assert await did.compact_keys(list(rows)) == []
    after = store.statistics()
    if HAS_MERGE_LOOP:
        assert [after.get(call, 0) - before.get(call, 0) for call in calls] == [1, 0, 0, 0, 0]
    assert await shown(store, rows) == ["0000=2a", "000000100020=2a2b2c00"]
    assert did.stats == CompactionStats(
        rows=2, cells_before=2, cells_after=2, bytes_before=2 * 23 + 3 + 10, bytes_after=2 * 23 + 3 + 10
    )


async def rows_written(*since_ms: int) -> tuple[Graves, list[bytes]]:
    """Return a store with rows of four cells, the first of each written so long ago, and the keys."""
    rows = [key(3600, series) for series in range(1, len(since_ms) + 1)]
    store = Graves(lambda: NOW_MS)
    await store.create_tables([Table(TABLE, (Family(b"t"),))])
    for at in range(4):
        for row, row_since_ms in zip(rows, since_ms, strict=True):
            await store.put(TABLE, [Put(row, COLUMN + bytes([0, at << 4]), b"*")], time_ms=NOW_MS - row_since_ms + at)
    return store, rows


async def test_old_rows_of_a_request_get_one_write_time(autojump_clock: MockClock) -> None:
    """One after that of their newest cell; a row that was written within `span_age_ms` keeps its own."""
    store, (old, newest, young, first) = await rows_written(900, 600, 100, 200)
    rows = [old, newest, young]
    did = RowCompactor(
        DataTable(store, TABLE, KeyLayout()), NEWEST, lambda: NOW_MS, raising, settle_ms=0, span_age_ms=500
    )
    await did.compact_keys([first])
    await trio.sleep(0.3)
    assert await did.compact_keys(rows) == []
    found = await store.get(TABLE, rows)
    assert [[cell.time_ms - NOW_MS for cell in found[row]] for row in rows] == [[-596], [-596], [-97]]
    await store.put(TABLE, [Put(old, COLUMN + b"\0\x10", b"+")])  # a later value still counts
    assert (await shown(store, [old])) == ["0000001000200030=2a2a2a2a00 0010=2b"]
    assert await did.compact_keys([old]) == []
    assert (await shown(store, [old])) == ["0000001000200030=2a2b2a2a00"]


async def test_clock_that_is_ahead_makes_no_row_old() -> None:
    """Regression: a row got the time of one that was read after it, and hid a correction that came in between."""
    store, (first, row, later) = await rows_written(380, 400, 300)
    ahead_ms = NOW_MS + 3_600_000
    did = RowCompactor(
        DataTable(store, TABLE, KeyLayout()), NEWEST, lambda: ahead_ms, raising, settle_ms=0, span_age_ms=500
    )
    await did.compact_keys([first])
    await did.compact_keys([row, later])
    await store.put(TABLE, [Put(row, COLUMN + b"\0\x10", b"+")], time_ms=NOW_MS - 350)
    await did.compact_keys([row])
    assert await shown(store, [row]) == ["0000001000200030=2a2b2a2a00"]


@pytest.fixture(params=["memory", "rocksdb", "three calls", "stamped"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    """One with an empty table, which changes rows in atomic steps or not."""
    made: Store
    match request.param:
        case "memory":
            made = MemoryStore(lambda: NOW_MS)
        case "rocksdb":
            made = await EmbeddedStore.open(tmp_path / "store", lambda: NOW_MS)
        case "stamped":
            made = Graves(lambda: NOW_MS)
        case _:
            made = Graves(lambda: NOW_MS)
            made.stamped_cells = None
    await made.create_tables([Table(TABLE, (Family(b"t"),))])
    yield made
    await made.aclose()


async def test_newer_cell_in_the_merged_column_stays(store: Store) -> None:
    """An atomic step refuses the row, which is returned to be read again. Elsewhere the read-back tells of it."""
    changed, other = key(0), key(3600)
    for row in (changed, other):
        for at in (0, 0x10, 0x20):
            await store.put(TABLE, [Put(row, COLUMN + bytes([0, at]), b"*")], time_ms=NOW_MS - 9)
    did = compactor(store)
    start, rows = did.start_read(), await store.get(TABLE, [changed, other])
    await store.put(TABLE, [Put(changed, COLUMN + bytes.fromhex("000000100020"), b"cde\0")], time_ms=NOW_MS)
    left = await did.compact([Row(*row) for row in rows.items()], start)
    is_atomic = store.atomic_rewrites is not None
    assert (left, did.stats.hidden) == (([changed], 0) if is_atomic else ([], 1))
    assert (did.stats.rows, did.stats.compacted) == (2 - len(left), 1)
    assert (did.stats.cells_before, did.stats.cells_after) == (3 * did.stats.rows, 3 * did.stats.rows - 2)
    assert await shown(store, [changed]) == ["0000=2a 000000100020=63646500 0010=2a 0020=2a"]


@pytest.mark.parametrize("is_first_older", [False, True])
async def test_compactions_around_a_delete_do_not_delete_what_the_other_keeps(
    store: Store, is_first_older: bool
) -> None:
    """Regression: each deleted the cell in which the other saw the last point."""
    row = key(3600)
    for column, value in (("001000200030", "2a2b2c00"), ("00300040", "2c2d00"), ("0040", "2d")):
        await store.put(TABLE, [Put(row, COLUMN + bytes.fromhex(column), bytes.fromhex(value))], time_ms=NOW_MS - 9)
    did = compactor(store, rules=MergeRules(fix_duplicates=True, cell_points=3))
    start = did.start_read()
    older = await store.get(TABLE, [row])
    await store.delete(TABLE, {row: [COLUMN + bytes.fromhex("001000200030")]}, up_to_ms=NOW_MS - 9)
    newer = await store.get(TABLE, [row])
    for found in (older, newer) if is_first_older else (newer, older):
        await did.compact([Row(row, found[row])], start)
    values = {point.offset_ms: point.number for point in points(row, data_cells((await store.get(TABLE, [row]))[row]))}
    assert (values[3000], values[4000]) == (0x2C, 0x2D)


class Interrupted(Stamps):
    """Stamped cells; before the first deletes something happens."""

    def __init__(self, store: Graves, happens: Callable[[], Awaitable[object]]) -> None:
        super().__init__(store)
        self._happens: list[Callable[[], Awaitable[object]]] = [happens]

    async def delete_spans(self, table: str, spans: Sequence[StampedSpan]) -> None:
        while self._happens:
            await self._happens.pop()()
        await super().delete_spans(table, spans)


async def test_deletes_of_an_old_row_do_not_reach_what_another_compaction_wrote(autojump_clock: MockClock) -> None:
    """Regression: deletes of a row got the later time of its neighbour, and the cell that it keeps did not."""
    row, other, new = key(3600), key(7200), key(10800)
    store = Graves(lambda: NOW_MS)
    await store.create_tables([Table(TABLE, (Family(b"t"),))])
    for column, value in (("00100020", "2a2b00"), ("003000400050", "2c2d2e00"), ("00400050", "2d2e00")):
        put = Put(row, COLUMN + bytes.fromhex(column), bytes.fromhex(value))
        await store.put(TABLE, [put], time_ms=NOW_MS - 9000)
    for column in (b"\0\x10", b"\0\x20"):
        await store.put(TABLE, [Put(other, COLUMN + column, b"*")], time_ms=NOW_MS - 8900)
    await store.put(TABLE, [Put(new, COLUMN + b"\0\x10", b"*")], time_ms=NOW_MS)
    rules = MergeRules(fix_duplicates=True, cell_points=3)
    first, second = (
        RowCompactor(DataTable(store, TABLE, KeyLayout()), rules, lambda: NOW_MS, raising, settle_ms=0, span_age_ms=500)
        for _ in range(2)
    )
    await second.compact_keys([new])  # shows the present time
    start, older = first.start_read(), await store.get(TABLE, [row])
    await store.delete(TABLE, {row: [COLUMN + bytes.fromhex("00100020")]}, up_to_ms=NOW_MS - 9000)
    later, newer = second.start_read(), await store.get(TABLE, [row, other])
    store.stamped_cells = Interrupted(store, lambda: second.compact([Row(*one) for one in newer.items()], later))
    await first.compact([Row(row, older[row])], start)
    left = points(row, data_cells((await store.get(TABLE, [row]))[row]))
    assert {point.offset_ms: point.number for point in left}.items() >= {3000: 0x2C, 4000: 0x2D, 5000: 0x2E}.items()


async def test_long_row_is_compacted_in_atomic_steps_that_keep_its_merged_cells(tmp_path: Path) -> None:
    store = await EmbeddedStore.open(tmp_path / "store", lambda: NOW_MS)
    await store.create_tables([Table(TABLE, (Family(b"t"),))])
    row = key(3600)
    columns = [COLUMN + (time << 4).to_bytes(2, "big") for time in range(1000)]
    await store.put(TABLE, [Put(row, column, b"*") for column in columns], time_ms=NOW_MS - 9)
    did = compactor(store, rules=MergeRules(fix_duplicates=True, cell_points=300))
    assert await did.compact_keys([row]) == []
    assert (did.stats.compacted, did.stats.writes, did.stats.deletes) == (1, 4, 1000)
    found = (await store.get(TABLE, [row]))[row]
    assert [len(cell.column) for cell in found] == [len(COLUMN) + 2 * size for size in (300, 300, 300, 100)]
    assert len(points(row, data_cells(found))) == 1000
    again = await did.compact_keys([row])
    assert (again, did.stats.compacted) == ([], 1)
    await store.aclose()


@pytest.mark.cassandra
@pytest.mark.slow
async def test_compacted_rows_on_cassandra_are_read_without_a_refusal(cassandra: RunningCassandra) -> None:
    store = cassandra.store(cassandra.unused_keyspace(), widths=Prefixes(3, 5))
    await store.create_tables([Table(TABLE, (Family(b"t"),))])
    rows = [key(3600, series) for series in range(1, 361)]
    names = [COLUMN + (time << 4).to_bytes(2, "big") for time in range(0, 3000, 10)]  # 108,000 cells
    for part in range(0, len(names), 20):  # each with a write timestamp of its own
        await store.put(TABLE, [Put(row, name, b"\x2a") for row in rows for name in names[part : part + 20]])
    corrupt: list[CorruptRow] = []
    did = RowCompactor(DataTable(store, TABLE, KeyLayout()), NEWEST, now_ms, corrupt.append, settle_ms=0, span_age_ms=0)
    assert await did.compact_keys(rows) == []
    assert (did.stats.compacted, did.stats.deletes) == (len(rows), len(rows) * len(names))
    found = await store.page(TABLE, b"\0", None, limit=1000)
    assert [(row.key, len(row.cells)) for row in found.rows] == [(row, 1) for row in rows]
    assert not store.statistics().get("errors")
    await store.aclose()


@pytest.mark.cassandra
@pytest.mark.slow
@pytest.mark.parametrize("set_back", [False, True])
async def test_young_row_stays_one_if_the_clock_is_set_back_after_the_read(
    cassandra: RunningCassandra, set_back: bool
) -> None:
    store = cassandra.store(cassandra.unused_keyspace(), widths=Prefixes(3, 5))
    await store.create_tables([Table(TABLE, (Family(b"t"),))])
    row, late = key(3600), COLUMN + b"\x00\x30"
    for time in range(5):
        await store.put(TABLE, [Put(row, COLUMN + (time << 5).to_bytes(2, "big"), b"\x2a")], time_ms=NOW_MS + time)
    clock = chain([NOW_MS + 600_000], repeat(NOW_MS if set_back else NOW_MS + 600_001))
    did = RowCompactor(DataTable(store, TABLE, KeyLayout()), NEWEST, clock.__next__, raising, settle_ms=0)
    assert await did.compact_keys([row]) == []
    await store.put(TABLE, [Put(row, late, b"\x07")], time_ms=NOW_MS)
    columns = [cell.column for cell in (await store.get(TABLE, [row]))[row]]
    assert (late in columns) == set_back  # not hidden by a delete of all older cells
    await store.aclose()


def raising(error: CorruptRow) -> None:
    raise error
