"""Telnet sessions: how their bytes may be torn, what is answered in which order, and what no client can make grow."""

import tracemalloc
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from itertools import islice, repeat
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import lockstep_stream_pair, memory_stream_pair, wait_all_tasks_blocked

from tests.running import Client, Running, running
from tsd.codec.putline import NameRules
from tsd.doors.replies import PIECE_COST, Budget
from tsd.doors.telnet import Powers, Rules, Tally, TelnetSession
from tsd.doors.visitor import Visitor, here
from tsd.ingest.intake import Intake
from tsd.settings import Mode
from tsd.store import scan

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


@pytest.fixture
async def daemon(tmp_path: Path) -> AsyncIterator[Running]:
    async with running(tmp_path) as daemon:
        yield daemon


async def test_nothing_is_worked_out_for_who_has_hung_up_and_what_it_sent_counts(daemon: Running) -> None:
    """Megabytes of `stats` kept a connection open for minutes after its client had gone."""
    ours, theirs = memory_stream_pair()
    await theirs.aclose()
    asked = 0

    async def stats() -> bytes:
        nonlocal asked
        asked += 1
        return b"tsd.stat 1 1\n"

    async def receive() -> bytes:
        await wait_all_tasks_blocked()  # so that it is known by now that nobody hears
        return next(left, b"")

    left = iter([b"stats\n" * 1000 + GOOD + b"stats\nversion\nhelp\n", GOOD])
    powers = Powers(stats, lambda: VERSION, lambda: None, lambda: None)
    talk = TelnetSession(ours, daemon.daemon.intake, powers, RULES, Tally(), Budget(1 << 30), here())
    with pytest.raises(ExceptionGroup) as caught:
        await talk.run(b"version\n", receive)
    assert caught.group_contains(trio.BrokenResourceError)
    assert asked == 0
    assert daemon.daemon.ledger.received == 2


@asynccontextmanager
async def reluctant(daemon: Running) -> AsyncIterator[Client]:
    """A client whose kernel takes little before it is read."""
    connection = trio.socket.socket()
    connection.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_RCVBUF, 4096)
    await connection.connect(("127.0.0.1", daemon.port))
    async with trio.SocketStream(connection) as stream:
        yield Client(stream)


def torn(text: bytes) -> Iterator[list[bytes]]:
    """A text in two pieces, in every way; and byte by byte."""
    for at in range(1, len(text)):
        yield [text[:at], text[at:]]
    yield [bytes([byte]) for byte in text]


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
async def test_two_lines_torn_anywhere(daemon: Running, end: bytes) -> None:
    text = (GOOD + BAD + b"sync\n").replace(b"\n", end)
    ledger = daemon.daemon.ledger
    for turn, pieces in enumerate(torn(text), 1):
        told = await tell(daemon, pieces)
        assert told.replies == REFUSED + b"synced 1\n", pieces
        assert told.tally.cut_lines == 0
        assert (ledger.received, ledger.refused.total()) == (2 * turn, turn)


async def test_a_line_without_its_end_is_never_stored_wherever_it_was_cut(daemon: Running) -> None:
    for at in range(1, len(GOOD)):
        told = await tell(daemon, [BAD + GOOD[:at]])
        assert (told.replies, told.tally.cut_lines) == (REFUSED, 1)
    assert daemon.daemon.ledger.received == daemon.daemon.ledger.refused.total() == len(GOOD) - 1


async def test_an_unterminated_last_line_over_the_port_is_counted(daemon: Running) -> None:
    async with daemon.client() as client:
        await client.send(GOOD + GOOD[:-1])
        await client.stream.send_eof()
        assert await client.read_to_end() == b""
    async with daemon.client() as client:
        stats = await client.stats()
    assert (stats["ledger.received"], stats["telnet.cut-lines"]) == (1, 1)


async def test_a_client_that_is_done_sending_gets_all_its_replies(daemon: Running) -> None:
    async with daemon.client() as client:
        await client.send((BAD + GOOD + b"nonsense\n") * 3000 + b"sync\n")
        await client.stream.send_eof()
        said = b"unknown command: nonsense.  Try `help'.\n"
        assert await client.read_to_end() == (REFUSED + said) * 3000 + b"synced 3000\n"


