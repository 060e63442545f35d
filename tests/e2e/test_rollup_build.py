"""`tsd rollup build` as operators run it: with and without a daemon, interrupted and resumed."""

import http.client
import json
import shlex
import signal
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.e2e.command import Served, Tsd, until
from tsd.codec.opentsdb.rollup import default_config
from tsd.config.settings import Config
from tsd.daemon.wiring import rollup_progress
from tsd.store import Put
from tsd.tables.opentsdb.rollup_sums import intervals_to_build

pytestmark = pytest.mark.slow

START_S, HOUR_S, DAY_S = 1356998400, 3600, 86_400
DAYS = 5
CONFIG = {
    "aggregationIds": {"sum": 0, "count": 1, "min": 2, "max": 3},
    "intervals": [
        {"interval": "1m", "table": "tsdb", "preAggregationTable": "agg", "rowSpan": "1h", "defaultInterval": True},
        {"interval": "1h", "table": "r1h", "preAggregationTable": "agg1h", "rowSpan": "1d"},
        {"interval": "1d", "table": "r1d", "preAggregationTable": "agg1d", "rowSpan": "1n"},
    ],
}
SETTINGS = {
    "tsd.rollups.enable": "true",
    "tsd.rollups.config": json.dumps(CONFIG),
    "tsd.core.auto_create_metrics": "true",
}
QUERIES = [
    f"{aggregator}:{spec}:{metric}"
    for aggregator in ("sum", "none")
    for spec in ("1h-sum", "1h-avg", "6h-max", "1d-min", "1d-avg", "1d-count", "2h-count")
    for metric in ("m0", "m7{host=*}")
]


def lines(metric: str, days: int = DAYS) -> list[str]:
    """Return points every 15 minutes; their values are exact in any order of addition."""
    return [
        f"{metric} {START_S + at} {(at * number % 977) / 8} host=h{number}"
        for number in range(1, 4)
        for at in range(0, days * DAY_S, 900)
    ]


POINTS = 10 * len(lines("m"))
CELLS = 10 * 3 * DAYS * 25 * 4


def answer(served: Served, query: str, usage: str) -> Any:
    function, rest = query.split(":", 1)
    spec, metric = rest.split(":", 1)
    m = quote(f"{function}:{spec}:{usage}:{metric}")
    path = f"/api/query?start={START_S}&end={START_S + DAYS * DAY_S - 1}&show_tsuids&m={m}"
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=60)
    try:
        connection.request("GET", path)
        return json.loads(connection.getresponse().read())
    finally:
        connection.close()


def differing(served: Served) -> list[str]:
    """Return the queries that rollups answer otherwise than raw points, or not at all."""
    found = {
        query: (answer(served, query, "rollup_raw"), answer(served, query, "rollup_nofallback")) for query in QUERIES
    }
    return [query for query, (raw, rolled) in found.items() if not raw or raw != rolled]


@pytest.fixture
def tsd(tmp_path: Path) -> Tsd:
    """A state folder with five days of ten metrics."""
    made = Tsd(tmp_path / "state", SETTINGS)
    text = "".join(f"{line}\n" for number in range(10) for line in lines(f"m{number}"))
    assert made.run("import", "--auto-metric", "-", stdin=text.encode()).status == 0
    return made


def test_built_rollups_answer_like_raw_points(tsd: Tsd) -> None:
    with tsd.serve() as served:
        assert differing(served) == QUERIES
    done = tsd.run("rollup", "build", "--json")
    assert (done.status, done.err) == (0, "")
    assert json.loads(done.out) == {"points": POINTS, "cells": CELLS, "warnings": 0}
    with tsd.serve() as served:
        assert differing(served) == []
        late = f"put m7 {START_S + 450} 1000000 host=h1\n"
        assert served.send_lines(late.encode()) == b"synced 1\n"
        assert differing(served) != []
        again = tsd.run("rollup", "build", "m7", "--end", str(START_S + DAY_S), "--json")
        assert json.loads(again.out)["points"] == 3 * 96 + 1
        assert differing(served) == []


