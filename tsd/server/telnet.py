"""The telnet protocol of one connection: put lines, OpenTSDB's other commands, and `sync`.

Where unauthenticated clients have no role, every line before a login is an attempt to log in, as in OpenTSDB
(docs/compat/wire.md §8): `log_in`.
"""

import math
import re
from collections.abc import Awaitable, Callable, Sequence
from functools import cache
from typing import NamedTuple

import trio

from tsd.auth.authenticator import Authenticator
from tsd.auth.roles import COMMAND_PERMISSIONS, Role, is_permitted
from tsd.auth.throttle import TooManyAttempts
from tsd.config.settings import Mode
from tsd.errors import ILLEGAL_ARGUMENT, LINE_TOO_LONG, BadLine
from tsd.ingest.charset import Undecodable, legible
from tsd.ingest.dialect import Translation
from tsd.ingest.intake import Intake, Taken, unchanged
from tsd.ingest.lines import LineBuffer, TooLong
from tsd.lazy import LazyLogger
from tsd.server.multiplexer import SMALL_PACKET_BYTES, Multiplexer
from tsd.server.peer import Peer
from tsd.server.quiet_connections import QuietConnections, SendRate
from tsd.server.replies import ReplyBudget, ReplyQueue

log = LazyLogger(__name__)


SUCCESS, FAILURE = b"AUTH_SUCCESS\r\n", b"AUTH_FAIL\r\n"
MAX_LOGIN_ATTEMPTS = 5  # lines; then the connection is closed
LOGIN_TIMEOUT_S = 30  # from the first byte


async def try_login(line: bytes, authenticator: Authenticator, peer: Peer) -> bool:
    """Authenticate a peer by an `auth` line. Return whether it succeeded. Raise TooManyAttempts."""
    words = line.decode("utf-8", "replace").split()
    if words[:1] != ["auth"]:
        is_write = bool(words) and words[0] in _UNTRANSLATED_WRITES
        authenticator.count_refusal(peer.principal, peer.address, "telnet", is_write=is_write)
        return False
    session = await authenticator.authenticate_command(words[1:], peer.address)
    if session is None:
        return False
    peer.set_session(session)
    return True


async def log_in(
    stream: trio.abc.Stream,
    first: bytes,
    receive: Callable[[], Awaitable[bytes]],
    authenticator: Authenticator,
    peer: Peer,
    max_line: int,
) -> bytes | None:
    """Read lines until one authenticates the peer. Return the input after it; None if the connection must end."""
    attempts, unread = 0, first
    with trio.move_on_after(LOGIN_TIMEOUT_S):
        while attempts < MAX_LOGIN_ATTEMPTS:
            line, end, rest = unread.partition(b"\n")
            if not end:
                peer.report_partial_input(len(unread))
                if len(unread) > max_line or not (more := await receive()):
                    return None
                unread += more
                continue
            unread = rest
            attempts += 1
            try:
                succeeded = await try_login(line, authenticator, peer)
            except TooManyAttempts:
                break
            await stream.send_all(SUCCESS if succeeded else FAILURE)
            if succeeded:
                return unread
        else:
            return None
        await stream.send_all(FAILURE)
    return None


# Telnet negotiation before a line: options, subnegotiations, and commands such as interrupt.
_NEGOTIATION = re.compile(rb"(?:\xff[\xfb-\xfe].|\xff\xfa.*?\xff\xf0|\xff[\xf0-\xf9])*", re.DOTALL)
# A run of put lines, of rollups and histograms, or of metadata, or any other line without its LF. Short runs let other
# connections proceed.
_RUN = re.compile(
    rb"((?:put(?: [^\n]*+)?\n){1,1000}+)|((?:(?:rollup|histogram)(?: [^\n]*+)?\n){1,100}+)"
    rb"|((?:meta(?: [^\n]*+)?\n){1,100}+)|([^\n]*+)\n"
)
_RUN_WITH_TEXTS = re.compile(_RUN.pattern.replace(b"rollup|histogram", b"rollup|histogram|puts"))
LINES_PER_TURN = 250  # before other connections proceed
_COMMANDS = ("stats", "dropcaches", "version", "exit", "help", "put", "rollup", "histogram", "meta", "diediedie")
_TEXTS = "puts"  # only if the tables store texts; it needs the permission of `put`
_WRITES = ("put", "rollup", "histogram", "meta", _TEXTS)
_UNTRANSLATED_WRITES = (*_WRITES, "putm")  # KairosDB's dialect has `putm`
_READ_ONLY = ("stats", "version", "help")
LARGE_BLOCK_BYTES = 64 << 10  # takes about a millisecond without the compiled parser
SMALL_READS = 2  # consecutive small reads of valid put lines move a connection to the multiplexer
LINGER_S = 30  # for a client that has finished sending, to read its last replies


