"""Rollups that `tsd rollup build` writes are read by a real OpenTSDB on the same HBase, which answers from them what it
answers from raw points."""

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.conformance.rollup_tables import created_rollups, get, plain
from tests.e2e.command import Tsd, on_hbase
from tests.peers.hbase import RunningHbase
from tests.peers.opentsdb import Opentsdb

START_S, DAY_S = 1356998400, 86_400
DAYS = 3
SPECS = (
    "10m-sum",
    "30m-max",
    "1h-sum",
    "1h-avg",
    "1h-count",
    "3h-min",
    "6h-avg",
    "1d-sum",
    "1d-avg",
    "1d-max",
    "1d-count",
)
AGGREGATORS = ("sum", "max", "none")
METRICS = ("b.whole", "b.mixed{host=*}")
RANGES = ((0, DAYS * DAY_S - 1), (DAY_S, 2 * DAY_S - 1))
QUERIES = [  # each downsampling of both metrics in each range; the aggregators take turns
    (f"{AGGREGATORS[(at + turn) % len(AGGREGATORS)]}:{spec}:USAGE:{metric}", span)
    for turn, span in enumerate(RANGES)
    for at, (spec, metric) in enumerate(itertools.product(SPECS, METRICS))
]


def lines() -> list[bytes]:
    """Return points whose sums are exact in any order of addition; some rows are of milliseconds."""
    return [
        f"put {metric} {stamp} {value} host=h{host} dc=lga\n".encode()
        for host in range(3)
        for at in range(0, DAYS * DAY_S, 420)
        if at % 10 or host
        for metric, stamp, value in (
            ("b.whole", START_S + at, at * (host + 1) % 1009 - 300),
            ("b.mixed", (START_S + at) * 1000 + host * 250, (at * (host + 3) % 977) / 8 if at % 7 else at),
        )
    ]


@pytest.mark.parametrize("salted", [False, True], ids=["plain", "salted"])
def test_opentsdb_answers_from_built_rollups(
    salted: bool, hbase: RunningHbase, opentsdb: Callable[..., Opentsdb], tmp_path: Path
) -> None:
    tables = hbase.new_tables()
    settings = created_rollups(hbase, tables, tmp_path, salted=salted)
    peer = opentsdb(tables, **settings)
    assert peer.send(b"".join(lines())) == b""
    tsd = Tsd(tmp_path / "state", on_hbase(hbase, tables, settings))
    done = tsd.run("rollup", "build", "--json")
    assert (done.status, done.err) == (0, "")
    assert json.loads(done.out)["points"] == len(lines())
    differing = []
    with tsd.serve() as daemon:
        for query, (start, end) in QUERIES:
            answers = [
                plain(get(port, f"/api/query?start={START_S + start}&end={START_S + end}&show_tsuids&m={quote(m)}"))
                for m in (query.replace("USAGE", "rollup_nofallback"), query.replace("USAGE", "rollup_raw"))
                for port in (peer.port, daemon.port)
            ]
            if not isinstance(answers[0], list) or not answers[0] or any(one != answers[0] for one in answers):
                differing.append((query, (start, end), [str(answer)[:600] for answer in answers]))
    assert not differing, "\n".join(map(str, [len(differing), *differing[:6]]))