@pytest.mark.parametrize("served", [False, True])
def test_deleted_points_leave_rollups_that_are_cleared(tsd: Tsd, served: bool) -> None:
    """Regression: rollups of intervals without points stayed, however often they were built again."""
    whole = ["--since", str(START_S), "--until", str(START_S + DAYS * DAY_S), "--yes"]
    assert "rollup" not in tsd.run("delete", "m9", *whole).err  # it has none
    assert tsd.run("rollup", "build").status == 0
    with tsd.serve() if served else nullcontext():
        first_s = START_S + DAY_S + 5 * HOUR_S + 900
        deleted = tsd.run("delete", "m7", "--since", str(first_s), "--until", str(START_S + 4 * DAY_S), "--yes")
        assert deleted.status == 0
        assert tsd.run("rollup", "build", "m7").status == 0
        again = shlex.split(deleted.err.partition("run: tsd ")[2])
        assert "--clear" in again
        assert tsd.run(*again).status == 0
        assert tsd.run("rollup", "build", "--clear").status == 2  # not of all metrics
    with tsd.serve() as daemon:
        assert differing(daemon) == []


def test_rollups_of_an_earlier_time_are_named_though_rollups_are_off(tsd: Tsd) -> None:
    """Regression: they answered with the deleted points once rollups were on again."""
    assert tsd.run("rollup", "build").status == 0
    off = Tsd(tsd.folder, {name: text for name, text in tsd.settings.items() if name != "tsd.rollups.enable"})
    first_s = START_S + DAY_S + 5 * HOUR_S + 900
    deleted = off.run("delete", "m7", "--since", str(first_s), "--until", str(START_S + 4 * DAY_S), "--yes")
    assert deleted.status == 0
    assert "--clear" in deleted.err
    assert off.run(*shlex.split(deleted.err.partition("run: tsd ")[2])).status == 0
    with tsd.serve() as daemon:
        assert differing(daemon) == []


@pytest.mark.parametrize("how", ["scan", "query", "kairosdb"])
def test_rollups_that_keep_deleted_points_are_named(tsd: Tsd, how: str) -> None:
    assert tsd.run("rollup", "build").status == 0
    first_s, last_s = START_S + DAY_S, START_S + 3 * DAY_S - 1
    allowed = {"tsd.http.query.allow_delete": "true", "tsd.access.anonymous": "read,write,admin"}
    deleting = tsd.but({**allowed, "tsd.kairosdb.enabled": "true"})
    with deleting.serve() as served:
        if how == "scan":
            said = tsd.run("scan", "--delete", str(first_s), str(last_s), "sum", "m7").err
            assert "rollup" not in tsd.run("scan", "--delete", str(first_s), str(last_s), "sum", "m7").err  # no more
        else:
            connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=60)
            if how == "query":
                path = f"/api/query?start={first_s}&end={last_s}&m=sum:m7"
                connection.request("DELETE", path)
            else:
                span = {"start_absolute": first_s * 1000, "end_absolute": last_s * 1000}
                connection.request(
                    "POST", "/api/v1/datapoints/delete", json.dumps(span | {"metrics": [{"name": "m7"}]})
                )
            assert connection.getresponse().status in (200, 204)
            connection.close()
            event = served.await_event("rollups.deleted_points_kept")
            said = f"run: {event['next_step']}"
            assert event["metric"] == "m7"
        assert differing(served) != []
        assert tsd.run(*shlex.split(said.partition("run: tsd ")[2])).status == 0
        assert differing(served) == []


def test_killed_build_resumes(tsd: Tsd) -> None:
    checkpoint = tsd.folder / "rollup-build.json"
    saved = ""
    for pause in ("1000000", "20"):
        with tsd.popen("rollup", "build", "--pause", pause) as process:
            until(lambda: checkpoint.exists() and checkpoint.read_text() != saved, "a later checkpoint")  # noqa: B023
            process.send_signal(signal.SIGKILL)
            process.wait()
        saved = checkpoint.read_text()
    resumed = tsd.run("rollup", "build", "--json")
    assert resumed.status == 0
    assert "resuming" in resumed.err
    assert not checkpoint.exists()
    assert json.loads(resumed.out) == {"points": POINTS, "cells": CELLS, "warnings": 0}
    with tsd.serve() as served:
        assert differing(served) == []