async def test_replies_come_in_the_order_of_their_commands(daemon: Running) -> None:
    unknown = b"unknown command: %s.  Try `help'.\n"
    lines_and_replies = [
        (GOOD, b""),
        (b"version\n", VERSION),
        (BAD, REFUSED),
        (b"sync\n", b"synced 1\n"),
        (b"\n", unknown % b""),
        (GOOD * 30 + BAD + GOOD, REFUSED),
        (b"version of what\n", VERSION),
        (b"sync now\n", b"synced 32\n"),
        (b"puts a b c\n", unknown % b"puts"),
        (b" version\n", unknown % b""),
        (b"caf\xe9 b\n", unknown % "café".encode()),
        (b"put\n", REFUSED.replace(b"got 3", b"got 0")),
        (b"stats\n", b"tsd.stat 1 1\n"),
        (b"dropcaches\n", b"Caches dropped.\n"),
        (
            b"histogram m 1 2 3\n",
            b"histogram: illegal argument: Histogram storage has not been enabled. "
            b"Check the 'tsd.core.histograms.config' configuration.\n",
        ),
        (b"rollup 1h:sum m\n", b"rollup: illegal argument: not enough arguments (need least 7, got 2)\n"),
        (GOOD * 2 + b"sync\nsync\n", b"synced 34\nsynced 34\n"),
    ]
    text = b"".join(line for line, _ in lines_and_replies)
    for pieces in ([text], [bytes([byte]) for byte in text]):
        told = await tell(daemon, pieces)
        assert told.replies == b"".join(reply for _, reply in lines_and_replies)
        assert told.deeds == ["drop"]


async def test_exit_ends_the_session_in_the_middle_of_a_block(daemon: Running) -> None:
    async with daemon.client() as client:
        await client.send(GOOD + BAD + b"nonsense\nexit\n" + GOOD + b"nonsense\n" + GOOD[:-1])
        assert await client.read_to_end() == REFUSED + b"unknown command: nonsense.  Try `help'.\n"
    async with daemon.client() as client:
        stats = await client.stats()
    assert (stats["ledger.received"], stats["telnet.cut-lines"]) == (2, 0)


HELP = b"available commands: stats dropcaches version exit help%s \n"
WRITES = (b"put", b"rollup", b"histogram")


@pytest.mark.parametrize("mode", [Mode.READ_WRITE, Mode.WRITE_ONLY])
async def test_modes_that_take_points(daemon: Running, mode: Mode) -> None:
    told = await tell(daemon, [b"help\n" + GOOD + b"sync\n"], RULES._replace(mode=mode, diediedie=False))
    assert told.replies == HELP % b" put rollup histogram" + b"synced 1\n"


async def test_a_read_only_port_knows_no_writes(daemon: Running) -> None:
    rules = RULES._replace(mode=Mode.READ_ONLY, diediedie=False)
    told = await tell(daemon, [b"help\n" + GOOD * 2 + b"rollup x\nhistogram x\n\xff\xfd\x01" + GOOD + b"sync\n"], rules)
    words = [b"put", b"put", b"rollup", b"histogram", b"put", b"sync"]
    assert told.replies == HELP % b"" + b"".join(b"unknown command: %s.  Try `help'.\n" % word for word in words)
    assert daemon.daemon.ledger.received == 0


async def test_diediedie_where_it_is_allowed(daemon: Running) -> None:
    told = await tell(daemon, [b"diediedie\nversion\n"])
    assert (told.replies, told.deeds) == (b"Cleaning up and exiting now.\n", ["die"])
    told = await tell(daemon, [b"diediedie\n"], RULES._replace(diediedie=False))
    assert (told.replies, told.deeds) == (b"unknown command: diediedie.  Try `help'.\n", [])


OPTIONS = b"\xff\xfb\x1f\xff\xfd\x03\xff\xfe\x18"  # WILL NAWS, DO SGA, DONT TTYPE
SIZE = b"\xff\xfa\x1f\x00P\x00\x18\xff\xf0"  # SB NAWS 80 24 SE
CTRL_C = b"\xff\xf4\xff\xfd\x06"  # IP, DO TM


