"""The processes of the store's servers: stopped and continued (SIGSTOP, SIGCONT), or killed and started again.

While they are stopped, connections stay open and nothing answers. One round at a time stops or kills them.
"""

import ipaddress
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import trio

from tsd.errors import TsdError

PROC = Path("/proc")
JOIN_S = 20.0  # a round waits at most this long for others that share a kill
RESTART_S = 180.0  # of servers, at most
GONE_S = 30.0  # of a killed process, at most
POLL_S = 0.05
TAIL_BYTES = 1000  # of the output of a failed command
LISTEN = "0A"  # state of a socket in the kernel's list


class NotHere(TsdError):
    """Raised for a server that is no process of this machine that may be stopped."""


class NotRestarted(TsdError):
    """Raised for servers that do not accept connections again after a kill."""


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
        if folder.name.isdecimal() and not links.isdisjoint(_open_files(folder)):
            yield int(folder.name)


def _open_files(process: Path) -> Iterator[str]:
    """Yield what a process has open. Files may be closed meanwhile."""
    with suppress(OSError):
        for file in (process / "fd").iterdir():
            with suppress(OSError):
                yield os.readlink(file)


@contextmanager
def paused(addresses: Sequence[tuple[str, int]]) -> Iterator[None]:
    """Stop the servers at some addresses for the block. Raise NotHere."""
    pids = _others(addresses)
    try:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        yield
    finally:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def _others(addresses: Sequence[tuple[str, int]]) -> list[int]:
    pids = processes_of(addresses)
    if os.getpid() in pids:
        raise NotHere("got a server in this process, wanted one of another")
    return pids


class Servers:
    """The servers of a run, which its rounds share."""

    def __init__(self, addresses: Sequence[tuple[str, int]], restart: Sequence[str] = (), *, together: int = 1) -> None:
        """`restart` is the command that starts killed servers again. Without it their supervisor does.

        `together` concurrent rounds share a kill.
        """
        self._addresses = addresses
        self._restart = restart
        self._together = together
        self._waiting = 0  # rounds, for a kill
        self._joined = trio.lowlevel.ParkingLot()
        self._turn = trio.Lock()  # held while they are stopped or killed
        self._kills = 0
        self._failed: TsdError | None = None  # the last kill
        self._needed = 0
        self._no_longer_needed = trio.lowlevel.ParkingLot()

    @asynccontextmanager
    async def needed(self) -> AsyncIterator[None]:
        """Let no round kill the servers during the block."""
        async with self._turn:
            self._needed += 1
        try:
            yield
        finally:
            self._needed -= 1
            if not self._needed:
                self._no_longer_needed.unpark_all()

    @asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        """Stop the servers for the block, once no other round has stopped them. Raise NotHere."""
        async with self._turn:
            with paused(self._addresses):
                yield

    async def crash(self) -> bool:
        """Kill the servers once no round needs them, and return once they accept connections again.

        Rounds that ask within JOIN_S of each other share a kill: return whether this call was the one that killed.
        Raise NotHere, or NotRestarted, also for a shared kill.
        """
        before = self._kills
        self._waiting += 1
        try:
            with trio.move_on_after(JOIN_S):
                while self._waiting < self._together and self._kills == before:
                    await self._joined.park()
            self._joined.unpark_all()
            return await self._crash(before)
        finally:
            self._waiting -= 1

    async def _crash(self, before: int) -> bool:
        async with self._turn:
            while self._needed:
                await self._no_longer_needed.park()
            if self._kills > before:
                if self._failed is not None:
                    raise NotRestarted(str(self._failed))
                return False
            self._kills += 1
            self._failed = None
            try:
                await self._kill()
                await self._start()
            except TsdError as error:
                self._failed = error
                raise
            return True

    async def _kill(self) -> None:
        """Kill the processes and return once their sockets are closed: their ports are free then."""
        before = self._listening()
        for pid in _others(self._addresses):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with trio.move_on_after(GONE_S):
            while not before.isdisjoint(self._listening()):  # noqa: ASYNC110 - of other processes
                await trio.sleep(POLL_S)
            return
        raise NotRestarted(f"got sockets that listen {GONE_S:.0f} s after a kill, wanted none")

    def _listening(self) -> set[str]:
        return {inode for host, port in self._addresses for inode in _sockets(host, port)}

    async def _start(self) -> None:
        with trio.move_on_after(RESTART_S):
            if self._restart:
                await self._run_restart()
            for host, port in self._addresses:
                while not await _accepts_now(host, port):  # noqa: ASYNC110 - of another process
                    await trio.sleep(POLL_S)
            return
        shown = ", ".join(f"{host}:{port}" for host, port in self._addresses)
        raise NotRestarted(f"{shown} accept no connections {RESTART_S:.0f} s after a kill: give --restart a command")

    async def _run_restart(self) -> None:
        shown = " ".join(self._restart)
        try:
            with tempfile.TemporaryFile() as output:  # a started server may keep it open, unlike a pipe to read
                done = await trio.run_process(
                    self._restart,
                    check=False,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    stdin=b"",
                    start_new_session=True,  # an interrupt lets this round finish
                )
                output.seek(0)
                said = output.read()[-TAIL_BYTES:].decode(errors="replace").strip()
        except OSError as exc:
            raise NotRestarted(f"--restart {shown}: {exc}") from exc
        if done.returncode:
            raise NotRestarted(f"--restart {shown}: exit status {done.returncode}: {said}")


async def _accepts_now(host: str, port: int) -> bool:
    try:
        stream = await trio.open_tcp_stream(host, port)
    except OSError:
        return False
    await stream.aclose()
    return True
