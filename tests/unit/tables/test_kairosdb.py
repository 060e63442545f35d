"""KairosDB's tables on a real Cassandra: the recorded cells, answers and deletes of a real KairosDB."""

import json
import urllib.parse
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import trio

from tests.peers.cassandra import RunningCassandra
from tests.unit.codec.kairosdb_vectors import STORAGE, VECTORS, Point, Vector, points_of
from tests.unit.tables.kairosdb_keyspace import LATEST_S, Keyspace, answered, body_points, opened_keyspace
from tsd.codec.kairosdb.keys import LEGACY, LONG, DataRow, encode_tags
from tsd.codec.kairosdb.rows import COLUMNS, RowSpec
from tsd.codec.kairosdb.values import decode_long, encode_long
from tsd.codec.names import Kind
from tsd.daemon.settings import now_ms
from tsd.errors import NoTable, StoreDown, StoreError
from tsd.store.cassandra.session import BatchTooLarge
from tsd.tables.catalog import LastPoint
from tsd.tables.filters import make_filter
from tsd.tables.kairosdb import reader
from tsd.tables.kairosdb.index import IndexRows
from tsd.tables.kairosdb.layout import make_tables
from tsd.tables.kairosdb.points import PutBatch, RowPut, RowsAnswer
from tsd.tables.kairosdb.series import series_id
from tsd.tables.kairosdb.tables import NEVER, KairosTables
from tsd.tables.reading import SeriesRequest
from tsd.tables.writing import SeriesText

pytestmark = [pytest.mark.cassandra, pytest.mark.slow]

MODES = {
    "": ("MILLISECONDS", "1814400000"),
    "legacy": ("LEGACY", "1814400000"),
    "seconds": ("SECONDS", "1814400"),
    "tag_indexed": ("MILLISECONDS", "1814400000"),
}
LATEST_MS = 1 << 61  # of a point in a line
LATEST_EXPIRY_S = 200_000_000  # of a point: later ones expire when Cassandra cannot say so
KEPT_BY_BYTES = "larger bytes win"  # cases in which KairosDB does not keep the last of equal points
SERIES = SeriesText(b"m", b"host=a")
DAY_MS = 86_400_000
T = 1_356_998_400_000


def can_put(point: Point) -> bool:
    """Whether ingest takes such a point, and its row key has room."""
    names = [point.metric, *point.tags, *point.tags.values()]
    odd = any(set(name) & set(" =\"'") for name in names)
    return not odd and 0 <= point.ttl_s < LATEST_EXPIRY_S and abs(point.time_ms) < LATEST_MS


def text_of(point: Point) -> SeriesText:
    ttl = [f"kairos_opt.ttl={point.ttl_s}"] if point.ttl_s else []
    tags = " ".join([*(f"{tagk}={tagv}" for tagk, tagv in point.tags.items()), *ttl])
    return SeriesText(point.metric.encode("latin-1"), tags.encode("latin-1"))


def stored(vector: Vector) -> dict[str, list[Any]]:
    """The cells of a case, without index rows that KairosDB does not write with them, and times to live."""
    return {
        "data_points": [[*row[:3], len(row) > 3] for row in vector["data_points"]],
        "row_keys": [row[:5] for row in vector["row_keys"]],
        "row_key_time_index": vector["row_key_time_index"],
        "tag_indexed_row_keys": [row[:7] for row in vector.get("tag_indexed_row_keys", [])],
    }


