"""The telnet protocol of one connection: put lines, and the commands around them (OpenTSDB's, and `sync`)."""

import math
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

import structlog
import trio

from tsd.access.doorkeeper import Doorkeeper
from tsd.access.guesses import TooManyTries
from tsd.access.needs import COMMANDS, suffices
from tsd.codec.putline import NameRules
from tsd.doors.crowd import Crowd
from tsd.doors.gather import FEW_BYTES
from tsd.doors.replies import Budget, Replies
from tsd.doors.signin import FAILURE, MOST_TRIES, SUCCESS, try_line
from tsd.doors.visitor import Visitor
from tsd.errors import ILLEGAL_ARGUMENT, LINE_TOO_LONG, BadLine
from tsd.ingest.intake import Intake, Taken
from tsd.ingest.lines import LineBuffer, TooLong
from tsd.settings import Mode

log = structlog.get_logger(__name__)

# Telnet's own bytes, as a client sends them before a line: options, subnegotiations, and commands such as interrupt.
_NEGOTIATION = re.compile(rb"(?:\xff[\xfb-\xfe].|\xff\xfa.*?\xff\xf0|\xff[\xf0-\xf9])*", re.DOTALL)
# Neighbouring put lines, at most so many as are taken in while others wait; or lines of rollups and histograms; or any
# other line, without its LF.
_RUN = re.compile(rb"((?:put(?: [^\n]*+)?\n){1,1000}+)|((?:(?:rollup|histogram)(?: [^\n]*+)?\n){1,100}+)|([^\n]*+)\n")
TURN_LINES = 250  # commands, or so, before others get their turn
_COMMANDS = ("stats", "dropcaches", "version", "exit", "help", "put", "rollup", "histogram", "diediedie")
_WRITES = ("put", "rollup", "histogram")
_TELLS = ("stats", "version", "help")  # and no more
FAT_BYTES = 64 << 10  # of a block: a millisecond or so where the loop over lines is not compiled
CALM_READS = 2  # of nothing but a few good put lines, and a connection stands in the crowd
LINGER_S = 30  # how long a client that is done sending may take to read its last replies


class Powers(NamedTuple):
    """What the daemon does for a connection beside taking lines."""

    stats: Callable[[], Awaitable[bytes]]
    version: Callable[[], bytes]
    drop_caches: Callable[[], None]
    die: Callable[[], None]


class Rules(NamedTuple):
    """What this port allows."""

    mode: Mode
    diediedie: bool
    max_line: int
    reply_buffer: int
    names: NameRules
    patience_s: float = math.inf  # with a client that sends commands and does not read


class Tally:
    """What telnet connections sent, all together."""

    def __init__(self) -> None:
        self.commands = 0
        self.accepted = 0  # data points
        self.cut_lines = 0  # their connection ended before they did
        self.summed_up = 0  # refusals told in one line with others, because the client did not read

    def took(self, accepted: int) -> None:
        """So many data points came."""
        self.accepted += accepted


