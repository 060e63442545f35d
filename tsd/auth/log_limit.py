"""Bound on log messages about clients: a few a minute, however many clients there are and whatever they do."""

import trio
from cachetools import LRUCache

from tsd.auth.networks import client_prefix

LOG_INTERVAL_S = 60.0
MAX_LOGGED_ADDRESSES = 20  # in one interval
MAX_TRACKED_PREFIXES = 4096  # addresses or IPv6 prefixes that are told apart


class LogLimit:
    """Lets one event of each address be logged in an interval, and no more than MAX_LOGGED_ADDRESSES of all."""

    def __init__(self, prefix: int, max_tracked: int = MAX_TRACKED_PREFIXES) -> None:
        """`prefix`: bits of an IPv6 address that identify one client. `max_tracked` clients are told apart."""
        self._prefix = prefix
        self._by_prefix: LRUCache[str, tuple[float, int]] = LRUCache(max_tracked)  # time of the last, unlogged since
        self._logged = 0
        self._logged_since = -float("inf")

    def unlogged(self, address: str) -> int | None:
        """Return how many events of an address were not logged before this one; None if it is not logged either."""
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
