"""Calls to several Thrift gateways, each on a connection of its own, in a worker thread or in steps.

trio waits for a thread even if its caller is cancelled, so a connection never returns to the pool in the middle of an
answer; the socket timeout bounds the wait. A call in steps runs in the event loop while its steps are short: to wake
threads takes longer than a small answer. If it is cancelled, its connection is closed.

Idempotent calls are retried: on a new connection if the old one was closed while idle, and after a backoff if HBase is
busy. The others go to another gateway only if sending failed.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import closing
from functools import partial
from itertools import chain, islice
from typing import Concatenate, Generic, ParamSpec, Protocol, TypeVar

import trio

from tsd.errors import StoreBusy, StoreDown, bare
from tsd.store.hbase.pool import Address, ConnectionPool, Lease, NoAnswer, PooledConnection
from tsd.store.hbase.thrift_codec import Steps, all_steps
from tsd.store.retry import backoff, run_bounded

CONCURRENT_PARTS = 4  # per call of the store
FIRST_BACKOFF_S, LONGEST_BACKOFF_S, RETRIES = 0.1, 2.0, 5  # while HBase is busy: 3 to 5 s in all


class GatewayConnection(PooledConnection, Protocol):
    """A connection whose methods are calls."""

    @property
    def requests(self) -> int:
        """Requests sent since it was opened."""
        ...

    @property
    def timeout_s(self) -> float:
        """The longest wait for each part of an answer."""
        ...

    def fileno(self) -> int:
        """Return the socket's file descriptor."""
        ...


T = TypeVar("T")
P = ParamSpec("P")
C = TypeVar("C", bound=GatewayConnection)
C_co = TypeVar("C_co", covariant=True)


class Connect(Protocol[C_co]):
    """Opens a connection to a gateway. `probe`: the last call to it failed. Raise NoAnswer."""

    def __call__(self, address: Address, /, *, probe: bool) -> C_co: ...


