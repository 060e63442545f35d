"""Repeated queries of few series: answered in one step or with one read, as the general way answers them."""

import json
from pathlib import Path

import pytest
import trio

from tests.peers.hbase import RunningHbase
from tests.running import running
from tests.selections import counted_queries
from tests.unit.api.http_requests import http_post, http_request
from tests.unit.api.short_queries import (
    BASE,
    FEW,
    HOUR,
    ONE,
    ONLY,
    QUERIES,
    SETTINGS,
    ask,
    filled,
    judged,
    lines,
    on_hbase,
    reads,
    taught,
)
from tsd.daemon.settings import now_ms
from tsd.query.parse.uri import read_uri
from tsd.tables.quirks import quirks_for


@pytest.mark.slow
@pytest.mark.parametrize("index", ["true", "false"])
async def test_both_ways_give_the_same_answer(index: str, place: dict[str, str], tmp_path: Path) -> None:
    spans = (BASE, BASE + 3599), (BASE - 1800, BASE + 5000), (BASE + 7, BASE + 93), (BASE - 7200, BASE - 1)
    flags = "&ms&arrays", "&show_tsuids&show_query&no_annotations"
    async with filled(tmp_path, {**place, "tsd.query.series_index": index}) as daemon:
        for m in QUERIES:
            paths = [f"/api/query?start={start}&end={end}&m={m}" for start, end in spans]
            paths += [paths[0] + flag for flag in flags]
            found = [await ask(daemon, path) for path in (paths[0], *paths)]
            before = daemon.short
            for path, answer in zip(paths, found[1:], strict=True):
                daemon.daemon.drop_caches()
                assert await ask(daemon, path) == answer, path
            assert daemon.short == before
        if index == "true":
            assert daemon.short > len(QUERIES)
        else:
            assert (daemon.short > 0) is not bool(place)  # HBase's rows are found by scans then


@pytest.mark.parametrize(
    ("index", "cache_memory"),
    [
        ("true", "0"),
        ("false", "10000000"),
        pytest.param("true", "10000000", marks=pytest.mark.slow),
        pytest.param("false", "0", marks=pytest.mark.slow),
    ],
)
async def test_both_ways_give_the_same_answer_of_few_series(index: str, cache_memory: str, tmp_path: Path) -> None:
    spans = (BASE, BASE + 3599), (BASE + 30, BASE + 7 * 3600 + 31), (BASE + 2 * 3600, BASE + 9 * 3600 - 1)
    settings = {"tsd.query.series_index": index, "tsd.query.cache_memory": cache_memory}
    async with filled(tmp_path, settings) as daemon:
        ended = lines("host=a cpu=2") + lines("host=c cpu=1", BASE + 6 * 3600 + 5)
        await daemon.send_lines(ended + b"put short.m %d 5 host=a cpu=1\n" % (BASE + 7 * 3600))
        await daemon.daemon.flush()
        for m in FEW:
            paths = [f"/api/query?start={start}&end={end}&m={m}&show_tsuids" for start, end in spans]
            before = daemon.short
            found = [await ask(daemon, path) for path in paths for _ in range(3)]
            assert daemon.short >= before + len(paths), m
            before = daemon.short
            for path, answers in zip(paths, (found[at : at + 3] for at in range(0, len(found), 3)), strict=True):
                daemon.daemon.drop_caches()
                wanted = await ask(daemon, path)
                assert answers == [wanted] * 3, path
                assert wanted
            assert daemon.short == before


@pytest.mark.parametrize("cache_memory", ["0", "10000000"])
async def test_a_long_query_of_few_series_is_read_at_once(cache_memory: str, tmp_path: Path) -> None:
    path = f"/api/query?start={BASE}&end={BASE + 40 * 3600 - 1}&m=sum:1h-avg:short.long{{host=*}}"
    async with counted_queries(tmp_path, {**SETTINGS, "tsd.query.cache_memory": cache_memory}) as daemon:
        for hour in range(40):
            text = b"".join(lines(f"host=h{at}", BASE + hour * 3600, metric="short.long", points=5) for at in range(20))
            await daemon.send_lines(text)
        await daemon.daemon.flush()
        first = await ask(daemon, path)
        assert len(first) == 20
        for number in range(1, 3):
            assert await ask(daemon, path) == first
            assert daemon.short == number
        await daemon.send_lines(lines("host=h0", BASE + 1800, metric="short.long"))
        await daemon.daemon.flush()
        second = await ask(daemon, path)
        assert second != first
        assert await ask(daemon, path) == second
        assert daemon.short > 2
        await judged(daemon, path)


