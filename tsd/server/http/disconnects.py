"""Cancels queries whose clients disconnect, at no cost for the many queries that are answered within milliseconds."""

from collections.abc import Awaitable, Callable
from functools import partial

import trio

WATCH_AFTER_S = 0.05  # a query that takes longer is watched
PROBE_S = 1  # between probes of a client whose input has ended: it may have closed only its sending side
TCP_CLOSE = 7  # Linux's state of a connection that was reset


Watch = Callable[[], Awaitable[bool]]
"""Returns whether the client has disconnected, once that is known."""


class DisconnectWatch:
    """Watches the client of one connection while a long query runs. One task serves all queries of the connection.

    Between queries nothing of the connection is kept: the connection and this object would reference each other.
    """

    def __init__(self) -> None:
        self._nursery: trio.Nursery | None = None
        self._query: Watch | None = None  # of the query that runs
        self._begun = trio.Event()  # a query has begun since the task last waited
        self._is_started = False
        self._attempt = trio.CancelScope()  # the call of `watch`
        self._idle = trio.Event()  # `watch` is not running
        self._idle.set()

    async def run_with(self, serve: Callable[[], Awaitable[None]]) -> None:
        """Run `serve`, which calls `begin` and `end` for each query, until it ends or the client of a query has
        disconnected. Raise what it raises."""
        error: Exception | None = None
        async with trio.open_nursery() as self._nursery:
            try:
                await serve()
            except Exception as exc:  # noqa: BLE001 - raised below, not in a group
                error = exc
            self._nursery.cancel_scope.cancel()
        if error is not None:
            try:
                raise error
            finally:
                del error  # or the error and this frame would reference each other

    def begin(self, watch: Watch) -> None:
        """Watch the client until `end`."""
        assert self._nursery is not None
        if not self._is_started:
            self._is_started = True
            self._nursery.start_soon(self._run)
        self._query = partial(watch)  # a new object, which is compared below
        self._begun.set()

    async def end(self) -> None:
        """Stop watching. No task uses the connection's socket afterwards."""
        self._query = None
        if not self._idle.is_set():
            self._attempt.cancel()
            with trio.CancelScope(shield=True):
                await self._idle.wait()

    async def _run(self) -> None:
        while True:
            await self._begun.wait()
            self._begun = trio.Event()
            query = self._query
            await trio.sleep(WATCH_AFTER_S)
            if query is not None and query is self._query:
                await self._watch_query(query)

    async def _watch_query(self, watch: Watch) -> None:
        assert self._nursery is not None
        self._idle = trio.Event()
        try:
            with trio.CancelScope() as self._attempt:
                if await watch():
                    self._nursery.cancel_scope.cancel()
        finally:
            self._idle.set()


async def probe_until_reset(sock: trio.socket.SocketType, probe: Callable[[], Awaitable[None]]) -> None:
    """Return once the kernel of a client whose input has ended resets the connection. A process that has closed its
    socket answers any byte with a reset; one that has closed only its sending side ignores those that `probe` sends."""
    sock.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_KEEPALIVE, 1)
    sock.setsockopt(trio.socket.IPPROTO_TCP, trio.socket.TCP_KEEPIDLE, PROBE_S)
    sock.setsockopt(trio.socket.IPPROTO_TCP, trio.socket.TCP_KEEPINTVL, PROBE_S)
    state = 0
    while state != TCP_CLOSE:
        await probe()
        await trio.sleep(PROBE_S)
        state = sock.getsockopt(trio.socket.IPPROTO_TCP, trio.socket.TCP_INFO, 1)[0]
