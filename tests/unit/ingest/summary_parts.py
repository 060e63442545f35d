"""Recorded rollups and histograms, and tables that keep those of lines."""

import json
from pathlib import Path

from tests.flaky_store import FlakyStore
from tests.unit.ingest.parts import Parts, make_store
from tsd.codec.names import Kind
from tsd.codec.opentsdb.cell import FAMILY
from tsd.codec.opentsdb.rollup import Rollups, parse_config
from tsd.codec.putline import NameRules
from tsd.query.model import AGGREGATORS
from tsd.store import Family, Table
from tsd.tables.opentsdb.summaries import SummaryRules

VECTORS = json.loads((Path(__file__).parents[2] / "vectors" / "storage_vectors.json").read_text())
[RECORDED] = [vector["config"] for vector in VECTORS if vector["kind"] == "rollup_config"]
CONFIG = parse_config(
    json.dumps(
        {
            "aggregationIds": RECORDED["aggregationIds"],
            "intervals": [
                {
                    "interval": one["interval"],
                    "rowSpan": one["rowSpan"],
                    "table": {"raw": "tsdb"}.get(one["table"], one["table"]),
                    "preAggregationTable": one["preAgg"],
                    "defaultInterval": one.get("default", False),
                }
                for one in RECORDED["intervals"]
            ],
        }
    ).encode()
)
ROLLUPS = Rollups(CONFIG, block_derived=False, group_bys=frozenset(AGGREGATORS))
RULES = SummaryRules(NameRules(), "tsdb", ROLLUPS, 42)


async def make_tables() -> FlakyStore:
    store = await make_store()
    await store.create_tables([Table(name, (Family(FAMILY),)) for name in ROLLUPS.tables() if name != "tsdb"])
    return store


async def contents(store: FlakyStore) -> dict[tuple[str, str, str], str]:
    """Every cell: value by table, row and qualifier, in hex."""
    found = {}
    for table in ROLLUPS.tables():
        for row in (await store.store.page(table, b"", None, limit=1000)).rows:
            for cell in row.cells:
                found[table, row.key.hex(), cell.column.removeprefix(b"t:").hex()] = cell.value.hex()
    return found


async def name(parts: Parts, metrics: str, tagvs: str) -> None:
    """Give names the UIDs of the recording."""
    for kind, names in ((Kind.METRIC, metrics), (Kind.TAGK, "host _aggregate"), (Kind.TAGV, tagvs)):
        for each in names.split():
            await parts.uids.find_or_assign(kind, [each.encode()])
