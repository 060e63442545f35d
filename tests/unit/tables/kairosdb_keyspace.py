"""A keyspace with KairosDB's tables on a real Cassandra: the layout's faces on it, and its cells as recorded ones."""

import json
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import numpy as np

from tests.peers.cassandra import RunningCassandra
from tsd.codec.points import Columns, Int32, Int64
from tsd.codec.putline import HOUR_S, NameRules
from tsd.codec.text import FLOAT
from tsd.codec.textline import encode_text_line
from tsd.daemon.wiring import now_ms
from tsd.store.cassandra.session import Connector
from tsd.tables import Tables
from tsd.tables.filters import make_filter
from tsd.tables.kairosdb.layout import KairosTableSettings, build, make_tables
from tsd.tables.reading import EncodedPage, PointPage, ScanRange, SeriesRequest, TextPage
from tsd.tables.writing import SeriesKey, SeriesKeys, SeriesText

LATEST_S = 4_102_444_800
PLACE = "metric, table_name, blobasbigint(timestampasblob(row_time))"
SELECT = {
    "data_points": "key, column1, value, TTL(value)",
    "row_keys": f"{PLACE}, data_type, tags",
    "row_key_time_index": PLACE,
    "string_index": "key, column1, value",
    "tag_indexed_row_keys": f"{PLACE}, single_tag_pair, tag_collection_hash, data_type, tags",
    "row_key_index": "key, column1",
}
Cells = dict[str, list[list[Any]]]
Found = tuple[dict[int, float], dict[int, str]]  # numbers and texts by time


class Lookup:
    """Series by their numbers."""

    def __init__(self, keys: Sequence[SeriesKey]) -> None:
        self._keys = keys

    def keys(self, numbers: Int32) -> SeriesKeys:
        return SeriesKeys.of(self._keys[number] for number in numbers.tolist())

    def generations(self, numbers: Int32) -> Int64:
        return np.ones(len(numbers), np.int64)