async def test_a_new_series_among_few_is_found(tmp_path: Path) -> None:
    async with filled(tmp_path) as daemon:
        for m in ("sum:short.m", "sum:short.m{}{host=regexp(.)}", "sum:1h-avg:short.m{host=*}"):
            answers = await taught(daemon, HOUR + m) if "1h" not in m else [await ask(daemon, HOUR + m)] * 3
            new = f"host=b new{len(m)}=1"
            await daemon.send_lines(lines(new))
            assert await ask(daemon, HOUR + m) != answers  # from memory
            await daemon.daemon.flush()
            assert await judged(daemon, HOUR + m) != answers


async def test_points_of_few_series_are_deleted(tmp_path: Path) -> None:
    async with filled(tmp_path) as daemon:
        path = HOUR + "none:short.m{host=*}"
        assert len(await taught(daemon, path)) == 2
        assert (await http_request(daemon, ONE, method="DELETE")).status == 200
        [group] = await judged(daemon, path)
        assert group["tags"] == {"host": "b", "cpu": "1"}


async def test_an_annotation_of_one_of_few_series_is_shown(tmp_path: Path) -> None:
    async with filled(tmp_path) as daemon:
        [group] = await ask(daemon, ONE + "&show_tsuids")
        path = HOUR + "sum:short.m"
        await taught(daemon, path)
        note = {"startTime": BASE + 60, "tsuid": group["tsuids"][0], "description": "restart"}  # type: ignore[index]
        assert (await http_post(daemon, "/api/annotation", json.dumps(note).encode())).status == 200
        [group] = await judged(daemon, path)
        assert group["annotations"]


async def test_other_tsuids_are_looked_for_at_each_time(tmp_path: Path) -> None:
    """Regression: of two series, the answer had only the one that had points in the query before."""
    async with counted_queries(tmp_path, SETTINGS) as daemon:
        await daemon.send_lines(lines("host=a cpu=1") + lines("host=b cpu=1", BASE + 4 * 3600))
        await daemon.daemon.flush()
        shown = await ask(daemon, f"/api/query?start={BASE}&end={BASE + 17999}&m=sum:short.m{{host=*}}&show_tsuids")
        both = ",".join(str(one["tsuids"][0]) for one in shown)  # type: ignore[index]
        narrow = f"{HOUR[:-2]}tsuid=sum:{both}"
        for _ in range(2):
            [found] = await ask(daemon, narrow)
            assert len(found["dps"]) == 30  # type: ignore[arg-type]
        [found] = await judged(daemon, narrow.replace(str(BASE + 3599), str(BASE + 17999)))
        assert len(found["dps"]) == 60  # type: ignore[arg-type]


async def test_limits_are_those_of_the_metric_of_a_tsuid(tmp_path: Path) -> None:
    """Regression: a request with a metric, which is ignored next to TSUIDs, got the limits of that metric."""
    limits = tmp_path / "limits.json"
    limits.write_text(json.dumps([{"metric": "^short\\.m$", "dataPointsLimit": 70}]))
    folder = tmp_path / "state"
    folder.mkdir()
    async with filled(folder, {"tsd.query.limits.overrides.config": str(limits)}) as daemon:
        [group] = await ask(daemon, ONE + "&show_tsuids")
        sub = {"aggregator": "sum", "metric": "other.m", "tsuids": group["tsuids"]}
        for hours, status in ((1, 200), (1, 200), (3, 413)):
            body = json.dumps({"start": BASE, "end": BASE + hours * 3600 - 1, "queries": [sub]})
            assert (await http_post(daemon, "/api/query", body.encode())).status == status


async def test_repeated_queries_are_answered_in_one_step(place: dict[str, str], tmp_path: Path) -> None:
    async with filled(tmp_path, place) as daemon:
        for m in ("sum:short.m{host=a}", "avg:1m-max:short.m{host=a}", "sum:rate:short.m{host=b}", ONLY[bool(place)]):
            [group] = await taught(daemon, HOUR + m)
            assert group["dps"]
        tsuids = (await ask(daemon, ONE + "&show_tsuids"))[0]["tsuids"]
        assert isinstance(tsuids, list)
        await taught(daemon, HOUR[:-2] + f"tsuid=sum:{tsuids[0]}")
        shown = (await http_request(daemon, "/api/stats/query")).body
        assert json.loads(shown)["completed"][0]["stats"]["rowsPostFilter"] == 2


