"""The port: accepts connections, finds out what each one speaks, and ends it when it must end."""

import errno
import math
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import NamedTuple

import structlog
import trio

from tsd.access.certificates import names_in
from tsd.access.doorkeeper import Doorkeeper
from tsd.doors import descriptors
from tsd.doors.announced import NoHeader, read_announced
from tsd.doors.clients import Clients
from tsd.doors.crowd import Crowd
from tsd.doors.replies import Unread
from tsd.doors.signin import PATIENCE_S
from tsd.doors.tls import CAPITALS, Encrypted, Tls, say_goodbye
from tsd.doors.unfinished import Unfinished
from tsd.doors.visitor import Visitor, visitor_at, visitor_of

log = structlog.get_logger(__name__)

LEAST_BYTES, MOST_BYTES = 8 << 10, 256 << 10  # of one read: room that stays empty would tear the heap to pieces
SWEEPS = 4  # looks for silent connections, in one timeout
UNFINISHED_BYTES = 64 << 20  # unless it is told otherwise
PARTING_S = 2  # for a client that goes on sending, to hear what it was told last

Receive = Callable[[], Awaitable[bytes]]
Protocol = Callable[[trio.abc.Stream, bytes, Receive, Visitor], Awaitable[None]]


class Limits(NamedTuple):
    """Who is let in."""

    connections: int  # 0: what file descriptors there are, less a reserve, which bounds them in any case
    silence_s: int  # 0: no limit
    no_delay: bool
    keep_alive: bool
    line_s: int = 0  # how long a line may take to come; 0: no limit


class Statistics(NamedTuple):
    """The port's numbers at a moment."""

    open: int
    total: int
    rejected: int
    reset: int
    silent: int
    failed: int
    closed: int
    crowded: int  # one too many of their address
    slow: int  # took too long for a line
    unannounced: int = 0  # of balancers that did not say whose they are
    strangers: int = 0  # said nothing, where one must show who it is
    cut_off: int = 0  # held too much of what was not whole, for longest
    unfinished: int = 0  # bytes of that


class _Visit:
    """One open connection."""

    def __init__(self, stream: trio.SocketStream, scope: trio.CancelScope, visitor: Visitor) -> None:
        self.stream = stream
        self.scope = scope
        self.visitor = visitor
        self.silent = False
        self.slow = False
        self.is_awaited = False  # by who may do nothing: its first byte

    def cut_off(self) -> None:
        """See Holder."""
        log.warning("hung up on: others want the memory of what has begun and not ended", peer=self.visitor.peer)
        self.scope.cancel()


