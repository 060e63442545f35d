"""Small senders that one task reads for: what they send, and what they are told, is as if each had its own."""

import os
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from tests.running import Client, Running, running
from tests.unit.doors.test_telnet import BAD, GOOD, REFUSED, T
from tsd.ingest.lines import LineBuffer

CALM = 3  # packets, after which a connection surely stands in the crowd
HANGS_S = 60


@pytest.fixture
async def daemon(tmp_path: Path) -> AsyncIterator[Running]:
    async with running(tmp_path) as daemon:
        yield daemon


async def until(holds: Callable[[], bool]) -> None:
    """Return once it does."""
    with trio.fail_after(HANGS_S):
        while not holds():
            await trio.lowlevel.checkpoint()


async def send(daemon: Running, client: Client, lines: bytes) -> None:
    """Send whole lines, and wait until they are received."""
    wanted = daemon.daemon.ledger.received + lines.count(b"\n")
    await client.send(lines)
    await until(lambda: daemon.daemon.ledger.received == wanted)


@asynccontextmanager
async def standing(daemon: Running) -> AsyncIterator[Client]:
    """One more client that stands in the crowd."""
    crowd = daemon.daemon.crowd
    wanted = len(crowd) + 1
    async with daemon.client() as client:
        for _ in range(CALM):
            await send(daemon, client, GOOD)
        await until(lambda: len(crowd) == wanted)
        yield client


async def test_who_sends_a_few_good_lines_stays_in_the_crowd(daemon: Running) -> None:
    async with standing(daemon) as client, standing(daemon) as other:
        for _ in range(CALM):
            await send(daemon, client, GOOD * 10)
            await send(daemon, other, GOOD)
            assert len(daemon.daemon.crowd) == 2
        assert await client.ask(b"") == b"synced %d\n" % (CALM + CALM * 10)
        assert await other.ask(b"") == b"synced %d\n" % (2 * CALM)
        accounts = [one for one in daemon.daemon.clients if one.connections]
        sent = (2 * CALM + CALM + CALM * 10) * len(GOOD) + 2 * len(b"sync\n")
        assert [(one.accepted, one.bytes) for one in accounts] == [(3 * CALM + CALM * 10, sent)]


def say(client: Client, data: bytes) -> None:
    """Send at once: nothing is read in between."""
    assert os.write(client.stream.socket.fileno(), data) == len(data)


async def test_what_many_send_is_taken_in_together(daemon: Running) -> None:
    ledger, journal = daemon.daemon.ledger, daemon.daemon.journal
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(standing(daemon)) for _ in range(6)]
        received, position = ledger.received, journal.position
        for number, client in enumerate(clients):
            say(client, GOOD * (number + 1))
        await until(lambda: ledger.received == received + 21)
        assert len(daemon.daemon.crowd) == 6
        assert journal.position == position + 21
        for number, client in enumerate(clients):
            assert await client.ask(b"") == b"synced %d\n" % (CALM + number + 1)


async def test_of_what_many_send_each_answers_for_its_own(daemon: Running) -> None:
    """A line that is refused, a series that is new and a command are nobody else's."""
    ledger = daemon.daemon.ledger
    sent = [GOOD, GOOD * 2, BAD, GOOD * 3, b"put new %d 1 a=b\n" % T, b"version\n", GOOD + BAD + GOOD, GOOD[:-3], GOOD]
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(standing(daemon)) for _ in sent]
        received = ledger.received
        for client, text in zip(clients, sent, strict=True):
            say(client, text)
        await until(lambda: ledger.received == received + 12)
        for client, text in zip(clients, sent, strict=True):
            if text == GOOD[:-3]:
                await client.send(GOOD[-3:])
            accepted = CALM + (text + b"\n").count(b"put") - text.count(BAD)
            if BAD in text:
                assert await client.read_until(REFUSED) == REFUSED
            answer = await client.ask(b"")
            assert answer.endswith(b"synced %d\n" % accepted)
            assert (answer == b"synced %d\n" % accepted) == (text != b"version\n")
        assert ledger.received == received + 13
        [account] = [one for one in daemon.daemon.clients if one.connections]
        assert (account.refused.total(), account.accepted) == (2, ledger.received - 2)


async def test_each_is_told_of_its_own_refused_lines(daemon: Running) -> None:
    async with standing(daemon) as client, standing(daemon) as other:
        await client.send(GOOD + BAD + GOOD)
        await other.send(GOOD)
        assert await client.read_until(REFUSED) == REFUSED
        await client.send(BAD)
        assert await client.read_until(REFUSED) == REFUSED
        assert await client.ask(GOOD) == b"synced %d\n" % (CALM + 3)
        assert await other.ask(BAD) == REFUSED + b"synced %d\n" % (CALM + 1)