class Steps(trio.abc.Instrument):
    """Counts the steps of one task."""

    def __init__(self, task: trio.lowlevel.Task) -> None:
        self.task = task
        self.taken = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.taken += task is self.task


async def test_a_repeated_query_of_one_series_lets_no_other_task_run(tmp_path: Path) -> None:
    async with filled(tmp_path) as daemon:
        await taught(daemon, ONE)
        params = {"start": [str(BASE)], "end": [str(BASE + 3599)], "m": ["sum:short.m{host=a}"]}
        steps = Steps(trio.lowlevel.current_task())
        trio.lowlevel.add_instrument(steps)
        answer = await daemon.daemon.query.engine.run(read_uri(params, now_ms(), quirks=quirks_for(corrected=False)))
        assert steps.taken == 0
        trio.lowlevel.remove_instrument(steps)
        assert answer.subs[0].groups


async def test_another_range_of_the_query_is_read(place: dict[str, str], tmp_path: Path) -> None:
    async with filled(tmp_path, place) as daemon:
        await taught(daemon, ONE)
        before = daemon.short
        later = ONE.replace(str(BASE + 3599), str(BASE + 9000))
        [group] = await ask(daemon, later)
        assert daemon.short == before + 1
        assert [group] == await judged(daemon, later)


async def test_a_new_series_is_found(place: dict[str, str], tmp_path: Path) -> None:
    async with filled(tmp_path, place) as daemon:
        cases = (("sum:short.m{host=a}", "short.m"), ("sum:short.single", "short.single"))
        for m, metric in cases[: 1 if place else 2]:  # without an index a scan of HBase finds the series
            await taught(daemon, HOUR + m)
            await daemon.send_lines(lines("host=a new=1", metric=metric))
            await daemon.daemon.flush()
            [group] = await judged(daemon, HOUR + m)
            assert group["dps"][str(BASE + 20)] == 4  # type: ignore[index]


async def test_new_points_are_found(place: dict[str, str], tmp_path: Path) -> None:
    async with filled(tmp_path, place) as daemon:
        await taught(daemon, ONE)
        await daemon.send_lines(b"put short.m %d 77 host=a cpu=1\n" % (BASE + 5))
        [group] = await ask(daemon, ONE)  # before it is stored, too
        assert group["dps"][str(BASE + 5)] == 77  # type: ignore[index]
        await daemon.daemon.flush()
        assert [group] == await judged(daemon, ONE)


async def test_deleted_points_are_gone(place: dict[str, str], tmp_path: Path) -> None:
    async with filled(tmp_path, place) as daemon:
        await taught(daemon, ONE)
        assert (await http_request(daemon, ONE, method="DELETE")).status == 200
        assert await judged(daemon, ONE) == []


async def test_an_annotation_is_shown(place: dict[str, str], tmp_path: Path) -> None:
    async with filled(tmp_path, place) as daemon:
        [group] = await ask(daemon, ONE + "&show_tsuids")
        await taught(daemon, ONE)
        note = {"startTime": BASE + 60, "tsuid": group["tsuids"][0], "description": "restart"}  # type: ignore[index]
        assert (await http_post(daemon, "/api/annotation", json.dumps(note).encode())).status == 200
        [group] = await judged(daemon, ONE)
        assert group["annotations"]


async def test_rows_are_read_once_until_they_are_written(tmp_path: Path) -> None:
    async with filled(tmp_path) as daemon:
        paths = [ONE.replace(str(BASE + 3599), str(BASE + end)) for end in range(3000, 3010)]
        answer = await taught(daemon, paths[0])
        before = reads(daemon)
        for path in paths:
            assert await ask(daemon, path) == answer
        assert reads(daemon) == before
        await daemon.send_lines(b"put short.m %d 77 host=a cpu=1\n" % (BASE + 5))
        await daemon.daemon.flush()
        for path in paths:
            [group] = await ask(daemon, path)
            assert group["dps"][str(BASE + 5)] == 77  # type: ignore[index]
        assert reads(daemon) == before + 1


async def test_rows_of_blocks_are_read(tmp_path: Path) -> None:
    async with filled(tmp_path) as daemon:
        answer = await taught(daemon, ONE)
        blocks = daemon.daemon.store.column_blocks
        assert blocks is not None
        row = await blocks.next_unfolded("tsdb", b"", None)
        assert row is not None
        assert (await blocks.fold("tsdb", row[:7])).cells
        before = daemon.short
        assert await ask(daemon, ONE) == answer
        assert daemon.short == before + 1
        assert answer == await judged(daemon, ONE)


