"""Random expressions: where a real OpenTSDB answers, tsd answers the same from the same tables."""

import http.client
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.random_expressions import METRICS, START_S, Request, random_request
from tests.e2e.command import HOST, PATIENCE_S, Tsd, on_hbase
from tests.peers.hbase import RunningHbase
from tests.peers.opentsdb import Opentsdb
from tests.query_vectors import vectors

DRAWN = 300
SETS = ("aggregateTags", "aggregatedTags")  # lists without a meaningful order


@pytest.mark.difference(
    "gexp-infinity",
    topic="queries",
    theirs='`gexp` answers `"Infinity"` if the result of a function is infinite',
    ours="It answers 400 `Got Infinity`, as without functions",
)
def test_random_expressions_answered_as_by_opentsdb(
    hbase: RunningHbase, opentsdb: Callable[..., Opentsdb], tmp_path: Path
) -> None:
    tables = hbase.new_tables()
    peer = opentsdb(tables)
    with Tsd(tmp_path / "state", {**on_hbase(hbase, tables), "tsd.core.auto_create_metrics": "true"}).serve() as served:
        lines = vectors()["lines"]
        assert served.send_lines("".join(f"{line}\n" for line in lines).encode()) == b"synced %d\n" % len(lines)
        served.flush()
        for metric in METRICS:  # makes OpenTSDB look up the names
            request = Request("GET", f"/api/query?start={START_S}&m=none:{metric}")
            assert fetch(served.port, request)[0] == fetch(peer.port, request)[0] == 200
        answered = 0
        for seed in range(DRAWN):
            request = random_request(seed)
            theirs = fetch(peer.port, request)
            if theirs[0] != 200 or is_refused(theirs[1]):
                continue
            answered += 1
            mine = fetch(served.port, request)
            assert (mine[0], plain(mine[1])) == (200, plain(theirs[1])), (seed, request)
        assert answered > DRAWN // 2


def is_refused(answer: Any) -> bool:
    """Whether tsd refuses the answer because JSON has no such number."""
    return "Infinity" in json.dumps(answer)


def plain(value: Any) -> Any:
    """Remove meaningless order from an answer, and normalise the types of numbers."""
    if isinstance(value, dict):
        return {key: sorted(each) if key in SETS else plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [plain(each) for each in value]
    return repr(value) if isinstance(value, int | float) else value


def fetch(port: int, request: Request) -> tuple[int, Any]:
    """Return status and JSON."""
    connection = http.client.HTTPConnection(HOST, port, timeout=PATIENCE_S)
    try:
        text = None if request.body is None else json.dumps(request.body)
        connection.request(request.method, request.path, text, {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()
