"""Recorded queries to a real OpenTSDB, sent to this daemon on both engines."""

import http.client
import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.peers.hbase import RunningHbase
from tests.query_vectors import vectors
from tests.selections import CountedQueries, counted_queries

SETTINGS = {"tsd.core.auto_create_metrics": "true"}
SETS = ("aggregateTags", "aggregatedTags", "etags")  # lists without a meaningful order
TIMES = ("stats", "statsSummary")  # values differ in every run: only names are compared
UNORDERED = ("tags", "commonTags")  # objects without a meaningful order
Vector = dict[str, Any]


CHOOSY = ("grouping", "filters", "filters/combined", "tsuid")  # topics that select some series of a metric
# Intentional differences: docs/differences.md lists them.
DEPARTURES = {
    "/api/query/last?timeseries=qs.cpu&back_scan=1": "a metric without tags is looked for, whatever the back_scan",
}

REPEATED = 8  # of the queries at least so many are of one series

TOPICS: dict[str, list[Vector]] = {}
for _vector in vectors()["queries"]:
    TOPICS.setdefault(_vector["topic"], []).append(_vector)


@asynccontextmanager
async def filled(folder: Path, settings: dict[str, str]) -> AsyncIterator[CountedQueries]:
    """Run a daemon with the vectors' lines in their order."""
    async with counted_queries(folder, {**SETTINGS, **settings}) as daemon:
        reply = await daemon.send_lines("".join(f"{line}\n" for line in vectors()["lines"]).encode())
        assert reply == b"synced %d\n" % len(vectors()["lines"]), reply
        yield daemon


def fetch(port: int, vector: Vector) -> tuple[int, Any]:
    """Return status and answer as JSON or text."""
    request = vector["request"]
    body = request.get("body")
    headers = {"Connection": "close"}
    if body is not None and not isinstance(body, str):
        body = json.dumps(body)
        headers["Content-Type"] = "application/json"
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(request["method"], request["path"], body and body.encode(), headers)
        got = connection.getresponse()
        text = got.read().decode()
    finally:
        connection.close()
    try:
        return got.status, json.loads(text, object_pairs_hook=_object)
    except ValueError:
        return got.status, text


def _object(members: list[tuple[str, Any]]) -> dict[str, Any]:
    """Keep the last of several points of a second, which share a key, as the recordings do. No other key occurs
    twice."""
    found = dict(members)
    assert len(found) == len(members) or all(key.isdecimal() for key in found), members
    return found


def differs(got: Any, wanted: Any, name: str = "") -> bool:
    """Whether an answer differs: by type, to the last digit, and by the order of keys where it has a meaning."""
    if type(got) is not type(wanted):
        return True
    if isinstance(got, dict):
        if name in TIMES:
            return bool(got.keys() ^ wanted.keys())
        if name == "error":
            return any(got.get(key) != wanted[key] for key in wanted)
        order = sorted if name in UNORDERED else list
        return order(got) != order(wanted) or any(differs(got[key], wanted[key], key) for key in got)
    if isinstance(got, list):
        if name in SETS and all(isinstance(one, str) for one in got):
            return sorted(got) != sorted(wanted)
        return len(got) != len(wanted) or any(differs(*pair, name) for pair in zip(got, wanted, strict=True))
    return bool(got != wanted)


async def judge(topics: Iterable[str], folder: Path, settings: dict[str, str], *, salted: bool = False) -> None:
    """Send all queries of some topics to a daemon. With `salted`, series have another order."""
    bad = []
    async with filled(folder, settings) as daemon:
        for vector in (vector for topic in topics for vector in TOPICS[topic]):
            request_text = json.dumps(vector["request"])
            status, answer = await trio.to_thread.run_sync(fetch, daemon.port, vector)
            if vector["request"]["path"] in DEPARTURES:
                continue
            wished = vector["response"]
            if salted and isinstance(wished, list):
                answer, wished = (sorted(groups, key=_tags) for groups in (answer, wished))
            if status != vector["status"] or differs(answer, wished):
                got, wanted = (json.dumps(one)[:1500] for one in (answer, wished))
                bad.append(f"{request_text}\n  got    {status} {got}\n  wanted {vector['status']} {wanted}")
    assert not bad, f"{len(bad)} wrong:\n" + "\n".join(bad)