@pytest.mark.parametrize("mode", MODES)
async def test_puts_write_the_recorded_cells(cassandra: RunningCassandra, mode: str) -> None:
    cases: dict[str, tuple[Vector, list[Point]]] = {}
    for vector in STORAGE:
        if vector.get("mode", "") == mode and "lines" in vector and KEPT_BY_BYTES not in vector["name"]:
            points = list(points_of(vector))
            if points and vector["data_points"] and all(map(can_put, points)):
                cases[points[0].metric] = vector, points
    assert len(cases) > 40
    async with opened_keyspace(cassandra, tag_indexed="*" if mode == "tag_indexed" else "") as keyspace:
        await keyspace.set_spec(*MODES[mode])
        await keyspace.put(
            (text_of(point), point.time_ms, point.value) for _, points in cases.values() for point in points
        )
        cells = await keyspace.cells()
    for row in cells["data_points"]:
        row[3] = row[3] is not None
    wanted: dict[str, list[Any]] = {}
    for vector, points in cases.values():
        by_second = mode == "seconds" and len({point.time_ms for point in points}) > 1
        for table, rows in stored(vector).items():
            if table != "data_points" or not by_second:
                wanted.setdefault(table, []).extend(rows)
    keys = {row[0] for row in wanted["data_points"]}
    cells["data_points"] = [row for row in cells["data_points"] if row[0] in keys]
    for table, rows in wanted.items():
        assert once(cells[table]) == once(rows), table
    names = {bytes.fromhex(kind) for kind, _, _ in cells["string_index"]}
    listed = {metric for kind, metric, _ in cells["string_index"] if bytes.fromhex(kind) == b"metric_names"}
    assert listed == set(cases)
    legacy = mode == "legacy"
    assert names == {b"metric_names"} | ({b"tag_names", b"tag_values"} if legacy else set())
    assert bool(cells["row_key_index"]) == legacy


def once(rows: list[Any]) -> list[str]:
    return sorted({json.dumps(row, sort_keys=True) for row in rows})


@pytest.mark.parametrize("mode", ["", "legacy"])
async def test_reads_answer_as_recorded(cassandra: RunningCassandra, mode: str) -> None:
    async with opened_keyspace(cassandra) as keyspace:
        await keyspace.set_spec(*MODES[mode])
        cases = [vector for vector in VECTORS["reads"] if vector.get("mode", "") == mode]
        for vector in cases:
            await keyspace.insert(vector["cells"], microseconds=vector.get("write_time") == "microseconds")
            await keyspace.cql.command(
                f"INSERT INTO {keyspace.name}.string_index (key, column1, value) VALUES (%s, %s, %s)",
                (b"metric_names", vector["metric"], b"\0"),
            )
        for vector in cases:
            query = vector["query"]
            span = query["start_absolute"], query.get("end_absolute", LATEST_S * 1000)
            found, warnings, _ = await keyspace.read(vector["metric"], {}, *span)
            if vector["status"] == 200:
                assert (found, warnings) == (answered(vector["answer"]), []), vector["name"]
            else:  # KairosDB fails the whole query
                assert warnings or "null" in vector["name"] or "legacy" in vector["name"], vector["name"]


async def test_unknown_type_costs_no_other_row(cassandra: RunningCassandra) -> None:
    vector = next(one for one in VECTORS["reads"] if one["name"] == "unknown data type")
    async with opened_keyspace(cassandra) as keyspace:
        await keyspace.insert(vector["cells"], microseconds=False)
        span = vector["query"]["start_absolute"], vector["query"]["end_absolute"]
        (numbers, _), warnings, _ = await keyspace.read(vector["metric"], {}, *span)
        kinds = {row[3] for row in vector["cells"]["row_keys"]} - {"kairos_long"}
    assert len(numbers) == 1
    assert [kind for kind in kinds if any(kind in warning for warning in warnings)] == list(kinds)


DELETES = [one for one in VECTORS["deletes"] if one["name"] != "delete, errors"]


@pytest.mark.parametrize("shared", [False, True], ids=["alone", "shared"])
async def test_deletes_leave_what_is_recorded(cassandra: RunningCassandra, shared: bool) -> None:
    async with opened_keyspace(cassandra, shared=shared) as keyspace:
        for vector in DELETES:
            for at, step in enumerate(vector["steps"]):
                if "request" in step:
                    await act(keyspace, step, f"{vector['name']}, step {at}", shared=shared)
                elif not shared:
                    await compare(keyspace, vector["metric"], step["tables"], f"{vector['name']}, step {at}")


