"""Which gateway a call goes to, and over which connection. Knows nothing of what is said there.

Calls are spread over the gateways that answer. One that does not is left alone for a while, longer each time, and then
asked by one call only, so that while all are gone callers hear so at once instead of waiting for a timeout each. It is
used by one event loop, and so has no locks; threads see leases only.

happybase.ConnectionPool is not used. It connects in its constructor, which makes a daemon fail that starts before its
gateway; after an error it connects again inside the handler, which hides the error behind the next one; it never looks
whether a connection that was idle is still there; and it knows one gateway.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Generic, NamedTuple, Protocol, TypeVar

from tsd.errors import StoreDown

FIRST_REST_S, LONGEST_REST_S = 0.5, 4.0  # of a gateway that failed; with the writer's own pause less than 10 s
IDLE_S = 30.0  # half of what the gateway allows (hbase.thrift.server.socket.read.timeout)

Address = tuple[str, int]


class NoAnswer(StoreDown):
    """A call got no usable answer from its gateway. Its connection must not be used again."""

    def __init__(self, why: str, *, sent: bool = True, timed_out: bool = False) -> None:
        super().__init__(why)
        self.sent = sent  # else it cannot have been done
        self.timed_out = timed_out


class Connection(Protocol):
    """What is leased."""

    def stale(self) -> bool:
        """Whether it cannot be used any more, as far as can be told without asking."""
        ...

    def close(self) -> None:
        """Give it up. It may be closed already."""
        ...


C = TypeVar("C", bound=Connection)


class Lease(Generic[C]):
    """One call's right to one connection: the one that is there, or else one that the call opens and leaves here."""

    def __init__(self, address: Address, connection: C | None, since: float) -> None:
        self.address = address
        self.connection = connection
        self.reused = connection is not None
        self.since = since


class _Idle(NamedTuple, Generic[C]):
    connection: C
    since: float


class _Gateway(Generic[C]):
    def __init__(self, address: Address) -> None:
        self.address = address
        self.leases = 0
        self.idle: list[_Idle[C]] = []  # the last one used is used next: the others may become too old
        self.failures = 0  # since it last answered
        self.failed_at = 0.0
        self.ask_at = 0.0  # not before, where it failed
        self.asked = False  # by one call, to see whether it is back
        self.why = ""

    def free(self, now: float) -> bool:
        """Whether a call may go there."""
        return not self.failures or (not self.asked and now >= self.ask_at)

    def take(self, now: float) -> C | None:
        """A connection that may be used, if there is one; those that may not are closed."""
        while self.idle:
            connection, since = self.idle.pop()
            if now - since < IDLE_S and not connection.stale():
                return connection
            connection.close()
        return None

    def drop_idle(self) -> None:
        """Close all connections that nobody uses."""
        while self.idle:
            self.idle.pop().connection.close()

    def answered(self) -> None:
        """Take note that it lives."""
        self.failures = 0

    def failed(self, lease: Lease[C], why: str, now: float) -> None:
        """Leave it alone for a while. Calls that fail together count once."""
        self.why = why
        self.drop_idle()
        if self.failures and lease.since <= self.failed_at:
            return
        rest = min(FIRST_REST_S * 2**self.failures, LONGEST_REST_S)
        self.failures = min(self.failures + 1, 10)
        self.failed_at = now
        self.ask_at = now + rest * random.uniform(0.5, 1)  # noqa: S311 - jitter, not a secret


class Gateways(Generic[C]):
    """The gateways of one store."""

    def __init__(self, addresses: Sequence[Address], now: Callable[[], float]) -> None:
        """`now` is a clock in seconds that does not go backwards."""
        assert addresses
        self._gateways: list[_Gateway[C]] = [_Gateway(address) for address in addresses]
        self._now = now
        self._closed = False
        self._turn = 0
        self.opened = 0  # connections

    @property
    def down(self) -> int:
        """How many did not answer when they were last asked."""
        return sum(gateway.failures > 0 for gateway in self._gateways)

    def __len__(self) -> int:
        return len(self._gateways)

    @contextmanager
    def lease(self, *, fresh: bool, near: Address | None = None) -> Iterator[Lease[C]]:
        """A connection for one call, to the gateway `near` if that can be asked, which is to be opened where there is
        none or `fresh` is wanted. It is kept for the next call unless the call raises. StoreDown where no gateway can
        be asked now."""
        now = self._now()
        gateway = self._choose(now, near)
        if fresh:
            gateway.drop_idle()  # where one was dead, so are the others: the gateway was started anew
        lease = Lease(gateway.address, gateway.take(now), now)
        gateway.leases += 1
        probe = gateway.failures > 0
        gateway.asked = gateway.asked or probe
        try:
            yield lease
        except BaseException as exc:
            if lease.connection is not None:
                lease.connection.close()
            if not isinstance(exc, NoAnswer):
                if lease.connection is not None and isinstance(exc, Exception):
                    gateway.answered()  # whatever it said
            elif not lease.reused or exc.timed_out:
                gateway.failed(lease, str(exc), self._now())
            raise
        else:
            assert lease.connection is not None
            gateway.answered()
            if self._closed:
                lease.connection.close()
            else:
                gateway.idle.append(_Idle(lease.connection, self._now()))
        finally:
            gateway.leases -= 1
            if probe:
                gateway.asked = False
            if lease.connection is not None and not lease.reused:
                self.opened += 1

    def _choose(self, now: float, near: Address | None) -> _Gateway[C]:
        """The one that is asked for, or else the gateway with the fewest calls; of several the one whose turn it is."""
        free = [gateway for gateway in self._gateways if gateway.free(now)]
        if not free or self._closed:
            whys = [f"{gateway.address[0]}:{gateway.address[1]}: {gateway.why}" for gateway in self._gateways]
            raise StoreDown("the store is closed" if self._closed else f"no gateway answers: {'; '.join(whys)}")
        for gateway in free:
            if gateway.address == near:
                return gateway
        self._turn += 1
        return min(free, key=lambda gateway: (gateway.leases, (self._gateways.index(gateway) - self._turn) % len(self)))

    def close(self) -> None:
        """Close every connection: idle ones now, others when they come back."""
        self._closed = True
        for gateway in self._gateways:
            gateway.drop_idle()