async def test_new_series_commands_and_other_lines_are_taken_as_ever(daemon: Running) -> None:
    async with standing(daemon) as client:
        assert await client.ask(b"put new %d 1 a=b\n" % T) == b"synced %d\n" % (CALM + 1)
    async with standing(daemon) as client:
        assert (await client.ask(b"version\n")).endswith(b"\nsynced %d\n" % CALM)
    async with standing(daemon) as client:
        assert await client.ask(b"put m %d 1 a=b\r\n" % T) == b"synced %d\n" % (CALM + 1)
        assert daemon.daemon.ledger.received == 3 * CALM + 2


@pytest.mark.parametrize("at", [1, len(GOOD) - 1, len(GOOD), len(GOOD) + 1, 1030, 1100])
async def test_lines_may_come_torn(daemon: Running, at: int) -> None:
    ledger, crowd = daemon.daemon.ledger, daemon.daemon.crowd
    text = GOOD + b"put m %d 1 %s\n" % (T, b"a" * 1100) + GOOD
    async with standing(daemon) as client:
        received = ledger.received
        await client.send(text[:at])
        await until(lambda: not len(crowd) or ledger.received > received)
        assert (await client.ask(text[at:])).endswith(b"synced %d\n" % (CALM + 2))
        assert ledger.received == received + 3


async def test_the_end_of_a_connection_is_noticed(daemon: Running) -> None:
    opened = daemon.daemon.listener.statistics
    async with standing(daemon) as client:
        await client.stream.send_eof()
        assert await client.stream.receive_some() == b""
    await until(lambda: opened().open == 0)
    async with standing(daemon) as client:
        client.stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    await until(lambda: opened().open == 0)
    assert (opened().reset, opened().failed, len(daemon.daemon.crowd)) == (1, 0, 0)


async def test_an_error_of_ours_ends_one_connection(daemon: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    async with standing(daemon) as client, standing(daemon) as other:
        with monkeypatch.context() as patch:
            patch.setattr(daemon.daemon.intake, "take_at_once", None)
            await client.send(GOOD)
            await until(lambda: daemon.daemon.listener.statistics().failed == 1)
        assert await other.ask(GOOD) == b"synced %d\n" % (CALM + 1)


async def test_nothing_is_read_while_the_gate_is_shut(daemon: Running) -> None:
    gate, ledger = daemon.daemon.gate, daemon.daemon.ledger
    async with standing(daemon) as client:
        received = ledger.received
        gate.hold("the test")
        await client.send(GOOD)
        await until(lambda: len(daemon.daemon.crowd) == 0)  # its own task waits
        assert ledger.received == received
        gate.release("the test")
        assert await client.ask(b"") == b"synced %d\n" % (CALM + 1)


async def test_who_is_over_its_quota_rests(tmp_path: Path) -> None:
    first, lines = 140, 280  # its debt lasts longer than a slow machine stands still
    async with running(tmp_path, {"tsd.quota.lines_per_second": "5"}) as daemon, standing(daemon) as client:
        await client.send(GOOD * first)
        await until(lambda: daemon.daemon.ledger.received == CALM + first)
        await client.send(GOOD * (lines - first))
        await until(lambda: daemon.daemon.clients.statistics().pausing == 1)
        assert daemon.daemon.ledger.received == CALM + first
    assert daemon.daemon.ledger.received == CALM + lines  # the end waits for no quota


@pytest.mark.parametrize(
    ("settings", "access"),
    [({}, {"tsd.access.anonymous": "read"}), ({"tsd.mode": "ro"}, {"tsd.access.anonymous": "read,write"})],
)
async def test_who_may_not_write_writes_nothing_there_either(
    tmp_path: Path, settings: dict[str, str], access: dict[str, str]
) -> None:
    """A line too long, which is skipped packet by packet, looked like packets of good lines once it was over."""
    async with running(tmp_path, settings, access=access) as daemon, daemon.client() as client:
        await daemon.daemon.intake.take_in(GOOD)  # of a series that is known
        position, sent = daemon.daemon.journal.position, 0
        for part in (*[b"x" * 9000] * (CALM + 3), b"\n", *[GOOD] * CALM):
            await client.send(part)
            sent += len(part)
            await until(lambda: [one.bytes for one in daemon.daemon.clients] == [sent])  # noqa: B023 - awaited here
        assert daemon.daemon.journal.position == position
        assert len(daemon.daemon.crowd) == 0


@given(
    st.lists(st.sampled_from([b"a", b"bb", b"\r", b"\n", b"c" * 9])).map(b"".join),
    st.lists(st.sampled_from([b"a", b"\n", b"c" * 9, b"\r\n"])).map(b"".join),
)
def test_a_block_that_is_whole_is_what_feeding_it_gives(before: bytes, data: bytes) -> None:
    lines, fed = LineBuffer(8), LineBuffer(8)
    lines.feed(before)
    fed.feed(before)
    if lines.is_whole(data):
        assert fed.feed(data) == [data]
        assert fed.tail == b""
    elif not lines.tail and data and fed.feed(data) == [data]:
        assert not fed.tail