class DaemonCommands(NamedTuple):
    """The daemon's functions for commands that carry no points."""

    stats: Callable[[], Awaitable[bytes]]
    version: Callable[[], bytes]
    drop_caches: Callable[[], None]
    die: Callable[[], None]


class TelnetOptions(NamedTuple):
    """The commands and limits of this port."""

    mode: Mode
    diediedie: bool
    max_line: int
    reply_buffer: int
    timeout_s: float = math.inf  # for a client that sends commands to read replies
    translation: Translation | None = None  # of lines to put lines in ISO-8859-1
    has_entities: bool = False  # whether there are entities, for metadata


class TelnetStats:
    """Counts of all telnet connections."""

    def __init__(self) -> None:
        self.commands = 0  # lines, points among them
        self.truncated_lines = 0  # incomplete at the end of their connection
        self.summarized = 0  # refusals that were only summarized, because the client did not read

    def add_commands(self, count: int) -> None:
        """Count commands."""
        self.commands += count


class TelnetPort(NamedTuple):
    """What all telnet sessions of a port share. Without `multiplexer` and `quiet` each connection's own task reads its
    input."""

    intake: Intake
    commands: DaemonCommands
    options: TelnetOptions
    stats: TelnetStats
    reply_budget: ReplyBudget
    authenticator: Authenticator | None = None
    multiplexer: Multiplexer | None = None
    quiet: QuietConnections | None = None