@pytest.mark.parametrize("talk", [OPTIONS, SIZE, CTRL_C, OPTIONS + SIZE + CTRL_C, b"\xff\xf1"])
async def test_telnet_negotiation_before_a_line_is_no_part_of_it(daemon: Running, talk: bytes) -> None:
    text = talk + b"version\r\n" + GOOD + talk + GOOD + talk + b"\r\n" + talk + BAD + talk + b"put\nsync\n"
    for pieces in ([text], [bytes([byte]) for byte in text]):
        told = await tell(daemon, pieces)
        assert told.replies == VERSION + REFUSED + REFUSED.replace(b"got 3", b"got 0") + b"synced 2\n"


async def test_a_letter_that_looks_like_negotiation_stays_in_its_name(daemon: Running) -> None:
    odd = [b"\xff", b"a\xff\xf4b", b"\xff\xfd\x41", b"\xff\xfa.\xff\xf0"]
    told = await tell(daemon, [b"".join(b"put %s %d 1 a=b\n" % (name, T) for name in odd) + b"sync\n\xffversion\n"])
    assert told.replies == b"synced %d\n" % len(odd) + "unknown command: ÿversion.  Try `help'.\n".encode()
    names = {row.key async for rows in scan(daemon.daemon.store, "tsdb-uid") for row in rows}
    assert names.issuperset(odd)


async def test_a_line_without_end_takes_no_memory_and_costs_nobody_the_connection(daemon: Running) -> None:
    piece = b"x" * 65536
    await tell(daemon, [GOOD])  # the caches and the journal have their size now
    tracemalloc.start()
    try:
        told = await tell(daemon, [*repeat(piece, 160), b"\n" + GOOD + b"sync\n"])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert told.replies == TOO_LONG + b"synced 1\n"
    assert peak < 500_000
    assert daemon.daemon.ledger.refused == {"line_too_long": 1}


async def test_ten_megabytes_without_a_newline_over_the_port(daemon: Running) -> None:
    async with daemon.client() as client:
        answer = await client.ask(b"x" * 10_000_000 + b"\n" + GOOD)
        assert answer == TOO_LONG.replace(b"1024", b"16384") + b"synced 1\n"


async def test_the_longest_line_passes_and_a_longer_one_does_not(daemon: Running) -> None:
    rest = RULES.max_line - len(b"put m %d 1 a=" % T)
    longest = b"put m %d 1 a=" % T + b"x" * rest
    for end in (b"\n", b"\r\n"):
        told = await tell(daemon, [longest + end + longest + b"x" + end + b"sync\n"])
        assert told.replies == TOO_LONG + b"synced 1\n"
        told = await tell(daemon, [longest, end, longest, b"x", end, b"sync", end])
        assert told.replies == TOO_LONG + b"synced 1\n"


async def test_who_never_reads_its_errors_holds_up_nobody_and_is_told_the_sum(tmp_path: Path) -> None:
    line = b"put m %d 1 %s\n" % (T, b"x" * 900)
    refused = b"put: illegal argument: invalid tag: %s\n" % (b"x" * 900)
    blocked = "rpc.errors type=socket_writes_blocked"
    async with running(tmp_path, {"tsd.ingest.reply_buffer": "4096"}) as daemon:
        async with reluctant(daemon) as mute, daemon.client() as other:
            turns = 0
            while turns < 1000 and (stats := await other.stats())[blocked] == 0:
                await mute.send(line * 500)
                turns += 1
                assert await other.ask(GOOD) == b"synced %d\n" % turns
            await mute.send(line * 500 + b"sync\n")
            text = await mute.read_until(b"synced 0\n")
            stats = await other.stats()
        one_by_one = text.count(refused)
        assert one_by_one + stats[blocked] == 500 * (turns + 1)
        rest = text.replace(refused, b"").decode().splitlines()[:-1]
        wording = "more lines were refused while this connection did not read:"
        sums = [int(told.removeprefix("put: ").split(" ")[0]) for told in rest if wording in told]
        assert len(sums) == len(rest)
        assert sum(sums) == stats[blocked]