async def test_limits_apply(place: dict[str, str], tmp_path: Path) -> None:
    async with filled(tmp_path, {**place, "tsd.query.limits.data_points.default": "70"}) as daemon:
        await taught(daemon, ONE)
        refused = await http_request(daemon, ONE.replace(str(BASE + 3599), str(BASE + 9000)))
        assert refused.status == 413
        assert b"limit of 70 data points" in refused.body


@pytest.mark.slow
async def test_both_ways_give_the_same_answer_of_few_series_on_hbase(hbase: RunningHbase, tmp_path: Path) -> None:
    spans = (BASE, BASE + 3599), (BASE + 30, BASE + 7 * 3600 + 31), (BASE + 2 * 3600, BASE + 9 * 3600 - 1)
    async with filled(tmp_path, on_hbase(hbase)) as daemon:
        ended = lines("host=a cpu=2") + lines("host=c cpu=1", BASE + 6 * 3600 + 5)
        await daemon.send_lines(ended + b"put short.m %d 5 host=a cpu=1\n" % (BASE + 7 * 3600))
        await daemon.daemon.flush()
        for m in ("sum:short.m{host=a|b}", "none:short.m{host=a}", "sum:1m-avg-zero:rate:short.m{cpu=*}{host=a|b}"):
            paths = [f"/api/query?start={start}&end={end}&m={m}&show_tsuids" for start, end in spans]
            before = daemon.short
            found = [await ask(daemon, path) for path in paths for _ in range(3)]
            assert daemon.short >= before + len(paths), m
            for path, answers in zip(paths, (found[at : at + 3] for at in range(0, len(found), 3)), strict=True):
                assert answers == [await judged(daemon, path)] * 3, path


@pytest.mark.slow
async def test_points_of_other_daemons_are_found(hbase: RunningHbase, tmp_path: Path) -> None:
    place = on_hbase(hbase)
    async with filled(tmp_path / "one", place) as daemon, running(tmp_path / "other", {**SETTINGS, **place}) as other:
        for m in ("sum:short.m{host=a}", "sum:short.m{}{host=literal_or(a|b)}"):
            await taught(daemon, HOUR + m)
            await other.send_lines(b"put short.m %d 77 host=a cpu=1\n" % (BASE + 5))
            await other.daemon.flush()
            before = daemon.short
            [group] = await ask(daemon, HOUR + m)
            assert daemon.short == before + 1
            assert group["dps"][str(BASE + 5)] >= 77  # type: ignore[index]


@pytest.mark.slow
@pytest.mark.parametrize("m", ["sum:short.d{host=a}", "sum:short.d{host=a|b}", "none:rate:short.d{host=*}{host=a|b}"])
async def test_rows_after_the_end_are_not_read_on_hbase(m: str, hbase: RunningHbase, tmp_path: Path) -> None:
    async with counted_queries(tmp_path, {**SETTINGS, **on_hbase(hbase)}) as daemon:
        for host, at in ((host, at) for host in "ab" for at in range(0, 9000, 600)):
            await daemon.send_lines(b"put short.d %d 0.5 host=%s\n" % (BASE + at, host.encode()))
        await daemon.daemon.flush()
        first, again = [await ask(daemon, f"{HOUR}{m}&show_summary") for _ in range(2)]
        assert first[:-1] == again[:-1]
        rows = [one[-1]["statsSummary"]["rowsPreFilter"] for one in (first, again)]  # type: ignore[index]
        assert rows[0] == 2 * rows[1]


@pytest.mark.slow
async def test_a_changed_query_is_read_once_on_hbase(hbase: RunningHbase, tmp_path: Path) -> None:
    async with filled(tmp_path, on_hbase(hbase)) as daemon:

        async def gets() -> int:
            before = reads(daemon)
            await ask(daemon, ONE)
            return reads(daemon) - before

        [group] = await ask(daemon, ONE + "&show_tsuids")
        await taught(daemon, ONE)
        note = {"startTime": BASE + 60, "tsuid": group["tsuids"][0], "description": "restart"}  # type: ignore[index]
        assert (await http_post(daemon, "/api/annotation", json.dumps(note).encode())).status == 200
        in_vain = await gets()
        assert await gets() < in_vain


