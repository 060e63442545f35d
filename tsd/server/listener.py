"""The port: accept connections, detect their protocol, and end them.

`connection_descriptors` bounds connections by file descriptors: a reserve stays for the journal, the store and the
control socket. `PartialInputBudget` bounds the memory of incomplete lines and request heads of all connections.
"""

import errno
import math
import os
import resource
import select
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol

import trio

from tsd.auth.authenticator import Authenticator
from tsd.auth.credentials import certificate_names
from tsd.errors import TsdError
from tsd.lazy import LazyLogger
from tsd.server.clients import Clients
from tsd.server.multiplexer import Multiplexer
from tsd.server.paced_listener import PacedListener
from tsd.server.peer import Peer, peer_at, peer_of
from tsd.server.proxy_protocol import MissingProxyHeader, read_proxy_header
from tsd.server.quiet_connections import QuietConnections
from tsd.server.replies import SlowConsumer
from tsd.server.shared_waits import INTERVAL_S, SharedWaits
from tsd.server.telnet import LOGIN_TIMEOUT_S
from tsd.server.tls import CAPITALS, Encrypted, Tls, close_notify, release

log = LazyLogger(__name__)


MAX_DESCRIPTORS = 1 << 20  # requested if the hard limit is higher or unlimited
RESERVED_DESCRIPTORS = 600  # RocksDB keeps at most 512 files open
RESERVED_FRACTION = 4  # at most a quarter of a small limit is reserved
MIN_DESCRIPTORS = 100  # an idle daemon without connections has about 30 open


def prepare_descriptor_limit() -> None:
    """Raise the soft limit of open files to the hard limit. Raise TsdError if there is no room for connections."""
    _raise_descriptor_limit()
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit != resource.RLIM_INFINITY and limit < MIN_DESCRIPTORS:
        raise TsdError(
            f"got a limit of {limit} open files, wanted at least {MIN_DESCRIPTORS}, and one more for each connection: "
            "raise it with LimitNOFILE= or ulimit -n"
        )


def _raise_descriptor_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MAX_DESCRIPTORS)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError) as error:  # some containers forbid it
        log.warning("descriptor_limit.not_raised", limit=soft, wanted=wanted, error=str(error))
        return
    log.info("descriptor_limit.raised", before=soft, limit=wanted, for_connections=connection_descriptors())


