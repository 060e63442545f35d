"""Statistics of HTTP requests, and the lag of the event loop."""

from collections import Counter, deque
from collections.abc import Mapping
from typing import NamedTuple

import trio

from tsd.store.scheduling import next_time
from tsd.store.timing import Latency

RECENT_REQUESTS = 1000  # over which percentiles are computed
PERCENTILES = (50, 75, 90, 95)


class RecentLatencies:
    """Durations of recent requests for OpenTSDB's percentiles, and the number of all requests."""

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=RECENT_REQUESTS)
        self.count = 0

    def record(self, took_ms: float) -> None:
        """Add one request."""
        self._recent.append(took_ms)
        self.count += 1

    def percentiles(self) -> Mapping[int, int]:
        """Return whole milliseconds by percentage; 0 without requests."""
        ordered = sorted(self._recent)
        last = len(ordered) - 1
        return {rank: round(ordered[last * rank // 100]) if ordered else 0 for rank in PERCENTILES}


BAD_REQUEST, INTERNAL = 400, 500
PUTS = frozenset({"api/put", "api/rollup", "api/histogram"})
QUERIES = frozenset({"api/query", "q"})


class RequestStats:
    """Counts of all connections."""

    def __init__(self) -> None:
        self.requests = 0
        self.puts = 0  # requests that write points
        self.errors: Counter[int] = Counter()  # error responses by status
        self.not_http = 0  # connections that were closed because their input is not HTTP
        self.client_disconnects = 0  # queries cancelled because the client disconnected
        self.queries = Counter({"invalid_requests": 0, "exceptions": 0, "success": 0})
        self.latencies = RecentLatencies()
        self.graph_latencies = RecentLatencies()
        self.durations = {kind: Latency() for kind in ("put", "query", "other")}

    def count_status(self, status: int) -> None:
        """Count a response, of a request that was not read, too."""
        if status >= BAD_REQUEST:
            self.errors[status] += 1

    def record(self, key: str, status: int, took_ms: float) -> None:
        """Add one answered request to the endpoint `key`."""
        kind = "query" if key in QUERIES else "put" if key in PUTS else "other"
        if key == "api/query":
            outcome = "success" if status < BAD_REQUEST else "exceptions" if status >= INTERNAL else "invalid_requests"
            self.queries[outcome] += 1
        elif kind == "put":
            self.puts += 1
        self.durations[kind].record(took_ms / 1000)
        (self.graph_latencies if key == "q" else self.latencies).record(took_ms)


class HttpStatistics(NamedTuple):
    """A snapshot of the counts."""

    requests: int
    puts: int
    errors: Mapping[int, int]  # by status
    not_http: int
    client_disconnects: int
    queries: Mapping[str, int]
    latencies: RecentLatencies
    graph_latencies: RecentLatencies
    body_bytes: int
    failures: int


SAMPLE_INTERVAL_S = 60.0  # a sample wakes up an idle daemon, unless other tasks do it at the same time


class LoopLag:
    """Samples how late the event loop wakes a task."""

    def __init__(self) -> None:
        self.late = Latency()

    async def run(self) -> None:
        """Sample until cancelled."""
        while True:
            due = next_time(trio.current_time(), SAMPLE_INTERVAL_S)
            await trio.sleep_until(due)
            self.late.record(trio.current_time() - due)