def _tags(group: Vector) -> str:
    return json.dumps(group["tags"], sort_keys=True)


@pytest.mark.parametrize(
    ("got", "wanted", "whether"),
    [
        ('{"a":1,"b":2}', '{"b":2,"a":1}', True),
        ('{"dps":{"5":1,"6":2}}', '{"dps":{"6":2,"5":1}}', True),
        ('{"dps":{"5":1,"5":2}}', '{"dps":{"5":2}}', False),
        ('{"dps":{"5":1}}', '{"dps":{"5":1.0}}', True),
        ('{"tags":{"a":"1","b":"2"}}', '{"tags":{"b":"2","a":"1"}}', False),
        ('{"stats":{"a":1,"b":2}}', '{"stats":{"b":1,"a":2}}', False),
    ],
)
def test_comparison_respects_key_order(got: str, wanted: str, whether: bool) -> None:
    assert differs(*(json.loads(text, object_pairs_hook=_object) for text in (got, wanted))) is whether
    with pytest.raises(AssertionError):
        json.loads('{"metric":1,"metric":1}', object_pairs_hook=_object)


async def test_embedded_answers_recorded_queries(tmp_path: Path) -> None:
    await judge(TOPICS, tmp_path / "state", {})


@pytest.mark.slow
@pytest.mark.parametrize("place", ["embedded", "hbase"])
async def test_repeated_queries_get_the_recorded_answers(
    place: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Repeated queries of one series are answered in one step, or with one read (`tsd.query.short_queries`)."""
    settings = with_index(request.getfixturevalue("hbase")) if place == "hbase" else {}
    queries = [
        vector for topic in TOPICS.values() for vector in topic if vector["request"]["path"][:11] == "/api/query?"
    ]
    bad = []
    async with filled(tmp_path / "state", settings) as daemon:
        await daemon.daemon.flush()
        for vector in queries:
            before = daemon.selections
            await trio.to_thread.run_sync(fetch, daemon.port, vector)
            first = daemon.selections
            status, answer = await trio.to_thread.run_sync(fetch, daemon.port, vector)
            if not before < first == daemon.selections:
                continue
            daemon.short += 1
            if status != vector["status"] or differs(answer, vector["response"]):
                bad.append(f"{vector['request']}\n  got    {status} {answer}\n  wanted {vector['response']}")
        assert daemon.short >= REPEATED
    assert not bad, f"{len(bad)} wrong:\n" + "\n".join(bad)


async def test_embedded_without_index_answers_recorded_queries(tmp_path: Path) -> None:
    await judge(CHOOSY, tmp_path / "state", {"tsd.query.series_index": "false"})


async def test_hbase_answers_recorded_queries(tmp_path: Path, hbase: RunningHbase) -> None:
    await judge(TOPICS, tmp_path / "state", on_hbase(hbase))


async def test_salted_hbase_answers_recorded_queries(tmp_path: Path, hbase: RunningHbase) -> None:
    """With single series or sums of integers, the salt changes only the order of groups."""
    settings = {"tsd.storage.salt.width": "1", "tsd.storage.salt.buckets": "4"}
    await judge(["tsuid", "filters"], tmp_path / "state", {**on_hbase(hbase), **settings}, salted=True)


async def test_hbase_with_index_answers_recorded_queries(tmp_path: Path, hbase: RunningHbase) -> None:
    await judge(CHOOSY, tmp_path / "state", with_index(hbase))


def with_index(hbase: RunningHbase) -> dict[str, str]:
    """Return settings for new tables, with a series index."""
    settings = on_hbase(hbase)
    index = settings["tsd.storage.hbase.data_table"] + "-series"
    hbase.tables.create(index, ["t"])
    return settings | {"tsd.query.series_index": "true", "tsd.query.series_table": index}


def on_hbase(hbase: RunningHbase) -> dict[str, str]:
    """Return settings for new tables."""
    return {
        "tsd.storage.backend": "hbase",
        "tsd.storage.hbase.thrift": hbase.gateway,
        **{f"tsd.storage.hbase.{kind}_table": name for kind, name in hbase.new_tables()._asdict().items()},
    }