def connection_descriptors() -> int:
    """Return the descriptor number below which connections are accepted.

    The kernel assigns the lowest free number, so the number of a new connection shows how many descriptors are in use.
    The limit is read each time: `prlimit` may change it while the daemon runs.
    """
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if soft == resource.RLIM_INFINITY:
        return MAX_DESCRIPTORS
    return soft - min(RESERVED_DESCRIPTORS, soft // RESERVED_FRACTION)


UNCOUNTED_BYTES = 4 << 10  # of each connection, because agents often leave a short incomplete line


class Disconnectable(Protocol):
    """A connection that a budget can end."""

    def disconnect(self) -> None:
        """End the connection."""


class PartialInputBudget:
    """Memory for incomplete input of all connections. Above the limit, it ends the connection with the oldest input."""

    def __init__(self, limit: int) -> None:
        """`limit`: bytes."""
        self._limit = limit
        self._sizes: dict[Disconnectable, int] = {}  # oldest first
        self.used = 0
        self.disconnected = 0  # connections

    def set_size(self, connection: Disconnectable, size: int) -> None:
        """Count `size` bytes of incomplete input of a connection; 0: none."""
        if size <= UNCOUNTED_BYTES:
            self.used -= self._sizes.pop(connection, 0)
            return
        self.used += size - self._sizes.get(connection, 0)
        self._sizes[connection] = size
        while self.used > self._limit:
            oldest = next(iter(self._sizes))
            self.used -= self._sizes.pop(oldest)
            self.disconnected += 1
            oldest.disconnect()


READ_BYTES = 256 << 10  # of one read of a socket: agents send the points of a round at once
RECORD_BYTES = 16 << 10  # of one read with TLS: a record has no more
PROMPT_READS = 2  # of a new connection that do not wait first: most clients send at once, and some then close
QUERY_PAUSE_S = 60  # after this time without a query, new connections are expected to be of agents, which may wait
CHECKS_PER_TIMEOUT = 4  # of idle connections
LAST_ACCEPTS_S = 1  # at a stop, for connections that wait: a busy event loop takes long to accept them
LINGER_S = 2  # for a client that is still sending to receive its last responses

Receive = Callable[[], Awaitable[bytes]]
Handler = Callable[[trio.abc.Stream, bytes, Receive, Peer], Awaitable[None]]


class ListenerLimits(NamedTuple):
    """Limits of connections."""

    connections: int  # 0: limited by file descriptors only
    idle_timeout_s: int  # 0: unlimited
    line_timeout_s: int = 0  # from a line's first byte to its last; 0: unlimited
    partial_input_bytes: int = 64 << 20  # see PartialInputBudget


@dataclass(frozen=True)
class AccessControl:
    """Clients and their permissions."""

    clients: Clients
    authenticator: Authenticator
    tls: Tls | None = None  # None: no TLS


class ListenerStatistics(NamedTuple):
    """A snapshot of the counts."""

    open: int
    total: int
    rejected: int
    reset: int
    timed_out: int
    failed: int
    closed: int
    over_address_limit: int  # too many connections of one address
    slow: int  # a line took too long
    missing_proxy_header: int = 0  # a balancer sent no PROXY header
    unauthenticated: int = 0  # nothing was sent where authentication is required
    over_partial_input_limit: int = 0
    partial_input_bytes: int = 0


class _OpenConnection:
    """One open connection."""

    def __init__(self, stream: trio.SocketStream, scope: trio.CancelScope, peer: Peer) -> None:
        self.stream = stream
        self.scope = scope
        self.peer = peer
        self.is_idle = False
        self.is_slow = False
        self.has_ended = False  # the client has sent everything, and it was read
        self.awaits_login = False  # the peer has no role and has sent nothing

    def disconnect(self) -> None:
        """See Disconnectable."""
        log.warning("connection.closed", reason="partial_input_limit", peer=self.peer.name)
        self.scope.cancel()


class Listener:
    """All connections of the port."""

    def __init__(
        self,
        telnet: Handler,
        http: Handler,
        limits: ListenerLimits,
        access: AccessControl,
        multiplexer: Multiplexer | None = None,
        quiet: QuietConnections | None = None,
    ) -> None:
        """`serve` runs `multiplexer` and `quiet` until the last connection has ended."""
        self._telnet = telnet
        self._http = http
        self._limits = limits
        self._clients, self._authenticator, self._tls = access.clients, access.authenticator, access.tls
        self._multiplexer = multiplexer
        self._quiet = quiet
        self._shared_waits = SharedWaits(INTERVAL_S)  # of patient peers
        self._paced: Sequence[PacedListener] = ()
        self._queried_s = -math.inf  # the last query
        self._partial_input = PartialInputBudget(limits.partial_input_bytes)
        self._buffer = memoryview(bytearray(READ_BYTES))  # of all reads: none waits in between
        self._connections: set[_OpenConnection] = set()
        self._arriving: set[trio.SocketStream] = set()  # not yet accepted
        self._accepting = trio.CancelScope()
        self._is_draining = False
        self.closed = trio.Event()
        self._total = self._rejected = self._closed = self._reset = self._idle = self._failed = 0
        self._over_address_limit = self._slow = self._missing_proxy_header = self._unauthenticated = 0

    async def serve(self, listeners: Sequence[trio.SocketListener]) -> None:
        """Serve until the last connection has ended after `drain`, or until cancelled."""
        async with trio.open_nursery() as reading:
            reading.start_soon(self._shared_waits.run)
            if self._multiplexer is not None:
                reading.start_soon(self._multiplexer.run)
            if self._quiet is not None:
                reading.start_soon(self._quiet.run)
            async with trio.open_nursery() as connections:
                with self._accepting:
                    async with trio.open_nursery() as accepting:
                        if self._limits.idle_timeout_s or self._limits.line_timeout_s:
                            accepting.start_soon(self._end_idle_connections)
                        self._paced = [
                            PacedListener(one, partial(_has_input, one.socket), self._may_rest) for one in listeners
                        ]
                        await trio.serve_listeners(self._serve_connection, self._paced, handler_nursery=connections)
            reading.cancel_scope.cancel()
        self.closed.set()

    def drain(self) -> None:
        """Accept no more connections, and process only what the open ones have already sent.

        An agent that does not use `sync` assumes that sent lines are delivered. `closed` is set when all connections
        have ended.
        """
        self._is_draining = True
        self._accepting.deadline = trio.current_time() + LAST_ACCEPTS_S
        self._end_accepting()
        self._clients.drain()
        for stream in (*self._arriving, *(connection.stream for connection in self._connections)):
            _end_input(stream)

    def _end_accepting(self) -> None:
        """Accept no more, unless connections wait: they may have sent everything."""
        if not any(one.has_waiting() for one in self._paced):
            self._accepting.cancel()

    async def read_quiet(self) -> None:
        """Read what quiet connections have sent."""
        if self._quiet is not None:
            await self._quiet.read_now()

    def _note_query(self) -> None:
        self._queried_s = trio.current_time()

    def _may_rest(self) -> bool:
        """Return whether new connections may wait for others: clients did not query lately."""
        return trio.current_time() - self._queried_s > QUERY_PAUSE_S

    def recheck_networks(self) -> None:
        """Close connections that the new lists of networks would refuse, or accept with other roles. Lines that a quiet
        one has sent before are read."""
        for connection in self._connections:
            if not connection.scope.cancel_called and not connection.peer.still_allowed(self._authenticator):
                log.info("connection.closed", reason="networks_changed", peer=connection.peer.name)
                if self._quiet is not None and self._quiet.reads(connection.stream):
                    _end_input(connection.stream)
                    connection.scope.deadline = trio.current_time() + LINGER_S
                else:
                    connection.scope.cancel()

    async def _serve_connection(self, stream: trio.SocketStream) -> None:
        """Serve one connection. An error ends only this connection."""
        self._total += 1
        if self._is_draining:
            _end_input(stream)
            self._end_accepting()
        self._arriving.add(stream)
        try:
            peer = await self._identify(stream)
            accepted = peer is not None and self._is_within_limits(stream, peer)
        except Exception:
            self._failed += 1
            log.exception("connection.accept_failed")
            peer, accepted = None, False
        finally:
            self._arriving.remove(stream)
        if peer is None or not accepted:
            stream.socket.close()
            return
        peer.register()
        with trio.CancelScope() as scope:
            connection = _OpenConnection(stream, scope, peer)
            self._connections.add(connection)
            peer.report_partial_input = partial(self._partial_input.set_size, connection)
            peer.report_query = self._note_query
            try:
                await self._serve(connection)
                if connection.has_ended:
                    _end_output(stream)
                else:
                    await _close_after_reading(stream)
            except* (trio.BrokenResourceError, trio.ClosedResourceError) as errors:
                if errors.subgroup(_is_closed_by_client) is None:
                    self._reset += 1
                else:
                    self._closed += 1
            except* SlowConsumer:
                connection.is_idle = True
            except* Exception:
                self._failed += 1
                log.exception("connection.failed", peer=connection.peer.name)
            finally:
                peer.unregister()
                self._connections.discard(connection)
                peer.clear_partial_input()
                stream.socket.close()
        self._idle += connection.is_idle
        self._slow += connection.is_slow
        self._unauthenticated += scope.cancelled_caught and connection.awaits_login and not connection.is_idle

    async def _identify(self, stream: trio.SocketStream) -> Peer | None:
        """Return the peer of a new connection; None if its address is not allowed."""
        peer, authenticator = peer_of(stream, self._clients), self._authenticator
        if authenticator.sends_proxy_header(peer.address):
            try:
                found = await read_proxy_header(stream.socket)
            except MissingProxyHeader as error:
                self._missing_proxy_header += 1
                log.warning("connection.missing_proxy_header", peer=peer.name, error=str(error))
                return None
            except OSError:
                self._reset += 1
                return None
            socket_address = peer.address
            if found is not None:
                peer = peer_at(*found, self._clients)
            peer.socket_address, peer.used_proxy_protocol = socket_address, True
            if not authenticator.sends_proxy_header(socket_address):  # the lists have changed meanwhile
                return None
        if not authenticator.is_http_proxy(peer.address) and not authenticator.is_allowed(peer.address):
            return None
        peer.principal = authenticator.anonymous(peer.address)
        return peer

    def _is_within_limits(self, stream: trio.SocketStream, peer: Peer) -> bool:
        """Return whether one more connection is allowed, in total and for this client. Counts a refusal.

        An HTTP proxy may have any number, because it serves many clients.
        """
        client = peer.address_client
        if not client.may_connect and not self._is_http_proxy(peer):
            self._over_address_limit += 1
            log.warning("connection.over_address_limit", address=client.name, open=client.connections)
        elif (self._limits.connections and len(self._connections) >= self._limits.connections) or (
            stream.socket.fileno() >= connection_descriptors()
        ):
            self._rejected += 1
            log.warning("connection.over_limit", open=len(self._connections))
        else:
            return True
        client.connections_refused += 1
        return False

    def _is_http_proxy(self, peer: Peer) -> bool:
        return self._authenticator.is_http_proxy(peer.address)

    async def _serve(self, connection: _OpenConnection) -> None:
        stream = connection.stream
        stream.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_KEEPALIVE, 1)  # the kernel detects dead clients
        connection.peer.idle_since = trio.current_time()
        if self._tls is not None:  # before the handshake, which may wait for the limiter
            with self._login_timeout(connection):
                await trio.lowlevel.wait_readable(stream.socket)
            connection.peer.idle_since = None  # a handshake has its own time limit, which is extended for its waits
        accepted = stream if self._tls is None else await self._tls.accept(stream, connection.peer.address)
        if accepted is None:
            return
        if not isinstance(accepted, trio.SSLStream):
            await self._serve_protocol(connection, accepted)
            return
        try:
            self._authenticate_certificate(connection.peer, accepted)
            await self._serve_protocol(connection, accepted)
            await close_notify(accepted)
        finally:
            release(accepted)

    def _authenticate_certificate(self, peer: Peer, stream: Encrypted) -> None:
        """Authenticate a peer by its TLS certificate, if it has one."""
        peer.is_encrypted = True
        if not self._authenticator.enabled:
            return
        names = certificate_names(stream.getpeercert())
        session = self._authenticator.authenticate_certificate(names, peer.address)
        if session is not None:
            peer.set_session(session)

    @contextmanager
    def _login_timeout(self, connection: _OpenConnection) -> Iterator[None]:
        """Apply the pre-authentication timeout while waiting for input. Proxies may open connections early."""
        if not connection.peer.principal.roles and not self._is_http_proxy(connection.peer):
            connection.awaits_login = True
            connection.scope.deadline = trio.current_time() + LOGIN_TIMEOUT_S
        yield
        connection.awaits_login = False
        connection.scope.deadline = math.inf

    async def _serve_protocol(self, connection: _OpenConnection, stream: trio.SocketStream | Encrypted) -> None:
        """Detect the protocol by the first byte and serve it."""
        peer = connection.peer
        was_emptied = True  # the last read returned all that the socket had, or there was none
        prompt_reads = PROMPT_READS  # that are still to come
        now = trio.lowlevel.current_clock().current_time  # a third of what `trio.current_time` takes

        async def receive() -> bytes:
            nonlocal was_emptied, prompt_reads
            peer.idle_since = now()
            if not isinstance(stream, trio.SocketStream):
                data = bytes(await stream.receive_some(RECORD_BYTES))
            elif was_emptied:
                tries_first = peer.is_patient or prompt_reads > 0
                if peer.is_patient:
                    await self._shared_waits.wait_readable(stream)
                    peer.is_patient = False
                data = await receive_when_readable(stream, self._buffer, tries_first=tries_first)
                prompt_reads -= 1
            else:
                data = bytes(await stream.receive_some(READ_BYTES))
            peer.idle_since = None
            peer.unassigned_bytes += len(data)
            was_emptied = len(data) < READ_BYTES
            connection.has_ended = not data and stream is connection.stream
            return data

        with self._login_timeout(connection):
            first = await receive()
        if not first:
            return
        if first[0] in CAPITALS:
            await self._serve_http(stream, first, receive, peer)
        elif self._authenticator.is_allowed(peer.address):  # an HTTP proxy may not be allowed itself
            await self._serve_telnet(stream, first, receive, peer)

    async def _serve_telnet(self, stream: trio.abc.Stream, first: bytes, receive: Receive, peer: Peer) -> None:
        """Serve telnet. What was received counts at once."""

        async def receive_counted() -> bytes:
            data = await receive()
            peer.assign_bytes(peer)
            return data

        peer.assign_bytes(peer)
        await self._telnet(stream, first, receive_counted, peer)

    async def _serve_http(self, stream: trio.abc.Stream, first: bytes, receive: Receive, peer: Peer) -> None:
        """Serve HTTP. A client may ask for lines that it has sent on another connection."""

        async def receive_after_lines() -> bytes:
            data = await receive()
            if self._quiet is not None and len(self._quiet):
                await self._quiet.read_now()
            return data

        await self.read_quiet()
        await self._http(stream, first, receive_after_lines, peer)

    async def _end_idle_connections(self) -> None:
        """End connections that are idle or whose line takes too long. Throttled connections are not idle."""
        limits = self._limits
        while True:
            await trio.sleep(min(filter(None, (limits.idle_timeout_s, limits.line_timeout_s))) / CHECKS_PER_TIMEOUT)
            now_s = trio.current_time()
            idle_since = now_s - (limits.idle_timeout_s or math.inf)
            line_since = now_s - (limits.line_timeout_s or math.inf)
            for connection in self._connections:
                peer = connection.peer
                if peer.idle_since is not None and peer.idle_since < idle_since:
                    if _has_input(connection.stream.socket):  # it is read later (QuietConnections), or in a moment
                        continue
                    connection.is_idle = True
                elif peer.line_since is not None and peer.line_since < line_since:
                    connection.is_slow = True
                else:
                    continue
                connection.scope.cancel()

    def statistics(self) -> ListenerStatistics:
        """Return a snapshot of the counts."""
        return ListenerStatistics(
            open=len(self._connections),
            total=self._total,
            rejected=self._rejected + self._over_address_limit,
            reset=self._reset,
            timed_out=self._idle + self._slow + self._unauthenticated,
            failed=self._failed,
            closed=self._closed,
            over_address_limit=self._over_address_limit,
            slow=self._slow,
            missing_proxy_header=self._missing_proxy_header,
            unauthenticated=self._unauthenticated,
            over_partial_input_limit=self._partial_input.disconnected,
            partial_input_bytes=self._partial_input.used,
        )


