"""The port's sockets: handed over by systemd (sd_listen_fds(3)), or opened here.

Sockets that are handed over outlive the process: what connects while one daemon ends and the next one starts waits in
the kernel, and nobody is refused.
"""

import os
import socket
from collections.abc import Callable, MutableMapping
from typing import NamedTuple

import structlog
import trio

from tsd.errors import TsdError

log = structlog.get_logger(__name__)

FIRST_FD = 3  # of those that are handed over
_OURS = ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")


class Where(NamedTuple):
    """Where to listen, unless sockets are handed over."""

    bind: str
    port: int
    backlog: int
    reuse_port: bool  # others may listen there as well: the kernel shares connections out


async def listeners(where: Where, environ: MutableMapping[str, str] = os.environ) -> list[trio.SocketListener]:
    """The port's sockets, held from now on. Raises TsdError, in words, where they cannot be had."""
    sockets = inherited(environ)
    if sockets:
        log.info("sockets were handed over", addresses=" ".join(map(_address, sockets)))
        return [trio.SocketListener(trio.socket.from_stdlib_socket(one)) for one in sockets]
    try:
        return [trio.SocketListener(one) for one in await _opened(where)]
    except OSError as exc:
        raise TsdError(f"cannot listen on {where.bind}:{where.port}: {exc.strerror or exc}") from exc


def inherited(environ: MutableMapping[str, str], first: int = FIRST_FD) -> list[socket.socket]:
    """The listening sockets that this process was started with; none where they are meant for another. What says so in
    the environment is taken out: processes that this one starts have no such sockets. Raises TsdError."""
    pid, count, names = (environ.pop(name, "") for name in _OURS)
    if not pid.isdigit() or int(pid) != os.getpid() or not count.isdigit():
        return []
    labels = names.split(":") if names else []
    return [
        _checked(first + at, labels[at] if at < len(labels) else "unknown")  # systemd's own word for it
        for at in range(int(count))
    ]


def _checked(fd: int, name: str) -> socket.socket:
    """The socket behind a descriptor, if agents can connect to it."""
    os.set_inheritable(fd, False)
    try:
        found = socket.socket(fileno=fd)
        listens = found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    except OSError as exc:
        raise TsdError(f"descriptor {fd} ({name}) was handed over and is no socket: {exc.strerror}") from exc
    if found.family not in (socket.AF_INET, socket.AF_INET6) or found.type != socket.SOCK_STREAM or not listens:
        found.close()
        raise TsdError(
            f"descriptor {fd} ({name}) was handed over and is no TCP socket that listens: wanted ListenStream=PORT, "
            "and Accept=no"
        )
    found.setblocking(False)
    return found


def _address(one: socket.socket) -> str:
    host, port, *_ = one.getsockname()
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


async def _opened(where: Where) -> list[trio.socket.SocketType]:
    """Sockets for each address that the name stands for, all or none of them."""
    found = await trio.socket.getaddrinfo(
        where.bind or None, where.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    opened: list[trio.socket.SocketType] = []
    missing: OSError | None = None
    try:
        for family, kind, protocol, _, address in found:
            try:
                one = trio.socket.socket(family, kind, protocol)
            except OSError as exc:  # a machine without IPv6 resolves names to it all the same
                missing = exc
                continue
            opened.append(one)
            _prepare(one.setsockopt, family, where)
            await one.bind(address)
            one.listen(where.backlog)
    except OSError:
        for one in opened:
            one.close()
        raise
    if not opened and missing is not None:
        raise missing
    return opened


def _prepare(setsockopt: Callable[[int, int, int], None], family: int, where: Where) -> None:
    setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections of an earlier run may not be quite gone
    if family == socket.AF_INET6:
        setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)  # or it would take IPv4's port as well
    if where.reuse_port:
        setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