def test_killed_daemon_completes_its_rollups(tsd: Tsd) -> None:
    building = tsd.but({"tsd.rollups.build": "true"})
    progress = tsd.folder / "rollup-progress.json"
    with building.serve() as served:
        until(progress.exists, "a build has begun")
        served.kill()
    with building.serve() as served:
        until(lambda: served.stats()["rollups.cells"] > 0, "a part is built")
        served.kill()
    with building.serve() as served:
        _await_rollups(served)
        assert served.send_lines(f"put m7 {START_S + 450} 1000000 host=h1\n".encode()) == b"synced 1\n"
        served.kill()
    with building.serve() as served:
        served.flush()
    with building.serve() as served:
        _await_rollups(served)
        assert differing(served) == []
        [group] = answer(served, "sum:1d-max:m7{host=h1}", "rollup_nofallback")
        assert group["dps"][str(START_S)] == 1000000


def _await_rollups(served: Served) -> None:
    """Wait until the rollups of all stored points are complete."""

    def complete() -> bool:
        stats = served.stats()
        return stats["rollups.late"] == 0 and all(
            stats[f"rollups.complete interval={name}"] > START_S + DAYS * DAY_S for name in ("1h", "1d")
        )

    until(complete, "complete rollups")


def test_command_reads_rollups_as_far_as_the_daemon_has_built_them(tmp_path: Path) -> None:
    """Regression: without complete rollups, `tsd query` lacked all points of times without rollups."""
    tsd = Tsd(tmp_path / "state", {"tsd.rollups.build": "true", "tsd.core.auto_create_metrics": "true"})
    text = "".join(f"m {START_S + at} 1 host=h1\n" for at in range(0, 3 * DAY_S, HOUR_S))
    assert tsd.run("import", "-", stdin=text.encode()).status == 0
    assert tsd.run("rollup", "build", "m", "--end", str(START_S + 2 * DAY_S)).status == 0

    def day_sums() -> list[float]:
        done = tsd.run("query", "--format", "json", str(START_S), str(START_S + 3 * DAY_S - 1), "sum:1d-sum:m")
        return [value for group in json.loads(done.out) for value in group["dps"].values()]

    assert day_sums() == [24, 24, 24]
    with tsd.serve() as served:
        _await_rollups(served)
        assert day_sums() == [24, 24, 24]
        assert served.send_lines(f"put m {START_S + 450} 100 host=h1\n".encode()) == b"synced 1\n"
        assert day_sums() == [124, 24, 24]
    assert day_sums() == [124, 24, 24]


def test_build_says_what_it_cannot_do(tsd: Tsd, tmp_path: Path) -> None:
    off = tsd.but({"tsd.rollups.enable": "false"}).run("rollup", "build")
    assert (off.status, "tsd.rollups.enable" in off.err) == (2, True)
    default = tsd.run("rollup", "build", "--interval", "1m")
    assert (default.status, "1m" in default.err) == (2, True)
    unknown = tsd.run("rollup", "build", "nothing")
    assert (unknown.status, "nothing" in unknown.err) == (1, True)
    nowhere = Tsd(tmp_path / "nowhere", SETTINGS).run("rollup", "build")
    assert nowhere.status == 1