@pytest.mark.parametrize("missing", [None, "host=h07", "host=h00"])
async def test_raw_points_of_series_with_the_same_times(missing: str | None, tmp_path: Path) -> None:
    """Some hours may lack a series, or have one with other times."""
    async with counted_queries(tmp_path, SETTINGS) as daemon:
        for hour in range(3):
            for number in range(12):
                tags = f"host=h{number:02d} dc={number % 3}"
                if hour != 1 or missing is None or not tags.startswith(missing):
                    await daemon.send_lines(lines(tags, BASE + hour * 3600, metric="short.alike"))
        await daemon.daemon.flush()
        for m in ("sum:short.alike", "avg:short.alike{dc=*}", "none:short.alike{host=*}", "max:short.alike{dc=1}"):
            for stop in (3599, 7100, 10000):
                path = f"/api/query?start={BASE}&end={BASE + stop}&m={m}"
                assert await ask(daemon, path) == await ask(daemon, path) == await judged(daemon, path)
        await daemon.send_lines(b"put short.alike %d 7 host=h05 dc=2\n" % (BASE + 3601))
        await daemon.daemon.flush()
        for m in ("sum:short.alike", "avg:short.alike{dc=*}"):
            path = f"/api/query?start={BASE}&end={BASE + 10000}&m={m}"
            assert await ask(daemon, path) == await ask(daemon, path) == await judged(daemon, path)


async def test_times_of_a_repeated_query_are_checked_and_shown(tmp_path: Path) -> None:
    async with filled(tmp_path) as daemon:
        for first in range(BASE + 1000, BASE + 1003):
            for end, status in ((first + 60, 200), (first, 400), (first - 1, 400), (10**13, 400)):
                path = f"/api/query?start={first}&m=sum:short.m&end={end}"
                body = {"start": first, "end": end, "queries": [{"aggregator": "sum", "metric": "short.m"}]}
                for response in (
                    await http_request(daemon, path),
                    await http_post(daemon, "/api/query", json.dumps(body).encode()),
                ):
                    assert response.status == status, response.body
                    shown = json.loads((await http_request(daemon, "/api/stats/query")).body)["completed"][0]["query"]
                    if status == 200:
                        assert (shown["start"], shown["end"]) == (str(first), str(end))
                    elif end < 10**13:
                        message = json.loads(response.body)["error"]["message"]
                        wanted = f"End time [{end * 1000}] must be greater than the start time [{first * 1000}]"
                        assert message == wanted


async def test_a_query_answered_at_once_is_listed(tmp_path: Path) -> None:
    async with filled(tmp_path) as daemon:
        await taught(daemon, ONE)
        done = daemon.daemon.query.registry.counts["succeeded"]
        await ask(daemon, ONE + "&arrays")
        assert daemon.daemon.query.registry.counts["succeeded"] == done + 1
        daemon.daemon.drop_caches()
        await ask(daemon, ONE + "&arrays")
        general, short = json.loads((await http_request(daemon, "/api/stats/query")).body)["completed"][:2]
        assert short["queryStartTimestamp"] <= short["queryCompletedTimestamp"] <= now_ms()
        assert (general.pop("id"), general.keys()) == (short.pop("id") + 1, short.keys())
        times = {"queryStartTimestamp", "queryCompletedTimestamp", "stats"}
        for name in general.keys() - times:
            assert general[name] == short[name] or name == "endpoint"
        for name in ("emittedDPs", "dpsPreFilter", "rowsPreFilter"):
            assert general["stats"][name] == short["stats"][name] > 0


async def test_points_of_the_hours_that_a_short_query_does_not_show_are_not_listed(tmp_path: Path) -> None:
    part = f"/api/query?start={BASE + 600}&end={BASE + 1200}&arrays&m=sum:short.m{{host=a}}"
    async with filled(tmp_path) as daemon:
        [group] = await taught(daemon, part)
        listed = json.loads((await http_request(daemon, "/api/stats/query")).body)["completed"]
        assert {one["stats"]["emittedDPs"] for one in listed} == {len(group["dps"])}


async def test_an_equal_query_is_refused_while_its_client_waits(tmp_path: Path) -> None:
    async with filled(tmp_path, {"tsd.query.allow_simultaneous_duplicates": "false"}) as daemon:
        await taught(daemon, ONE)
        registry = daemon.daemon.query.registry
        last = registry.ended[0]
        with registry.register(last.query, last.peer, {}):
            response = await http_request(daemon, ONE)
            assert response.status == 400
            assert b"already executing" in response.body
        await ask(daemon, ONE)