async def act(keyspace: Keyspace, step: Vector, name: str, *, shared: bool) -> None:
    """Do a recorded request, and compare the answer of a query."""
    method, path, *rest = step["request"]
    deleter = keyspace.tables.deleter
    assert deleter is not None
    if path == "/api/v1/datapoints":
        await keyspace.put(body_points(rest[0]))
    elif method == "DELETE" and step["status"] == 204:
        await deleter.delete_metric(urllib.parse.unquote(path.removeprefix("/api/v1/metric/")))
    elif method == "GET" and "metricnames" in path and not shared:
        prefix = path.partition("prefix=")[2]
        listed = await keyspace.tables.catalog.suggest(Kind.METRIC, prefix, 100)
        assert listed == sorted(json.loads(step["answer"])["results"]), name
    elif method == "POST":
        body = json.loads(rest[0])
        [query] = body["metrics"]
        tags = {
            tagk: values if isinstance(values, str) else values[0] for tagk, values in query.get("tags", {}).items()
        }
        span = body["start_absolute"], body.get("end_absolute", LATEST_S * 1000)
        if path.endswith("/delete"):
            filters = tuple(make_filter(tagk, "literal_or", tagv) for tagk, tagv in tags.items())
            await deleter.delete(SeriesRequest(query["name"], filters=filters), *span)
        else:
            found, warnings, _ = await keyspace.read(query["name"], tags, *span)
            assert (found, warnings) == (answered(step["answer"]), []), name


async def compare(keyspace: Keyspace, metric: str, tables: dict[str, list[Any]], name: str) -> None:
    """Compare the cells of a case with the recorded ones."""
    cells = await keyspace.cells()
    for table, wanted in tables.items():
        rows = cells[table]
        if table == "data_points":
            found = [row[:3] for row in rows if bytes.fromhex(row[0]).decode("latin-1").startswith(metric)]
        elif table == "string_index":
            found = [row[1] for row in rows if row[1].startswith(metric)]
        else:
            found = [row[: len(wanted[0]) if wanted else 3] for row in rows if row[0].startswith(metric)]
        assert once(found) == once(wanted), (name, table)


async def test_batch_that_cassandra_calls_too_large_is_put_in_parts(cassandra: RunningCassandra) -> None:
    rows = [DataRow("m", 0, LONG, b"host=%d:" % at) for at in range(3)]
    puts = [RowPut(row.encode(), [bytes(4)], [encode_long(at) + bytes(40_000)], 0, [1]) for at, row in enumerate(rows)]
    async with opened_keyspace(cassandra) as keyspace:
        tables = KairosTables(keyspace.cql, keyspace.name, now_ms)
        together = [bound for put in puts for bound in put.encode()]
        with pytest.raises(BatchTooLarge):
            await keyspace.cql.batch_encoded(tables.statements.put_point, together, None)
        await tables.put_points([PutBatch(together, None)])
        for at, row in enumerate(rows):
            [point] = await tables.points(row.encode(), 0, COLUMNS - 1, 10)
            assert decode_long(point.value) == at


async def test_index_rows_outlive_their_points(cassandra: RunningCassandra) -> None:
    async with opened_keyspace(cassandra) as keyspace:
        for ttl in ("60", "100000", "0"):
            await keyspace.put([(SeriesText(b"m", f"host=a kairos_opt.ttl={ttl}".encode()), T + int(ttl), 1)])
            [(lives,)] = await keyspace.cql.command(f"SELECT TTL(mtime) FROM {keyspace.name}.row_keys")
            if ttl == "0":
                assert lives is None
            else:
                assert isinstance(lives, int)
                assert int(ttl) < lives <= int(ttl) + 1_814_400


async def test_last_number_of_a_time_is_read(cassandra: RunningCassandra) -> None:
    async with opened_keyspace(cassandra) as keyspace:
        await keyspace.put([(SERIES, T, 1.5), (SERIES, T, 7), (SERIES, T + 1, 7), (SERIES, T + 1, 1.5)])
        (numbers, _), _, _ = await keyspace.read("m", {}, T, T + DAY_MS)
        assert numbers == {T: 7, T + 1: 1.5}
        await keyspace.put([(SERIES, T, 2.5)])
        (numbers, _), _, _ = await keyspace.read("m", {}, T, T + DAY_MS)
        assert numbers == {T: 2.5, T + 1: 1.5}


async def test_long_rows_are_read_piece_by_piece(cassandra: RunningCassandra, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "READ_POINTS", 1000)
    count = 3_000
    plain = [SeriesText(b"plain", b"host=a"), SeriesText(b"plain", b"host=b")]
    async with opened_keyspace(cassandra) as keyspace:
        await keyspace.put([(SERIES, T + at * 7, float(at) if at % 3 else at) for at in range(count)])
        await keyspace.put([(plain[at % 2], T + at * 7, at) for at in range(count)])
        found = [(await keyspace.read(metric, {}, T + 7, T + DAY_MS))[0][0] for metric in ("m", "plain")]
    assert found == [{T + at * 7: at for at in range(1, count)}] * 2


