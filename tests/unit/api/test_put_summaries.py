"""/api/rollup and /api/histogram: recorded requests are answered as by OpenTSDB, and stored with its bytes."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.api.put_parts import VECTORS, call_endpoint, make_request, recorded_request, summaries_of
from tests.unit.ingest.parts import Parts, going, make_store
from tests.unit.ingest.summary_parts import ROLLUPS, RULES, contents, make_tables, name
from tests.unit.ingest.summary_parts import VECTORS as STORED
from tsd.codec.putline import NameRules
from tsd.tables.opentsdb.summaries import SummaryRules

RECORDED = [
    vector
    for vector in VECTORS
    if vector["path"].startswith(("/api/rollup", "/api/histogram")) and vector["status"] != 404
]
ON = RULES._replace(rollups=ROLLUPS._replace(block_derived=True))
# OpenTSDB stores each float that came over HTTP on 8 bytes, and those of telnet on 4 where they hold it.
ON_EIGHT = {"4045400000000000": "422a0000"}


def name_of(vector: dict[str, Any]) -> str:
    return f"{RECORDED.index(vector)} {vector['method']} {vector['path']}"


@pytest.mark.parametrize("vector", RECORDED, ids=name_of)
async def test_recorded_request_is_answered_as_by_opentsdb(vector: dict[str, Any], tmp_path: Path) -> None:
    is_on = "tsd.rollups.enable" in (vector.get("config") or {})
    rules = ON if is_on else SummaryRules(NameRules(), "tsdb")
    async with going(Parts(tmp_path, await (make_tables() if is_on else make_store()), rules=rules)) as parts:
        endpoint = summaries_of(parts)[vector["path"].partition("?")[0].strip("/")]
        assert await call_endpoint(endpoint, recorded_request(vector)) == (vector["status"], vector["response"])


ROLLUPS_STORED = [vector for vector in STORED if vector["kind"] == "rollup" and "body" in vector]


@pytest.mark.difference("http-floats")
@pytest.mark.parametrize("vector", ROLLUPS_STORED, ids=[vector["body"] for vector in ROLLUPS_STORED])
async def test_rollup_is_stored_as_by_opentsdb(vector: dict[str, Any], tmp_path: Path) -> None:
    async with going(Parts(tmp_path, await make_tables(), rules=RULES)) as parts:
        await name(parts, "sys.cpu.user", "web01")
        assert (await call_endpoint(summaries_of(parts)["api/rollup"], make_request(vector["body"], "sync")))[0] == 204
        [(place, value)] = (await contents(parts.store)).items()
    qualifier = vector["qualifier_hex"][:-1] + "b"
    assert place == (vector["table"], vector["row_hex"], qualifier)
    assert value == ON_EIGHT[vector["value_hex"]]


@pytest.mark.parametrize("more", [{}, {"aggregator": ""}, {"aggregator": None}])
async def test_rollup_of_an_interval_needs_its_own_aggregator(more: dict[str, Any], tmp_path: Path) -> None:
    """OpenTSDB refuses it, too: the sums of an hour and the maxima of a group are not the same."""
    body = {"metric": "sys.cpu.user", "timestamp": 1356998400, "value": 1, "tags": {"host": "web01"}}
    body |= {"interval": "1h", "groupByAggregator": "sum", **more}
    async with going(Parts(tmp_path, await make_tables(), rules=RULES)) as parts:
        status, reply = await call_endpoint(summaries_of(parts)["api/rollup"], make_request(body, "details"))
        assert (status, reply["failed"]) == (400, 1)
        assert reply["errors"][0]["error"] == "Aggregator cannot be null or empty."
        assert await contents(parts.store) == {}


async def test_histogram_is_stored_with_the_bytes_of_its_line(tmp_path: Path) -> None:
    line = next(vector for vector in STORED if vector["kind"] == "histogram" and "o=2" in vector["line"])
    body = {
        "metric": "sys.lat",
        "timestamp": 1356998400,
        "overflow": 2,
        "buckets": {"1.75,3.5": 16, "0,1.75": 12},
        "tags": {"host": "web01"},
    }
    async with going(Parts(tmp_path, await make_tables(), rules=RULES)) as parts:
        await name(parts, "sys.cpu.user sys.lat", "web01")
        endpoint = summaries_of(parts)["api/histogram"]
        counted = {**body, "overflow": 2.0, "buckets": {"1.75,3.5": 16.9, "0,1.75": "12"}}  # truncated by OpenTSDB, too
        for one in (body, counted):
            assert await call_endpoint(endpoint, make_request(one, "sync")) == (204, "")
            assert list((await contents(parts.store)).items()) == [
                (("tsdb", line["row_hex"], line["qualifier_hex"]), line["value_hex"])
            ]
        status, reply = await call_endpoint(
            endpoint, make_request(json.dumps([body, {**body, "buckets": {"1,2": "1.5"}}]), "details")
        )
        assert (status, reply["error"]["message"]) == (400, "Unable to parse the given JSON")
        status, reply = await call_endpoint(endpoint, make_request([body, {**body, "metric": "a b"}], "details"))
        assert (status, reply["success"], reply["failed"]) == (400, 1, 1)
