"""The pace of writes that the service asks for in its answers (RateLimitInfo of the MutateRows protocol).

Each answer may name a factor: below 1 a cluster's CPU is near its limit, above 1 there is room. The limit starts from
the rate of the last seconds, follows the factors, and ends when the service has asked for nothing for a while.
"""

import math
from collections import deque
from typing import NamedTuple

import trio

from tsd.lazy import LazyLogger

log = LazyLogger(__name__)

MEASURED_S = 10.0  # over which the rate is measured
LEAST_FACTOR, MOST_FACTOR = 0.7, 1.3  # of one change
FIRST_PER_S, LEAST_PER_S = 10.0, 0.1  # least rates of a new limit, and of any
FORGOTTEN_S = 300.0  # without a new factor the limit ends
MOST_REQUESTS = 1000  # whose times are kept


class RateLimitInfo(NamedTuple):
    """What an answer asks for."""

    period_s: float  # the rate changes at most once in this time
    factor: float


class RateLimit:
    """Spaces requests evenly once the service has asked for a lower rate."""

    def __init__(self) -> None:
        self._sent: deque[float] = deque(maxlen=MOST_REQUESTS)
        self._next_s = -math.inf  # when the next request may begin
        self._changed_s = self._told_s = -math.inf
        self.per_s = math.inf  # requests

    async def wait(self, most_s: float) -> bool:
        """Wait for this request's turn. Return False at once if that would take longer than `most_s`."""
        now_s = trio.current_time()
        if math.isfinite(self.per_s) and now_s - self._told_s > FORGOTTEN_S:
            self.per_s = math.inf
            log.info("bigtable.rate_limit_ended")
        begin_s = max(self._next_s, now_s)
        if begin_s - now_s > most_s:
            return False
        self._next_s = begin_s + 1 / self.per_s
        self._sent.append(begin_s)
        await trio.sleep(begin_s - now_s)
        return True

    def follow(self, asked: RateLimitInfo) -> None:
        """Change the rate as asked, at most once in a period."""
        now_s = trio.current_time()
        self._told_s = now_s
        if now_s - self._changed_s < asked.period_s:
            return
        if not math.isfinite(self.per_s):
            if asked.factor >= 1:
                return
            self.per_s = max(self._measured_per_s(now_s), FIRST_PER_S)
            log.warning("bigtable.rate_limited", requests_per_s=round(self.per_s, 1), factor=asked.factor)
        self._changed_s = now_s
        self.per_s = max(self.per_s * min(max(asked.factor, LEAST_FACTOR), MOST_FACTOR), LEAST_PER_S)
        self._next_s = max(self._next_s, now_s + 1 / self.per_s)

    def _measured_per_s(self, now_s: float) -> float:
        """Return the rate of the last requests."""
        while self._sent and self._sent[0] < now_s - MEASURED_S:
            self._sent.popleft()
        span_s = MEASURED_S if len(self._sent) < MOST_REQUESTS else max(now_s - self._sent[0], 0.001)
        return len(self._sent) / span_s