async def test_points_among_many_that_expired_are_read(cassandra: RunningCassandra) -> None:
    """Cassandra fails a read of more than 100,000 of them. Deleted values are the same to it."""
    gone, other = 110_000, SeriesText(b"m", b"host=b")
    begin = T // RowSpec().width * RowSpec().width
    kept = {begin: 1, begin + 15_000: 2}
    row = DataRow("m", begin, LONG, encode_tags({"host": "a"})).encode()
    async with opened_keyspace(cassandra) as keyspace:
        await keyspace.put([*((SERIES, time_ms, value) for time_ms, value in kept.items()), (other, begin + 7, 3)])
        delete = f"DELETE value FROM {keyspace.name}.data_points USING TIMESTAMP ? WHERE key = ? AND column1 = ?"
        places = [(T, row, (at * 10_000).to_bytes(4, "big")) for at in range(1, gone + 1)]
        for first in range(0, gone, 5_000):
            await keyspace.cql.batch(delete, places[first : first + 5_000])
        (numbers, _), warnings, _ = await keyspace.read("m", {}, begin, begin + 21 * DAY_MS)
        (some, _), _, _ = await keyspace.read("m", {}, begin + 8, begin + 21 * DAY_MS)
        last = await keyspace.tables.catalog.last_points([series_id("m", encode_tags({"host": "a"}))], None)
    assert (numbers, warnings) == (kept | {begin + 7: 3}, [])
    assert some == {max(kept): 2}
    assert last.points == [LastPoint(max(kept), 2)]


async def test_index_rows_that_others_change_are_shown_as_they_are(cassandra: RunningCassandra) -> None:
    """Row times that an earlier request found are only expected."""
    other = SeriesText(SERIES.metric, b"host=other")
    async with opened_keyspace(cassandra) as own, opened_keyspace(cassandra, name=own.name) as others:
        await own.put([(SERIES, T, 1)])
        for _ in range(2):
            (numbers, _), _, series = await own.read("m", {}, T, T + DAY_MS)
            assert (numbers, series) == ({T: 1}, 1)
        await others.put([(other, T + 1, 2)])
        (numbers, _), _, series = await own.read("m", {}, T, T + DAY_MS)
        assert (numbers, series) == ({T: 1, T + 1: 2}, 2)
        await own.cql.command(f"TRUNCATE {own.name}.row_key_time_index")
        (numbers, _), _, series = await own.read("m", {}, T, T + DAY_MS)
        assert (numbers, series) == ({}, 0)


INDEX = -1  # stands for the answer of row_times among the rows that are read


class RecordingTables(KairosTables):
    """Tables that record in which order rows of points are read."""

    def __init__(self, keyspace: Keyspace) -> None:
        super().__init__(keyspace.cql, keyspace.name, now_ms)
        self.reads: list[int] = []  # row times of points, and INDEX

    async def row_times(self, metric: str, first_ms: int, last_ms: int) -> list[int]:
        times = await super().row_times(metric, first_ms, last_ms)
        self.reads.append(INDEX)
        return times

    async def read_rows(
        self,
        rows: Mapping[DataRow, tuple[int, int]],
        limit: int,
        *,
        timed: Callable[[DataRow], bool],
        slots: trio.Semaphore,
    ) -> list[RowsAnswer]:
        self.reads += [row.row_ms for row in rows]
        return await super().read_rows(rows, limit, timed=timed, slots=slots)


