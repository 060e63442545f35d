"""Listening sockets: inherited from systemd (sd_listen_fds(3)) or opened here.

Inherited sockets survive a restart: new connections wait in the kernel until the next daemon accepts them.
"""

import os
import socket
from collections.abc import Callable, Iterable, MutableMapping
from ipaddress import ip_address
from typing import NamedTuple

import trio

from tsd.errors import TsdError
from tsd.lazy import LazyLogger

log = LazyLogger(__name__)

FIRST_FD = 3  # first inherited descriptor
_VARIABLES = ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")


class ListenAddress(NamedTuple):
    """The address to listen on if no sockets are inherited."""

    bind: str
    port: int
    backlog: int
    reuse_port: bool  # other processes may listen on the port too: the kernel balances connections


async def listeners(
    address: ListenAddress, environ: MutableMapping[str, str] = os.environ
) -> list[trio.SocketListener]:
    """Return the listening sockets. Raise TsdError if there are none."""
    sockets = inherited(environ)
    if sockets:
        log.info("sockets.inherited", addresses=" ".join(map(_address, sockets)))
        return [trio.SocketListener(trio.socket.from_stdlib_socket(one)) for one in sockets]
    try:
        return [trio.SocketListener(one) for one in await _open(address)]
    except (OSError, UnicodeError) as exc:  # UnicodeError: a label of a name is empty or too long
        reason = getattr(exc, "strerror", None) or exc
        raise TsdError(f"cannot listen on {address.bind}:{address.port}: {reason}") from exc


def inherited(environ: MutableMapping[str, str], first: int = FIRST_FD) -> list[socket.socket]:
    """Return the listening sockets inherited by this process; none if they are for another process. Removes the
    variables from the environment, because child processes inherit no sockets. Raise TsdError."""
    pid, count, names = (environ.pop(name, "") for name in _VARIABLES)
    if not pid.isdigit() or int(pid) != os.getpid() or not count.isdigit():
        return []
    labels = names.split(":") if names else []
    return [
        _checked(first + at, labels[at] if at < len(labels) else "unknown")  # systemd's default name
        for at in range(int(count))
    ]


def _checked(fd: int, name: str) -> socket.socket:
    """Return the socket of a descriptor. Raise TsdError if it is not a listening TCP socket."""
    os.set_inheritable(fd, False)
    try:
        found = socket.socket(fileno=fd)
        listens = found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    except OSError as exc:
        raise TsdError(f"inherited descriptor {fd} ({name}) is not a socket: {exc.strerror}") from exc
    if found.family not in (socket.AF_INET, socket.AF_INET6) or found.type != socket.SOCK_STREAM or not listens:
        found.close()
        raise TsdError(
            f"inherited descriptor {fd} ({name}) is not a listening TCP socket: wanted ListenStream=PORT and Accept=no"
        )
    found.setblocking(False)
    return found


def _address(one: socket.socket) -> str:
    host, port, *_ = one.getsockname()
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def are_local(listeners: Iterable[trio.SocketListener]) -> bool:
    """Return whether all addresses are loopback addresses: only this machine can connect."""
    return all(ip_address(one.socket.getsockname()[0].partition("%")[0]).is_loopback for one in listeners)


async def _open(address: ListenAddress) -> list[trio.socket.SocketType]:
    """Open a socket for each address that the name resolves to; if one fails, close all."""
    found = await trio.socket.getaddrinfo(
        address.bind or None, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    opened: list[trio.socket.SocketType] = []
    unsupported: OSError | None = None
    try:
        for family, kind, protocol, _, resolved in found:
            try:
                one = trio.socket.socket(family, kind, protocol)
            except OSError as exc:  # without IPv6 support names still resolve to IPv6 addresses
                unsupported = exc
                continue
            opened.append(one)
            _prepare(one.setsockopt, family, address)
            await one.bind(resolved)
            one.listen(address.backlog)
    except OSError:
        for one in opened:
            one.close()
        raise
    if not opened and unsupported is not None:
        raise unsupported
    return opened


def _prepare(setsockopt: Callable[[int, int, int], None], family: int, address: ListenAddress) -> None:
    setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections of an earlier process may still be closing
    if family == socket.AF_INET6:
        setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)  # otherwise it occupies the IPv4 port too
    if address.reuse_port:
        setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