class TelnetSession:
    """One connection, from its first bytes to its end."""

    def __init__(
        self,
        stream: trio.abc.Stream,
        intake: Intake,
        powers: Powers,
        rules: Rules,
        tally: Tally,
        budget: Budget,
        visitor: Visitor,
        doorkeeper: Doorkeeper | None = None,
        crowd: Crowd | None = None,
    ) -> None:
        """Without a `crowd` its own task reads whatever it sends."""
        self._stream = stream
        self._crowd = crowd if isinstance(stream, trio.SocketStream) else None
        self._doorkeeper = doorkeeper
        self._tries = 0
        self.visitor = visitor
        self._intake = intake
        self._powers = powers
        self._rules = rules
        self._tally = tally
        self._replies = Replies(rules.reply_buffer, budget, intake.synced, rules.patience_s)
        self.accepted = 0
        self.position = 0
        self._turn = 0
        self._over = False
        self._dying = False
        self._lines = LineBuffer(rules.max_line)
        self.longest = rules.max_line
        self._calm = 0  # reads in a row that brought nothing but good put lines
        self._names = [
            name
            for name in _COMMANDS
            if not (name in _WRITES and rules.mode is Mode.READ_ONLY) and (name != "diediedie" or rules.diediedie)
        ]
        self._look_at_roles()

    def _look_at_roles(self) -> None:
        """Find out what whoever is there may do now."""
        self._may = [name for name, need in COMMANDS.items() if suffices(self.visitor.principal.roles, need)]
        self._takes_points = self._rules.mode is not Mode.READ_ONLY and "put" in self._may

    async def run(self, first: bytes, receive: Callable[[], Awaitable[bytes]]) -> None:
        """Serve until the client ends. `first` are bytes already received, `receive` gets more (empty: no more).
        Raises Unread."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._replies.pump, self._stream)
                await self._read(first, receive)
                self._replies.close()
                nursery.cancel_scope.deadline = trio.current_time() + LINGER_S
        finally:
            if self._dying:  # once the reply is out: the daemon's end cuts every connection
                self._powers.die()

    async def _read(self, first: bytes, receive: Callable[[], Awaitable[bytes]]) -> None:
        """Take what the client sends, to its end."""
        lines = self._lines
        pieces = lines.feed(first)
        since: float | None = None  # when the line began that is not whole yet
        try:
            while True:
                if pieces or self._intake.gate.held or not lines.tail:
                    since = None  # time that we took is not counted
                if not self._still_holds():
                    await self._replies.say(FAILURE)
                    return
                self._calm += 1
                while pieces and not self._over:
                    await self._take(pieces.pop(0))
                if self._over:
                    return
                await self.visitor.rest()
                await self._intake.gate.passed()
                if lines.tail and since is None:
                    since = trio.current_time()
                self.visitor.line_since = since
                self.visitor.holds(len(lines.tail))
                # Nothing of what was taken is held while the client is waited for: many wait.
                data = await self._next(receive)
                self.visitor.line_since = None
                if not data:
                    return
                pieces = lines.feed(data)
                del data
                self.visitor.holds(len(lines.tail))  # what has come whole is held by us, for as long as we pause it
        finally:
            if lines.tail and not self._over:
                self._tally.cut_lines += 1

    async def _next(self, receive: Callable[[], Awaitable[bytes]]) -> bytes:
        """What is to be gone through next: what comes, or what the crowd's reader has left of it."""
        crowd, stream = self._crowd, self._stream
        calm = self._takes_points and self._calm >= CALM_READS and self._lines.is_between
        if calm and crowd is not None and isinstance(stream, trio.SocketStream):
            self.visitor.silent_since = trio.current_time()
            data = await crowd.stand(stream, self)
            self.visitor.silent_since = None
            if data is not None:
                return data
            await self.visitor.rest()
            await self._intake.gate.passed()
        return await receive()

    @property
    def at_ease(self) -> bool:
        """See Member."""
        return self._takes_points and self._calm > 0 and self.visitor.badge is None

    @property
    def may_be_read(self) -> bool:
        """See Member."""
        if not self._takes_points or not self._calm or not self._intake.gate.is_open:
            return False
        return not self.visitor.client.debt_s and self._still_holds()

    def take(self, data: bytes) -> bytes:
        """See Member."""
        visitor = self.visitor
        visitor.client.bytes += len(data)
        if len(data) >= FEW_BYTES or not self._lines.is_whole(data):
            self._calm = 0  # or a long line that is skipped would come through the crowd, packet by packet
            return data
        taken = self._intake.take_at_once(data, visitor)
        if taken is None:
            return data
        visitor.silent_since = trio.current_time()
        return self._answer(taken)

    def _still_holds(self) -> bool:
        """Whether what somebody has shown was not taken back since."""
        badge = self.visitor.badge
        return badge is None or self._doorkeeper is None or self._doorkeeper.holds(badge)

    async def _take(self, piece: bytes | TooLong) -> None:
        if isinstance(piece, TooLong):
            error = BadLine(LINE_TOO_LONG, f"illegal argument: line too long: more than {piece.limit} bytes")
            is_point = piece.start.partition(b" ")[0].decode("latin-1") in _WRITES  # what else it was may be a secret
            self._intake.refuse(error, piece.start if is_point else b"", self.visitor)
            self._refuse(b"put", error)
        elif not self._takes_points:
            await self._go_through(piece)
        else:
            if len(piece) >= FEW_BYTES:
                self._calm = 0
            if len(piece) >= FAT_BYTES:
                await self.visitor.turn()
                await self._intake.drained()
            await self._go_through(self._answer(await self._intake.take_in(piece, self.visitor)))

    async def _go_through(self, block: bytes) -> None:
        """Take whole lines that are not all put lines, a few at a time: other connections wait meanwhile."""
        for run in _RUN.finditer(block):
            puts, summaries, line = run.groups()
            if line is not None:
                await self._command(line)
            elif not self._takes_points:
                for line in (puts or summaries).split(b"\n")[:-1]:
                    await self._command(line)
            elif puts:
                await self._take_puts(puts)
            else:
                await self._take_summaries(summaries)
            if self._over:
                return

    async def _take_puts(self, puts: bytes) -> None:
        """Take put lines in, in as many steps as the intake wants."""
        while puts:
            await self._yield_after(puts.count(b"\n"))
            puts = self._answer(await self._intake.take_in(puts, self.visitor))

    async def _take_summaries(self, lines: bytes) -> None:
        """Take lines of rollups and histograms in."""
        self._tally.commands += lines.count(b"\n")
        while lines:
            await self._yield_after(TURN_LINES)  # each takes as long as many put lines
            commands = [line.partition(b" ")[0] for line in lines.split(b"\n")]
            lines = self._answer(await self._intake.take_summaries_in(lines, self.visitor), commands)

    async def _yield_after(self, lines: int) -> None:
        """Let others have their turn, if these lines complete one of ours."""
        self._calm = 0
        self._turn += lines
        if self._turn >= TURN_LINES:
            self._turn = 0
            await self.visitor.turn()

    def _answer(self, taken: Taken, commands: Sequence[bytes] = ()) -> bytes:
        """Tell what was refused of a block; its rest. `commands` are its lines' own, where they are not all put."""
        self.accepted += taken.accepted
        self._tally.took(taken.accepted)
        self.position = taken.position
        for reject in taken.rejects:
            self._refuse(commands[reject.line] if commands else b"put", reject.error)
        return taken.rest

    def _refuse(self, command: bytes, error: BadLine) -> None:
        self._calm = 0
        if not self._replies.refused(command, error):
            self._tally.summed_up += 1

    async def _command(self, line: bytes) -> None:
        """Do what a line that is not a put line wants."""
        await self._yield_after(1)
        bare = line
        if negotiation := _negotiation(line):
            bare = line[negotiation:]
            if not bare:
                return  # nothing but telnet talking to itself
            if bare.split(b" ", 1)[0] == b"put" and self._takes_points:
                await self._take_puts(bare + b"\n")
                return
        self._tally.commands += 1
        self.visitor.client.sent(1)
        name = bare.split(b" ", 1)[0].decode("latin-1")
        if name == "auth" and self._doorkeeper is not None and self._doorkeeper.enabled and self.visitor.badge is None:
            await self._sign_in(bare)
        elif (name in self._names or (name == "sync" and self._rules.mode is not Mode.READ_ONLY)) and (
            name not in self._may
        ):
            self._forbid(name)
        elif name == "sync" and self._rules.mode is not Mode.READ_ONLY:
            await self._replies.say_when_synced(self.position, b"synced %d\n" % self.accepted)
        elif name in _WRITES and name in self._names:  # behind telnet's own bytes
            self._tally.commands -= 1
            await self._take_summaries(bare + b"\n")
        elif name in self._names:
            await self._known(name)
        else:
            await self._replies.say(f"unknown command: {name}.  Try `help'.\n".encode())

    async def _sign_in(self, line: bytes) -> None:
        """Somebody who may do something already shows who it is."""
        assert self._doorkeeper is not None
        self._tries += 1
        try:
            shown = await try_line(line, self._doorkeeper, self.visitor)
        except TooManyTries:
            shown, self._over = False, True
        self._over |= not shown and self._tries >= MOST_TRIES
        self._look_at_roles()
        await self._replies.say(SUCCESS if shown else FAILURE)

    def _forbid(self, name: str) -> None:
        """Refuse a command that whoever is there may not give, in OpenTSDB's words."""
        if self._doorkeeper is not None:
            self._doorkeeper.note_refusal(self.visitor.principal, "telnet")
        asks = self._doorkeeper is not None and self._doorkeeper.enabled and not self.visitor.principal.name
        told = f"illegal argument: {'Unauthenticated' if asks else 'Unauthorized'} command: {name}"
        self._refuse(name.encode(), BadLine(ILLEGAL_ARGUMENT, told))

    def _tell(self, name: str) -> None:
        """Log who gives a command that administers."""
        who, peer = self.visitor.account or None, self.visitor.peer
        wording = f"somebody administers {name} {who}"
        log.info("somebody administers", _wording=wording, account=who, peer=peer, asked=name)

    async def _known(self, name: str) -> None:
        if self._replies.deaf and name in _TELLS:
            return  # what somebody has left who hung up may be megabytes of them
        await self._yield_after(TURN_LINES)  # the longer ones take as long as many lines
        match name:
            case "stats":
                await self._replies.say(await self._powers.stats())
            case "version":
                await self._replies.say(self._powers.version())
            case "help":
                await self._replies.say(
                    f"available commands: {' '.join(name for name in self._names if name in self._may)} \n".encode()
                )
            case "dropcaches":
                self._tell(name)
                self._powers.drop_caches()
                await self._replies.say(b"Caches dropped.\n")
            case "exit":
                self._over = True
            case "diediedie":
                self._tell(name)
                await self._replies.say(b"Cleaning up and exiting now.\n")
                self._over = self._dying = True


def _negotiation(line: bytes) -> int:
    """How many bytes of telnet's own a line starts with. A subnegotiation without its end is none.

    >>> _negotiation(b"\\xff\\xfb\\x1fversion"), _negotiation(b"version"), _negotiation(b"\\xff\\xfa\\x1f")
    (3, 0, 0)
    """
    own = _NEGOTIATION.match(line)
    return own.end() if own else 0
