"""The port: accepts connections, finds out what each one speaks, and ends it when it must end."""

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

import structlog
import trio

log = structlog.get_logger(__name__)

RECEIVE_BYTES = 256 << 10
SWEEPS = 4  # looks for silent connections, in one timeout
CAPITALS = frozenset(range(ord("A"), ord("Z") + 1))

Receive = Callable[[], Awaitable[bytes]]
Protocol = Callable[[trio.abc.Stream, bytes, Receive], Awaitable[None]]


class Limits(NamedTuple):
    """Who is let in."""

    connections: int  # 0: no limit
    silence_s: int  # 0: no limit
    no_delay: bool
    keep_alive: bool


class Statistics(NamedTuple):
    """The port's numbers at a moment."""

    open: int
    total: int
    rejected: int
    reset: int
    silent: int
    failed: int


class _Visit:
    """One open connection."""

    def __init__(self, scope: trio.CancelScope) -> None:
        self.scope = scope
        self.heard = trio.current_time()
        self.silent = False


class Listener:
    """All connections of the port."""

    def __init__(self, telnet: Protocol, http: Protocol, limits: Limits) -> None:
        self._telnet = telnet
        self._http = http
        self._limits = limits
        self._visits: set[_Visit] = set()
        self._total = self._rejected = self._reset = self._silent = self._failed = 0

    async def serve(self, listeners: Sequence[trio.SocketListener]) -> None:
        """Serve until cancelled."""
        async with trio.open_nursery() as nursery:
            if self._limits.silence_s:
                nursery.start_soon(self._sweep)
            await trio.serve_listeners(self._visit, list(listeners))

    async def _visit(self, stream: trio.SocketStream) -> None:
        """One connection. Whatever goes wrong in it ends it, and nothing else."""
        self._total += 1
        if self._limits.connections and len(self._visits) >= self._limits.connections:
            self._rejected += 1
            await stream.aclose()
            return
        with trio.CancelScope() as scope:
            visit = _Visit(scope)
            self._visits.add(visit)
            try:
                await self._converse(stream, visit)
            except* (trio.BrokenResourceError, trio.ClosedResourceError):
                self._reset += 1
            except* Exception:
                self._failed += 1
                log.exception("connection ended by an error of ours", peer=_peer(stream))
            finally:
                self._visits.discard(visit)
                await trio.aclose_forcefully(stream)
        if visit.silent:
            self._silent += 1

    async def _converse(self, stream: trio.SocketStream, visit: _Visit) -> None:
        if self._limits.keep_alive:
            stream.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_KEEPALIVE, 1)
        if not self._limits.no_delay:  # trio's streams send at once unless told otherwise
            stream.setsockopt(trio.socket.IPPROTO_TCP, trio.socket.TCP_NODELAY, 0)

        async def receive() -> bytes:
            data = await stream.receive_some(RECEIVE_BYTES)
            visit.heard = trio.current_time()
            return bytes(data)

        first = await receive()
        if first:
            await (self._http if first[0] in CAPITALS else self._telnet)(stream, first, receive)

    async def _sweep(self) -> None:
        """End connections that were silent for too long."""
        while True:
            await trio.sleep(self._limits.silence_s / SWEEPS)
            latest = trio.current_time() - self._limits.silence_s
            for visit in [visit for visit in self._visits if visit.heard < latest]:
                visit.silent = True
                visit.scope.cancel()

    def statistics(self) -> Statistics:
        """The numbers of this moment."""
        return Statistics(len(self._visits), self._total, self._rejected, self._reset, self._silent, self._failed)


def _peer(stream: trio.SocketStream) -> str:
    try:
        return str(stream.socket.getpeername()[:2])
    except OSError:
        return "gone"
