"""Telnet sessions: packet boundaries, order of replies, commands and bounds of memory."""

import tracemalloc
from collections.abc import Iterator
from itertools import repeat
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import memory_stream_pair, wait_all_tasks_blocked

from tests.running import Running, running
from tests.unit.server.telnet_parts import (
    BAD,
    DEFAULT_OPTIONS,
    GOOD,
    REFUSED,
    TOO_LONG,
    VERSION,
    T,
    run_session,
    session,
)
from tsd.config.settings import Mode
from tsd.store import scan


def torn(text: bytes) -> Iterator[list[bytes]]:
    """Yield a text in two pieces, in every way; and byte by byte."""
    for at in range(1, len(text)):
        yield [text[:at], text[at:]]
    yield [bytes([byte]) for byte in text]


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
async def test_two_lines_split_anywhere(daemon: Running, end: bytes) -> None:
    text = (GOOD + BAD + b"sync\n").replace(b"\n", end)
    ledger = daemon.daemon.ingest.ledger
    for turn, pieces in enumerate(torn(text), 1):
        result = await run_session(daemon, pieces)
        assert result.replies == REFUSED + b"synced 1\n", pieces
        assert result.stats.truncated_lines == 0
        assert (ledger.received, ledger.refused.total()) == (2 * turn, turn)


async def test_incomplete_line_is_never_stored(daemon: Running) -> None:
    for at in range(1, len(GOOD)):
        result = await run_session(daemon, [BAD + GOOD[:at]])
        assert (result.replies, result.stats.truncated_lines) == (REFUSED, 1)
    assert daemon.daemon.ingest.ledger.received == daemon.daemon.ingest.ledger.refused.total() == len(GOOD) - 1


async def test_unterminated_last_line_is_counted_on_the_port(daemon: Running) -> None:
    async with daemon.client() as client:
        await client.send(GOOD + GOOD[:-1])
        await client.stream.send_eof()
        assert await client.read_to_end() == b""
    async with daemon.client() as client:
        stats = await client.stats()
    assert (stats["ledger.received"], stats["telnet.truncated-lines"]) == (1, 1)


async def test_half_closed_client_gets_all_replies(daemon: Running) -> None:
    async with daemon.client() as client:
        await client.send((BAD + GOOD + b"nonsense\n") * 3000 + b"sync\n")
        await client.stream.send_eof()
        refusal = b"unknown command: nonsense.  Try `help'.\n"
        assert await client.read_to_end() == (REFUSED + refusal) * 3000 + b"synced 3000\n"


async def test_replies_keep_the_order_of_commands(daemon: Running) -> None:
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
        result = await run_session(daemon, pieces)
        assert result.replies == b"".join(reply for _, reply in lines_and_replies)
        assert result.called == ["drop"]


async def test_exit_ends_the_session_within_a_block(daemon: Running) -> None:
    async with daemon.client() as client:
        await client.send(GOOD + BAD + b"nonsense\nexit\n" + GOOD + b"nonsense\n" + GOOD[:-1])
        assert await client.read_to_end() == REFUSED + b"unknown command: nonsense.  Try `help'.\n"
    async with daemon.client() as client:
        stats = await client.stats()
    assert (stats["ledger.received"], stats["telnet.truncated-lines"]) == (2, 0)


HELP = b"available commands: stats dropcaches version exit help%s \n"
WRITES = (b"put", b"rollup", b"histogram")


@pytest.mark.parametrize("mode", [Mode.READ_WRITE, Mode.WRITE_ONLY])
async def test_modes_that_accept_points(daemon: Running, mode: Mode) -> None:
    result = await run_session(
        daemon, [b"help\n" + GOOD + b"sync\n"], DEFAULT_OPTIONS._replace(mode=mode, diediedie=False)
    )
    assert result.replies == HELP % b" put rollup histogram" + b"synced 1\n"


async def test_read_only_port_has_no_write_commands(daemon: Running) -> None:
    options = DEFAULT_OPTIONS._replace(mode=Mode.READ_ONLY, diediedie=False)
    result = await run_session(
        daemon, [b"help\n" + GOOD * 2 + b"rollup x\nhistogram x\n\xff\xfd\x01" + GOOD + b"sync\n"], options
    )
    words = [b"put", b"put", b"rollup", b"histogram", b"put", b"sync"]
    assert result.replies == HELP % b"" + b"".join(b"unknown command: %s.  Try `help'.\n" % word for word in words)
    assert daemon.daemon.ingest.ledger.received == 0


async def test_diediedie_if_enabled(daemon: Running) -> None:
    result = await run_session(daemon, [b"diediedie\nversion\n"])
    assert (result.replies, result.called) == (b"Cleaning up and exiting now.\n", ["die"])
    result = await run_session(daemon, [b"diediedie\n"], DEFAULT_OPTIONS._replace(diediedie=False))
    assert (result.replies, result.called) == (b"unknown command: diediedie.  Try `help'.\n", [])


