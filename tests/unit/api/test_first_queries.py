"""Queries of few series that were not asked before: their rows are read at once, and answers are those of the general
way."""

import json
from pathlib import Path

import pytest

from tests.selections import CountedQueries, counted_queries
from tests.unit.api.http_requests import http_post, http_request
from tests.unit.api.short_queries import BASE, HOUR, ONE, QUERIES, SETTINGS, ask, filled, lines
from tsd.daemon.settings import now_ms

FEW = (
    *(m for m in QUERIES if not any(word in m for word in ("single", "wildcard", "explicit"))),
    "none:short.m{host=*}{host=literal_or(a|b)}",
    "sum:1m-avg-zero:short.m{host=a|b}",
    "sum:1m-avg:rate:short.m{host=a|b|c}",
    "max:1h-avg:short.m{host=*,cpu=1|2}",
)


def scans(daemon: CountedQueries) -> int:
    """Return the number of reads of rows in several steps: those of the general way."""
    return sum(stat.value for stat in daemon.daemon.statistics() if stat.name == "store.read_in_steps")


async def first(daemon: CountedQueries, path: str) -> list[dict[str, object]]:
    """Return the answer to a query that is asked for the first time. Assert that its rows are read at once, and that
    the general way, which queries for global annotations always take, gives the same."""
    before = scans(daemon)
    found = await ask(daemon, path)
    assert scans(daemon) == before
    assert await ask(daemon, path + "&global_annotations") == found
    assert scans(daemon) > before
    return found


@pytest.mark.parametrize("m", FEW)
async def test_stored_and_open_points_are_those_of_the_general_way(m: str, tmp_path: Path) -> None:
    async with filled(tmp_path, {"tsd.storage.flush_interval": "3600000"}) as daemon:
        added = lines("host=a cpu=1", BASE + 5, points=40) + lines("host=b cpu=1", BASE + 3605)
        await daemon.send_lines(lines("host=a cpu=2") + lines("host=c cpu=1", BASE + 3 * 3600))
        await daemon.daemon.flush()
        await daemon.send_lines(added)
        for number, (start, end) in enumerate(((0, 3599), (-1800, 9000), (3000, 20000), (7200, 7300))):
            path = f"/api/query?start={BASE + start}&end={BASE + end}&m={m}&show_tsuids&arrays"
            found = await (first if not number else ask)(daemon, path)
            assert found
            assert await ask(daemon, path + "&global_annotations") == found


async def test_a_series_that_is_only_in_memory_is_found(tmp_path: Path) -> None:
    base = now_ms() // 1000 // 3600 * 3600
    async with counted_queries(tmp_path, {**SETTINGS, "tsd.storage.flush_interval": "3600000"}) as daemon:
        await daemon.send_lines(lines("host=a cpu=1", base) + lines("host=b cpu=1", base))
        await daemon.daemon.flush()
        await daemon.send_lines(lines("host=a cpu=2", base + 5) + lines("host=new cpu=1", base + 5))
        for host in ("a", "new", "b"):
            path = f"/api/query?start={base}&end={base + 3599}&m=none:short.m{{host={host}}}&arrays"
            found = await ask(daemon, path)
            assert len(found) == (2 if host == "a" else 1)
            assert await ask(daemon, path + "&global_annotations") == found


async def test_annotations_are_shown(tmp_path: Path) -> None:
    async with filled(tmp_path) as daemon:
        [group] = await ask(daemon, ONE.replace("sum", "none") + "&show_tsuids")
        note = {"startTime": BASE + 60, "tsuid": group["tsuids"][0], "description": "restart"}  # type: ignore[index]
        assert (await http_post(daemon, "/api/annotation", json.dumps(note).encode())).status == 200
        [group] = await first(daemon, ONE)
        assert group["annotations"]
        [group] = await first(daemon, HOUR + "avg:10m-avg:short.m{host=a}")
        assert group["annotations"]


async def test_a_long_range_is_read_at_once(tmp_path: Path) -> None:
    async with counted_queries(tmp_path, SETTINGS) as daemon:
        for hour in range(100):
            await daemon.send_lines(lines("host=a", BASE + hour * 3600, points=3))
        await daemon.daemon.flush()
        [group] = await first(daemon, f"/api/query?start={BASE}&end={BASE + 360000}&m=sum:1h-sum:short.m{{host=a}}")
        assert len(group["dps"]) == 100  # type: ignore[arg-type]


async def test_open_points_of_many_hours_are_written_first(tmp_path: Path) -> None:
    """Each hour with open points is read on its own: hundreds would be a long step of the event loop."""
    async with counted_queries(tmp_path, {**SETTINGS, "tsd.storage.flush_interval": "3600000"}) as daemon:
        await daemon.send_lines(lines("host=a") + lines("host=b"))
        await daemon.daemon.flush()
        await daemon.send_lines(b"".join(lines("host=a", BASE + hour * 3600 + 5, points=1) for hour in range(100)))
        path = f"/api/query?start={BASE}&end={BASE + 360000}&m=sum:1h-count:short.m{{host=a}}&arrays"
        [group] = await ask(daemon, HOUR + "sum:short.m{host=a}&arrays")
        assert len(group["dps"]) == 31  # type: ignore[arg-type]
        before = scans(daemon)
        [group] = found = await ask(daemon, path)
        assert scans(daemon) > before
        assert group["dps"] == [[BASE, 31], *([BASE + hour * 3600, 1] for hour in range(1, 100))]
        assert await first(daemon, path) == found


async def test_limits_apply(tmp_path: Path) -> None:
    settings = {"tsd.query.limits.data_points.default": "70"}
    async with filled(tmp_path, settings) as daemon:
        refused = await http_request(daemon, ONE.replace(str(BASE + 3599), str(BASE + 9000)))
        assert refused.status == 413
        assert b"limit of 70 data points" in refused.body
        assert (await first(daemon, ONE))[0]["dps"]


async def test_memory_is_limited(tmp_path: Path) -> None:
    async with filled(tmp_path, {"tsd.query.memory_limit": "16777216"}) as daemon:
        filling = HOUR + "sum:1ms-avg-zero:short.m{host=a}"
        refused = await http_request(daemon, filling)
        assert refused.status == 413
        assert b"tsd.query.memory_limit" in refused.body
        assert (await first(daemon, ONE))[0]["dps"]
