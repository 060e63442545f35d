"""The commands and the daemon on Cassandra: put, query, compaction, fsck, copies, restarts, and clear errors."""

import json
import re
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.e2e.command import Served, Tsd, on_cassandra, until
from tests.e2e.engine_points import LINES, T, check_all_are_kept, check_delete, import_points, text
from tests.peers.cassandra import RunningCassandra
from tsd.cli.torture.fork_server import set_ahead
from tsd.cli.torture.proxy import FaultyProxy, ProxyMode

pytestmark = [pytest.mark.slow, pytest.mark.cassandra]
LATE_MS = -5 * 60_000
NEAR_MS = 50_000  # a reading of the nodes' clock on a busy machine is wrong by half of its time
ROLLUPS = {
    "tsd.core.auto_create_metrics": "true",
    "tsd.rollups.enable": "true",
    "tsd.rollups.config": json.dumps(
        {
            "aggregationIds": {"sum": 0, "count": 1, "min": 2, "max": 3},
            "intervals": [
                {
                    "interval": name,
                    "table": table,
                    "preAggregationTable": f"{table}_agg",
                    "rowSpan": span,
                    "defaultInterval": name == "1m",
                }
                for name, table, span in (("1m", "tsdb", "1h"), ("1h", "r1h", "1d"), ("1d", "r1d", "1n"))
            ],
        }
    ),
}


@pytest.fixture
def tsd(cassandra: RunningCassandra, tmp_path: Path) -> Tsd:
    """A keyspace with tables and points."""
    return import_points(Tsd(tmp_path / "state", on_cassandra(cassandra)))


def test_compaction_fsck_and_copies_keep_all_points(tsd: Tsd, tmp_path: Path) -> None:
    keyspace = f"{tsd.settings['tsd.storage.cassandra.keyspace']}_back"
    back = tsd.but({"tsd.storage.cassandra.keyspace": keyspace})
    to_back = ["--to", f"cassandra:{tsd.settings['tsd.storage.cassandra.hosts']}"]
    to_back += ["--to-set", f"tsd.storage.cassandra.keyspace={keyspace}"]
    check_all_are_kept(tsd, Tsd(tmp_path / "home"), back, to_back)


def test_rollups_of_stored_points_are_built(cassandra: RunningCassandra, tmp_path: Path) -> None:
    tsd = Tsd(tmp_path / "state", on_cassandra(cassandra, ROLLUPS))
    assert tsd.run("create-tables").status == 0
    assert tsd.run("import", "-", stdin=text(LINES)).status == 0
    for _ in range(2):
        done = tsd.run("rollup", "build", "--json")
        assert (done.status, done.err) == (0, "")
        assert json.loads(done.out) == {"points": len(LINES), "cells": 8 * (3 + 2) * 4, "warnings": 0}
    with tsd.serve() as served:
        for spec in ("1h-sum", "1h-avg", "1d-count", "1d-max"):
            found = []
            for usage in ("rollup_raw", "rollup_nofallback"):
                url = f"http://127.0.0.1:{served.port}/api/query?start={T}&end={T + 172_799}&m=none:{spec}:{usage}:a.b"
                with urlopen(url) as answer:
                    found.append(json.loads(answer.read()))
            assert len(found[0]) == 4
            assert found[0] == found[1]


def test_delete_removes_named_points_only(tsd: Tsd) -> None:
    check_delete(tsd)


