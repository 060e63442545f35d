"""Read stored points with `tsd scan` and with OpenTSDB's queries."""

from collections.abc import Iterable
from typing import NamedTuple

from tests.conformance.put_lines import FIRST_MS, Series, series
from tests.e2e.command import Tsd
from tests.peers.opentsdb import Opentsdb


class Shown(NamedTuple):
    """A printed point."""

    time: int  # in its own unit
    number: str


def scanned(tsd: Tsd, metrics: Iterable[bytes]) -> dict[Series, dict[int, Shown]]:
    """Return what `tsd scan --import` prints for some metrics, by series and instant in ms."""
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
    """Return OpenTSDB's answers for some metrics, by series and time in ms."""
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