def test_commands_tell_which_days_they_change(tmp_path: Path) -> None:
    tsd = Tsd(tmp_path / "state", {"tsd.rollups.build": "true"})
    progress = tsd.folder / "rollup-progress.json"

    def late(name: str = "late") -> list[int]:
        return sorted((day_s - START_S) // DAY_S for _, day_s in json.loads(progress.read_text())[name])

    def put(day: int) -> None:
        line = f"m {START_S + day * DAY_S} 1 host=h1\n"
        assert tsd.run("import", "--auto-metric", "-", stdin=line.encode()).status == 0

    def delete(day: int) -> None:
        start_s = START_S + day * DAY_S
        words = ["delete", "m", "--since", str(start_s), "--until", str(start_s + 1), "--yes"]
        assert tsd.run(*words).status == 0

    put(0)
    assert not progress.exists()
    config = Config(path=str(tsd.folder), rollups_build=True)
    built = rollup_progress(config, intervals_to_build(default_config(config.data_table)))
    built.complete_s = dict.fromkeys(built.complete_s, START_S + 20 * DAY_S)
    built.write()
    put(1)
    put(30)
    assert (late(), late("emptied")) == ([1], [])
    delete(0)
    assert (late(), late("emptied")) == ([0, 1], [0])

    def is_marked(day: int, name: str = "late") -> bool:
        return day in late(name) or not late()  # on a slow machine a round of the daemon has built all of them

    with tsd.serve():
        put(2)
        assert is_marked(2)
        delete(1)
        assert is_marked(1, "emptied")
        assert tsd.run("scan", "--delete", str(START_S + 2 * DAY_S), str(START_S + 3 * DAY_S), "sum", "m").status == 0
        assert is_marked(2, "emptied")
    with tsd.but({"tsd.rollups.build": "false"}).serve():
        assert not progress.exists() or late() == late("emptied")


def test_days_of_deleted_points_outlast_a_daemon_that_builds_no_rollups(tmp_path: Path) -> None:
    """Regression: the next daemon that built rollups left those of the deleted points."""
    building = Tsd(tmp_path / "state", {"tsd.rollups.build": "true"})
    lines = "".join(f"m {START_S + day * DAY_S} 3 host=h1\n" for day in range(2))
    assert building.run("import", "--auto-metric", "-", stdin=lines.encode()).status == 0
    with building.serve() as served:
        _await_rollups(served)
    deletion = ["delete", "m", "--since", str(START_S + DAY_S), "--until", str(START_S + 2 * DAY_S), "--yes"]
    assert building.run(*deletion).status == 0
    with building.but({"tsd.rollups.build": "false"}).serve():
        pass
    with building.serve() as served:
        _await_rollups(served)
        days = [group["dps"] for group in answer(served, "sum:1d-sum:m", "rollup_nofallback")]
        assert days == [{str(START_S): 3}]


@pytest.mark.parametrize("serves", [False, True], ids=["alone", "daemon"])
def test_copies_and_repairs_tell_which_days_they_change(tmp_path: Path, serves: bool) -> None:
    """Regression: rollups lacked the copied points, and kept what a repair had deleted."""
    source, target = (Tsd(tmp_path / name, {"tsd.rollups.build": "true"}) for name in ("source", "target"))
    lines = f"m {START_S} 3 host=h1\nm {START_S + DAY_S} 4 host=h1\n"
    assert source.run("import", "--auto-metric", "-", stdin=lines.encode()).status == 0
    assert target.run("mkmetric", "m").status == 0
    with target.serve() as served:
        _await_rollups(served)

    def day_sums(served: Served) -> list[float]:
        _await_rollups(served)
        found = answer(served, "sum:1d-sum:m", "rollup_nofallback")
        return [value for group in found for value in group["dps"].values()]

    with target.serve() if serves else nullcontext() as served:
        assert source.run("copy", "--to", f"embedded:{target.folder}").status == 0
        if served is not None:
            assert day_sums(served) == [3, 4]
    if served is None:
        with target.serve() as served:
            assert day_sums(served) == [3, 4]
    row = next(row for row in target.read_directly("tsdb") if row.key[3:7] == START_S.to_bytes(4, "big"))
    target.put_directly("tsdb", Put(row.key, b"t:\0\2", b"\1\2\3"))
    assert target.run("fsck", "--full-scan", "--fix", "--delete-bad-values").status == 1
    marked = json.loads((target.folder / "rollup-progress.json").read_text())["emptied"]
    assert [day_s for _, day_s in marked] == [START_S]


def test_commands_leave_the_progress_of_a_daemon_alone(tmp_path: Path) -> None:
    """Regression: a copy between layouts, without the daemon's settings, removed the file with the days to build."""
    tsd = Tsd(tmp_path / "state", {"tsd.core.auto_create_metrics": "true"})
    assert tsd.run("import", "-", stdin=f"m {START_S} 1 host=h1\n".encode()).status == 0
    progress = tsd.folder / "rollup-progress.json"
    with tsd.but({"tsd.rollups.build": "true"}).serve() as served:
        _await_rollups(served)
    tables = ["--to-set", "tsd.storage.layout=tall", "--to-set", "tsd.tall.tables=METRIC {host:24}#{ts} *"]
    done = tsd.run("copy", "--to", f"embedded:{tmp_path / 'other'}", *tables)
    assert (done.status, progress.exists()) == (0, True), done
