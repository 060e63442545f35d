"""How long requests took, as OpenTSDB's stats tell it."""

from collections import deque
from collections.abc import Mapping

LATEST = 1000  # requests that percentiles are taken of
PERCENTILES = (50, 75, 90, 95)


class Latencies:
    """Times of the latest requests; and all of them in number and sum."""

    def __init__(self) -> None:
        self._latest: deque[float] = deque(maxlen=LATEST)
        self.count = 0
        self.total_ms = 0.0

    def note(self, took_ms: float) -> None:
        """One more."""
        self._latest.append(took_ms)
        self.count += 1
        self.total_ms += took_ms

    def percentiles(self) -> Mapping[int, int]:
        """By percentage, in whole ms; 0 where there was no request."""
        ordered = sorted(self._latest)
        last = len(ordered) - 1
        return {rank: round(ordered[last * rank // 100]) if ordered else 0 for rank in PERCENTILES}
