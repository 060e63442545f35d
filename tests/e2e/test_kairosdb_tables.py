"""The daemon on KairosDB's tables: OpenTSDB's put and query, restarts, and clear errors."""

import json
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.e2e.command import Tsd, on_cassandra
from tests.e2e.layout_answers import T, kairos_values, query
from tests.peers.cassandra import RunningCassandra

pytestmark = [pytest.mark.slow, pytest.mark.cassandra]
LAYOUT = {"tsd.storage.layout": "kairosdb", "tsd.storage.flush_interval": "100"}


def test_points_are_put_queried_and_kept(cassandra: RunningCassandra, tmp_path: Path) -> None:
    tsd = Tsd(tmp_path / "state", on_cassandra(cassandra, LAYOUT))
    made = tsd.run("create-tables")
    assert (made.status, made.err) == (0, ""), made
    assert "data_points: created" in made.out
    assert "data_points: exists" in tsd.run("create-tables").out
    wanted = {"a": {str(T): 1, str(T + 7200): -3}, "b": {str(T + 1): 2.5}}
    with tsd.serve() as served:
        lines = f"put a.b {T} 1 host=a\nput a.b {T + 7200} -3 host=a\nput a.b {T + 1} 2.5 host=b\n"
        assert served.send_lines(lines.encode()) == b"synced 3\n"
        assert query(served, "m=sum:a.b{host=*}") == wanted
    with tsd.serve() as served:
        assert query(served, "m=sum:a.b{host=*}") == wanted
        assert query(served, "m=sum:1h-count:a.b") == {"": {str(T): 2, str(T + 7200): 1}}
        assert query(served, "m=none:a.b{host=a}") == {"a": wanted["a"]}


def test_missing_tables_are_named_and_lines_wait(cassandra: RunningCassandra, tmp_path: Path) -> None:
    tsd = Tsd(tmp_path / "state", on_cassandra(cassandra, LAYOUT))
    with tsd.serve() as served:
        assert "create-tables" in served.await_event("kairosdb.tables_unusable")["error"]
        assert served.send_lines(f"put a.b {T} 1 host=a\n".encode()) == b"synced 1\n"
        assert tsd.run("create-tables").status == 0
        served.flush()
        assert query(served, "m=sum:a.b{host=*}") == {"a": {str(T): 1}}


def test_layout_is_checked_and_commands_refuse_it(cassandra: RunningCassandra, tmp_path: Path) -> None:
    tsd = Tsd(tmp_path / "state", on_cassandra(cassandra, LAYOUT))
    assert tsd.run("check-config").status == 0
    for wrong in ({"tsd.storage.backend": "embedded"}, {"tsd.storage.layout": "influxdb"}):
        done = tsd.but(wrong).run("check-config")
        assert done.status == 2
        assert "tsd.storage.layout" in done.err
    done = tsd.run("compact")
    assert done.status != 0
    assert "tsd.storage.layout" in done.err


def test_points_that_other_tables_refused_are_replayed_here(cassandra: RunningCassandra, tmp_path: Path) -> None:
    """With a time to live and a text, by HTTP and telnet. Regression: only the errors of those by HTTP were kept."""
    dialect = {"tsd.kairosdb.enabled": "true", "tsd.kairosdb.dialect": "true"}
    opentsdb, tsd = Tsd(tmp_path / "state", dialect), Tsd(tmp_path / "state", on_cassandra(cassandra, LAYOUT | dialect))
    tags, ttl_s = {"host": "a"}, 86_400
    points = [[T * 1000 + at, at] for at in range(5000)]
    bodies = [
        {"name": "long", "tags": tags, "ttl": ttl_s, "datapoints": points},
        {"name": "text", "tags": tags, "datapoints": [[T * 1000, "up"]]},
    ]
    with opentsdb.serve() as served:
        url = f"http://127.0.0.1:{served.port}/api/v1/datapoints"
        with pytest.raises(urllib.error.HTTPError, match="400"):
            urllib.request.urlopen(url, json.dumps(bodies).encode(), timeout=60)
        line = f"put by.telnet {T} 7 host=a kairos_opt.ttl={ttl_s}\n"
        assert b"these tables" in served.send_lines(line.encode())
        assert opentsdb.run("rejected", "--replay").out.startswith("0 lines accepted")
    assert tsd.run("create-tables").status == 0
    with tsd.serve() as served:
        assert tsd.run("rejected", "--replay").status == 0
        assert tsd.run("rejected").out == ""
        assert query(served, "m=sum:by.telnet") == {"a": {str(T): 7}}
        assert [kairos_values(served, metric) for metric in ("long", "text")] == [points, [[T * 1000, "up"]]]
