"""Stops the processes of the store's servers (SIGSTOP) and continues them: connections stay open, nothing answers."""

import ipaddress
import os
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from tsd.errors import TsdError

PROC = Path("/proc")
LISTEN = "0A"  # state of a socket in the kernel's list


class NotHere(TsdError):
    """Raised for a server that is no process of this machine that may be stopped."""


def processes_of(addresses: Sequence[tuple[str, int]]) -> list[int]:
    """Return the processes that listen at some addresses. Raise NotHere for an address without one.

    >>> with socket.create_server(("127.0.0.1", 0)) as server:
    ...     processes_of([server.getsockname()]) == [os.getpid()]
    True
    """
    found: dict[int, None] = {}
    for host, port in addresses:
        owners = list(_owners(set(_sockets(host, port))))
        if not owners:
            raise NotHere(
                f"got the server {host}:{port}, wanted one whose process runs on this machine and belongs to this user"
            )
        found.update(dict.fromkeys(owners))
    return list(found)


def _sockets(host: str, port: int) -> Iterator[str]:
    """Yield the inodes of this machine's sockets that listen at an address."""
    wanted = {info[4][0] for info in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)}
    for name in ("tcp", "tcp6"):
        for line in (PROC / "net" / name).read_text().splitlines()[1:]:
            words = line.split()
            address, _, bound = words[1].partition(":")
            if words[3] == LISTEN and int(bound, 16) == port and _accepts(address, wanted):
                yield words[9]


def _accepts(address: str, wanted: set[str | int]) -> bool:
    """Return whether a socket that is bound to an address, in the kernel's form, accepts connections to some."""
    words = bytes.fromhex(address)
    if sys.byteorder == "little":
        words = b"".join(words[at : at + 4][::-1] for at in range(0, len(words), 4))
    bound = ipaddress.ip_address(words)
    mapped = bound.ipv4_mapped if isinstance(bound, ipaddress.IPv6Address) else None
    return bound.is_unspecified or not wanted.isdisjoint({str(bound), str(mapped)})


def _owners(inodes: set[str]) -> Iterator[int]:
    """Yield the processes that have one of some sockets open, of those that this process may look into."""
    links = {f"socket:[{inode}]" for inode in inodes}
    for folder in PROC.iterdir():
        if folder.name.isdecimal():
            with suppress(OSError):
                if not links.isdisjoint(os.readlink(file) for file in (folder / "fd").iterdir()):
                    yield int(folder.name)


@contextmanager
def paused(addresses: Sequence[tuple[str, int]]) -> Iterator[None]:
    """Stop the servers at some addresses for the block. Raise NotHere."""
    pids = processes_of(addresses)
    if os.getpid() in pids:
        raise NotHere("got a server in this process, wanted one of another")
    try:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        yield
    finally:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
