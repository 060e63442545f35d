"""A whole daemon on each table layout: points in by telnet and HTTP, and out by every way to ask for them."""

import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests import layouts
from tests.layouts.readable import POINTS
from tests.running import Running, running
from tests.unit.api.http_requests import http_post, http_request
from tsd.daemon.settings import now_ms
from tsd.store import Put
from tsd.store.memory import MemoryStore

BASE = 1500000000
HOURS = {"start": BASE, "end": BASE + 7199}
SETTINGS = {"tsd.core.auto_create_metrics": "true"}
LINES = b"".join(
    b"put sys.cpu %d %s host=%s dc=%s\n" % (BASE + at * 60, value, host, dc)
    for host, dc, values in (
        (b"web01", b"lga", (b"1", b"2", b"4.5")),
        (b"web02", b"lga", (b"10", b"20", b"30")),
        (b"db01", b"sjc", (b"100", b"200", b"300")),
    )
    for at, value in enumerate(values)
)
pytestmark = layouts.on_all


@pytest.fixture
async def daemon(tmp_path: Path) -> AsyncIterator[Running]:
    async with running(tmp_path, SETTINGS) as daemon:
        await daemon.send_lines(LINES)
        yield daemon


async def points(daemon: Running, m: str) -> dict[tuple[str, ...], list[float]]:
    """Return the values of a query's groups, by the values of their tags."""
    found = await http_request(daemon, f"/api/query?start={BASE}&end={BASE + 7199}&m={m}")
    assert found.status == 200, found.body
    return {tuple(sorted(one["tags"].values())): list(one["dps"].values()) for one in found.json}


@pytest.mark.parametrize(
    ("m", "wanted"),
    [
        ("sum:sys.cpu", {(): [111, 222, 334.5]}),
        ("sum:sys.cpu{dc=*}", {("lga",): [11, 22, 34.5], ("db01", "sjc"): [100, 200, 300]}),
        ("max:sys.cpu{}{host=wildcard(web*)}", {("lga",): [10, 20, 30]}),
        ("sum:sys.cpu{host=web01|db01}", {("lga", "web01"): [1, 2, 4.5], ("db01", "sjc"): [100, 200, 300]}),
        ("sum:sys.cpu{}{host=not_literal_or(db01)}", {("lga",): [11, 22, 34.5]}),
        ("sum:sys.cpu{}{host=regexp(^db)}", {("db01", "sjc"): [100, 200, 300]}),
        ("sum:explicit_tags:sys.cpu{host=web02}", {}),
        ("sum:2m-avg:sys.cpu{host=web02}", {("lga", "web02"): [15, 30]}),
        ("sum:rate:sys.cpu{host=db01}", {("db01", "sjc"): [100 / 60, 100 / 60]}),
        ("none:0all-count:sys.cpu{dc=lga}", {("lga", "web01"): [3], ("lga", "web02"): [3]}),
    ],
)
async def test_queries_filter_group_and_downsample(
    daemon: Running, m: str, wanted: dict[tuple[str, ...], list[float]]
) -> None:
    assert await points(daemon, m) == wanted


async def test_points_put_over_http_are_read(daemon: Running) -> None:
    sent = [{"metric": "http.put", "timestamp": BASE + at, "value": at, "tags": {"host": "x"}} for at in range(3)]
    assert (await http_post(daemon, "/api/put?sync", json.dumps(sent).encode())).status == 204
    assert await points(daemon, "sum:http.put") == {("x",): [0, 1, 2]}
    bad = await http_post(daemon, "/api/put?details", json.dumps([{**sent[0], "tags": {}}]).encode())
    assert (bad.status, bad.json["failed"]) == (400, 1)


async def test_unknown_names_are_bad_requests(daemon: Running) -> None:
    for m, text in (
        ("sum:nope", "No such name for 'metrics': 'nope'"),
        ("sum:sys.cpu{nope=x}", "No such name for 'tagk': 'nope'"),
        ("sum:sys.cpu{host=nope}", "No such name for 'tagv': 'nope'"),
    ):
        found = await http_request(daemon, f"/api/query?start={BASE}&m={m}")
        assert found.status == 400
        assert text in found.json["error"]["message"]


async def test_suggest_lookup_and_last_find_series(daemon: Running) -> None:
    assert (await http_request(daemon, "/api/suggest?type=metrics&q=sys")).json == ["sys.cpu"]
    assert (await http_request(daemon, "/api/suggest?type=tagv&q=web")).json == ["web01", "web02"]
    found = (await http_request(daemon, "/api/search/lookup?m=sys.cpu{dc=lga}")).json["results"]
    assert sorted(one["tags"]["host"] for one in found) == ["web01", "web02"]
    for query in ("timeseries=sys.cpu{host=web01,dc=lga}", f"tsuids={tsuid_of(found, 'web01')}"):
        [last] = (await http_request(daemon, f"/api/query/last?{query}&resolve")).json
        assert (last["metric"], last["timestamp"], last["value"]) == ("sys.cpu", (BASE + 120) * 1000, "4.5")
        assert last["tags"] == {"host": "web01", "dc": "lga"}