async def test_first_rows_are_read_while_the_index_is_read_and_none_twice(cassandra: RunningCassandra) -> None:
    rows = [RowSpec().first_row(T) + at * RowSpec().width for at in range(7)]
    row = DataRow("m", rows[0], LONG, encode_tags({"host": "a"}))
    async with opened_keyspace(cassandra) as keyspace:
        await keyspace.put((SERIES, row_ms, at) for at, row_ms in enumerate(rows))
        tables = RecordingTables(keyspace)
        table_reader = reader.KairosReader(
            tables, IndexRows(tables, by_tag=lambda _: False), shared=True, is_known=lambda _: False
        )
        recorded = Keyspace(keyspace.cql, keyspace.name, replace(keyspace.tables, reader=table_reader))

        async def reads(first: int, last: int) -> list[int]:
            tables.reads = []
            (numbers, _), _, _ = await recorded.read("m", {}, rows[first], rows[last] + DAY_MS)
            assert numbers == {rows[at]: at for at in range(first, last + 1)}
            return tables.reads

        assert await reads(0, 0) == [INDEX, rows[0]]
        assert await reads(0, 0) == [rows[0], INDEX]
        for last in (5, 5, 6):  # of more rows than are expected, and than the request before read
            assert await reads(0, last) == [rows[0], INDEX, *rows[1 : last + 1]]
        assert await reads(2, 6) == [INDEX, *rows[2:]]
        assert await reads(1, 6) == [INDEX, *rows[1:]]
        assert await reads(2, 3) == [rows[2], INDEX, rows[3]]
        await tables.put_old_keys("m", [(row.encode(), NEVER)], tables.stamps())
        assert await reads(0, 0) == [rows[0], INDEX]
        await tables.put_old_keys("m", [(row._replace(type=LEGACY).encode(), NEVER)], tables.stamps())
        assert (await reads(0, 0))[:2] == [rows[0], INDEX]
        for _ in range(2):
            assert await reads(0, 0) == [INDEX, rows[0], rows[0]]


async def test_removed_index_rows_are_written_again(cassandra: RunningCassandra) -> None:
    async with opened_keyspace(cassandra) as own, opened_keyspace(cassandra, shared=False, name=own.name) as other:
        await own.put([(SERIES, T, 1)])
        assert other.tables.deleter is not None
        await other.tables.deleter.delete_metric("m")
        await own.put([(SERIES, T + 1, 2)])
        own.tables.drop_caches()
        await own.put([(SERIES, T + 2, 3)])
        (numbers, _), _, _ = await own.read("m", {}, T, T + DAY_MS)
    assert numbers == {T + 1: 2, T + 2: 3}


async def test_rows_are_listed_again_after_an_interrupted_delete(
    cassandra: RunningCassandra, monkeypatch: pytest.MonkeyPatch
) -> None:
    delete_row_key = KairosTables.delete_row_key

    async def fail(self: KairosTables, row: DataRow, *args: Any) -> None:
        await delete_row_key(self, row, *args)
        raise StoreDown("answer lost by the test")

    async with opened_keyspace(cassandra, shared=False) as keyspace:
        await keyspace.put([(SERIES, T, 1)])
        deleter = keyspace.tables.deleter
        assert deleter is not None
        with monkeypatch.context() as failing:
            failing.setattr(KairosTables, "delete_row_key", fail)
            with pytest.raises(StoreDown):
                await deleter.delete_metric("m")
        await keyspace.put([(SERIES, T + 1, 2)])
        (numbers, _), _, _ = await keyspace.read("m", {}, T, T + DAY_MS)
    assert numbers == {T + 1: 2}


async def test_rows_that_are_put_during_a_delete_are_found_by_the_next(
    cassandra: RunningCassandra, monkeypatch: pytest.MonkeyPatch
) -> None:
    row_keys = KairosTables.row_keys
    async with opened_keyspace(cassandra, shared=False) as keyspace:
        await keyspace.put([(SERIES, T, 1)])
        deleter = keyspace.tables.deleter
        assert deleter is not None
        with monkeypatch.context() as putting:

            async def then_put(self: KairosTables, *args: Any) -> Any:
                found = await row_keys(self, *args)
                putting.undo()
                await keyspace.put([(SeriesText(b"m", b"host=late"), T + 1, 2)])
                return found

            putting.setattr(KairosTables, "row_keys", then_put)
            await deleter.delete_metric("m")
        (numbers, _), _, _ = await keyspace.read("m", {}, T, T + DAY_MS)
        assert numbers == {T + 1: 2}
        await deleter.delete_metric("m")
        await keyspace.put([(SERIES, T + 2, 3)])
        (numbers, _), _, _ = await keyspace.read("m", {}, T, T + DAY_MS)
    assert numbers == {T + 2: 3}


