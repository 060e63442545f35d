"""The peer of a connection: its address, its authenticated principal and its client."""

from collections.abc import Callable, Sequence

import trio

from tsd.auth.authenticator import Authenticator, Session
from tsd.auth.roles import ANONYMOUS, SUPERUSER, Principal, Role
from tsd.codec.names import Kind
from tsd.errors import BadLine
from tsd.ingest.limits import RefusedLine
from tsd.server.clients import Client, Clients

LOCAL = "local"  # address of a peer in this process
DISCONNECTED = "disconnected"  # address of a peer that disconnected before its address was read
_IPV4_MAPPED = "::ffff:"  # prefix of an IPv4 address on an IPv6 socket


class Peer:
    """The other end of a connection. It is the Origin of its lines."""

    __slots__ = (
        "_address_client", "_clients", "_connection_client", "_is_open", "_last_forwarded", "address", "idle_since",
        "is_encrypted", "is_patient", "last_credentials", "line_since", "port", "principal", "refused",
        "report_partial_input", "report_query", "session", "socket_address", "unassigned_bytes", "used_proxy_protocol",
    )  # fmt: skip

    def __init__(
        self,
        address: str,
        port: int,
        client: Client,
        *,
        principal: Principal = ANONYMOUS,
        is_encrypted: bool = False,
        clients: Clients | None = None,
        refused: list[RefusedLine] | None = None,
    ) -> None:
        """`client` is the client of the address, from `clients`. `refused`: see Origin."""
        self.address = address
        self.socket_address = address  # a balancer's, if a PROXY header named `address`
        self.used_proxy_protocol = False
        self.port = port
        self.principal = principal
        self.is_encrypted = is_encrypted
        self.refused = refused
        self.session: Session | None = None  # None: not authenticated
        # Of the last HTTP request, and the peer that they authenticate.
        self.last_credentials: tuple[str, Peer] | None = None
        self.line_since: float | None = None  # start of the incomplete line; None: there is none
        self.idle_since: float | None = None  # start of the wait for input; None: the daemon is processing
        self.is_patient = False  # its next input may wait for that of others, see SharedWaits
        self.report_partial_input: Callable[[int], None] = _ignore  # called with the bytes of incomplete input
        self.report_query: Callable[[], None] = _pass_over  # called for an HTTP request that reads
        self.unassigned_bytes = 0  # received for an HTTP request whose sender is not known yet
        self._address_client = client
        self._connection_client = client  # counts the connection in addition to the address's client
        self._is_open = False
        self._last_forwarded: Peer | None = None
        self._clients = clients

    def register(self) -> None:
        """Count the accepted connection with its clients."""
        self._is_open = True
        self._address_client.connections += 1
        self._address_client.connections_total += 1
        self._count_with(self.client)

    def unregister(self) -> None:
        """Stop counting the connection."""
        self.assign_bytes(self)
        self._count_with(self._address_client)
        self._is_open = False
        self._address_client.connections -= 1

    def assign_bytes(self, sender: "Peer") -> None:
        """Count what was received with the client of `sender`: the requests of a connection may have different ones."""
        if self.unassigned_bytes:
            sender.client.count_bytes(self.unassigned_bytes)
            self.unassigned_bytes = 0

    def set_session(self, session: Session) -> None:
        """Authenticate all further input of the connection."""
        self.session, self.principal = session, session.principal
        self._count_with(self.client)

    def _count_with(self, client: Client) -> None:
        """Count the connection with the client of the last authenticated account, too."""
        if not self._is_open or client is self._connection_client:
            return
        if self._connection_client is not self._address_client:
            self._connection_client.connections -= 1
        self._connection_client = client
        if client is not self._address_client:
            client.connections += 1
            client.connections_total += 1

    def authenticated_as(self, session: Session | None, principal: Principal) -> "Peer":
        """Return this peer with another principal: the requests of a connection may have different senders."""
        other = Peer(
            self.address,
            self.port,
            self._address_client,
            principal=principal,
            is_encrypted=self.is_encrypted,
            clients=self._clients,
            refused=self.refused,
        )
        other.session = session
        self._count_with(other.client)
        return other

    def behind_proxy(self, address: str, principal: Principal) -> "Peer":
        """Return the client whose request this proxy forwarded. The proxy's own credentials do not apply to it."""
        # The client may have been evicted meanwhile.
        client = self._address_client if self._clients is None else self._clients.at(address)
        last = self._last_forwarded
        if last is None or last.address != address or last.address_client is not client:
            last = Peer(address, 0, client, principal=principal, is_encrypted=self.is_encrypted, clients=self._clients)
            self._last_forwarded = last
        return last

    def still_allowed(self, authenticator: Authenticator) -> bool:
        """Return whether the current lists of networks would accept this connection, with the same roles.

        False for a proxy: the lists may decide differently for each client behind it, so it has to reconnect.
        """
        if self._last_forwarded is not None or authenticator.is_http_proxy(self.address):
            return False
        if authenticator.sends_proxy_header(self.socket_address) is not self.used_proxy_protocol:
            return False
        senders = [self] if self.last_credentials is None else [self, self.last_credentials[1]]
        return all(authenticator.still_allowed(self.address, one.principal, one.session) for one in senders)

    def clear_partial_input(self) -> None:
        """Report that no partial input is left: the connection has ended."""
        self.report_partial_input(0)
        self.report_partial_input = _ignore

    @property
    def name(self) -> str:
        """Return address and port, for logs."""
        return f"{self.address}:{self.port}"

    @property
    def account(self) -> str:
        """Return the name of the authenticated account; "" without one."""
        return self.principal.name

    @property
    def client(self) -> Client:
        """Return the client that counts the peer's lines: the account's at this address, or the address's."""
        if self.principal.name and self._clients is not None:
            return self._clients.of(self._address_client.address, self.principal.name)
        return self._address_client

    @property
    def address_client(self) -> Client:
        """Return the client of the address. It bounds the number of connections."""
        return self._address_client

    async def take_turn(self) -> None:
        """Wait for other connections of the same client.

        One connection of each client proceeds per pass of the event loop: more connections give it no larger share.
        """
        async with self.client.turn:
            pass

    async def throttle(self) -> None:
        """Wait until the client's quotas allow what it sent."""
        if self._clients is not None:
            await self.client.throttle(self._clients.draining)

    def check_name(self, kind: Kind, name: bytes) -> BadLine | None:
        """See Origin."""
        return self.client.check_name(kind, name)

    def count_name(self, kind: Kind, name: bytes) -> None:
        """See Origin."""
        client = self.client
        client.count_name(kind, name)
        if not self.principal.may(Role.ADMIN):
            client.pace_name()

    def count_series(self, count: int) -> None:
        """See Origin."""
        self.client.new_series += count

    def count_lines(self, accepted: int, refusals: Sequence[RefusedLine]) -> None:
        """See Origin."""
        self.client.count_lines(accepted, refusals, self.name if refusals else "")


def _pass_over() -> None:
    """See Peer.report_query."""


def _ignore(_size: int) -> None:
    pass


def local_peer(*, refused: list[RefusedLine] | None = None) -> Peer:
    """Return a peer in this process, with all roles. `refused`: see Origin."""
    return Peer(LOCAL, 0, Client(""), principal=SUPERUSER, refused=refused)


def peer_of(stream: trio.abc.Stream, clients: Clients) -> Peer:
    """Return the peer of a stream."""
    if not isinstance(stream, trio.SocketStream):
        return local_peer()
    try:
        address, port, *_ = stream.socket.getpeername()
    except OSError:
        address, port = DISCONNECTED, 0
    return peer_at(address, port, clients)


def peer_at(address: str, port: int, clients: Clients) -> Peer:
    """Return a peer at an address."""
    if address.startswith(_IPV4_MAPPED) and "." in address:
        address = address.removeprefix(_IPV4_MAPPED)
    return Peer(address, port, clients.at(address), clients=clients)
