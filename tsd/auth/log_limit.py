"""Rate limit of log messages about clients: at most one a minute for each client, and a few for all clients."""

import trio
from cachetools import LRUCache

from tsd.auth.networks import client_prefix

LOG_INTERVAL_S = 60.0
MAX_LOGGED_ADDRESSES = 20  # in one interval
MAX_TRACKED_PREFIXES = 4096  # clients, each an address or an IPv6 prefix


class LogLimit:
    """Rate limit of one event: once for each client in an interval, and MAX_LOGGED_ADDRESSES times in all."""

    def __init__(self, prefix: int, max_tracked: int = MAX_TRACKED_PREFIXES) -> None:
        """`prefix`: bits of an IPv6 address that identify one client. `max_tracked`: number of clients to track; the
        one that was seen least recently is dropped."""
        self._prefix = prefix
        self._by_prefix: LRUCache[str, tuple[float, int]] = LRUCache(max_tracked)  # time of the last, unlogged since
        self._logged = 0
        self._logged_since = -float("inf")

    def unlogged(self, address: str) -> int | None:
        """Count an event. Return how many earlier events of the client were not logged; None: do not log this one."""
        key, now = client_prefix(address, self._prefix), trio.current_time()
        if now - self._logged_since >= LOG_INTERVAL_S:
            self._logged_since, self._logged = now, 0
        logged_at, unlogged = self._by_prefix.get(key, (-float("inf"), 0))
        if now - logged_at < LOG_INTERVAL_S or self._logged >= MAX_LOGGED_ADDRESSES:
            self._by_prefix[key] = logged_at, unlogged + 1
            return None
        self._by_prefix[key] = now, 0
        self._logged += 1
        return unlogged
