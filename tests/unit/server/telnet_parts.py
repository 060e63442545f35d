"""Telnet sessions for tests: over memory streams or a port."""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import NamedTuple

import trio
from trio.testing import memory_stream_pair

from tests.running import Client, Running
from tsd.config.settings import Mode
from tsd.ingest.intake import Intake
from tsd.server.peer import Peer, local_peer
from tsd.server.replies import ReplyBudget
from tsd.server.telnet import DaemonCommands, TelnetOptions, TelnetPort, TelnetSession, TelnetStats

T = 1_500_000_000
GOOD = b"put m %d 1 a=b\n" % T
BAD = b"put m %d 1\n" % T
REFUSED = b"put: illegal argument: not enough arguments (need least 4, got 3)\n"
VERSION = b"net.opentsdb.tools 1 built at revision 1 (MINT)\nBuilt on a Monday\n"
TOO_LONG = b"put: illegal argument: line too long: more than 1024 bytes\n"
DEFAULT_OPTIONS = TelnetOptions(Mode.READ_WRITE, diediedie=True, max_line=1024, reply_buffer=4096)


class SessionResult(NamedTuple):
    """Replies, counts and daemon commands of a session."""

    replies: bytes
    stats: TelnetStats
    called: list[str]


def session(
    stream: trio.abc.Stream, intake: Intake, options: TelnetOptions = DEFAULT_OPTIONS, peer: Peer | None = None
) -> tuple[TelnetSession, TelnetStats, list[str]]:
    """Return a session, its counts, and the list of daemon commands that it will call."""
    called: list[str] = []
    stats = TelnetStats()

    async def stats_text() -> bytes:
        return b"tsd.stat 1 1\n"

    commands = DaemonCommands(stats_text, lambda: VERSION, lambda: called.append("drop"), lambda: called.append("die"))
    port = TelnetPort(intake, commands, options, stats, ReplyBudget(1 << 30))
    return TelnetSession(port, stream, peer or local_peer()), stats, called


async def run_session(
    daemon: Running, pieces: Iterable[bytes], options: TelnetOptions = DEFAULT_OPTIONS
) -> SessionResult:
    """Feed pieces to a new session, and then the end of input."""
    ours, theirs = memory_stream_pair()
    talk, stats, called = session(ours, daemon.daemon.ingest.intake, options)
    left = iter(pieces)

    async def receive() -> bytes:
        await trio.lowlevel.checkpoint()
        return next(left, b"")

    await talk.run(next(left), receive)
    await ours.aclose()
    replies = b""
    while data := await theirs.receive_some():
        replies += data
    return SessionResult(replies, stats, called)


@asynccontextmanager
async def reluctant(daemon: Running) -> AsyncIterator[Client]:
    """A client with a small receive buffer."""
    connection = trio.socket.socket()
    connection.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_RCVBUF, 4096)
    await connection.connect(("127.0.0.1", daemon.port))
    async with trio.SocketStream(connection) as stream:
        yield Client(stream)