class TelnetSession:
    """One connection, from its first bytes to its end. The multiplexer may read it (MultiplexedConnection), or
    QuietConnections."""

    def __init__(self, port: TelnetPort, stream: trio.abc.Stream, peer: Peer) -> None:
        intake, options = port.intake, port.options
        self._stream = stream
        self._multiplexer = port.multiplexer if isinstance(stream, trio.SocketStream) else None
        self._quiet = port.quiet if isinstance(stream, trio.SocketStream) else None
        self._authenticator = port.authenticator
        self._login_attempts = 0
        self.peer = peer
        self._intake = intake
        self._commands = port.commands
        self._options = options
        self._stats = port.stats
        self._replies = ReplyQueue(options.reply_buffer, port.reply_budget, intake.wait_synced, options.timeout_s)
        self.accepted = 0
        self.position = 0
        self._lines_in_turn = 0
        self._is_ending = False
        self._exits_daemon = False
        self._lines = LineBuffer(options.max_line)
        self.max_line = options.max_line
        self._translation = options.translation
        has_texts = self._translation is not None and self._translation.has_texts
        self._pattern = _RUN_WITH_TEXTS if has_texts else _RUN
        self._explain = unchanged if self._translation else legible
        self._small_reads = 0  # consecutive reads of few valid put lines, see SMALL_READS
        self._send_rate = SendRate()
        self._has_waited = False  # the client has sent `sync`, and waits for its answers
        self._update_roles()

    def _update_roles(self) -> None:
        """Compute the commands that the peer may use."""
        self._permitted = _permitted(self.peer.principal.roles)
        self._accepts_points = self._options.mode is not Mode.READ_ONLY and "put" in self._permitted

    async def run(self, first: bytes, receive: Callable[[], Awaitable[bytes]]) -> None:
        """Serve until the end of input, or a command that ends the connection.

        `first` is received input, `receive` returns more (b"" at the end).

        Raise SlowConsumer.
        """
        if (unread := await self._take_first(first, receive)) is None:
            return
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._replies.pump, self._stream)
                await self._read(unread, receive)
                self._replies.close()
                nursery.cancel_scope.deadline = trio.current_time() + LINGER_S
        finally:
            if self._exits_daemon:  # after the reply, because exiting closes all connections
                self._commands.die()

    async def _take_first(self, first: bytes, receive: Callable[[], Awaitable[bytes]]) -> bytes | None:
        """Ingest first lines that need neither a wait nor a reply: many clients send a few lines and close. Return the
        input that is not processed; None at its end."""
        if len(first) >= LARGE_BLOCK_BYTES or not self._may_read() or not self._lines.is_whole(first):
            return first
        self._small_reads += len(first) < SMALL_PACKET_BYTES
        rest = self._take_whole(first)
        self.peer.idle_since = None  # until its input is awaited
        if rest or self._replies.has_replies or not self._may_read():
            return rest
        del first, rest  # many connections wait
        data = await receive()
        self._send_rate.count(len(data))
        return data or None

    async def _read(self, first: bytes, receive: Callable[[], Awaitable[bytes]]) -> None:
        """Process input to its end."""
        lines = self._lines
        pieces = self._translated(lines.feed(first))
        line_since: float | None = None  # start of the incomplete line
        try:
            while True:
                if pieces or self._intake.backpressure.reasons or not lines.tail:
                    line_since = None  # processing time does not count against the client
                if not self._session_is_valid():
                    await self._replies.send(FAILURE)
                    return
                self._small_reads += 1
                while pieces and not self._is_ending:
                    await self._process(pieces.pop(0))
                if self._is_ending:
                    return
                await self.peer.throttle()
                await self._intake.backpressure.wait_open()
                if lines.tail and line_since is None:
                    line_since = trio.current_time()
                self.peer.line_since = line_since
                self.peer.report_partial_input(len(lines.tail))
                # No reference to processed input is kept while waiting, because many connections wait.
                data = await self._next_input(receive)
                self.peer.line_since = None
                if not data:
                    return
                self._send_rate.count(len(data))
                pieces = self._translated(lines.feed(data))
                del data
                # Complete lines do not count: the daemon delays them, not the client.
                self.peer.report_partial_input(len(lines.tail))
        finally:
            if lines.tail and not self._is_ending:
                self._stats.truncated_lines += 1

    async def _next_input(self, receive: Callable[[], Awaitable[bytes]]) -> bytes:
        """Return more input: received here, or read with other connections and not processed there."""
        is_small = self._accepts_points and self._small_reads >= SMALL_READS and self._lines.is_between
        if self._quiet is not None and self.is_quiet:
            data = await self._wait_in(self._quiet)
        elif self._multiplexer is not None and is_small:
            may_become_quiet = self._quiet is not None and not self._has_waited
            data = await self._wait_in(self._multiplexer, self._send_rate.left_s if may_become_quiet else math.inf)
        else:
            return await receive()
        if data is not None:
            return data
        await self.peer.throttle()
        await self._intake.backpressure.wait_open()
        return await receive()

    async def _wait_in(self, shared: Multiplexer | QuietConnections, most_s: float = math.inf) -> bytes | None:
        """Have a task that reads several connections read this one, for a time. Return what it has not processed; None:
        the connection's own task reads next."""
        assert isinstance(self._stream, trio.SocketStream)  # others are not shared
        data = None
        self.peer.idle_since = trio.current_time()
        with trio.move_on_after(most_s):
            data = await shared.add(self._stream, self)
        self.peer.idle_since = None
        return data

    @property
    def uses_fast_path(self) -> bool:
        """See MultiplexedConnection."""
        return self._accepts_points and self._small_reads > 0 and self.peer.session is None

    @property
    def is_readable(self) -> bool:
        """See MultiplexedConnection."""
        return self._small_reads > 0 and self._may_read()

    @property
    def is_quiet(self) -> bool:
        """See QuietConnection."""
        is_quiet = self._send_rate.is_low and not self._has_waited and self._lines.is_between
        return is_quiet and self._may_read()

    def _may_read(self) -> bool:
        if not self._accepts_points or not self._intake.backpressure.is_open:
            return False
        return not self.peer.client.debt_s and self._session_is_valid()

    def take(self, data: bytes) -> bytes:
        """See MultiplexedConnection."""
        self.peer.idle_since = trio.current_time()  # also if the connection's own task processes the rest
        self.peer.client.bytes += len(data)
        if len(data) >= SMALL_PACKET_BYTES or not self._lines.is_whole(data):
            self._small_reads = 0  # the connection's own task skips a long line
            return data
        return self._take_whole(data)

    def count_read(self, size: int) -> None:
        """See MultiplexedConnection."""
        self._send_rate.count_parts(size)

    def count_quiet(self, size: int) -> None:
        """See QuietConnection."""
        self._send_rate.count(size)

    def take_quiet(self, data: bytes) -> bytes:
        """See QuietConnection."""
        self.peer.idle_since = trio.current_time()  # as in `take`
        self.peer.client.bytes += len(data)
        return self._take_whole(data) if self._lines.is_whole(data) else data

    def _take_whole(self, data: bytes) -> bytes:
        """Ingest whole lines without a wait. Return the rest."""
        peer = self.peer
        if self._translation is not None and not self._translation.is_plain(data):
            return data
        taken = self._intake.try_take(data, peer, self._explain)
        if taken is None:
            return data
        return self._reply(taken)

    def _session_is_valid(self) -> bool:
        """Return whether the session, if there is one, has not been revoked."""
        session = self.peer.session
        return session is None or self._authenticator is None or self._authenticator.is_valid(session)

    def _translated(self, pieces: Sequence[bytes | TooLong]) -> list[bytes | TooLong | Undecodable]:
        """Return received input as put lines in ISO-8859-1, and other commands."""
        return [*pieces] if self._translation is None else self._translation.read(pieces)

    async def _process(self, piece: bytes | TooLong | Undecodable) -> None:
        if isinstance(piece, Undecodable):
            self._intake.refuse(piece.error, piece.line, self.peer)
            self._stats.commands += 1
            self._refuse(piece.command, piece.error)
        elif isinstance(piece, TooLong):
            error = BadLine(LINE_TOO_LONG, f"illegal argument: line too long: more than {piece.limit} bytes")
            has_point = piece.start.partition(b" ")[0].decode("latin-1") in _WRITES  # other lines may contain a secret
            self._intake.refuse(error, piece.start if has_point else b"", self.peer)
            self._stats.commands += 1
            self._refuse(b"put", error)
        elif not self._accepts_points:
            await self._process_lines(piece)
        else:
            if len(piece) >= SMALL_PACKET_BYTES:
                self._small_reads = 0
            if len(piece) >= LARGE_BLOCK_BYTES:
                await self.peer.take_turn()
                await self._intake.wait_drained()
            await self._process_lines(self._reply(await self._intake.take(piece, self.peer, self._explain)))

    async def _process_lines(self, block: bytes) -> None:
        """Process whole lines of all kinds, a few at a time: other connections proceed in between."""
        for run in self._pattern.finditer(block):
            puts, summaries, metadata, line = run.groups()
            if line is not None:
                await self._execute(line)
            elif not self._accepts_points or (metadata and not self._options.has_entities):
                for line in (puts or summaries or metadata).split(b"\n")[:-1]:
                    await self._execute(line)
            elif puts:
                await self._ingest_puts(puts)
            else:
                await self._ingest_summaries(summaries or metadata)
            if self._is_ending:
                return

    async def _ingest_puts(self, puts: bytes) -> None:
        """Ingest put lines, in as many steps as the intake needs."""
        while puts:
            await self._yield_after(puts.count(b"\n"))
            puts = self._reply(await self._intake.take(puts, self.peer, self._explain))

    async def _ingest_summaries(self, lines: bytes) -> None:
        """Ingest lines of rollups, histograms and texts, or of metadata."""
        while lines:
            await self._yield_after(LINES_PER_TURN)  # each costs as much as many put lines
            commands = [line.partition(b" ")[0] for line in lines.split(b"\n")]
            lines = self._reply(await self._intake.take_summaries(lines, self.peer, self._explain), commands)

    async def _yield_after(self, lines: int) -> None:
        """Let other connections proceed if these lines complete a turn."""
        self._small_reads = 0
        self._lines_in_turn += lines
        if self._lines_in_turn >= LINES_PER_TURN:
            self._lines_in_turn = 0
            await self.peer.take_turn()

    def _reply(self, taken: Taken, commands: Sequence[bytes] = ()) -> bytes:
        """Reply to the refused lines of a block. Return its rest. `commands`: one for each line; empty: all are put."""
        self.accepted += taken.accepted
        self._stats.commands += taken.accepted + len(taken.rejects)
        self.position = taken.position
        for reject in taken.rejects:
            self._refuse(commands[reject.line] if commands else b"put", reject.error)
        return taken.rest

    def _refuse(self, command: bytes, error: BadLine) -> None:
        self._small_reads = 0
        self._send_rate.restart()
        if not self._replies.refuse(command, error):
            self._stats.summarized += 1

    async def _execute(self, line: bytes) -> None:
        """Execute a line that is not a plain put line."""
        self._send_rate.restart()
        await self._yield_after(1)
        bare = line
        if negotiation := _negotiation(line):
            bare = line[negotiation:]
            if not bare:
                return
            if bare.split(b" ", 1)[0] == b"put" and self._accepts_points:
                await self._ingest_bare(bare, self._ingest_puts)
                return
        self._stats.commands += 1
        self.peer.client.count_received(1)
        name = bare.split(b" ", 1)[0].decode("latin-1")
        is_sync = name == "sync" and self._options.mode is not Mode.READ_ONLY
        if name == "auth" and self._can_log_in():
            await self._log_in(bare)
        elif not is_sync and not self._has_command(name):
            await self._replies.send(f"unknown command: {name}.  Try `help'.\n".encode())
        elif name not in self._permitted:
            self._deny(name)
        elif is_sync:
            self._has_waited = True
            await self._replies.send_when_synced(self.position, b"synced %d\n" % self.accepted)
        elif name in _WRITES:  # a rollup, a histogram, a text or metadata after telnet negotiation
            self._stats.commands -= 1
            await self._ingest_bare(bare, self._ingest_summaries)
        else:
            await self._execute_command(name)

    async def _ingest_bare(self, line: bytes, ingest: Callable[[bytes], Awaitable[None]]) -> None:
        """Ingest a line that came after telnet negotiation, and was not translated."""
        for piece in self._translated([line + b"\n"]):
            if isinstance(piece, bytes):
                await ingest(piece)
            else:
                await self._process(piece)

    def _has_command(self, name: str) -> bool:
        """Return whether this port has a command."""
        options = self._options
        if name == _TEXTS and not (options.translation is not None and options.translation.has_texts):
            return False
        return (
            name in (*_COMMANDS, _TEXTS)
            and not (name in _WRITES and options.mode is Mode.READ_ONLY)
            and (name != "diediedie" or options.diediedie)
            and (name != "meta" or options.has_entities)
        )

    def _can_log_in(self) -> bool:
        return self._authenticator is not None and self._authenticator.enabled and self.peer.session is None

    async def _log_in(self, line: bytes) -> None:
        """Execute `auth` for a peer that has a role already."""
        assert self._authenticator is not None
        self._login_attempts += 1
        try:
            succeeded = await try_login(line, self._authenticator, self.peer)
        except TooManyAttempts:
            succeeded, self._is_ending = False, True
        self._is_ending |= not succeeded and self._login_attempts >= MAX_LOGIN_ATTEMPTS
        self._update_roles()
        await self._replies.send(SUCCESS if succeeded else FAILURE)

    def _deny(self, name: str) -> None:
        """Refuse a command that the peer may not use, in OpenTSDB's words."""
        if self._authenticator is not None:
            peer = self.peer
            self._authenticator.count_refusal(peer.principal, peer.address, "telnet", is_write=name in _WRITES)
        may_log_in = self._authenticator is not None and self._authenticator.enabled and not self.peer.principal.name
        text = f"illegal argument: {'Unauthenticated' if may_log_in else 'Unauthorized'} command: {name}"
        self._refuse(name.encode(), BadLine(ILLEGAL_ARGUMENT, text))

    def _audit(self, name: str) -> None:
        """Log an administrative command."""
        account = self.peer.account or None
        limit_key = f"admin.action {name} {account}"
        log.info("admin.action", _limit_key=limit_key, account=account, peer=self.peer.name, action=name)

    async def _execute_command(self, name: str) -> None:
        if self._replies.disconnected and name in _READ_ONLY:
            return  # a disconnected client may have sent megabytes of them
        await self._yield_after(LINES_PER_TURN)  # some cost as much as many lines
        match name:
            case "stats":
                await self._replies.send(await self._commands.stats())
            case "version":
                await self._replies.send(self._commands.version())
            case "help":
                names = " ".join(
                    name for name in (*_COMMANDS, _TEXTS) if name in self._permitted and self._has_command(name)
                )
                await self._replies.send(f"available commands: {names} \n".encode())
            case "dropcaches":
                self._audit(name)
                self._commands.drop_caches()
                await self._replies.send(b"Caches dropped.\n")
            case "exit":
                self._is_ending = True
            case "diediedie":
                self._audit(name)
                await self._replies.send(b"Cleaning up and exiting now.\n")
                self._is_ending = self._exits_daemon = True


@cache
def _permitted(roles: Role) -> Sequence[str]:
    """Return the commands that these roles may use."""
    found = [name for name, needed in COMMAND_PERMISSIONS.items() if is_permitted(roles, needed)]
    return (*found, _TEXTS) if "put" in found else tuple(found)


def _negotiation(line: bytes) -> int:
    """Return the size of the telnet negotiation at the start of a line. An incomplete subnegotiation does not count.

    >>> _negotiation(b"\\xff\\xfb\\x1fversion"), _negotiation(b"version"), _negotiation(b"\\xff\\xfa\\x1f")
    (3, 0, 0)
    """
    found = _NEGOTIATION.match(line)
    return found.end() if found else 0
