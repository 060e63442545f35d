"""Repeated queries of series with points in memory: answered at once, as the general way answers them."""

from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import pytest

from tests.selections import CountedQueries, counted_queries
from tests.unit.api.short_queries import (
    BASE,
    FEW,
    HOUR,
    ONLY,
    SETTINGS,
    ask,
    compared,
    is_scan,
    judged,
    lines,
    taught,
)
from tsd.daemon.settings import now_ms

OPEN = ("avg:10m-avg", "zimsum:20m-last-zero", "max:1m-max:rate", "sum:2h-sum", "sum")
LATE = ("sum", "avg:10m-avg", "zimsum:2h-last-zero", "max:rate")


@pytest.fixture
async def holding(place: dict[str, str], tmp_path: Path) -> AsyncIterator[CountedQueries]:
    """A daemon that keeps points in memory until they are flushed."""
    settings = {**SETTINGS, **place, "tsd.storage.flush_interval": "3600000"}
    async with counted_queries(tmp_path, settings) as daemon:
        yield daemon


def named(queries: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield queries, each of a metric of its own, and the metric."""
    for number, query in enumerate(queries):
        metric = f"short.m{number}"
        yield query.replace("short.m", metric).replace("short.single", f"short.single{number}"), metric


async def test_stored_and_open_points_of_an_hour_share_their_bucket(holding: CountedQueries) -> None:
    """Regression: the bucket with points of both was twice in the answer, once without the open points."""
    base = now_ms() // 1000 // 3600 * 3600
    for m, metric in named([f"{one}:short.m{{host=a}}" for one in OPEN]):
        path = f"/api/query?start={base - 3600}&end={base + 3599}&m={m}&arrays"
        await holding.send_lines(lines("host=a", base - 100, metric=metric, points=25))
        await holding.daemon.flush()
        await holding.send_lines(lines("host=a", base + 150, metric=metric, points=10))
        await taught(holding, path)
        await holding.send_lines(lines("host=a", base + 250, metric=metric, points=10))
        found = await judged(holding, path)
        await holding.daemon.flush()
        assert await ask(holding, path) == found


async def test_open_points_of_several_hours_are_read_at_once(holding: CountedQueries) -> None:
    """As after the end of an hour, when its points are not stored yet."""
    for m, metric in named([f"{one}:short.m{{host=a}}" for one in LATE]):
        hours = [lines("host=a", BASE + at, metric=metric) for at in (0, 3600, 7200, 3900, 10800)]  # not in order
        await holding.send_lines(b"".join(hours[:2]))
        await holding.daemon.flush()
        await holding.send_lines(b"".join(hours[2:]))
        for start, end in ((0, 14399), (3600, 7199), (7300, 11000), (14400, 18000)):
            path = f"/api/query?start={BASE + start}&end={BASE + end}&m={m}&arrays"
            await ask(holding, f"/api/query?start={BASE}&end={BASE + 14399}&m={m}&arrays")
            await taught(holding, path)
            found = await judged(holding, path)
            assert bool(found) is (start < 14400)
        await holding.daemon.flush()
        assert await ask(holding, path) == found


async def test_late_open_points_are_read_at_once(holding: CountedQueries) -> None:
    """Points in memory that are earlier than stored ones, between them, or correct them."""
    late = (1, 5), (3, 7), (105, 9), (290, 11), (3655, 13), (7000, 15), (7250, 17), (14400, 19)
    for m, metric in named([f"{one}:short.m{{host=a}}" for one in (*LATE, "dev:1m-p90")]):
        for hour in (0, 1, 3):
            await holding.send_lines(lines("host=a", BASE + hour * 3600, metric=metric))
        await holding.daemon.flush()
        for some in (late[::-1], ((100, 99), (7250, 98))):
            puts = [f"put {metric} {BASE + at_s} {value} host=a\n" for at_s, value in some]
            await holding.send_lines("".join(puts).encode())
        for start, end in ((0, 17999), (0, 3599), (50, 120), (3600, 11000), (7200, 10799), (7200, 18000)):
            path = f"/api/query?start={BASE + start}&end={BASE + end}&m={m}&arrays"
            await taught(holding, path)
            found = await judged(holding, path)
            assert found
        await holding.daemon.flush()
        assert await ask(holding, path) == found


async def test_open_points_of_few_series_are_read_at_once(holding: CountedQueries, place: dict[str, str]) -> None:
    """Hours that are stored, in memory, or both; late points among them."""
    tags = "host=a cpu=1", "host=b cpu=1", "host=b cpu=2"
    spans = (0, 17999), (3600, 17999), (14400, 17999), (0, 7199)
    for m, metric in named(FEW):
        stored = [(one, hour) for one in tags for hour in (0, 1, 3)]
        await holding.send_lines(b"".join(lines(one, BASE + hour * 3600, metric=metric) for one, hour in stored))
        await holding.daemon.flush()
        await holding.send_lines(b"".join(lines(one, BASE + 4 * 3600, metric=metric) for one in tags[1:]))
        paths = [f"/api/query?start={BASE + start}&end={BASE + end}&m={m}&arrays" for start, end in spans]
        for added in (
            b"",
            lines(tags[2], BASE + 14405, metric=metric),
            lines(tags[0], BASE + 3605, metric=metric, points=9),
        ):
            await holding.send_lines(added)
            answers = [await compared(holding, path, by_scan=is_scan(m, place)) for path in paths]
            assert any(answers)
        await holding.daemon.flush()
        assert [await compared(holding, path, by_scan=is_scan(m, place)) for path in paths] == answers


@pytest.mark.parametrize("index", ["true", "false"])
async def test_first_open_points_of_a_known_series_among_few_are_found(index: str, tmp_path: Path) -> None:
    """Before, the series matched, and had no points in the hours of the query."""
    settings = {**SETTINGS, "tsd.query.series_index": index, "tsd.storage.flush_interval": "3600000"}
    queries = "sum:short.m", "max:5m-avg:short.m{host=*}", "sum:short.m{host=b}", "sum:short.m{}{host=regexp(b)}"
    paths = [f"/api/query?start={BASE + 7200}&end={BASE + 10799}&m={m}" for m in queries]
    async with counted_queries(tmp_path, settings) as daemon:
        await daemon.send_lines(lines("host=a") + lines("host=b") + lines("host=b c=1"))
        await daemon.daemon.flush()
        await daemon.send_lines(lines("host=a", BASE + 7200) + lines("host=b", BASE + 7200))
        before = [await compared(daemon, path) for path in paths]
        await daemon.send_lines(lines("host=b c=1", BASE + 7300))
        for path, answer in zip(paths, before, strict=True):
            assert await compared(daemon, path) != answer


async def test_a_new_series_in_memory_among_few_is_found(place: dict[str, str], tmp_path: Path) -> None:
    settings = {**SETTINGS, **place, "tsd.storage.flush_interval": "3600000"}
    m = "none:short.m{host=*,cpu=1}"
    path = HOUR + m
    async with counted_queries(tmp_path, settings) as daemon:
        await daemon.send_lines(lines("host=a cpu=1") + lines("host=b cpu=1"))
        await daemon.daemon.flush()
        await daemon.send_lines(lines("host=a cpu=1", BASE + 400))
        assert len(await compared(daemon, path, by_scan=is_scan(m, place))) == 2
        await daemon.send_lines(lines("host=c cpu=1"))
        assert len(await ask(daemon, path)) == 3


async def test_open_points_that_are_found_in_a_thread(
    holding: CountedQueries, place: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after they were packed: the next query finds them in the event loop."""
    monkeypatch.setattr("tsd.ingest.open_hours.SMALL_CHOSEN", 0)
    for m, metric in named([*FEW, *ONLY]):
        single = metric.replace("short.m", "short.single")
        both = "host=a cpu=1", "host=b cpu=1"
        stored = [*(lines(one, metric=metric) for one in both), lines("host=c", metric=single)]
        await holding.send_lines(b"".join(stored))
        await holding.daemon.flush()
        for start_s in (BASE + 400, BASE + 605):
            added = lines("host=a cpu=1", start_s, metric=metric) + lines("host=c", start_s, metric=single)
            await holding.send_lines(added)
            await compared(holding, HOUR + m + "&arrays", by_scan=is_scan(m, place))


async def test_many_open_points_of_few_series_are_read(tmp_path: Path) -> None:
    """Too many to be put in order in the event loop."""
    tags = [f"host=h{at}" for at in range(12)]
    async with counted_queries(tmp_path, {**SETTINGS, "tsd.storage.flush_interval": "3600000"}) as daemon:
        await daemon.send_lines(b"".join(lines(one) for one in tags))
        await daemon.daemon.flush()
        for one in tags:
            puts = (f"put short.m {BASE + 300 + at} {at} {one}\n" for at in range(3000))
            await daemon.send_lines("".join(puts).encode())
        for m in ("sum:short.m", "max:5m-avg:short.m{host=*}"):
            while not daemon.short:  # while much is received, the general way answers
                await ask(daemon, HOUR + m)
            await compared(daemon, HOUR + m)


async def test_points_of_the_open_hour_are_read_from_memory(place: dict[str, str], tmp_path: Path) -> None:
    settings = {**SETTINGS, **place, "tsd.storage.flush_interval": "600000"}  # nothing is stored between two queries
    async with counted_queries(tmp_path, settings) as daemon:
        now = now_ms() // 1000 - 4
        for number in range(6):
            await daemon.send_lines(lines(f"host=h{number}", now, metric="short.open", points=1))
        path = f"/api/query?start={now - 3600}&end={now + 3600}&m=sum:short.open{{host=h3}}"
        [group] = await taught(daemon, path)
        assert group["dps"] == {str(now): 0}
        await daemon.send_lines(b"put short.open %d 5 host=h3\n" % (now + 1))
        before = daemon.short
        [group] = await ask(daemon, path)
        assert group["dps"] == {str(now): 0, str(now + 1): 5}
        assert daemon.short == before + 1
        await daemon.send_lines(b"put short.open %d 7 host=h3 new=1\n" % now)
        [group] = await judged(daemon, path)
        assert group["dps"] == {str(now): 7, str(now + 1): 5}
        await daemon.daemon.flush()
        assert [group] == await judged(daemon, path)
