"""What readers make of stored points: the command `tsd scan`, and OpenTSDB's queries."""

from collections.abc import Iterable
from typing import NamedTuple

from tests.conformance.sent import FIRST_MS, Series, series
from tests.e2e.command import Tsd
from tests.peers.opentsdb import Opentsdb


class Shown(NamedTuple):
    """A point as it is printed."""

    time: int  # in its unit
    number: str


def scanned(tsd: Tsd, metrics: Iterable[bytes]) -> dict[Series, dict[int, Shown]]:
    """What `tsd scan --import` prints of some metrics: by series, and by instant in ms."""
    found: dict[Series, dict[int, Shown]] = {}
    for line in tsd.lines(*sorted(metric.decode("latin-1") for metric in metrics)):
        metric, time, number, tags = line.split(" ", 3)
        points = found.setdefault(series(metric.encode("latin-1"), tags.encode("latin-1")), {})
        instant_ms = int(time) if int(time) >= FIRST_MS else int(time) * 1000
        assert instant_ms not in points, line
        points[instant_ms] = Shown(int(time), number)
    return found


def answered(
    peer: Opentsdb, metrics: Iterable[bytes], start_s: int, end_s: int
) -> dict[Series, dict[int, int | float]]:
    """What OpenTSDB answers to a query for some metrics: by series, and by time in ms."""
    found: dict[Series, dict[int, int | float]] = {}
    for metric in metrics:
        query = {"metric": metric.decode("latin-1"), "aggregator": "none"}
        body = {"start": start_s, "end": end_s, "msResolution": True, "queries": [query]}
        status, answer = peer.http("POST", "/api/query", body)
        assert status == 200, answer
        for result in answer:
            tags = " ".join(f"{tagk}={tagv}" for tagk, tagv in result["tags"].items())
            name = series(metric, tags.encode("latin-1"))
            assert name not in found
            found[name] = {int(time): number for time, number in result["dps"].items()}
    return found
