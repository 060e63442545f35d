"""Protection of passwords: delays after failed logins, and a queue for verification.

`LoginThrottle` delays an address that fails, longer with each failure. Valid tokens, and passwords that were verified
before, are never delayed.

`LoginQueue` verifies one password at a time, because a verification takes a fifth of a second of a core. Addresses that
have logged in before go first: wrong passwords from other addresses delay only addresses that never logged in.
"""

from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio
from cachetools import LRUCache

from tsd.auth.log_limit import MAX_TRACKED_PREFIXES, LogLimit
from tsd.auth.networks import client_prefix
from tsd.errors import TsdError
from tsd.lazy import LazyLogger

log = LazyLogger(__name__)


MIN_DELAY_S, MAX_DELAY_S = 0.1, 5.0  # of the reply to a failed login; doubles with each failure
FORGET_FAILURE_S = 60.0  # time after which one failure no longer counts
MAX_WAIT_S = 10.0  # an address that would wait longer is refused


class TooManyAttempts(TsdError):
    """Too many logins of an address failed, or too many wait for verification."""


class _Failures:
    """Failed logins of one address."""

    __slots__ = ("at", "count", "next_at")

    def __init__(self) -> None:
        self.count = 0.0  # decays with time
        self.at = 0.0
        self.next_at = -float("inf")  # when the address's next password may be verified


class LoginThrottle:
    """Delays the logins of addresses that fail."""

    def __init__(self, prefix: int, *, max_tracked: int = MAX_TRACKED_PREFIXES) -> None:
        """`prefix`: bits of an IPv6 address that identify one client. Failures of `max_tracked` clients are counted."""
        self._prefix = prefix
        self._by_prefix: LRUCache[str, _Failures] = LRUCache(max_tracked)
        self._failed, self._unauthorized = LogLimit(prefix, max_tracked), LogLimit(prefix, max_tracked)

    async def wait(self, address: str) -> None:
        """Wait until a password of this address may be verified. Raise TooManyAttempts."""
        failures = self._by_prefix.get(client_prefix(address, self._prefix))
        if failures is None:
            return
        now = trio.current_time()
        begin = max(now, failures.next_at)
        if begin - now > MAX_WAIT_S:
            raise TooManyAttempts("too many failed logins from this address: wait and try again")
        failures.next_at = begin + _delay_s(self._decayed(failures, now))
        await trio.sleep_until(begin)

    async def record_failure(self, address: str, protocol: str, name: str, reason: str) -> None:
        """Count a failed login and delay its reply. Each failure has its own delay: they do not queue."""
        key = client_prefix(address, self._prefix)
        failures = self._by_prefix.setdefault(key, _Failures())
        now = trio.current_time()
        delay_s = _delay_s(self._decayed(failures, now))
        failures.count += 1
        if (unlogged := self._failed.unlogged(address)) is not None:
            log.warning("login.failed", address=address, protocol=protocol, name=name, reason=reason, unlogged=unlogged)
        await trio.sleep(delay_s)

    def log_unauthorized(self, address: str, protocol: str, account: str) -> None:
        """Log that a client may not send what it sent. It delays no login."""
        if (unlogged := self._unauthorized.unlogged(address)) is not None:
            log.warning(
                "client.unauthorized", address=address, protocol=protocol, account=account or None, unlogged=unlogged
            )

    def _decayed(self, failures: _Failures, now: float) -> float:
        """Return the number of failures after decay."""
        failures.count = max(0.0, failures.count - (now - failures.at) / FORGET_FAILURE_S)
        failures.at = now
        return failures.count


def _delay_s(failures: float) -> float:
    """Return the delay of the next failure.

    >>> [_delay_s(failures) for failures in (0, 1, 3, 1000)]
    [0.1, 0.2, 0.8, 5.0]
    """
    return float(min(MAX_DELAY_S, MIN_DELAY_S * 2 ** min(failures, 16)))


MAX_KNOWN_ADDRESSES = 4096  # that have logged in
MAX_WAITING = 16  # passwords of known addresses, and as many of others


class LoginQueue:
    """Verifies one password at a time, those of known addresses first."""

    def __init__(self, prefix: int, *, max_waiting: int = MAX_WAITING) -> None:
        """`prefix`: bits of an IPv6 address that identify one client. `max_waiting` is the length of either queue."""
        self._prefix = prefix
        self._max_waiting = max_waiting
        self._known_addresses: LRUCache[str, None] = LRUCache(MAX_KNOWN_ADDRESSES)
        self._known: deque[trio.Event] = deque()
        self._others: deque[trio.Event] = deque()
        self._busy = False

    def record_success(self, address: str) -> None:
        """Remember an address that has logged in."""
        self._known_addresses[client_prefix(address, self._prefix)] = None

    def has_succeeded(self, address: str) -> bool:
        """Return whether an address has logged in before."""
        return client_prefix(address, self._prefix) in self._known_addresses

    @asynccontextmanager
    async def slot(self, address: str) -> AsyncIterator[None]:
        """Wait for the only slot and hold it during the block. Raise TooManyAttempts if the queue is full."""
        queue = self._known if self.has_succeeded(address) else self._others
        if self._busy:
            await self._wait(queue)
        self._busy = True
        try:
            yield
        finally:
            self._busy = False
            self._wake_next()

    async def _wait(self, queue: deque[trio.Event]) -> None:
        if len(queue) >= self._max_waiting:
            raise TooManyAttempts("too many passwords wait for verification: try again")
        granted = trio.Event()
        queue.append(granted)
        try:
            await granted.wait()
        except trio.Cancelled:
            if granted.is_set():  # granted and cancelled in the same pass of the event loop
                self._busy = False
                self._wake_next()
            else:
                queue.remove(granted)
            raise

    def _wake_next(self) -> None:
        """Give the slot to the next waiter. The slot is busy from now on, even before that task runs."""
        for queue in (self._known, self._others):
            if queue:
                self._busy = True
                queue.popleft().set()
                return
