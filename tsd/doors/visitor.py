"""Who is at the other end of one connection."""

import trio

from tsd.access.roles import ANYBODY, EVERYTHING, Principal
from tsd.doors.clients import Client, Clients

HERE = "here"  # the address of what comes from this process
GONE = "gone"  # of who has left before it could be asked


class Visitor:
    """The other end of a connection, and who it has shown to be."""

    __slots__ = ("address", "client", "port", "principal", "secured")

    def __init__(
        self, address: str, port: int, client: Client, *, principal: Principal = ANYBODY, secured: bool = False
    ) -> None:
        self.address = address
        self.port = port
        self.client = client  # the account of its address
        self.principal = principal
        self.secured = secured  # by TLS

    @property
    def peer(self) -> str:
        """Address and port, as logs name it."""
        return f"{self.address}:{self.port}"


def here() -> Visitor:
    """A visitor from within this process, with all roles."""
    return Visitor(HERE, 0, Client(HERE), principal=EVERYTHING)


def visitor_of(stream: trio.abc.Stream, clients: Clients) -> Visitor:
    """Who is at the other end of a stream."""
    if not isinstance(stream, trio.SocketStream):
        return here()
    try:
        address, port, *_ = stream.socket.getpeername()
    except OSError:
        address, port = GONE, 0
    return Visitor(address, port, clients.of(address))
