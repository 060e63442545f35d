"""Queries that delete: which hours a real OpenTSDB removes. tests/unit/query/test_engine_deletes.py has the same."""

from collections.abc import Callable
from urllib.parse import quote

from tests.peers.hbase import RunningHbase
from tests.peers.opentsdb import Opentsdb
from tests.query_deletes import CASES, FIRST_S, HOUR_S, HOURS


def test_opentsdb_deletes_the_hours_of_the_vectors(hbase: RunningHbase, opentsdb: Callable[..., Opentsdb]) -> None:
    settings = {"tsd.http.query.allow_delete": "true", "tsd.core.auto_create_metrics": "true"}
    peer = opentsdb(hbase.new_tables(), **settings)
    times = [(hour, FIRST_S + hour * HOUR_S + 60) for hour in HOURS]
    metrics = [f"delete.{number}" for number in range(len(CASES))]
    lines = (f"put {metric} {time} 1 host=a\n" for metric in metrics for _, time in times)
    assert peer.send("".join(lines).encode()) == b""
    for case, metric in zip(CASES, metrics, strict=True):
        span = f"start={FIRST_S + case.start_s}&end={FIRST_S + case.end_s}"
        status, answer = peer.http("DELETE", f"/api/query?{span}&m={quote(case.m(metric))}")
        assert status == 200, answer
    peer.settle()
    found = []
    for metric in metrics:
        span = f"start={times[0][1] - HOUR_S}&end={times[-1][1] + HOUR_S}"
        [result] = peer.http("GET", f"/api/query?{span}&m=none:{metric}")[1]
        found.append(tuple(hour for hour, time in times if str(time) not in result["dps"]))
    assert found == [case.deleted for case in CASES]