async def test_query_by_the_tsuid_of_a_lookup(daemon: Running) -> None:
    found = (await http_request(daemon, "/api/search/lookup?m=sys.cpu")).json["results"]
    body = {**HOURS, "queries": [{"aggregator": "sum", "tsuids": [tsuid_of(found, "web02")]}]}
    [group] = (await http_post(daemon, "/api/query", json.dumps(body).encode())).json
    assert (group["tags"]["host"], list(group["dps"].values())) == ("web02", [10, 20, 30])


def tsuid_of(series: list[dict[str, Any]], host: str) -> str:
    return next(str(one["tsuid"]) for one in series if one["tags"]["host"] == host)


async def test_expressions_and_gexp_answer(daemon: Running) -> None:
    found = await http_request(
        daemon, f"/api/query/gexp?start={BASE}&end={BASE + 7199}&exp=scale(sum:sys.cpu{{host=db01}},2)"
    )
    assert list(found.json[0]["dps"].values()) == [200, 400, 600]


async def test_unknown_metrics_are_refused_if_so_configured(tmp_path: Path) -> None:
    async with running(tmp_path, {"tsd.core.auto_create_metrics": "false"}) as daemon:
        reply = await daemon.send_lines(LINES)
    assert b"unknown metric: No such name for 'metrics': 'sys.cpu'" in reply


async def test_journal_is_replayed_at_the_next_start(tmp_path: Path) -> None:
    store = MemoryStore(now_ms)
    settings = {**SETTINGS, "tsd.storage.flush_interval": "3600000", "tsd.core.drain_timeout": "0"}
    async with running(tmp_path, settings, store=store) as daemon:
        await daemon.send_lines(LINES)
    async with running(tmp_path, settings, store=store) as daemon:
        assert daemon.daemon.replayed == 9
        assert await points(daemon, "sum:sys.cpu") == {(): [111, 222, 334.5]}


class SlowStore(MemoryStore):
    """A store that takes no points until `may_put` is set."""

    def __init__(self, may_put: trio.Event) -> None:
        super().__init__(now_ms)
        self.may_put = may_put

    async def put(self, table: str, cells: Sequence[Put], *, time_ms: int | None = None) -> None:
        if table == POINTS:
            await self.may_put.wait()
        await super().put(table, cells, time_ms=time_ms)


@pytest.mark.parametrize("layout", [layouts.READABLE], indirect=True)
async def test_lines_are_taken_and_queries_wait_during_a_replay(tmp_path: Path) -> None:
    may_put = trio.Event()
    may_put.set()
    store = SlowStore(may_put)
    settings = {**SETTINGS, "tsd.storage.flush_interval": "3600000", "tsd.core.drain_timeout": "0"}
    async with running(tmp_path, settings, store=store) as daemon:
        await daemon.send_lines(LINES)
    store.may_put = trio.Event()
    found = []

    async def ask() -> None:
        found.append(await points(daemon, "sum:sys.cpu"))

    async with running(tmp_path, settings, store=store) as daemon, trio.open_nursery() as nursery:
        await daemon.send_lines(b"put sys.cpu %d 5 host=web01 dc=lga\n" % (BASE + 180))
        nursery.start_soon(ask)
        await wait_all_tasks_blocked(0.05)
        assert not found
        store.may_put.set()
    assert found == [{(): [111, 222, 334.5, 5]}]


@pytest.mark.parametrize("layout", [layouts.READABLE], indirect=True)
@pytest.mark.parametrize(
    ("path", "part"),
    [
        ("/api/uid/assign?metric=a", "UIDs"),
        ("/api/uid/uidmeta?uid=000001&type=metric", "UIDs"),
        ("/api/tree", "trees"),
        (f"/api/annotation?start_time={BASE}", "annotations"),
    ],
)
async def test_endpoint_of_a_missing_part_answers_501(daemon: Running, path: str, part: str) -> None:
    found = await http_request(daemon, path)
    assert found.status == 501
    assert part in json.dumps(found.json["error"])


@pytest.mark.parametrize("layout", [layouts.READABLE], indirect=True)
async def test_summaries_are_refused_without_a_writer(daemon: Running) -> None:
    rollup = await daemon.send_lines(b"rollup 1h-sum sys.cpu %d 1 host=web01\n" % BASE)
    assert b"No rollup or aggregations were configured" in rollup
    assert b"Histogram storage has not been enabled" in await daemon.send_lines(
        b"histogram m %d 0 AA== host=a\n" % BASE
    )
