"""Tables whose cells keep versions answer as a list of all writes does, on every engine that has them.

Rows and columns are prefixes of each other, full of 00, 01 and ff; times go back and forth, pages are small.
"""

import itertools
import tempfile
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import partial
from typing import NamedTuple

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.peers.bigtable import RunningBigtable
from tests.peers.hbase import RunningHbase
from tsd.errors import InvalidCell, NoTable, StoreDown, TooManyVersions
from tsd.store import Cell, Family, Page, Row, Store, Table, VersionedCells
from tsd.store.hbase.engine import HBaseStore
from tsd.store.memory import MemoryStore
from tsd.store.rocksdb.engine import EmbeddedStore
from tsd.store.versions import ALL, UNBOUNDED, CellwiseColumns, VersionColumns, VersionPut, Wanted, columns_of
from tsd.store.versions import END_MS as END

KEPT = {b"t": UNBOUNDED, b"m": 1, b"n": 2}
HOUR_MS = 3_600_000
TABLE = Table("versions", tuple(Family(name, versions) for name, versions in KEPT.items()))


class Write(NamedTuple):
    cells: list[VersionPut]
    in_arrays: bool


class Delete(NamedTuple):
    row: bytes
    columns: set[bytes]
    since_ms: int
    until_ms: int


class Get(NamedTuple):
    rows: list[bytes]
    wanted: Wanted


class Walk(NamedTuple):
    start: bytes
    stop: bytes | None
    limit: int
    wanted: Wanted


class Reopen(NamedTuple):
    pass


Call = Write | Delete | Get | Walk | Reopen

rows = st.sampled_from([b"a", b"a\0", b"a\0\1", b"a\1", b"ab", b"\0", b"\0\xff", b"\xff"])
columns = st.sampled_from([b"t:", b"t:a", b"t:a\0", b"t:a\0\1", b"t:a\xff", b"t:" + b"l" * 40, b"m:", b"m:a", b"n:a"])
times = st.sampled_from([0, 1, 2, 3, 255, 256, HOUR_MS - 1, HOUR_MS, 2 * HOUR_MS + 1, END - 1])
values = st.sampled_from([b"", b"\0", b"v", b"\xff" * 9])
cells = st.builds(VersionPut, rows, columns, values, times)
wanted = st.builds(
    Wanted,
    st.integers(0, 4) | st.sampled_from([HOUR_MS, 2 * HOUR_MS]),
    st.sampled_from([0, 1, 3, 256, HOUR_MS, HOUR_MS + 1, END]),
    st.none() | st.integers(1, 3),
    st.none() | st.sets(columns, min_size=1),
    st.none(),
)
calls: st.SearchStrategy[Call] = st.one_of(
    st.builds(Write, st.lists(cells, max_size=12), st.booleans()),
    st.builds(
        Delete,
        rows,
        st.sets(columns, min_size=1),
        st.sampled_from([0, 0, 1, 2, HOUR_MS - 1, HOUR_MS]),
        st.sampled_from([0, 2, 256, HOUR_MS, END]),
    ),
    st.builds(Get, st.lists(rows, max_size=4), wanted),
    st.builds(Walk, rows | st.just(b""), st.none() | rows, st.integers(1, 3), wanted),
    st.just(Reopen()),
)


class Model:
    """All versions of a table."""

    def __init__(self, *, markers: bool = False) -> None:
        """`markers`: the newest deleted version of a column hides those that are written later with older times."""
        self.cells: dict[tuple[bytes, bytes, int], bytes] = {}
        self.markers = markers
        self.hidden: dict[tuple[bytes, bytes], int] = {}
        self.hidden_times: set[tuple[bytes, bytes, int]] = set()

    def row(self, row: bytes, wanted: Wanted) -> list[Cell]:
        found: list[Cell] = []
        for column in sorted({column for of, column, _ in self.cells if of == row}):
            held = sorted((each for of, name, each in self.cells if (of, name) == (row, column)), reverse=True)
            within = [each for each in held if wanted.since_ms <= each < wanted.until_ms][: wanted.versions]
            if wanted.columns is None or column in wanted.columns:
                found += [Cell(column, self.cells[row, column, each], each) for each in within]
        return found

    def write(self, cell: VersionPut) -> None:
        if cell.time_ms <= self.hidden.get(cell[:2], -1) or (*cell[:2], cell.time_ms) in self.hidden_times:
            return
        self.cells[cell.row, cell.column, cell.time_ms] = cell.value
        held = sorted((each for each in self.cells if each[:2] == cell[:2]), reverse=True)
        for each in held[KEPT[cell.column[:1]] :]:
            del self.cells[each]

    def answer(self, call: Call) -> object:
        match call:
            case Write(cells, _):
                for cell in cells:
                    self.write(cell)
            case Delete(row, columns, since_ms, until_ms):
                of_columns = sorted(k for k in self.cells if k[0] == row and k[1] in columns)
                for key in [key for key in of_columns if since_ms <= key[2] < until_ms]:
                    del self.cells[key]
                    if self.markers and since_ms:
                        self.hidden_times.add(key)
                    elif self.markers:
                        self.hidden[key[:2]] = key[2]
            case Get(rows, wanted):
                return {row: held for row in rows if (held := self.row(row, wanted))}
            case Walk(start, stop, _, wanted):
                keys = sorted({key for key, _, _ in self.cells if start <= key and (stop is None or key < stop)})
                return [Row(key, held) for key in keys if (held := self.row(key, wanted))]
        return None