def test_daemons_keep_acknowledged_points_while_cassandra_is_down(cassandra: RunningCassandra, tmp_path: Path) -> None:
    """A daemon that runs on, and one on KairosDB's tables that is killed in the outage. `tsd torture` kills a node."""
    with FaultyProxy(cassandra.host, cassandra.port) as proxy:
        often = {"tsd.storage.flush_interval": "100", "tsd.storage.cassandra.hosts": f"{proxy.host}:{proxy.port}"}
        staying = Tsd(tmp_path / "staying", on_cassandra(cassandra, often))
        killed = Tsd(tmp_path / "killed", on_cassandra(cassandra, {**often, "tsd.storage.layout": "kairosdb"}))
        for tsd in (staying, killed):
            assert tsd.run("create-tables").status == 0
        with staying.serve() as served, killed.serve() as other:
            for daemon in (served, other):
                assert daemon.send_lines(text([f"put {line}" for line in LINES[:8]])) == b"synced 8\n"
                daemon.flush()
            assert sorted(staying.lines("a.b")) == sorted(LINES[:8])
            proxy.mode = ProxyMode.REFUSE
            for daemon in (served, other):
                assert daemon.send_lines(text([f"put {line}" for line in LINES[8:16]])) == b"synced 8\n"
                daemon.await_event("store.unavailable")
            other.kill()
            proxy.mode = ProxyMode.PASS
            served.flush()
            assert sorted(staying.lines("a.b")) == sorted(LINES[:16])
        with killed.serve() as other:
            other.flush()
            assert values(other, "a.b") == sorted(float(line.split(" ")[2]) for line in LINES[:16])


def test_daemon_with_a_wrong_clock_keeps_its_points_until_the_clock_is_right(
    cassandra: RunningCassandra, tmp_path: Path
) -> None:
    clock = tmp_path / "clock"
    set_ahead(clock, LATE_MS)
    settings = on_cassandra(cassandra, {"tsd.storage.flush_interval": "100"})
    tsd, late = Tsd(tmp_path / "own", settings), Tsd(tmp_path / "state", settings, clock)
    assert tsd.run("create-tables").status == 0
    for part in (LINES[:8:2], LINES[1:8:2]):
        assert tsd.run("import", "-", stdin=text(part)).status == 0
    with late.serve() as served:
        assert served.send_lines(text([f"put {line}" for line in LINES[8:12]])) == b"synced 4\n"
        differs = re.search(r"it is ([0-9.]+) s", served.await_event("store.unavailable")["error"])
        assert differs is not None
        assert abs(float(differs[1]) * 1000 + LATE_MS) < NEAR_MS
        until(lambda: "synchronise the clocks" in late.run("health", "store").out, "an unhealthy store")
        assert abs(served.stats()["store.clock_ahead_ms"] - LATE_MS) < NEAR_MS
        assert sorted(tsd.lines("a.b")) == sorted(LINES[:8])
        set_ahead(clock, 0)
        served.flush()
        assert sorted(tsd.lines("a.b")) == sorted(LINES[:12])
        until(lambda: late.run("health", "store").status == 0, "a healthy store")
        earlier = len(served.events("store.unavailable"))
        set_ahead(clock, -LATE_MS)
        assert served.send_lines(text([f"put {line}" for line in LINES[12:16]])) == b"synced 4\n"
        served.await_event("store.unavailable", count=earlier + 1)
        assert sorted(tsd.lines("a.b")) == sorted(LINES[:12])
        set_ahead(clock, 0)
        served.flush()
    assert sorted(tsd.lines("a.b")) == sorted(LINES[:16])
    set_ahead(clock, -LATE_MS)
    for words in ("import -", "compact", "delete a.b --since 1 --until now --yes"):
        done = late.run(*words.split(), stdin=text(LINES))
        assert done.status == 3, done
        assert done.err.splitlines()[-1].startswith("tsd: this machine's clock says 20"), done
        assert "retrying" not in done.err


def values(served: Served, metric: str) -> list[float]:
    """Return the values of all points of a metric, in order."""
    url = f"http://127.0.0.1:{served.port}/api/query?start={T - 10}&end={T + 1_000_000}&m=none:{metric}"
    with urlopen(url, timeout=60) as answer:
        return sorted(value for series in json.load(answer) for value in series["dps"].values())


def test_missing_keyspace_and_missing_node_are_named(cassandra: RunningCassandra, tmp_path: Path) -> None:
    tsd = Tsd(tmp_path / "state", on_cassandra(cassandra))
    done = tsd.run("scan", "--import", "1", "sum", "a.b")
    assert done.status == 3
    assert "keyspace" in done.err
    assert "create-tables" in done.err
    away = tsd.but({"tsd.storage.cassandra.hosts": "127.0.0.1:1"}).run("scan", "--import", "1", "sum", "a.b")
    assert away.status == 3
    assert "127.0.0.1:1" in away.err