async def test_metric_that_is_put_while_it_is_deleted_keeps_its_name(
    cassandra: RunningCassandra, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened_keyspace(cassandra, shared=False) as keyspace:
        await keyspace.put([(SERIES, T, 1)])
        deleter = keyspace.tables.deleter
        assert deleter is not None
        delete = deleter.delete
        with monkeypatch.context() as putting:

            async def then_put(*args: Any) -> None:
                await delete(*args)
                await keyspace.put([(SERIES, T + 1, 2)])

            putting.setattr(deleter, "delete", then_put)
            await deleter.delete_metric("m")
        catalog = keyspace.tables.catalog
        assert await catalog.suggest(Kind.METRIC, "m", 10) == ["m"]
        await deleter.delete_metric("m")
        assert await catalog.suggest(Kind.METRIC, "m", 10) == []


async def problem(keyspace: Keyspace) -> str:
    """What a write, a read and a check say about the tables."""
    said = set()
    for call in (
        lambda: keyspace.put([(SERIES, T, 1)]),
        lambda: keyspace.tables.reader.select(SeriesRequest("m")),
        keyspace.tables.check,
    ):
        with pytest.raises(StoreError) as caught:
            await call()
        said.add(str(caught.value))
    [line] = said
    assert "\n" not in line
    return line


async def test_missing_keyspace_is_named(cassandra: RunningCassandra) -> None:
    async with opened_keyspace(cassandra, created=False) as keyspace:
        line = await problem(keyspace)
    assert keyspace.name in line
    assert "create-tables" in line


async def test_check_reads_the_tables_each_time(cassandra: RunningCassandra) -> None:
    async with opened_keyspace(cassandra) as keyspace:
        await keyspace.tables.check()
        await keyspace.cql.command(f"DROP TABLE {keyspace.name}.data_points")
        with pytest.raises(NoTable, match="data_points"):
            await keyspace.tables.check()


@pytest.mark.parametrize(("unit", "width"), [("MINUTES", "1814400000"), ("LEGACY", "x"), ("LEGACY", "0")])
async def test_unknown_rows_are_neither_read_nor_written(cassandra: RunningCassandra, unit: str, width: str) -> None:
    async with opened_keyspace(cassandra) as keyspace:
        await keyspace.set_spec(unit, width)
        line = await problem(keyspace)
        cells = await keyspace.cells()
    assert (unit if unit == "MINUTES" else f"'{width}'") in line
    assert all(rows == [] for rows in cells.values())


async def test_table_of_another_shape_is_named(cassandra: RunningCassandra) -> None:
    async with opened_keyspace(cassandra) as keyspace:
        await keyspace.cql.command(f"ALTER TABLE {keyspace.name}.data_points ADD more text")
        line = await problem(keyspace)
    assert "data_points" in line
    assert "more text" in line


async def test_rows_are_read_together_or_one_by_one(cassandra: RunningCassandra) -> None:
    """Cassandra before 3.6 knows no limit for each of several partitions."""
    series = [SeriesText(b"m", b"host=h%d" % at) for at in range(20)]
    async with opened_keyspace(cassandra) as keyspace:
        await keyspace.put((one, T + second, at) for at, one in enumerate(series) for second in range(at + 1))
        store = cassandra.store(keyspace.name)
        tables, old = (make_tables(store, keyspace.name, now_ms) for _ in range(2))
        old.statements = old.statements._replace(joined_points="SELECT WHERE", joined_timed_points="SELECT WHERE")
        spec = await tables.spec()
        row_ms = spec.row_time(T)
        rows = {
            DataRow("m", row_ms, LONG, encode_tags({"host": f"h{at}"})): (0, spec.column(T + at % 7, row_ms))
            for at in range(25)
        }
        slots = trio.Semaphore(2)
        for limit in (5, 100):
            for timed in ({}, dict.fromkeys(rows, True)):
                found = [
                    await one.read_rows(rows, limit, timed=timed.__contains__, slots=slots) for one in (tables, old)
                ]
                each = [{row: list(points) for answer in one for row, points in answer.stored.items()} for one in found]
                assert each[0] == each[1]
                counts = [min(at % 7 + 1, at + 1, limit) if at < 20 else 0 for at in range(25)]
                assert [len(each[0][row]) for row in rows] == counts
        await store.aclose()