def in_arrays(cells: list[VersionPut]) -> VersionColumns:
    last = {(cell.row, cell.column, -cell.time_ms): cell for cell in cells}
    ordered = [last[key] for key in sorted(last)]
    rows = itertools.groupby(ordered, lambda cell: cell.row)
    return columns_of((row, [Cell(cell.column, cell.value, cell.time_ms) for cell in some]) for row, some in rows)


async def answer(store: VersionedCells, call: Call) -> object:
    match call:
        case Write(cells, False):
            await store.put(TABLE.name, cells)
        case Write(cells, True):
            await store.put_columns(TABLE.name, in_arrays(cells))
        case Delete(row, columns, since_ms, until_ms):
            await store.delete(TABLE.name, row, columns, since_ms=since_ms, until_ms=until_ms)
        case Get(rows, wanted):
            found_rows = await store.get(TABLE.name, rows, wanted)
            arrays = await store.get_columns(TABLE.name, list(dict.fromkeys(rows)), wanted)
            assert sorted(arrays.puts()) == sorted(columns_of(found_rows.items()).puts())
            return found_rows
        case Walk(start, stop, limit, wanted):
            found: list[Row] = []
            at: bytes | None = start
            while at is not None:
                page = await store.page(TABLE.name, at, stop, limit=limit, wanted=wanted)
                assert len(page.rows) <= limit
                found += page.rows
                at = page.next_start
            return found
    return None


Opened = Callable[[], AbstractAsyncContextManager[Store]]


def in_memory() -> Opened:
    store = MemoryStore(lambda: 1)

    @asynccontextmanager
    async def opened() -> AsyncIterator[Store]:
        yield store

    return opened


def in_folder(folder: str) -> Opened:
    @asynccontextmanager
    async def opened() -> AsyncIterator[Store]:
        store = await EmbeddedStore.open(folder, lambda: 1)
        try:
            yield store
        finally:
            await store.aclose()

    return opened


def versioned(store: Store) -> VersionedCells:
    assert store.versioned_cells is not None
    return store.versioned_cells


async def check(program: list[Call], opened: Opened, *, markers: bool = False, prefix: bytes = b"") -> None:
    """Run a program on a store and on the model, and want the same answers and in the end the same cells."""
    model = Model(markers=markers)
    steps = [*program, Reopen(), Walk(b"", None, 3, Wanted())]
    while steps:
        async with opened() as store:
            cells = Prefixed(versioned(store), prefix) if prefix else versioned(store)
            await cells.create_tables([TABLE])
            while steps:
                call = steps.pop(0)
                if isinstance(call, Reopen):
                    break
                assert await answer(cells, call) == model.answer(call), call


@given(st.lists(calls, max_size=20))
@settings(deadline=None)
def test_memory_store(program: list[Call]) -> None:
    trio.run(check, program, in_memory())


