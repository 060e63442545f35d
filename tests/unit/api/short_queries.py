"""Repeated queries of a daemon that are answered in the short way, or in the general way, which selects series."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.peers.hbase import RunningHbase
from tests.selections import CountedQueries, counted_queries
from tests.unit.api.http_requests import http_request

BASE = 1_600_000_000 // 3600 * 3600
SETTINGS = {"tsd.core.auto_create_metrics": "true", "tsd.http.query.allow_delete": "true"}
HOUR = f"/api/query?start={BASE}&end={BASE + 3599}&m="
ONE = HOUR + "sum:short.m{host=a}"
QUERIES = (
    "sum:short.m{host=a}",
    "none:short.m{host=a}",
    "dev:short.m{host=a,cpu=*}",
    "avg:1m-max:short.m{host=a}",
    "sum:1m-avg-zero:short.m{host=a}",
    "max:0all-sum:short.m{host=a}",
    "sum:rate:short.m{host=a}",
    "zimsum:5m-count:rate{counter,100,5}:short.m{}{host=wildcard(a*)}",
    "sum:explicit_tags:short.m{host=a,cpu=1}",
    "sum:short.single",
    "count:30s-p95:short.single{host=c}",
)
FEW = (
    "sum:short.m",
    "none:short.m{host=*}",
    "avg:short.m{}{host=regexp(.)}",
    "sum:1h-avg:short.m",
    "max:5m-avg:short.m{host=*}",
    "sum:1m-avg-zero:short.m{host=a|b}",
    "sum:rate:short.m{cpu=1}",
    "sum:0all-sum:short.m{host=*}",
    "count:30s-p95:rate:short.m",
)
ONLY = "sum:short.single", "sum:short.single{host=c}"  # without a filter HBase's rows are found by a scan
Answers = list[dict[str, object]]


def lines(tags: str, start_s: int = BASE, *, metric: str = "short.m", points: int = 30) -> bytes:
    return b"".join(
        b"put %s %d %d %s\n" % (metric.encode(), start_s + at * 10, at, tags.encode()) for at in range(points)
    )


def on_hbase(hbase: RunningHbase) -> dict[str, str]:
    """Return settings for new tables, with a series index."""
    names = hbase.new_tables()._asdict()
    hbase.tables.create(names["data"] + "-series", ["t"])
    return {
        "tsd.storage.backend": "hbase",
        "tsd.storage.hbase.thrift": hbase.gateway,
        **{f"tsd.storage.hbase.{kind}_table": name for kind, name in names.items()},
        "tsd.query.series_index": "true",
        "tsd.query.series_table": names["data"] + "-series",
    }


@asynccontextmanager
async def filled(folder: Path, settings: dict[str, str] | None = None) -> AsyncIterator[CountedQueries]:
    """Run a daemon with two series of several hours, all stored."""
    async with counted_queries(folder, {**SETTINGS, **(settings or {})}) as daemon:
        for tags in ("host=a cpu=1", "host=b cpu=1"):
            for hour in range(3):
                await daemon.send_lines(lines(tags, BASE + hour * 3600))
        await daemon.send_lines(lines("host=c", metric="short.single"))
        await daemon.daemon.flush()
        yield daemon


def reads(daemon: CountedQueries) -> int:
    """Return the number of gets of the store."""
    return next(stat.value for stat in daemon.daemon.statistics() if stat.name == "store.get")


async def ask(daemon: CountedQueries, path: str) -> Answers:
    before = daemon.selections
    response = await http_request(daemon, path)
    daemon.short += daemon.selections == before
    assert response.status == 200, response
    found: Answers = json.loads(response.body)
    return found


async def taught(daemon: CountedQueries, path: str) -> Answers:
    """Ask until the query is answered in the short way. Return the answer."""
    first = await ask(daemon, path)
    before = daemon.short
    assert await ask(daemon, path) == first
    assert daemon.short == before + 1
    return first


async def judged(daemon: CountedQueries, path: str) -> Answers:
    """Return the answer to a query. Assert that the general way, which queries for global annotations always take,
    gives the same, and so does the query itself once the caches are empty."""
    found = await ask(daemon, path)
    daemon.daemon.drop_caches()
    before = daemon.short
    assert await ask(daemon, path + "&global_annotations") == found
    assert await ask(daemon, path) == found
    assert daemon.short == before
    return found


async def compared(daemon: CountedQueries, path: str, *, by_scan: bool = False) -> Answers:
    """Return the answer to a query that is answered in the short way, or with `by_scan` in the general way.
    Assert that the general way, which queries for global annotations always take, gives the same."""
    await ask(daemon, path)
    before = daemon.short
    found = await ask(daemon, path)
    short = daemon.short - before
    assert short == 0 if by_scan else short == 1
    assert await ask(daemon, path + "&global_annotations") == found
    assert daemon.short == before + short
    return found


def is_scan(m: str, place: dict[str, str]) -> bool:
    """Return whether the rows of a query are found by a scan: on HBase, if no filter names values."""
    return bool(place) and not any(name in m for name in ("=a", "=1", "=c"))