class GatewayCalls(Generic[C]):
    """Calls to the gateways of one kind, as many at once as there are connections."""

    def __init__(
        self,
        connect: Connect[C],
        gateways: Sequence[Address],
        connections: int,
        count: Counter[str],
        *,
        once: Collection[Callable[..., object]] = (),
    ) -> None:
        """`count` counts calls, requests, errors and retries. `once` are the methods that may not be repeated."""
        self._connect = connect
        self.pool: ConnectionPool[C] = ConnectionPool(gateways, trio.current_time)
        self._connections = connections
        self._once = once
        self._count = count
        self._slots = trio.Semaphore(connections, max_value=connections)
        self._threads = trio.CapacityLimiter(connections)  # as many threads as slots

    def close(self) -> None:
        """Close the connections."""
        self.pool.close()

    async def spread(
        self, method: Callable[..., T], parts: Iterable[tuple[object, ...]], *, limit: int = CONCURRENT_PARTS
    ) -> list[T]:
        """Call `method` for each of `parts`, up to `limit` at a time; return the answers in the order of the parts.
        Raise as `run_bounded` does."""
        return await self._spread(partial(self.call, method), parts, limit)

    async def spread_gets(self, method: Callable[..., Steps[T]], parts: Iterable[tuple[object, ...]]) -> list[T]:
        """Call a method that reads rows by their keys in steps for each of `parts`, see `spread`."""
        return await self._spread(partial(self.get, method), parts, CONCURRENT_PARTS)

    async def _spread(
        self, call_part: Callable[..., Awaitable[T]], parts: Iterable[tuple[object, ...]], limit: int
    ) -> list[T]:
        answers: dict[int, T] = {}

        async def call(numbered: tuple[int, tuple[object, ...]]) -> None:
            number, part = numbered
            answers[number] = await call_part(*part)

        limit = min(limit, self._connections)
        numbered = enumerate(parts)
        first = list(islice(numbered, limit))  # no tasks without a part: most calls have one part, and need none
        await run_bounded(first if len(first) < limit else chain(first, numbered), call, limit=limit)
        return [answers[number] for number in sorted(answers)]

    async def call(self, method: Callable[Concatenate[C, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return a gateway's answer. Raise StoreDown if a call that may not be repeated may have been executed."""
        return await self.call_near(None, method, *args, **kwargs)

    async def call_near(
        self, near: Address | None, method: Callable[Concatenate[C, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Return the answer of the gateway `near` if it is available, else of another one. Raise as `call` does."""

        async def run(lease: Lease[C]) -> T:
            return await self._in_thread(lease, lambda connection: method(connection, *args, **kwargs))

        return await self._retried(run, method.__name__, once=method in self._once, near=near)

    async def get(self, method: Callable[Concatenate[C, P], Steps[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return rows read by their keys in steps: in the event loop if the connection is open, until a step may be
        long. All forms of it count as one method."""

        async def run(lease: Lease[C]) -> T:
            connection = lease.connection
            if connection is None:
                return await self._in_thread(lease, lambda opened: all_steps(method(opened, *args, **kwargs)))
            steps = method(connection, *args, **kwargs)
            with closing(steps):
                try:
                    with trio.CancelScope() as scope:
                        while not next(steps):
                            scope.deadline = trio.current_time() + connection.timeout_s
                            await trio.lowlevel.wait_readable(connection)
                    if scope.cancelled_caught:
                        steps.throw(TimeoutError())
                except StopIteration as done:
                    found: T = done.value
                    return found
                return await self._in_thread(lease, lambda _: all_steps(steps))

        return await self._retried(run, "get", once=False, near=None)

    async def _retried(
        self, run: Callable[[Lease[C]], Awaitable[T]], name: str, *, once: bool, near: Address | None
    ) -> T:
        """Return what `run` returns for a leased connection. The call counts as `name`."""
        self._count[name] += 1
        for wait_s in backoff(FIRST_BACKOFF_S, LONGEST_BACKOFF_S, RETRIES):
            try:
                return await self._send(run, name, once=once, near=near)
            except StoreBusy as exc:
                self._count["errors"] += 1
                if once:
                    raise StoreDown(f"{name} may or may not have been executed: {exc}") from bare(exc)
            self._count["retries"] += 1
            await trio.sleep(wait_s)
        try:
            return await self._send(run, name, once=once, near=near)
        except StoreBusy:
            self._count["errors"] += 1
            raise

    async def _send(self, run: Callable[[Lease[C]], Awaitable[T]], name: str, *, once: bool, near: Address | None) -> T:
        """Try one gateway after the other until the call is sent. If a connection was closed while idle, send the call
        once more. Do not retry after a timeout: that would give a slow gateway more work."""
        fresh = False
        for _ in range(len(self.pool) + 1):
            try:
                async with self._slots:
                    with self.pool.lease(fresh=fresh, near=near, kind=name) as lease:
                        before = lease.connection.requests if lease.connection else 0
                        try:
                            return await run(lease)
                        finally:
                            self._count["requests"] += (lease.connection.requests if lease.connection else 0) - before
            except NoAnswer as exc:
                self._count["errors"] += 1
                lost = exc.with_traceback(None)  # breaks a reference cycle with this frame
                if exc.sent and (once or fresh or exc.timed_out or not lease.reused):
                    break
                fresh = fresh or exc.sent
                self._count["retries"] += 1
        raise StoreDown(str(lost)) from lost

    async def _in_thread(self, lease: Lease[C], call: Callable[[C], T]) -> T:
        """Execute a call on the leased connection in a thread."""
        return await trio.to_thread.run_sync(self._run, lease, call, limiter=self._threads)

    def _run(self, lease: Lease[C], call: Callable[[C], T]) -> T:
        if lease.connection is None:
            lease.connection = self._connect(lease.address, probe=lease.probe)
        return call(lease.connection)