@pytest.mark.slow
@given(st.lists(calls, max_size=20))
@settings(deadline=None, max_examples=40)
def test_embedded_store(program: list[Call]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        trio.run(check, program, in_folder(folder))


def in_hbase(hbase: RunningHbase) -> Opened:
    @asynccontextmanager
    async def opened() -> AsyncIterator[Store]:
        gateways, second = [(hbase.host, hbase.thrift_port)], [(hbase.host, hbase.thrift2_port)]
        store = HBaseStore(gateways, versions_gateways=second, connections=2)
        try:
            yield store
        finally:
            await store.aclose()

    return opened


class Prefixed(CellwiseColumns):
    """The rows of a table with a prefix."""

    def __init__(self, cells: VersionedCells, prefix: bytes) -> None:
        self.cells = cells
        self.prefix = prefix

    async def create_tables(self, tables: Sequence[Table]) -> list[str]:
        return await self.cells.create_tables(tables)

    async def put(self, table: str, cells: Sequence[VersionPut]) -> None:
        await self.cells.put(table, [cell._replace(row=self.prefix + cell.row) for cell in cells])

    async def get(self, table: str, rows: Collection[bytes], wanted: Wanted = ALL) -> dict[bytes, list[Cell]]:
        found = await self.cells.get(table, [self.prefix + row for row in rows], wanted)
        return {row[len(self.prefix) :]: cells for row, cells in found.items()}

    async def page(self, table: str, start: bytes, stop: bytes | None, *, limit: int, wanted: Wanted = ALL) -> Page:
        end = self.prefix[:-1] + b"0" if stop is None else self.prefix + stop  # "0" follows "/"
        page = await self.cells.page(table, self.prefix + start, end, limit=limit, wanted=wanted)
        at = None if page.next_start is None else page.next_start[len(self.prefix) :]
        return Page([Row(row.key[len(self.prefix) :], row.cells) for row in page.rows], at)

    async def delete(
        self, table: str, row: bytes, columns: Collection[bytes], *, since_ms: int = 0, until_ms: int = END
    ) -> None:
        await self.cells.delete(table, self.prefix + row, columns, since_ms=since_ms, until_ms=until_ms)


prefixes = itertools.count(1)


def with_whole_deletes(program: list[Call]) -> list[Call]:
    """Return a program whose deletes of families with a limit have no start: servers may show older versions again."""
    return [
        call._replace(since_ms=0) if isinstance(call, Delete) and any(c[:1] != b"t" for c in call.columns) else call
        for call in program
    ]


server_programs = st.lists(calls, max_size=20).map(with_whole_deletes)


@pytest.mark.hbase
@given(program=server_programs)
@settings(deadline=None, max_examples=25)
def test_hbase_store(hbase: RunningHbase, program: list[Call]) -> None:
    prefix = b"%06d/" % next(prefixes)
    trio.run(partial(check, program, in_hbase(hbase), markers=True, prefix=prefix))


def in_bigtable(bigtable: RunningBigtable) -> Opened:
    @asynccontextmanager
    async def opened() -> AsyncIterator[Store]:
        store = bigtable.store("versions")
        try:
            yield store
        finally:
            await store.aclose()

    return opened


@pytest.mark.bigtable
@given(program=server_programs)
@settings(deadline=None, max_examples=25)
def test_bigtable_store(bigtable: RunningBigtable, program: list[Call]) -> None:
    trio.run(partial(check, program, in_bigtable(bigtable), prefix=b"%06d/" % next(prefixes)))


@pytest.mark.bigtable
async def test_bigtable_reads_more_columns_than_a_filter_may_name(bigtable: RunningBigtable) -> None:
    async with in_bigtable(bigtable)() as store:
        cells = versioned(store)
        await cells.create_tables([TABLE])
        puts = [VersionPut(b"wide", b"t:%0400d" % at, b"v", at) for at in range(200)]
        await cells.put(TABLE.name, [*puts, VersionPut(b"wide", b"m:label", b"w", 7)])
        wanted = Wanted(columns={put.column for put in puts[:150]} | {b"m:label"})
        expected = [Cell(b"m:label", b"w", 7), *(Cell(put.column, b"v", put.time_ms) for put in puts[:150])]
        assert await cells.get(TABLE.name, [b"wide"], wanted) == {b"wide": expected}
        page = await cells.page(TABLE.name, b"wide", b"wide\0", limit=5, wanted=wanted)
        assert page.rows == [Row(b"wide", expected)]
        with pytest.raises(NoTable, match="no-versions"):
            await cells.get("no-versions", [b"row"])
        with pytest.raises(InvalidCell):
            await cells.put(TABLE.name, [VersionPut(bytes(5000), b"t:a", b"v", 1)])


@pytest.mark.parametrize(
    "engine",
    [pytest.param("hbase", marks=pytest.mark.hbase), pytest.param("bigtable", marks=pytest.mark.bigtable)],
)
async def test_one_call_brings_years_of_a_column_and_its_label(engine: str, request: pytest.FixtureRequest) -> None:
    peer = request.getfixturevalue(engine)
    async with (in_hbase(peer) if engine == "hbase" else in_bigtable(peer))() as store:
        cells = versioned(store)
        await cells.create_tables([TABLE])
        years = [VersionPut(b"one", b"t:size", b"%d" % year, year * 31_556_952_000) for year in range(1, 6)]
        label = VersionPut(b"one", b"m:label", b"house", 50_000 * 31_556_952_000)
        await cells.put(TABLE.name, [*years, label])
        await cells.families(TABLE.name)
        before = store.statistics()["requests"]
        found = await cells.get(TABLE.name, [b"one"], Wanted(years[0].time_ms))
        assert store.statistics()["requests"] == before + 1
        assert [cell.value for cell in found[b"one"]] == [b"house", b"5", b"4", b"3", b"2", b"1"]


@pytest.mark.hbase
async def test_missing_table_and_missing_gateway_raise_errors(hbase: RunningHbase) -> None:
    async with in_hbase(hbase)() as store:
        with pytest.raises(NoTable, match="no-versions"):
            await versioned(store).get("no-versions", [b"row"])
    closed = HBaseStore([(hbase.host, hbase.thrift_port)], versions_gateways=[(hbase.host, 1)])
    with pytest.raises(StoreDown, match=":1"):
        await versioned(closed).get(TABLE.name, [b"row"])
    await closed.aclose()


@pytest.mark.hbase
async def test_versions_answer_again_after_their_gateway_was_away(hbase: RunningHbase) -> None:
    async with in_hbase(hbase)() as store:
        cells = versioned(store)
        await cells.create_tables([TABLE])
        await cells.put(TABLE.name, [VersionPut(b"kept", b"t:a", b"v", 1)])
        hbase.thrift_kill()
        with pytest.raises(StoreDown):
            await cells.get(TABLE.name, [b"kept"])
        hbase.thrift_start()
        found: dict[bytes, list[Cell]] = {}
        with trio.fail_after(60):
            while not found:  # until the backoff after the failure has ended
                with suppress(StoreDown):
                    found = await cells.get(TABLE.name, [b"kept"])
                await trio.lowlevel.checkpoint()
        assert found == {b"kept": [Cell(b"t:a", b"v", 1)]}


@pytest.mark.parametrize("kind", ["memory", "embedded"])
async def test_invalid_versions_fail_the_whole_put(kind: str, tmp_path: object) -> None:
    opened = in_memory() if kind == "memory" else in_folder(str(tmp_path))
    async with opened() as store:
        cells = versioned(store)
        with pytest.raises(NoTable, match="versions"):
            await cells.put("versions", [])
        assert await cells.create_tables([TABLE]) == ["versions"]
        assert await cells.create_tables([TABLE]) == []
        good = VersionPut(b"row", b"t:", b"", 1)
        for wrong in ({"row": b""}, {"column": b"x:"}, {"column": b"t"}, {"time_ms": -1}, {"time_ms": END}):
            with pytest.raises(InvalidCell):
                await cells.put("versions", [good, good._replace(**wrong)])
        assert await cells.get("versions", [b"row"]) == {}
        await cells.put("versions", [good])
        assert "versions" not in await store.tables()


@pytest.mark.parametrize("kind", ["memory", "embedded"])
async def test_a_read_stops_at_its_limit_of_bytes(kind: str, tmp_path: object) -> None:
    opened = in_memory() if kind == "memory" else in_folder(str(tmp_path))
    async with opened() as store:
        cells = versioned(store)
        await cells.create_tables([TABLE])
        for family in ("t", "n"):
            row = family.encode()
            await cells.put(TABLE.name, [VersionPut(row, f"{family}:{at}".encode(), bytes(100), at) for at in range(9)])
            assert len((await cells.get_columns(TABLE.name, [row], Wanted(limit_bytes=9 * 200))).times_ms) == 9
            with pytest.raises(TooManyVersions):
                await cells.get_columns(TABLE.name, [row], Wanted(limit_bytes=500))


async def test_versions_and_plain_tables_have_names_apart(tmp_path: object) -> None:
    async with in_folder(str(tmp_path))() as store:
        await store.create_tables([TABLE])
        assert await versioned(store).create_tables([TABLE]) == ["versions"]
        await versioned(store).put("versions", [VersionPut(b"row", b"t:", b"v", 1)])
        assert await store.get("versions", [b"row"]) == {}
