"""`tsd retention` on each engine: expired rows go, younger ones stay, and a killed deletion is completed."""

import json
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import pytest
import trio

from tests.broken_rows import config_of
from tests.e2e.command import Tsd, on_cassandra, on_hbase
from tsd.cli.context import Access, access
from tsd.codec.names import Kind
from tsd.codec.opentsdb.cell import COLUMN, seconds_qualifier
from tsd.codec.opentsdb.rowkey import KeyLayout, row_key, split_key
from tsd.daemon.settings import now_ms
from tsd.store import Put, scan

pytestmark = pytest.mark.slow

HOUR_S, DAY_S = 3600, 86_400
OLD_MS = 1_600_000_000_000  # when the rows were written: long before they are read
ON_PEERS = [
    pytest.param("hbase", marks=pytest.mark.hbase),
    pytest.param("cassandra", marks=pytest.mark.cassandra),
]
DATA, ROLLUPS = "tsd.storage.hbase.data_table", "rollups"
POINTS = COLUMN + b"".join(seconds_qualifier(at, 0) for at in range(300))
ANNOTATION = COLUMN + b"\1\0\0"
LAYOUT = KeyLayout()
RULES = {
    "tsd.retention.rules": "debug.*=2d; *=10d",
    "tsd.retention.rollups": "*=15d",
    "tsd.retention.annotations": "12d",
    "tsd.rollups.enable": "true",
}


class Stored(NamedTuple):
    """One stored cell."""

    is_rollup: bool
    metric: str
    days: int  # ago
    is_annotation: bool


class Tables:
    """Tables on one engine, with rows of certain days."""

    def __init__(self, tsd: Tsd, data: str, rollups: str) -> None:
        self.tsd = tsd
        self._data = data
        self._rollups = rollups
        self._today_s = now_ms() // 1000 // DAY_S * DAY_S

    def put(self, cells: Iterable[Stored], series: int = 1, hours: int = 1) -> None:
        """Store cells, those of points in rows of some series and of some hours."""

        async def put() -> None:
            async with access(config_of(self.tsd)) as opened:
                uids = await self._uids(opened)
                for cell in cells:
                    column = ANNOTATION if cell.is_annotation else POINTS
                    puts = [
                        Put(row_key(LAYOUT, uids[cell.metric], base, _pairs(number)), column, bytes(301))
                        for base in (self._today_s - cell.days * DAY_S + hour * HOUR_S for hour in range(hours))
                        for number in range(1, series + 1)
                    ]
                    await opened.store.put(self._table(cell), puts, time_ms=OLD_MS)
                await opened.store.sync()

        trio.run(put)

    def cells(self) -> list[Stored]:
        """Return all cells, in order; the hours of a day count as that day."""

        async def read() -> list[Stored]:
            async with access(config_of(self.tsd)) as opened:
                names = {uid: name for name, uid in (await self._uids(opened)).items()}
                return [
                    Stored(
                        table == self._rollups,
                        names[key.series.metric],
                        self._days(key.base),
                        cell.column == ANNOTATION,
                    )
                    for table in (self._data, self._rollups)
                    async for rows in scan(opened.store, table)
                    for row in rows
                    for key in (split_key(LAYOUT, row.key),)
                    for cell in row.cells
                ]

        return sorted(trio.run(read))

    def first_row(self) -> bytes:
        """Return the key of the first row of points."""

        async def read() -> bytes:
            async with access(config_of(self.tsd)) as opened:
                return (await opened.store.page(self._data, b"", None, limit=1)).rows[0].key

        return trio.run(read)

    def _table(self, cell: Stored) -> str:
        return self._rollups if cell.is_rollup else self._data

    def _days(self, base: int) -> int:
        return -(-(self._today_s - base) // DAY_S)

    async def _uids(self, opened: Access) -> dict[str, bytes]:
        found = await opened.uids.find_or_assign(Kind.METRIC, [b"debug.x", b"sys.cpu"])
        return {name.decode(): bytes(uid) for name, uid in found.items()}  # type: ignore[arg-type]


def _pairs(number: int) -> bytes:
    return b"\0\0\1" + number.to_bytes(3, "big")


@pytest.fixture
def tables(request: pytest.FixtureRequest, tmp_path: Path) -> Tables:
    """Empty tables on an engine."""
    names = {"data": "tsdb", "rollups": "tsdb-1h", "aggregates": "tsdb-agg-1h"}
    settings = {"tsd.core.auto_create_metrics": "true"}
    if request.param == "hbase":
        hbase = request.getfixturevalue("hbase")
        unused = hbase.unused_tables()
        settings = on_hbase(hbase, unused, settings)
        names = {"data": unused.data, "rollups": f"{unused.data}-1h", "aggregates": f"{unused.data}-agg"}
    elif request.param == "cassandra":
        settings = on_cassandra(request.getfixturevalue("cassandra"), settings)
    rollups = {
        "aggregationIds": {"sum": 0},
        "intervals": [
            {"interval": "1m", "table": names["data"], "preAggregationTable": names["data"], "rowSpan": "1h",
             "defaultInterval": True},
            {"interval": "1h", "table": names["rollups"], "preAggregationTable": names["aggregates"], "rowSpan": "1d"},
        ],
    }  # fmt: skip
    tsd = Tsd(tmp_path / "state", {**settings, **RULES, "tsd.rollups.config": json.dumps(rollups)})
    if request.param != "embedded":
        made = tsd.run("create-tables")
        assert made.status == 0, made
    return Tables(tsd, names["data"], names["rollups"])


@pytest.mark.parametrize("tables", ["embedded", *ON_PEERS], indirect=True)
def test_expired_rows_go_by_their_own_rules(tables: Tables) -> None:
    keep_days = {
        (False, False): {"debug.x": 2, "sys.cpu": 10},
        (False, True): dict.fromkeys(("debug.x", "sys.cpu"), 12),
    }
    keep_days[True, False] = dict.fromkeys(("debug.x", "sys.cpu"), 15)
    cells = [
        Stored(is_rollup, metric, days, is_annotation)
        for is_rollup, is_annotation in keep_days
        for metric in ("debug.x", "sys.cpu")
        for days in (0, 1, 3, 9, 11, 13, 14, 17, 40)
    ]
    tables.put(cells)
    assert tables.cells() == sorted(cells)
    preview = tables.tsd.run("retention", "--dry-run", "--exact", "--json")
    assert (preview.status, preview.err) == (0, ""), preview
    assert tables.cells() == sorted(cells)
    done = tables.tsd.run("retention", "--trust-clock", "--json")
    assert (done.status, done.err) == (0, ""), done
    assert json.loads(done.out)["rules"] == json.loads(preview.out)["rules"]
    kept = [cell for cell in cells if cell.days <= keep_days[cell.is_rollup, cell.is_annotation][cell.metric]]
    assert tables.cells() == sorted(kept)


@pytest.mark.parametrize("tables", ON_PEERS, indirect=True)
def test_killed_deletion_is_completed_by_the_next(tables: Tables) -> None:
    old, young = Stored(False, "sys.cpu", 20, False), Stored(False, "sys.cpu", 5, False)
    tables.put([old, young], series=250, hours=20)
    first = tables.first_row()
    process = tables.tsd.popen("retention", "--trust-clock")
    with process:
        while process.poll() is None and tables.first_row() == first:
            pass
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert process.poll() in (-signal.SIGKILL, 0)
    assert tables.cells().count(young) == 250 * 20
    done = tables.tsd.run("retention", "--trust-clock")
    assert done.status == 0, done
    assert len(tables.cells()) == 250 * 20
