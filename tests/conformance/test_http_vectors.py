"""Recorded HTTP requests to a real OpenTSDB, sent to this daemon on both engines."""

import http.client
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import trio

from tests.peers.hbase import RunningHbase
from tests.running import running

VECTORS: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[1] / "vectors" / "http_vectors.json").read_text(encoding="utf-8")
)

# Requests that are shorter than OpenTSDB's write buffer of one second. tsd has no such buffer:
# tests/unit/api/test_put.py has the same answers with a slow store.
TIMED = "sync_timeout=50"

# OpenTSDB's defaults that differ from tsd's.
DEFAULTS = {
    "tsd.no_diediedie": "false",
    "tsd.core.auto_create_metrics": "false",
    "tsd.http.request.enable_chunked": "false",
    "tsd.http.request.max_chunk": "4096",
}
ROLLUPS: dict[str, Any] = {
    "aggregationIds": {"sum": 0, "count": 1, "min": 2, "max": 3, "avg": 4},
    "intervals": [
        {
            "table": "tsdb-rollup-1m",
            "preAggregationTable": "tsdb-rollup-preagg-1m",
            "interval": "1m",
            "rowSpan": "1h",
            "defaultInterval": True,
        },
        {"table": "tsdb-rollup-1h", "preAggregationTable": "tsdb-rollup-preagg-1h", "interval": "1h", "rowSpan": "1d"},
    ],
}
FIRST = {"metric": "wire.p", "timestamp": 1500000000, "value": 1, "tags": {"a": "b"}}


class Departure(NamedTuple):
    """An intentional difference: docs/differences.md lists them."""

    why: str
    status: int
    body: Any = None  # JSON or text; None: any
    kind: str | None = None  # None: as recorded


# By method, path and, if several vectors share those, body.
DEPARTURES: dict[tuple[str, str] | tuple[str, str, str], Departure] = {
    ("GET", "/api/serializers"): Departure("documented, and asked for by clients; 2.4.1 does not have it", 200),
    ("POST", "/api/put", '"   "'): Departure("a body of blanks is the client's mistake, and OpenTSDB falls over", 400),
    ("HEAD", "/api/version"): Departure("an answer to HEAD has no body", 405, ""),
}


class Answer(NamedTuple):
    """An answer."""

    status: int
    kind: str | None
    headers: Mapping[str, str]
    text: str


def setup(vector: dict[str, Any]) -> str:
    """Return a short name of a vector's settings."""
    config = vector.get("config") or {}
    if "rollup intervals" in config:
        return "rollups"
    if "tsd.core.meta.enable_tsuid_tracking" in config:
        return "usual"
    return "-".join(f"{key.rpartition('.')[2]}={value[:4]}" for key, value in config.items()) or "default"


def grouped() -> dict[str, list[dict[str, Any]]]:
    """Group the vectors, in order, by their settings and, if they depend on each other, by their sequence."""
    found: dict[str, list[dict[str, Any]]] = {}
    for vector in VECTORS:
        if TIMED not in vector["path"]:
            found.setdefault(f"{setup(vector)}-{vector.get('seq')}", []).append(vector)
    return found


GROUPS = grouped()


def settings_of(vectors: list[dict[str, Any]], folder: Path) -> dict[str, str]:
    """Return the daemon's settings for vectors of one setup."""
    own = dict(vectors[0].get("config") or {})
    if own.pop("rollup intervals", None):
        (folder / "rollups.json").write_text(json.dumps(ROLLUPS))
        own["tsd.rollups.config"] = str(folder / "rollups.json")
    return {**DEFAULTS, **own}


def fetch(port: int, vector: dict[str, Any]) -> Answer:
    """Send a vector as recorded."""
    body = vector["body"]
    data = body if body is None or isinstance(body, str) else json.dumps(body, ensure_ascii=False)
    headers = {"Connection": "close", **vector.get("headers", {})}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(vector["method"], vector["path"], None if data is None else data.encode(), headers)
        got = connection.getresponse()
        return Answer(got.status, got.getheader("Content-Type"), dict(got.getheaders()), got.read().decode())
    finally:
        connection.close()


def departure_of(vector: dict[str, Any]) -> Departure | None:
    """Return the intentional difference of a vector, if any."""
    key = (vector["method"], vector["path"])
    return DEPARTURES.get((*key, json.dumps(vector["body"]))) or DEPARTURES.get(key)


