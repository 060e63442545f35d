"""Telnet sessions for tests: over streams in memory, or a port of the test's own."""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import NamedTuple

import trio
from trio.testing import memory_stream_pair

from tests.running import Client, Running
from tsd.codec.putline import NameRules
from tsd.doors.replies import Budget
from tsd.doors.telnet import Powers, Rules, Tally, TelnetSession
from tsd.doors.visitor import Visitor, here
from tsd.ingest.intake import Intake
from tsd.settings import Mode

T = 1_500_000_000
GOOD = b"put m %d 1 a=b\n" % T
BAD = b"put m %d 1\n" % T
REFUSED = b"put: illegal argument: not enough arguments (need least 4, got 3)\n"
VERSION = b"net.opentsdb.tools 1 built at revision 1 (MINT)\nBuilt on a Monday\n"
TOO_LONG = b"put: illegal argument: line too long: more than 1024 bytes\n"
RULES = Rules(Mode.READ_WRITE, diediedie=True, max_line=1024, reply_buffer=4096, names=NameRules())


class Told(NamedTuple):
    """What a session came to."""

    replies: bytes
    tally: Tally
    deeds: list[str]


def session(
    stream: trio.abc.Stream, intake: Intake, rules: Rules = RULES, visitor: Visitor | None = None
) -> tuple[TelnetSession, Tally, list[str]]:
    """A session, its counts, and what it has the daemon do."""
    deeds: list[str] = []
    tally = Tally()

    async def stats() -> bytes:
        return b"tsd.stat 1 1\n"

    powers = Powers(stats, lambda: VERSION, lambda: deeds.append("drop"), lambda: deeds.append("die"))
    return TelnetSession(stream, intake, powers, rules, tally, Budget(1 << 30), visitor or here()), tally, deeds


async def tell(daemon: Running, pieces: Iterable[bytes], rules: Rules = RULES) -> Told:
    """Have a session of its own take these pieces and then the end of them."""
    ours, theirs = memory_stream_pair()
    talk, tally, deeds = session(ours, daemon.daemon.intake, rules)
    left = iter(pieces)

    async def receive() -> bytes:
        await trio.lowlevel.checkpoint()
        return next(left, b"")

    await talk.run(next(left), receive)
    await ours.aclose()
    replies = b""
    while data := await theirs.receive_some():
        replies += data
    return Told(replies, tally, deeds)


@asynccontextmanager
async def reluctant(daemon: Running) -> AsyncIterator[Client]:
    """A client whose kernel takes little before it is read."""
    connection = trio.socket.socket()
    connection.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_RCVBUF, 4096)
    await connection.connect(("127.0.0.1", daemon.port))
    async with trio.SocketStream(connection) as stream:
        yield Client(stream)
