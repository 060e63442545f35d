"""Connection pool for several Thrift gateways.

Calls are spread over the gateways that answer: each goes where it is likely to be answered first. That follows from
the calls that a gateway has, and from the time that it took for the last ones of the same kind. A slow gateway keeps
getting a few calls, so that its recovery is noticed. After a failure a gateway gets no calls during a backoff, and then
one call as a probe. While all gateways are down, other callers fail at once instead of each waiting for a timeout. The
pool belongs to one event loop and has no locks; threads use only leases.

happybase.ConnectionPool does not fit. It connects in its constructor, so that a daemon could not start before its
gateway. After an error it reconnects inside the handler, which hides the error behind the next one. It never checks an
idle connection, and it knows one gateway only.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Generic, NamedTuple, Protocol, TypeVar

from tsd.errors import StoreDown

Address = tuple[str, int]


class PoolTiming(NamedTuple):
    """Backoff after a failure of a gateway, which doubles with each, and the age at which idle connections expire."""

    first_backoff_s: float = 0.5
    longest_backoff_s: float = 2.0  # 6 s together with the writer's own backoff and a probe
    idle_s: float = 30.0  # half of the gateway's limit (hbase.thrift.server.socket.read.timeout)


TIMING = PoolTiming()
SIMILAR = 2.0  # gateways whose times differ by this factor at most are equal
NEWEST_SHARE = 0.5  # of the newest call in a gateway's recent time
SKIPPED_CALLS = 32  # of one kind; after them, an idle gateway that got none of them gets the next


class NoAnswer(StoreDown):
    """A call got no usable answer from its gateway. Its connection must not be used again."""

    def __init__(self, reason: str, *, sent: bool = True, timed_out: bool = False) -> None:
        """`sent`: the request was sent, so the gateway may have executed the call."""
        super().__init__(reason)
        self.sent = sent
        self.timed_out = timed_out


class PooledConnection(Protocol):
    """What the pool requires of a connection."""

    def stale(self) -> bool:
        """Return whether the connection is known to be unusable, without sending anything."""
        ...

    def close(self) -> None:
        """Close the connection. It may be closed already."""
        ...


C = TypeVar("C", bound=PooledConnection)


class Lease(Generic[C]):
    """Use of one connection by one call. If `connection` is None, the call opens one and sets it."""

    def __init__(self, address: Address, connection: C | None, since: float, *, probe: bool) -> None:
        """`probe`: the last call to this gateway failed."""
        self.address = address
        self.probe = probe
        self.connection = connection
        self.reused = connection is not None
        self.since = since


class _Idle(NamedTuple, Generic[C]):
    connection: C
    since: float


class _Gateway(Generic[C]):
    def __init__(self, address: Address, timing: "PoolTiming") -> None:
        self.address = address
        self.timing = timing
        self.leases = 0
        self.idle: list[_Idle[C]] = []  # a stack, so that surplus connections stay idle until they expire
        self.failures = 0  # consecutive
        self.failed_at = 0.0
        self.retry_at = 0.0  # end of the backoff
        self.probing = False  # a probe is running
        self.reason = ""  # of the last failure
        self.took_s: dict[str, float] = {}  # recent time of a call, by kind
        self.skipped: Counter[str] = Counter()  # calls that went to others since the last one, by kind

    def record(self, kind: str, took_s: float) -> None:
        """Record the time of a call."""
        before_s = self.took_s.get(kind, took_s)
        self.took_s[kind] = before_s + NEWEST_SHARE * (took_s - before_s)

    def available(self, now: float) -> bool:
        """Return whether a call may use this gateway."""
        return not self.failures or (not self.probing and now >= self.retry_at)

    def pop_idle(self, now: float) -> C | None:
        """Return a usable idle connection, if any, and close those that are not usable."""
        while self.idle:
            connection, since = self.idle.pop()
            if now - since < self.timing.idle_s and not connection.stale():
                return connection
            connection.close()
        return None

    def close_idle(self) -> None:
        """Close all idle connections."""
        while self.idle:
            self.idle.pop().connection.close()

    def mark_up(self) -> None:
        """Reset the backoff: the gateway answered."""
        self.failures = 0

    def mark_failed(self, lease: Lease[C], reason: str, now: float) -> None:
        """Start the backoff. Concurrent calls that fail count once."""
        self.reason = reason
        self.took_s.clear()
        self.close_idle()
        if self.failures and lease.since <= self.failed_at:
            return
        backoff_s = min(self.timing.first_backoff_s * 2**self.failures, self.timing.longest_backoff_s)
        self.failures = min(self.failures + 1, 10)
        self.failed_at = now
        self.retry_at = now + backoff_s * random.uniform(0.5, 1)  # noqa: S311 - jitter, not a secret


class ConnectionPool(Generic[C]):
    """The gateways of one store and their connections."""

    def __init__(self, addresses: Sequence[Address], now: Callable[[], float], *, timing: PoolTiming = TIMING) -> None:
        """`now` is a monotonic clock in seconds."""
        assert addresses
        self._gateways: list[_Gateway[C]] = [_Gateway(address, timing) for address in addresses]
        self._now = now
        self._closed = False
        self._calls = 0  # for round-robin
        self.opened = 0  # connections

    @property
    def down(self) -> int:
        """Number of gateways whose last call failed."""
        return sum(gateway.failures > 0 for gateway in self._gateways)

    def __len__(self) -> int:
        return len(self._gateways)

    @contextmanager
    def lease(self, *, fresh: bool, near: Address | None = None, kind: str = "") -> Iterator[Lease[C]]:
        """Lease a connection for one call, to the gateway `near` if that is available. `fresh` excludes idle
        connections. Calls of one `kind` take similar times. The connection returns to the pool unless the call raises.
        Raise StoreDown if no gateway is available."""
        now = self._now()
        gateway = self._choose(now, near, kind)
        if fresh:
            gateway.close_idle()  # one was closed by the gateway, so probably all: it was restarted
        probe = gateway.failures > 0
        lease = Lease(gateway.address, gateway.pop_idle(now), now, probe=probe)
        gateway.leases += 1
        gateway.probing = gateway.probing or probe
        try:
            yield lease
        except BaseException as exc:
            if (took_s := self._now() - now) > gateway.took_s.get(kind, 0.0):  # a quick error says nothing
                gateway.record(kind, took_s)
            if lease.connection is not None:
                lease.connection.close()
            if not isinstance(exc, NoAnswer):
                if lease.connection is not None and isinstance(exc, Exception):
                    gateway.mark_up()  # an error is an answer too
            elif not lease.reused or exc.timed_out:
                gateway.mark_failed(lease, str(exc), self._now())
            raise
        else:
            assert lease.connection is not None
            gateway.mark_up()
            gateway.record(kind, self._now() - now)
            if self._closed:
                lease.connection.close()
            else:
                gateway.idle.append(_Idle(lease.connection, self._now()))
        finally:
            gateway.leases -= 1
            if probe:
                gateway.probing = False
            if lease.connection is not None and not lease.reused:
                self.opened += 1

    def _choose(self, now: float, near: Address | None, kind: str) -> _Gateway[C]:
        """Return the gateway `near`, or else the one that probably answers first, round-robin among equals."""
        available = [gateway for gateway in self._gateways if gateway.available(now)]
        if not available or self._closed:
            reasons = [f"{gateway.address[0]}:{gateway.address[1]}: {gateway.reason}" for gateway in self._gateways]
            raise StoreDown("the store is closed" if self._closed else f"no gateway answers: {'; '.join(reasons)}")
        for gateway in available:
            if gateway.address == near:
                return gateway
        self._calls += 1
        usual_s = min((gateway.took_s[kind] for gateway in available if kind in gateway.took_s), default=0.0)

        def rank(gateway: _Gateway[C]) -> tuple[bool, float, int, int]:
            due = not gateway.leases and gateway.skipped[kind] >= SKIPPED_CALLS
            took_s = gateway.took_s.get(kind, usual_s)
            wait_s = (gateway.leases + 1) * (took_s if took_s > SIMILAR * usual_s else usual_s)
            return not due, wait_s, gateway.leases, (self._gateways.index(gateway) - self._calls) % len(self)

        chosen = min(available, key=rank)
        for gateway in available:
            gateway.skipped[kind] = 0 if gateway is chosen else gateway.skipped[kind] + 1
        return chosen

    def close(self) -> None:
        """Close every connection: idle ones now, leased ones when their calls end."""
        self._closed = True
        for gateway in self._gateways:
            gateway.close_idle()
