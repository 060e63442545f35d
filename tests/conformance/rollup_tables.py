"""Tables of rollups on HBase, their configuration, and HTTP answers from them."""

import http.client
import json
from pathlib import Path
from typing import Any

from tests.peers.hbase import RunningHbase
from tests.peers.tables import Tables


def rollups_of(tables: Tables) -> str:
    """Return a rollup configuration for tables."""
    names = {"1m": tables.data, "10m": f"{tables.data}-10m", "1h": f"{tables.data}-1h", "1d": f"{tables.data}-1d"}
    spans = {"1m": "1h", "10m": "6h", "1h": "1d", "1d": "1n"}
    return json.dumps(
        {
            "aggregationIds": {"sum": 0, "count": 1, "min": 2, "max": 3},
            "intervals": [
                {
                    "interval": interval,
                    "table": table,
                    "preAggregationTable": f"{tables.data}-agg-{interval}",
                    "rowSpan": spans[interval],
                    "defaultInterval": interval == "1m",
                }
                for interval, table in names.items()
            ],
        }
    )


def created_rollups(hbase: RunningHbase, tables: Tables, folder: Path, *, salted: bool) -> dict[str, str]:
    """Create tables of rollups, and return the settings of daemons that use them."""
    config = folder / "rollups.json"
    config.write_text(rollups_of(tables))
    for one in json.loads(config.read_text())["intervals"]:
        for name in {one["table"], one["preAggregationTable"]} - {tables.data}:
            hbase.tables.create(name, ["t"])
    return {
        "tsd.rollups.enable": "true",
        "tsd.rollups.config": str(config),
        **({"tsd.storage.salt.width": "1", "tsd.storage.salt.buckets": "3"} if salted else {}),
    }


def get(port: int, path: str) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


def plain(answer: tuple[int, Any], *, torn: bool = False) -> Any:
    """Return what must be equal: for errors, status and message. `torn`: OpenTSDB has one series per hour."""
    status, body = answer
    if isinstance(body, dict):
        return status, body["error"]["message"]
    for group in body:
        group["aggregateTags"].sort()
        if torn:
            group["tsuids"] = list(dict.fromkeys(group["tsuids"]))
    return body
