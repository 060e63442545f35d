"""What came over HTTP, counted, and how long it took."""

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from tsd.doors.latency import Latencies
from tsd.latency import Latency

BAD_REQUEST, INTERNAL = 400, 500
PUTS = frozenset({"api/put", "api/rollup", "api/histogram"})
QUERIES = frozenset({"api/query", "q"})


class Tally:
    """Counts of all connections."""

    def __init__(self) -> None:
        self.requests = 0
        self.puts = 0  # requests that write points
        self.hung_up = 0  # questions whose client went away
        self.queries = Counter({"invalid_requests": 0, "exceptions": 0, "success": 0})
        self.latencies = Latencies()
        self.graph_latencies = Latencies()
        self.took = {kind: Latency() for kind in ("put", "query", "other")}

    def note(self, key: str, status: int, took_ms: float) -> None:
        """A request was answered."""
        if key in PUTS:
            self.puts += 1
        elif key == "api/query":
            outcome = "success" if status < BAD_REQUEST else "exceptions" if status >= INTERNAL else "invalid_requests"
            self.queries[outcome] += 1
        kind = "put" if key in PUTS else "query" if key in QUERIES else "other"
        self.took[kind].note(took_ms / 1000)
        (self.graph_latencies if key == "q" else self.latencies).note(took_ms)


class Statistics(NamedTuple):
    """The counts at a moment."""

    requests: int
    puts: int
    hung_up: int
    queries: Mapping[str, int]
    latencies: Latencies
    graph_latencies: Latencies
    body_bytes: int
    failures: int
