"""A daemon inside the test process, on a real port, with its store and state in the test's own folder."""

import fcntl
import struct
import termios
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import trio

from tests import layouts
from tests.layouts.wiring import readable_layout
from tsd.config.loader import Given, Loaded
from tsd.daemon.daemon import Daemon
from tsd.daemon.layouts import BuildTables, build_configured_tables
from tsd.daemon.lifecycle import serve
from tsd.daemon.settings import now_ms, read_config
from tsd.store.memory import MemoryStore

QUIET = {"tsd.log.level": "error", "tsd.journal.sync_interval": "1"}
OPEN = {"tsd.access.anonymous": "read,write,admin"}  # as in OpenTSDB: any client may do everything


class Client:
    """One telnet connection."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self.received = b""

    async def send(self, data: bytes) -> None:
        await self.stream.send_all(data)

    async def send_whole(self, data: bytes) -> None:
        """Send, and return once the daemon's kernel has all the data."""
        await self.send(data)
        while any(fcntl.ioctl(self.stream.socket.fileno(), termios.TIOCOUTQ, bytes(4))):
            await trio.lowlevel.checkpoint()

    def reset(self) -> None:
        """Reset the connection, as the kernel does for a killed process with unread replies."""
        self.stream.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.stream.socket.close()

    async def read_until(self, end: bytes) -> bytes:
        """Read up to and including `end`. Fail if the connection ends before."""
        while end not in self.received:
            data = await self.stream.receive_some()
            assert data, f"closed after {self.received!r}, wanted {end!r}"
            self.received += data
        text, _, self.received = self.received.partition(end)
        return text + end

    async def read_bytes(self, count: int) -> bytes:
        while len(self.received) < count:
            data = await self.stream.receive_some()
            assert data, f"closed after {self.received!r}, wanted {count} bytes"
            self.received += data
        text, self.received = self.received[:count], self.received[count:]
        return text

    async def read_to_end(self) -> bytes:
        while data := await self.stream.receive_some():
            self.received += data
        text, self.received = self.received, b""
        return text

    async def send_lines(self, lines: bytes) -> bytes:
        """Send whole lines and `sync`. Return everything up to its answer."""
        await self.send(lines + b"sync\n")
        return await self.read_until(b"synced ") + await self.read_until(b"\n")

    async def stats(self) -> dict[str, int]:
        """Return the reply of `stats` by name and own tag."""
        await self.send(b"stats\nnosuchcommand\n")
        text = await self.read_until(b"unknown command: nosuchcommand.  Try `help'.\n")
        found = {}
        for line in text.decode().splitlines()[:-1]:
            name, _, value, *tags = line.split(" ")
            own = (tag for tag in tags if not tag.startswith("host="))
            found[" ".join([name.removeprefix("tsd."), *own])] = int(value)
        return found


class Running:
    """A running daemon."""

    def __init__(self, daemon: Daemon, port: int, stop: trio.Event) -> None:
        self.daemon = daemon
        self.port = port
        self.stop = stop

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        async with await trio.open_tcp_stream("127.0.0.1", self.port) as stream:
            yield Client(stream)

    async def send_lines(self, lines: bytes) -> bytes:
        """Send lines over a new connection. Return the answers, including that of `sync`."""
        async with self.client() as client:
            return await client.send_lines(lines)


@asynccontextmanager
async def running(
    folder: Path,
    settings: dict[str, str] | None = None,
    *,
    access: dict[str, str] = OPEN,
    store: MemoryStore | None = None,
    build_tables: BuildTables = build_configured_tables,
) -> AsyncIterator[Running]:
    """Run a daemon with its state in `folder` until the block ends, then stop it as SIGTERM does. `access` has the
    settings of access control. The layout of `tests.layouts.readable` keeps its points in `store`."""
    given = {"tsd.network.port": "0", "tsd.storage.path": str(folder), **QUIET, **access, **(settings or {})}
    config, ignored = read_config(Given("test", key, value) for key, value in given.items())
    stop = trio.Event()
    ready = trio.Event()
    found: list[Running] = []

    def on_ready(daemon: Daemon, ports: Sequence[int]) -> None:
        found.append(Running(daemon, ports[0], stop))
        ready.set()

    async with trio.open_nursery() as nursery:
        loaded = Loaded(config, None, ignored)
        chosen = {"build_tables": build_tables}
        if layouts.is_readable():
            chosen = readable_layout(store or MemoryStore(now_ms))
        nursery.start_soon(partial(serve, **chosen), loaded, stop, on_ready)
        await ready.wait()
        try:
            yield found[0]
        finally:
            stop.set()
