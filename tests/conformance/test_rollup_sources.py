"""Rollups and histograms in one set of tables, half of them written by a real OpenTSDB: both daemons answer alike."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.conformance.rollup_tables import created_rollups, get, plain
from tests.e2e.command import Tsd, on_hbase
from tests.peers.hbase import RunningHbase
from tests.peers.opentsdb import Opentsdb

START_S = 1356998400
HOSTS = ("web01", "web02", "web03")
RUN_S = 3 * 86400
HISTOGRAMS = '{"net.opentsdb.core.SimpleHistogramDecoder": 42}'


def lines(seed: int) -> list[bytes]:
    """Return rollups of several intervals with gaps, pre-aggregates, histograms and raw points of every series."""
    rng = random.Random(seed)
    found = []

    def value(integers: bool) -> str:
        return str(rng.randrange(-1000, 100000)) if integers else f"{rng.uniform(-10, 1000):.3f}"

    for number, host in enumerate(HOSTS):
        for interval, step_s in (("10m", 600), ("1h", 3600), ("1d", 86400)):
            for at in range(START_S, START_S + RUN_S, step_s):
                for aggregator in ("sum", "count", "min", "max"):
                    if rng.random() < 0.9:
                        number_text = value(integers=number == 0 or aggregator == "count")
                        found.append(f"rollup {interval}-{aggregator} r.some {at} {number_text} host={host} dc=lga")
                        if interval == "1h":
                            found.append(f"rollup 1h-{aggregator} r.hours {at} {value(integers=True)} host={host}")
        for at in range(START_S, START_S + 4 * 3600, 300):
            found += [f"rollup sum r.some {at} {value(integers=True)} dc=d{number}"]
            found += [f"rollup 1h-sum:max r.some {at - at % 3600} {at % 3600} dc=d{number}"] * (at % 3600 == 0)
            buckets = ":".join(f"{low},{low + 1.5}={rng.randrange(50)}" for low in (0, 1.5, 3, 10.25))
            found.append(f"histogram r.lat {at} {buckets}:u={rng.randrange(3)}:o={rng.randrange(3)} host={host}")
            found.append(f"put r.some {at} {value(integers=True)} host={host} dc=lga")
            found.append(f"put r.raw {at} {value(integers=True)} host={host}")
            found.append(f"put r.hours {at} {value(integers=True)} host={host}")
    return [line.encode() + b"\n" for line in dict.fromkeys(found)]


RANGES = ((0, 7200), (1800, 90000), (86400 + 1234, 2 * 86400 + 4321), (-86400, 4 * 86400))
QUERIES = [
    *(f"{aggregator}:{spec}:{metric}" for aggregator in ("sum", "avg", "none")
      for spec in ("10m-sum", "1h-sum", "1h-avg", "2h-avg", "30m-max", "1h-count", "1d-min", "20m-zimsum", "1h-mimmax")
      for metric in ("r.some{host=*}", "r.some", "r.hours")),
    *(f"sum:{spec}:rate:r.some" for spec in ("1h-sum", "10m-avg", "1d-max")),
    *(f"sum:{spec}:r.some" for spec in ("1h-sum-nan", "2h-avg-zero", "1h-count-null", "1h-p99", "1m-sum", "0all-sum")),
    *(f"sum:{spec}:{usage}:{metric}" for spec in ("1d-sum", "2h-avg", "1h-max", "7m-sum")
      for usage in ("rollup_raw", "rollup_fallback", "rollup_nofallback", "rollup_fallback_raw")
      for metric in ("r.raw", "r.hours", "r.some{host=*}")),
    *(f"sum:{spec}:pre-agg:{usage}:r.some{{dc=*}}" for spec in ("20m-sum-nan", "1d-max")
      for usage in ("rollup_fallback", "rollup_fallback_raw")),
    *(f"sum:{spec}pre-agg:r.some" for spec in ("", "1h-sum:", "10m-sum:")),
    "sum:1h-sum:r.some{_aggregate=MAX}", "sum:r.some{_aggregate=SUM}", "sum:5m-sum:r.some{_aggregate=SUM}",
]  # fmt: skip
OF_HISTOGRAMS = [
    *(f"{aggregator}:{spec}percentiles[0.5,50,90,99.9,100]:{more}r.lat{tags}"
      for aggregator in ("sum", "none")
      for spec in ("", "10m-sum:rollup_raw:", "1h-sum:rollup_raw:", "7m-sum:")
      for more in ("", "show-histogram-buckets:")
      for tags in ("", "{host=*}", "{host=web01|web02}")),
    "sum:show-histogram-buckets:r.lat", "sum:r.lat", "sum:percentiles[50]:r.raw",
]  # fmt: skip


@pytest.mark.difference(
    "salted-histograms",
    topic="rollups",
    theirs="On a salted table each hour of a series of histograms is a series of its own",
    ours="They are one series",
)
@pytest.mark.parametrize("salted", [False, True], ids=["plain", "salted"])
def test_rollups_answered_as_by_opentsdb(
    salted: bool, hbase: RunningHbase, opentsdb: Callable[..., Opentsdb], tmp_path: Path
) -> None:
    tables = hbase.new_tables()
    settings = created_rollups(hbase, tables, tmp_path, salted=salted) | {"tsd.core.histograms.config": HISTOGRAMS}
    peer = opentsdb(tables, **settings)
    tsd = Tsd(tmp_path / "state", on_hbase(hbase, tables, settings))
    whole = lines(1)
    assert peer.send(b"".join(whole[::2])) == b""
    differing = []
    with tsd.serve() as daemon:
        daemon.send_lines(b"".join(whole[1::2]))
        daemon.flush()
        for number, (start, end) in enumerate(RANGES):
            asked = QUERIES + OF_HISTOGRAMS
            every = 6 if salted else 3  # salted tables are read slowly
            for query in asked[number % every :: every]:
                path = f"/api/query?start={START_S + start}&end={START_S + end}&show_tsuids&show_query&m={quote(query)}"
                there, here = get(peer.port, path), get(daemon.port, path)
                torn = salted and query in OF_HISTOGRAMS
                if torn and query.startswith("none:"):
                    continue  # OpenTSDB answers with one series per hour of a salted series
                if plain(there, torn=torn) != plain(here):
                    differing.append((query, (start, end), there, here))
    assert not differing, report(differing)


def report(differing: list[tuple[str, tuple[int, int], Any, Any]]) -> str:
    shown = [
        f"{query} {span}\n  there {str(there)[:1000]}\n  here  {str(here)[:1000]}"
        for query, span, there, here in differing[:20]
    ]
    return "\n".join([f"{len(differing)} differ:", *shown])