class Listener:
    """All connections of the port."""

    def __init__(
        self,
        telnet: Protocol,
        http: Protocol,
        limits: Limits,
        clients: Clients,
        tls: Tls | None = None,
        doorkeeper: Doorkeeper | None = None,
        crowd: Crowd | None = None,
        unfinished: Unfinished | None = None,
    ) -> None:
        """`crowd` is read while there are connections."""
        self._telnet = telnet
        self._http = http
        self._limits = limits
        self._clients = clients
        self._tls = tls
        self._doorkeeper = doorkeeper
        self._crowd = crowd
        self._unfinished = unfinished or Unfinished(UNFINISHED_BYTES)
        self._visits: set[_Visit] = set()
        self._arriving: set[trio.SocketStream] = set()  # of whom it is not known yet who they are
        self._accepting = trio.CancelScope()
        self.ended = trio.Event()
        self._total = self._rejected = self._closed = self._reset = self._silent = self._failed = 0
        self._crowded = self._slow = self._unannounced = self._strangers = 0

    async def serve(self, listeners: Sequence[trio.SocketListener]) -> None:
        """Serve until `drain` was called and the last connection has ended, or until cancelled."""
        async with trio.open_nursery() as reading:
            if self._crowd is not None:
                reading.start_soon(self._crowd.run)
            async with trio.open_nursery() as visits:
                with self._accepting:
                    async with trio.open_nursery() as doors:
                        if self._limits.silence_s or self._limits.line_s:
                            doors.start_soon(self._sweep)
                        await trio.serve_listeners(self._visit, list(listeners), handler_nursery=visits)
            reading.cancel_scope.cancel()
        self.ended.set()

    def drain(self) -> None:
        """Let no more in, and take of those who are in only what they have already sent: an agent that does not ask
        for `sync` believes it delivered. `ended` is set when all have gone."""
        self._accepting.cancel()
        self._clients.leave()
        for stream in (*self._arriving, *(visit.stream for visit in self._visits)):
            with suppress(OSError):  # the client was faster
                # Linux gives out what has come, and then says that there is no more, also to those who wait.
                stream.socket.shutdown(trio.socket.SHUT_RD)

    def look_again(self) -> None:
        """Lists of networks have changed: hang up on those who would not be let in now, or with other roles. They may
        come again."""
        for visit in self._visits:
            if (
                self._doorkeeper is not None
                and not visit.scope.cancel_called
                and not visit.visitor.may_stay(self._doorkeeper)
            ):
                log.info("hung up on, as networks are now configured", peer=visit.visitor.peer)
                visit.scope.cancel()

    async def _visit(self, stream: trio.SocketStream) -> None:
        """One connection. Whatever goes wrong in it ends it, and nothing else."""
        self._total += 1
        self._arriving.add(stream)
        try:
            visitor = await self._seen_in(stream)
            stays = visitor is not None and self._has_room(stream, visitor)
        except Exception:
            self._failed += 1
            log.exception("connection not let in by an error of ours")
            visitor, stays = None, False
        finally:
            self._arriving.remove(stream)
        if visitor is None or not stays:
            await trio.aclose_forcefully(stream)
            return
        visitor.arrive()
        with trio.CancelScope() as scope:
            visit = _Visit(stream, scope, visitor)
            self._visits.add(visit)
            visitor.holds = partial(self._unfinished.hold, visit)
            try:
                await self._converse(visit)
                await _part(stream)
            except* (trio.BrokenResourceError, trio.ClosedResourceError) as errors:
                if errors.subgroup(_is_of_a_closed_one) is None:
                    self._reset += 1
                else:
                    self._closed += 1
            except* Unread:
                visit.silent = True
            except* Exception:
                self._failed += 1
                log.exception("connection ended by an error of ours", peer=visit.visitor.peer)
            finally:
                visitor.leave()
                self._visits.discard(visit)
                visitor.hold_nothing()
                await trio.aclose_forcefully(stream)
        self._silent += visit.silent
        self._slow += visit.slow
        self._strangers += scope.cancelled_caught and visit.is_awaited and not visit.silent

    async def _seen_in(self, stream: trio.SocketStream) -> Visitor | None:
        """Who has connected; None where nobody is let in."""
        visitor, keeper = visitor_of(stream, self._clients), self._doorkeeper
        if keeper is None:
            return visitor
        if keeper.announces(visitor.address):
            try:
                found = await read_announced(stream.socket)
            except NoHeader as error:
                self._unannounced += 1
                log.warning("a balancer's connection without the PROXY protocol", peer=visitor.peer, got=str(error))
                return None
            except OSError:
                self._reset += 1
                return None
            peer_address = visitor.address
            if found is not None:
                visitor = visitor_at(*found, self._clients)
            visitor.peer_address, visitor.announced = peer_address, True
            if not keeper.announces(peer_address):
                return None  # not any more
        if not keeper.forwards(visitor.address) and not keeper.admits(visitor.address):
            return None
        visitor.principal = keeper.stranger(visitor.address)
        return visitor

    def _has_room(self, stream: trio.SocketStream, visitor: Visitor) -> bool:
        """Whether one more may stay, of all and of this client. A proxy has as many as it has clients."""
        client = visitor.at_address
        if not client.may_connect and not (self._doorkeeper and self._doorkeeper.forwards(visitor.address)):
            self._crowded += 1
            log.warning("a connection too many of one address was closed", address=client.name, open=client.connections)
        elif (self._limits.connections and len(self._visits) >= self._limits.connections) or (
            stream.socket.fileno() >= descriptors.for_connections()
        ):
            self._rejected += 1
            log.warning("a connection too many was closed", open=len(self._visits))
        else:
            return True
        client.connections_refused += 1
        return False

    async def _converse(self, visit: _Visit) -> None:
        stream = visit.stream
        if self._limits.keep_alive:
            stream.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_KEEPALIVE, 1)
        if not self._limits.no_delay:  # trio's streams send at once unless told otherwise
            stream.setsockopt(trio.socket.IPPROTO_TCP, trio.socket.TCP_NODELAY, 0)

        visit.visitor.silent_since = trio.current_time()
        if self._tls is not None:  # handshakes take turns, and the wait for one's turn is not the client's fault
            with self._awaiting(visit):
                await trio.lowlevel.wait_readable(stream.socket)
        opened = stream if self._tls is None else await self._tls.opened(stream)
        if opened is None:
            return
        if isinstance(opened, trio.SSLStream):
            self._note_certificate(visit.visitor, opened)
        await self._speak(visit, opened)
        if isinstance(opened, trio.SSLStream):
            await say_goodbye(opened)

    def _note_certificate(self, visitor: Visitor, stream: Encrypted) -> None:
        """Who somebody is by the certificate that it showed, if any."""
        visitor.secured = True
        if self._doorkeeper is None or not self._doorkeeper.enabled:
            return
        badge = self._doorkeeper.by_certificate(names_in(stream.getpeercert()), visitor.address)
        if badge is not None:
            visitor.show(badge)

    @contextmanager
    def _awaiting(self, visit: _Visit) -> Iterator[None]:
        """While something must come: who may do nothing until it has shown who it is has not for ever for that. A
        proxy's connection may be for later."""
        visitor, keeper = visit.visitor, self._doorkeeper
        if not visitor.principal.roles and not (keeper and keeper.forwards(visitor.address)):
            visit.is_awaited = True
            visit.scope.deadline = trio.current_time() + PATIENCE_S
        yield
        visit.is_awaited = False
        visit.scope.deadline = math.inf

    async def _speak(self, visit: _Visit, stream: trio.SocketStream | Encrypted) -> None:
        """Find out what a client speaks, and speak it to the end."""
        room, visitor = LEAST_BYTES, visit.visitor

        async def receive() -> bytes:
            nonlocal room
            visitor.silent_since = trio.current_time()
            data = await stream.receive_some(room)
            visitor.silent_since = None
            visitor.client.bytes += len(data)
            if len(data) == room:
                room = min(2 * room, MOST_BYTES)
            elif len(data) < room // 4:
                room = max(room // 2, LEAST_BYTES)
            return bytes(data)

        with self._awaiting(visit):
            first = await receive()
        if first and first[0] in CAPITALS:
            await self._http(stream, first, receive, visitor)
        elif first and (self._doorkeeper is None or self._doorkeeper.admits(visitor.address)):  # as a proxy it was
            await self._telnet(stream, first, receive, visitor)

    async def _sweep(self) -> None:
        """End connections that were silent for too long, or in a line for too long. Those that we do not read from are
        not to blame for it."""
        limits = self._limits
        while True:
            await trio.sleep(min(filter(None, (limits.silence_s, limits.line_s))) / SWEEPS)
            now_s = trio.current_time()
            silent_since = now_s - (limits.silence_s or math.inf)
            line_since = now_s - (limits.line_s or math.inf)
            for visit in self._visits:
                visitor = visit.visitor
                if visitor.silent_since is not None and visitor.silent_since < silent_since:
                    visit.silent = True
                elif visitor.line_since is not None and visitor.line_since < line_since:
                    visit.slow = True
                else:
                    continue
                visit.scope.cancel()

    def statistics(self) -> Statistics:
        """The numbers of this moment."""
        return Statistics(
            len(self._visits),
            self._total,
            self._rejected + self._crowded,
            self._reset,
            self._silent + self._slow + self._strangers,
            self._failed,
            self._closed,
            self._crowded,
            self._slow,
            self._unannounced,
            self._strangers,
            self._unfinished.cut,
            self._unfinished.used,
        )


async def _part(stream: trio.SocketStream) -> None:
    """Hang up so that the client hears all it was told: to close on bytes that it has sent and nobody has read would
    have its kernel throw that away."""
    with trio.move_on_after(PARTING_S):
        await stream.send_eof()
        while await stream.receive_some(MOST_BYTES):
            pass


def _is_of_a_closed_one(error: BaseException) -> bool:
    """Whether it was a reply that met a connection which the client had closed."""
    return isinstance(error.__cause__, OSError) and error.__cause__.errno in (errno.EPIPE, errno.ENOTCONN)
