"""Who is at the other end of one connection."""

from collections.abc import Callable, Sequence

import trio

from tsd.access.doorkeeper import Badge, Doorkeeper
from tsd.access.roles import ANYBODY, EVERYTHING, Principal
from tsd.codec.uid import Kind
from tsd.doors.clients import Client, Clients
from tsd.errors import BadLine
from tsd.ingest.source import Refusal

HERE = "here"  # the address of what comes from this process
GONE = "gone"  # of who has left before it could be asked
_MAPPED = "::ffff:"  # before an IPv4 address that came in by a socket of IPv6


class Visitor:
    """The other end of a connection, and who it has shown to be. It is the Source of its lines."""

    __slots__ = (
        "_clients", "_counted", "_is_open", "_last_behind", "_own", "address", "announced", "badge", "holds",
        "keeps_refused", "line_since", "peer_address", "port", "principal", "secured", "shown", "silent_since",
    )  # fmt: skip

    def __init__(
        self,
        address: str,
        port: int,
        client: Client,
        *,
        principal: Principal = ANYBODY,
        secured: bool = False,
        clients: Clients | None = None,
        keeps_refused: bool = True,
    ) -> None:
        """`client` is that of its address, one of `clients`."""
        self.address = address
        self.peer_address = address  # of the connection: a balancer's, where that one has announced `address`
        self.announced = False  # whether it began as a balancer's does
        self.port = port
        self.principal = principal
        self.secured = secured  # by TLS
        self.keeps_refused = keeps_refused
        self.badge: Badge | None = None  # what it has shown; None: nothing
        self.shown: tuple[str, Visitor] | None = None  # what one of its requests carried last, and who that is
        self.line_since: float | None = None  # when the line began whose end it is waited for; None: no line
        self.silent_since: float | None = None  # since when it sends nothing; None: it is our turn, not the client's
        self.holds: Callable[[int], None] = _uncounted  # takes how many bytes it has sent of what is not whole yet
        self._own = client
        self._counted = client  # whose the connection is now, beside its address's
        self._is_open = False
        self._last_behind: Visitor | None = None
        self._clients = clients

    def arrive(self) -> None:
        """Its connection is let in, and counts with its address from now on."""
        self._is_open = True
        self._own.connections += 1
        self._own.connections_total += 1
        self._count_with(self.client)

    def leave(self) -> None:
        """Its connection ends."""
        self._count_with(self._own)
        self._is_open = False
        self._own.connections -= 1

    def show(self, badge: Badge) -> None:
        """It has shown who it is, for all that comes on its connection."""
        self.badge, self.principal = badge, badge.principal
        self._count_with(self.client)

    def _count_with(self, client: Client) -> None:
        """Have the connection count with an account at its address, too: with the one that was shown last."""
        if not self._is_open or client is self._counted:
            return
        if self._counted is not self._own:
            self._counted.connections -= 1
        self._counted = client
        if client is not self._own:
            client.connections += 1
            client.connections_total += 1

    def known_by(self, badge: Badge | None, principal: Principal) -> "Visitor":
        """The same end of the same connection, as somebody else: each request may come from another."""
        other = Visitor(
            self.address,
            self.port,
            self._own,
            principal=principal,
            secured=self.secured,
            clients=self._clients,
            keeps_refused=self.keeps_refused,
        )
        other.badge = badge
        self._count_with(other.client)
        return other

    def from_behind(self, address: str, principal: Principal) -> "Visitor":
        """Whose request this end sent on, as a proxy. What the proxy itself has shown is not theirs."""
        client = self._own if self._clients is None else self._clients.at(address)  # it may have been forgotten since
        last = self._last_behind
        if last is None or last.address != address or last.at_address is not client:
            last = Visitor(address, 0, client, principal=principal, secured=self.secured, clients=self._clients)
            self._last_behind = last
        return last

    def may_stay(self, doorkeeper: Doorkeeper) -> bool:
        """Whether the lists of networks, as they are now, say of this end what they said when it came. Of a proxy's
        they may say other things of each who is behind it: it may not, and comes again."""
        if self._last_behind is not None or doorkeeper.forwards(self.address):
            return False
        if doorkeeper.announces(self.peer_address) is not self.announced:
            return False
        known = [self] if self.shown is None else [self, self.shown[1]]
        return all(doorkeeper.may_stay(self.address, one.principal, one.badge) for one in known)

    def hold_nothing(self) -> None:
        """The connection has ended."""
        self.holds(0)
        self.holds = _uncounted

    @property
    def peer(self) -> str:
        """Address and port, as logs name it."""
        return f"{self.address}:{self.port}"

    @property
    def account(self) -> str:
        """The name it has shown to have; empty: none."""
        return self.principal.name

    @property
    def client(self) -> Client:
        """Whose its lines are: its address's, or, where it has shown an account, that account's at its address."""
        if self.principal.name and self._clients is not None:
            return self._clients.of(self._own.address, self.principal.name)
        return self._own

    @property
    def at_address(self) -> Client:
        """The client of its address, whoever it has shown to be: that one's connections are bounded."""
        return self._own

    async def turn(self) -> None:
        """Let others have their turn, and then wait for one's own: of all connections of a client one has it in a pass
        of the event loop, so that many of them get no more than others."""
        async with self.client.turn:
            pass

    async def rest(self) -> None:
        """Wait until its quotas have caught up with what it sent."""
        if self._clients is not None:
            await self.client.rest(self._clients.leaving)

    def why_no_name(self, kind: Kind, name: bytes) -> BadLine | None:
        """See Source."""
        return self.client.why_no_name(kind, name)

    def named(self, kind: Kind, name: bytes) -> None:
        """See Source."""
        self.client.named(kind, name)

    def met_series(self, count: int) -> None:
        """See Source."""
        self.client.new_series += count

    def took(self, accepted: int, refusals: Sequence[Refusal]) -> None:
        """See Source."""
        self.client.took(accepted, refusals, self.peer if refusals else "")


def _uncounted(_size: int) -> None:
    pass


def here(*, keeps_refused: bool = True) -> Visitor:
    """A visitor from within this process, with all roles."""
    return Visitor(HERE, 0, Client(""), principal=EVERYTHING, keeps_refused=keeps_refused)


def visitor_of(stream: trio.abc.Stream, clients: Clients) -> Visitor:
    """Who is at the other end of a stream."""
    if not isinstance(stream, trio.SocketStream):
        return here()
    try:
        address, port, *_ = stream.socket.getpeername()
    except OSError:
        address, port = GONE, 0
    return visitor_at(address, port, clients)


def visitor_at(address: str, port: int, clients: Clients) -> Visitor:
    """Who is at an address."""
    if address.startswith(_MAPPED) and "." in address:
        address = address.removeprefix(_MAPPED)
    return Visitor(address, port, clients.at(address), clients=clients)
