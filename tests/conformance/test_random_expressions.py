"""Expressions drawn by lot: where a real OpenTSDB answers, tsd answers the same, on the same tables."""

import http.client
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.conformance.drawn_expressions import METRICS, START_S, Drawn, drawn
from tests.e2e.command import HOST, PATIENCE_S, Tsd, on_hbase
from tests.peers.hbase import RunningHbase
from tests.peers.opentsdb import Opentsdb
from tests.query_vectors import vectors

DRAWN = 600
SETS = ("aggregateTags", "aggregatedTags")  # lists in whose order there is no meaning


def test_drawn_expressions_have_equal_answers(
    hbase: RunningHbase, opentsdb: Callable[..., Opentsdb], tmp_path: Path
) -> None:
    tables = hbase.new_tables()
    peer = opentsdb(tables)
    with Tsd(tmp_path / "state", {**on_hbase(hbase, tables), "tsd.core.auto_create_metrics": "true"}).serve() as served:
        lines = vectors()["lines"]
        assert served.tell("".join(f"{line}\n" for line in lines).encode()) == b"synced %d\n" % len(lines)
        for metric in METRICS:  # its points are written before tsd answers, and OpenTSDB learns its names
            request = Drawn("GET", f"/api/query?start={START_S}&m=none:{metric}")
            assert ask(served.port, request)[0] == ask(peer.port, request)[0] == 200
        answered = 0
        for seed in range(DRAWN):
            request = drawn(seed)
            theirs = ask(peer.port, request)
            if theirs[0] != 200 or mended(theirs[1]):
                continue
            answered += 1
            mine = ask(served.port, request)
            assert (mine[0], plain(mine[1])) == (200, plain(theirs[1])), (seed, request)
        assert answered > DRAWN // 2


def mended(answer: Any) -> bool:
    """Whether it is one that tsd refuses, as JSON has no number for it."""
    return "Infinity" in json.dumps(answer)


def plain(value: Any) -> Any:
    """An answer without the order that has no meaning, and with the types of its numbers."""
    if isinstance(value, dict):
        return {key: sorted(each) if key in SETS else plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [plain(each) for each in value]
    return repr(value) if isinstance(value, int | float) else value


def ask(port: int, request: Drawn) -> tuple[int, Any]:
    """Status and JSON."""
    connection = http.client.HTTPConnection(HOST, port, timeout=PATIENCE_S)
    try:
        text = None if request.body is None else json.dumps(request.body)
        connection.request(request.method, request.path, text, {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()