async def test_commands_whose_replies_nobody_reads_are_not_read_either(daemon: Running) -> None:
    ours, theirs = lockstep_stream_pair()  # nothing is sent before it is received
    talk, _, _ = session(ours, daemon.daemon.intake)
    taken = 0

    async def receive() -> bytes:
        nonlocal taken
        taken += 1
        return b"version\n" if taken < 1000 else b""

    async with trio.open_nursery() as nursery:
        nursery.start_soon(talk.run, b"version\n", receive)
        await wait_all_tasks_blocked()
        room = (RULES.reply_buffer - 2 * PIECE_COST) // len(VERSION)
        assert room < taken <= room + 3
        text = b""
        while text.count(VERSION) < 1000:
            text += await theirs.receive_some()
    assert text == VERSION * 1000


async def test_refused_lines_whose_replies_nobody_reads_are_still_read(daemon: Running) -> None:
    ours, theirs = lockstep_stream_pair()
    talk, tally, _ = session(ours, daemon.daemon.intake)
    blocks = islice(repeat(BAD * 10 + GOOD), 1000)
    all_taken = trio.Event()

    async def receive() -> bytes:
        block = next(blocks, b"")
        if not block:
            all_taken.set()
        return block

    async with trio.open_nursery() as nursery:
        nursery.start_soon(talk.run, GOOD, receive)
        await all_taken.wait()
        assert daemon.daemon.ledger.received == 11_001
        text = b""
        while not text.endswith(b"illegal_arguments\n"):
            text += await theirs.receive_some()
    lines = text.splitlines(keepends=True)
    assert lines[:-1] == [REFUSED] * (len(lines) - 1)
    assert len(text) < RULES.reply_buffer + 4 * len(REFUSED)
    assert lines[-1].startswith(b"put: %d more lines were refused" % tally.summed_up)
    assert tally.summed_up == 10_000 - (len(lines) - 1)


async def test_a_held_gate_stops_the_reading_and_not_the_replies(daemon: Running) -> None:
    ours, theirs = memory_stream_pair()
    talk, _, _ = session(ours, daemon.daemon.intake)
    taken = 0

    async def receive() -> bytes:
        nonlocal taken
        taken += 1
        return GOOD + b"sync\n" if taken == 1 else b""

    daemon.daemon.gate.hold("the test")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(talk.run, BAD + b"sync\n", receive)
        text = b""
        while len(text) < len(REFUSED + b"synced 0\n"):
            text += await theirs.receive_some()
        await wait_all_tasks_blocked()
        assert taken == 0
        daemon.daemon.gate.release("the test")
    assert text + await theirs.receive_some() == REFUSED + b"synced 0\n" + b"synced 1\n"
    assert taken == 2


WORDS = st.sampled_from(
    [
        b"put",
        b" ",
        b" ",
        b"m",
        b"%d" % T,
        b"1",
        b"1.5",
        b"a=b",
        b"=",
        b"\r",
        b"version",
        b"sync",
        b"exit",
        b"rollup",
        b"x" * 600,
    ]
    + [bytes([byte]) for byte in b"\xff\xfb\xfa\xf0\xf4\x01\0\xe9"]
)
ENDS = st.sampled_from([b"\n", b"\n", b"\r\n", b"\r\r\n"])
LINES = st.one_of(
    st.sampled_from([GOOD, BAD, b"version\n", b"sync\r\n", CTRL_C + GOOD]),
    st.tuples(st.lists(WORDS, max_size=12).map(b"".join), ENDS).map(b"".join),
)


@pytest.mark.slow
@settings(max_examples=50, deadline=None)
@given(lines=st.lists(LINES, max_size=40), data=st.data())
def test_any_lines_torn_in_any_way_are_answered_alike_and_accounted_for(
    lines: list[bytes], data: st.DataObject
) -> None:
    text = b" " + b"".join(lines) + b"sync\n"
    cuts = sorted(data.draw(st.sets(st.integers(1, len(text) - 1), max_size=10)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    rules = RULES._replace(reply_buffer=1 << 20)

    async def both() -> None:
        with TemporaryDirectory() as folder:
            async with running(Path(folder)) as daemon:
                whole = await tell(daemon, [text], rules)
                torn = await tell(daemon, pieces, rules)
                assert whole.replies == torn.replies
                assert daemon.daemon.ledger.balance(daemon.daemon.writer.waiting_points) == 0
            assert daemon.daemon.ledger.balance(0) == 0

    trio.run(both)