OPTIONS = b"\xff\xfb\x1f\xff\xfd\x03\xff\xfe\x18"  # WILL NAWS, DO SGA, DONT TTYPE
SIZE = b"\xff\xfa\x1f\x00P\x00\x18\xff\xf0"  # SB NAWS 80 24 SE
CTRL_C = b"\xff\xf4\xff\xfd\x06"  # IP, DO TM


@pytest.mark.parametrize("talk", [OPTIONS, SIZE, CTRL_C, OPTIONS + SIZE + CTRL_C, b"\xff\xf1"])
async def test_negotiation_before_a_line_is_skipped(daemon: Running, talk: bytes) -> None:
    text = talk + b"version\r\n" + GOOD + talk + GOOD + talk + b"\r\n" + talk + BAD + talk + b"put\nsync\n"
    for pieces in ([text], [bytes([byte]) for byte in text]):
        result = await run_session(daemon, pieces)
        assert result.replies == VERSION + REFUSED + REFUSED.replace(b"got 3", b"got 0") + b"synced 2\n"


async def test_byte_like_negotiation_stays_in_the_name(daemon: Running) -> None:
    odd = [b"\xff", b"a\xff\xf4b", b"\xff\xfd\x41", b"\xff\xfa.\xff\xf0"]
    result = await run_session(
        daemon, [b"".join(b"put %s %d 1 a=b\n" % (name, T) for name in odd) + b"sync\n\xffversion\n"]
    )
    assert result.replies == b"synced %d\n" % len(odd) + "unknown command: ÿversion.  Try `help'.\n".encode()
    names = {row.key async for rows in scan(daemon.daemon.store, "tsdb-uid") for row in rows}
    assert names.issuperset(odd)


async def test_endless_line_takes_no_memory_and_keeps_the_connection(daemon: Running) -> None:
    piece = b"x" * 65536
    await run_session(daemon, [GOOD])  # the caches and the journal have their final size now
    tracemalloc.start()
    try:
        result = await run_session(daemon, [*repeat(piece, 160), b"\n" + GOOD + b"sync\n"])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert result.replies == TOO_LONG + b"synced 1\n"
    assert peak < 500_000
    assert daemon.daemon.ingest.ledger.refused == {"line_too_long": 1}


async def test_ten_megabytes_without_newline(daemon: Running) -> None:
    async with daemon.client() as client:
        answer = await client.send_lines(b"x" * 10_000_000 + b"\n" + GOOD)
        assert answer == TOO_LONG.replace(b"1024", b"16384") + b"synced 1\n"


@pytest.mark.difference("long-lines")
async def test_line_length_limit(daemon: Running) -> None:
    rest = DEFAULT_OPTIONS.max_line - len(b"put m %d 1 a=" % T)
    longest = b"put m %d 1 a=" % T + b"x" * rest
    for end in (b"\n", b"\r\n"):
        result = await run_session(daemon, [longest + end + longest + b"x" + end + b"sync\n"])
        assert result.replies == TOO_LONG + b"synced 1\n"
        result = await run_session(daemon, [longest, end, longest, b"x", end, b"sync", end])
        assert result.replies == TOO_LONG + b"synced 1\n"


async def test_backpressure_stops_reading_but_not_replies(daemon: Running) -> None:
    ours, theirs = memory_stream_pair()
    talk, _, _ = session(ours, daemon.daemon.ingest.intake)
    taken = 0

    async def receive() -> bytes:
        nonlocal taken
        taken += 1
        return GOOD + b"sync\n" if taken == 1 else b""

    daemon.daemon.ingest.backpressure.hold("the test")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(talk.run, BAD + b"sync\n", receive)
        text = b""
        while len(text) < len(REFUSED + b"synced 0\n"):
            text += await theirs.receive_some()
        await wait_all_tasks_blocked()
        assert taken == 0
        daemon.daemon.ingest.backpressure.release("the test")
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
def test_replies_do_not_depend_on_packet_boundaries(lines: list[bytes], data: st.DataObject) -> None:
    text = b" " + b"".join(lines) + b"sync\n"
    cuts = sorted(data.draw(st.sets(st.integers(1, len(text) - 1), max_size=10)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    options = DEFAULT_OPTIONS._replace(reply_buffer=1 << 20)

    async def both() -> None:
        with TemporaryDirectory() as folder:
            async with running(Path(folder)) as daemon:
                whole = await run_session(daemon, [text], options)
                torn = await run_session(daemon, pieces, options)
                assert whole.replies == torn.replies
                assert daemon.daemon.ingest.ledger.balance(daemon.daemon.ingest.writer.waiting_points) == 0
            assert daemon.daemon.ingest.ledger.balance(0) == 0

    trio.run(both)