def _end_input(stream: trio.SocketStream) -> None:
    """End a socket's input after what was received: Linux returns that, and then the end, also to a waiting reader."""
    with suppress(OSError):  # the client has closed it
        stream.socket.shutdown(trio.socket.SHUT_RD)


def _has_input(socket: trio.socket.SocketType) -> bool:
    """Return whether a socket has unread input or connections to accept, or has reached its end."""
    if socket.fileno() < 0:
        return False
    poll = select.poll()
    poll.register(socket.fileno(), select.POLLIN)
    return bool(poll.poll(0))


async def receive_when_readable(stream: trio.SocketStream, buffer: memoryview, *, tries_first: bool = False) -> bytes:
    """Wait for input and return as much as fits into `buffer`, which streams may share; b"" at its end. Raise
    BrokenResourceError, ClosedResourceError.

    `receive_some` does the same, but tries to read first, as this does with `tries_first`. After a read that emptied
    the socket's buffer that fails, and costs a system call and an exception. It also allocates its largest result
    first.
    """
    if stream.socket.fileno() < 0:
        raise trio.ClosedResourceError("the connection was closed")
    try:
        if tries_first:
            with suppress(BlockingIOError):
                return bytes(buffer[: os.readv(stream.socket.fileno(), [buffer])])
        await trio.lowlevel.wait_readable(stream.socket)
        return bytes(buffer[: os.readv(stream.socket.fileno(), [buffer])])
    except BlockingIOError:  # the kernel dropped a damaged packet after it reported it
        return bytes(await stream.receive_some(len(buffer)))
    except OSError as error:
        raise trio.BrokenResourceError(f"read failed: {error.strerror}") from error


def _end_output(stream: trio.SocketStream) -> None:
    """End a connection whose input was read to its end. Raise BrokenResourceError if the client does not receive what
    was sent, as it has closed the connection."""
    try:
        stream.socket.shutdown(trio.socket.SHUT_WR)
    except OSError as error:
        raise trio.BrokenResourceError("the client has closed the connection") from error


async def _close_after_reading(stream: trio.SocketStream) -> None:
    """End a connection after its client has received everything.

    Closing a socket with unread input sends a reset, and the client's kernel may discard the responses.
    """
    with trio.move_on_after(LINGER_S):
        await stream.send_eof()
        while await stream.receive_some(READ_BYTES):
            pass


def _is_closed_by_client(error: BaseException) -> bool:
    """Return whether a send failed because the client had closed the connection."""
    return isinstance(error.__cause__, OSError) and error.__cause__.errno in (errno.EPIPE, errno.ENOTCONN)