class Keyspace:
    """The tables of a keyspace, and all that the layout makes of them."""

    def __init__(self, cql: Connector, name: str, tables: Tables) -> None:
        self.cql = cql
        self.name = name
        self.tables = tables

    async def set_spec(self, unit: str, width: str) -> None:
        for name, value in (("row_time_unit", unit), ("row_width", width)):
            await self.cql.command(
                f"INSERT INTO {self.name}.spec (spec_type, name, value) VALUES ('cluster_config', %s, %s)",
                (name, value),
            )

    async def put(self, points: Iterable[tuple[SeriesText, int, Any]]) -> None:
        """Put numbers and texts of one window, in order."""
        texts = self.tables.writer.summaries
        assert texts is not None
        batch = texts.new_batch()
        series: list[SeriesKey] = []
        times, flags, bits = [], [], []
        for text, time_ms, value in points:
            resolved = await self.tables.resolver.resolve([text])
            assert not resolved.refused, resolved.refused
            [key] = resolved.keys
            if isinstance(value, str):
                batch.add(texts.parse(encode_text_line(text.metric, time_ms, value, text.tags)), key)
                continue
            series.append(key)
            times.append(time_ms << 1 | 1)
            flags.append(FLOAT | 7 if isinstance(value, float) else 7)
            bits.append(int(np.float64(value).view(np.int64)) if isinstance(value, float) else value)
        columns = Columns(
            np.arange(len(series), dtype=np.int32), np.array(times, np.int64), np.array(flags, np.uint8),
            np.array(bits, np.int64),
        )  # fmt: skip
        await self.tables.writer.write(columns, Lookup(series))
        await texts.write(batch)

    async def read(
        self, metric: str, tags: Mapping[str, str], first_ms: int, last_ms: int
    ) -> tuple[Found, list[str], int]:
        """Return the points of a metric, warnings, and how many series it has."""
        filters = tuple(make_filter(tagk, "literal_or", tagv) for tagk, tagv in tags.items())
        selection = await self.tables.reader.select(SeriesRequest(metric, filters=filters))
        numbers: dict[int, float] = {}
        texts: dict[int, str] = {}
        warnings: list[str] = []

        async def take(page: EncodedPage[PointPage]) -> None:
            await selection.series.match(page.series())
            decoded = page.decode()
            values = zip(decoded.batch.bits.tolist(), decoded.batch.floats.tolist(), strict=True)
            for time_ms, (bits, is_float) in zip(decoded.batch.times.tolist(), values, strict=True):
                numbers[time_ms] = float(np.int64(bits).view(np.float64)) if is_float else bits
            warnings.extend(decoded.warnings)

        async def take_texts(page: EncodedPage[TextPage]) -> None:
            await selection.series.match(page.series())
            decoded = page.decode()
            texts.update((one.time_ms, one.text) for one in decoded.texts)
            warnings.extend(decoded.warnings)

        span = ScanRange(first_ms // 1000 // HOUR_S * HOUR_S, (last_ms // 1000 // HOUR_S + 1) * HOUR_S)
        await selection.read(span, take, annotations=False)
        assert selection.texts is not None
        await selection.texts.read(span, take_texts)
        found = (
            {time: value for time, value in numbers.items() if first_ms <= time <= last_ms},
            {time: value for time, value in texts.items() if first_ms <= time <= last_ms},
        )
        return found, warnings, len(selection.series.series_pairs)

    async def cells(self) -> Cells:
        """Return all cells, spelled as the recorded ones."""
        found: Cells = {}
        for table, columns in SELECT.items():
            rows = await self.cql.command(f"SELECT {columns} FROM {self.name}.{table}")
            found[table] = [[_spelled(value) for value in row] for row in rows]
        return found

    async def insert(self, cells: Mapping[str, list[list[Any]]], *, microseconds: bool) -> None:
        """Write recorded cells as they stand."""
        stamp = now_ms() * (1000 if microseconds else 1)
        for table, rows in cells.items():
            for row in rows:
                names, values = _inserted(table, row)
                marks = ", ".join(["%s"] * len(names))
                into = f"{self.name}.{table} ({', '.join(names)})"
                await self.cql.command(f"INSERT INTO {into} VALUES ({marks}) USING TIMESTAMP {stamp}", tuple(values))


def _inserted(table: str, row: list[Any]) -> tuple[list[str], list[Any]]:
    if table == "data_points":
        return ["key", "column1", "value"], [bytes.fromhex(text) for text in row]
    if table == "row_key_index":
        return ["key", "column1", "value"], [*(bytes.fromhex(text) for text in row[:2]), b"\0"]
    names = ["metric", "table_name", "row_time", "data_type", "tags"][: len(row)]
    return names, list(row)


def _spelled(value: object) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    return dict(value) if isinstance(value, Mapping) else value


def answered(text: str) -> Found:
    """Return numbers and texts of a recorded answer by time; of several numbers at one time the last one."""
    numbers: dict[int, float] = {}
    texts: dict[int, str] = {}
    for result in json.loads(text)["queries"][0]["results"]:
        for time_ms, value in result["values"]:
            (texts if isinstance(value, str) else numbers)[time_ms] = value
    return numbers, texts


def body_points(body: str) -> list[tuple[SeriesText, int, Any]]:
    """Return the points of a recorded body."""
    found = json.loads(body)
    tags = " ".join(f"{name}={value}" for name, value in found["tags"].items())
    series = SeriesText(found["name"].encode("latin-1"), tags.encode("latin-1"))
    return [(series, time_ms, value) for time_ms, value in found["datapoints"]]


@asynccontextmanager
async def opened_keyspace(
    cassandra: RunningCassandra, *, shared: bool = True, tag_indexed: str = "", created: bool = True, name: str = ""
) -> AsyncIterator[Keyspace]:
    """Open a keyspace, a new one unless named, with tables if `created`."""
    keyspace = name or cassandra.unused_keyspace()
    store = cassandra.store(keyspace)
    try:
        settings = KairosTableSettings(
            keyspace, shared, frozenset([tag_indexed]), creates_metrics=True, names=NameRules(bytes(range(1, 256)), 100)
        )
        if created:
            await make_tables(store, keyspace, now_ms).create("ZSTD")
        yield Keyspace(store.cql, keyspace, build(store, settings, now_ms))
    finally:
        await store.aclose()