def wrongs(vector: dict[str, Any], answer: Answer) -> list[str]:
    """Return the differences from the expected answer."""
    own = departure_of(vector)
    found = []
    if answer.status != (own.status if own else vector["status"]):
        found.append(f"status {answer.status}, wanted {vector['status']}")
    kind = own.kind if own and own.kind else vector.get("content_type")
    if answer.kind != kind and not (own and own.kind is None and own.body is None):
        found.append(f"type {answer.kind}, wanted {kind}")
    for name, value in vector.get("response_headers", {}).items():
        if answer.headers.get(name) != value:
            found.append(f"{name}: {answer.headers.get(name)}, wanted {value}")
    return found + (_wrong_body(own.body, answer.text, []) if own else _wrong_text(vector, answer.text))


def _wrong_text(vector: dict[str, Any], text: str) -> list[str]:
    if "response_contains" in vector:
        return [f"no {part!r}" for part in vector["response_contains"] if part not in text]
    if "response_keys" in vector:
        keys = sorted(json.loads(text))
        return [] if keys == vector["response_keys"] else [f"keys {keys}"]
    return _wrong_body(vector["response"], text, vector.get("loose", []))


def _wrong_body(wanted: Any, text: str, loose: list[str]) -> list[str]:
    if wanted is None:
        return []
    if isinstance(wanted, str):
        return [] if text == wanted else [f"got {text!r}, wanted {wanted!r}"]
    try:
        got = json.loads(text)
    except ValueError:
        return [f"got {text!r}, wanted {wanted!r}"]
    if "(order)" in loose:
        return [] if sorted(got) == sorted(wanted) else [f"got {got}, wanted {wanted}"]
    got, wanted = (json.dumps(_without(value, loose)) for value in (got, wanted))  # includes the order of keys
    return [] if got == wanted else [f"got\n    {got}, wanted\n    {wanted}"]


def _without(value: Any, loose: list[str]) -> Any:
    """Return JSON without the texts at some paths."""
    value = json.loads(json.dumps(value))
    for path in loose:
        *way, last = path.split(".")
        place = value
        for key in way:
            place = place.get(key, {}) if isinstance(place, dict) else {}
        if isinstance(place, dict) and last in place:
            place[last] = "…"
    return value


async def judge(folder: Path, vectors: list[dict[str, Any]], settings: dict[str, str]) -> None:
    """Send all vectors of a group to a daemon in order, and check each answer."""
    bad: list[str] = []
    async with running(folder / "state", {**settings_of(vectors, folder), **settings}) as daemon:
        if vectors[0].get("seq") != "put" and settings_of(vectors, folder).get("tsd.mode") != "ro":
            body = [FIRST, {**FIRST, "tags": {"a": "c"}}] if vectors[0].get("seq") == "uid" else FIRST
            first = {"method": "POST", "path": "/api/put?sync", "body": body}
            await trio.to_thread.run_sync(fetch, daemon.port, first)
        for vector in vectors:
            answer = await trio.to_thread.run_sync(fetch, daemon.port, vector)
            sent = json.dumps(vector["body"], ensure_ascii=False)[:200]
            errors = [f"{vector['method']} {vector['path']} {sent}\n  {wrong}" for wrong in wrongs(vector, answer)]
            bad += errors
    assert not bad, f"{len(bad)} wrong:\n" + "\n".join(bad)


@pytest.mark.difference(
    "home-page",
    topic="http",
    theirs="`/` is a page that draws graphs",
    ours="The page has other controls; links of OpenTSDB's page work",
)
@pytest.mark.parametrize("group", sorted(GROUPS))
async def test_embedded_answers_recorded_http_requests(group: str, tmp_path: Path) -> None:
    await judge(tmp_path, GROUPS[group], {})


@pytest.mark.parametrize("group", sorted(GROUPS))
async def test_hbase_answers_recorded_http_requests(group: str, tmp_path: Path, hbase: RunningHbase) -> None:
    tables = hbase.new_tables()
    if group.startswith("rollups"):
        for one in ROLLUPS["intervals"]:
            for name in (one["table"], one["preAggregationTable"]):
                hbase.tables.create(name, ["t"])
    settings = {
        "tsd.storage.backend": "hbase",
        "tsd.storage.hbase.thrift": hbase.gateway,
        **{f"tsd.storage.hbase.{kind}_table": name for kind, name in tables._asdict().items()},
    }
    await judge(tmp_path, GROUPS[group], settings)


def test_every_departure_has_a_vector() -> None:
    meant = {key for key in DEPARTURES for vector in VECTORS if departure_of(vector) is DEPARTURES[key]}
    assert meant == set(DEPARTURES)
