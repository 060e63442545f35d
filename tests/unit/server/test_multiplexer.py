"""Connections that the multiplexer reads behave as if each had its own task."""

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
from tests.unit.server.test_telnet import BAD, GOOD, REFUSED, T
from tsd.ingest.lines import LineBuffer

SMALL = 3  # packets after which a connection is multiplexed
HANGS_S = 60


@pytest.fixture
async def daemon(tmp_path: Path) -> AsyncIterator[Running]:
    async with running(tmp_path) as daemon:
        yield daemon


async def until(holds: Callable[[], bool]) -> None:
    """Return when a condition holds."""
    with trio.fail_after(HANGS_S):
        while not holds():
            await trio.lowlevel.checkpoint()


async def send(daemon: Running, client: Client, lines: bytes) -> None:
    """Send whole lines, and wait until they are received."""
    wanted = daemon.daemon.ingest.ledger.received + lines.count(b"\n")
    await client.send(lines)
    await until(lambda: daemon.daemon.ingest.ledger.received == wanted)


@asynccontextmanager
async def multiplexed(daemon: Running) -> AsyncIterator[Client]:
    """A new connection that is multiplexed."""
    multiplexer = daemon.daemon.server.multiplexer
    wanted = len(multiplexer) + 1
    async with daemon.client() as client:
        for _ in range(SMALL):
            await send(daemon, client, GOOD)
        await until(lambda: len(multiplexer) == wanted)
        yield client


async def test_small_valid_sender_stays_multiplexed(daemon: Running) -> None:
    async with multiplexed(daemon) as client, multiplexed(daemon) as other:
        for _ in range(SMALL):
            await send(daemon, client, GOOD * 10)
            await send(daemon, other, GOOD)
            assert len(daemon.daemon.server.multiplexer) == 2
        assert await client.send_lines(b"") == b"synced %d\n" % (SMALL + SMALL * 10)
        assert await other.send_lines(b"") == b"synced %d\n" % (2 * SMALL)
        accounts = [one for one in daemon.daemon.access.clients if one.connections]
        sent = (2 * SMALL + SMALL + SMALL * 10) * len(GOOD) + 2 * len(b"sync\n")
        assert [(one.accepted, one.bytes) for one in accounts] == [(3 * SMALL + SMALL * 10, sent)]


def send_now(client: Client, data: bytes) -> None:
    """Send at once, so that nothing is read in between."""
    assert os.write(client.stream.socket.fileno(), data) == len(data)


async def test_packets_are_ingested_as_one_batch(daemon: Running) -> None:
    ledger, journal = daemon.daemon.ingest.ledger, daemon.daemon.ingest.journal
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(multiplexed(daemon)) for _ in range(6)]
        received, position = ledger.received, journal.position
        for number, client in enumerate(clients):
            send_now(client, GOOD * (number + 1))
        await until(lambda: ledger.received == received + 21)
        assert len(daemon.daemon.server.multiplexer) == 6
        assert journal.position == position + 21
        for number, client in enumerate(clients):
            assert await client.send_lines(b"") == b"synced %d\n" % (SMALL + number + 1)


async def test_batch_replies_go_to_their_senders(daemon: Running) -> None:
    """A refused line, a new series or a command affects no other connection."""
    ledger = daemon.daemon.ingest.ledger
    sent = [GOOD, GOOD * 2, BAD, GOOD * 3, b"put new %d 1 a=b\n" % T, b"version\n", GOOD + BAD + GOOD, GOOD[:-3], GOOD]
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(multiplexed(daemon)) for _ in sent]
        received = ledger.received
        for client, text in zip(clients, sent, strict=True):
            send_now(client, text)
        await until(lambda: ledger.received == received + 12)
        for client, text in zip(clients, sent, strict=True):
            if text == GOOD[:-3]:
                await client.send(GOOD[-3:])
            accepted = SMALL + (text + b"\n").count(b"put") - text.count(BAD)
            if BAD in text:
                assert await client.read_until(REFUSED) == REFUSED
            answer = await client.send_lines(b"")
            assert answer.endswith(b"synced %d\n" % accepted)
            assert (answer == b"synced %d\n" % accepted) == (text != b"version\n")
        assert ledger.received == received + 13
        [account] = [one for one in daemon.daemon.access.clients if one.connections]
        assert (account.refused.total(), account.accepted) == (2, ledger.received - 2)


async def test_each_client_counts_its_refused_lines(daemon: Running) -> None:
    async with multiplexed(daemon) as client, multiplexed(daemon) as other:
        await client.send(GOOD + BAD + GOOD)
        await other.send(GOOD)
        assert await client.read_until(REFUSED) == REFUSED
        await client.send(BAD)
        assert await client.read_until(REFUSED) == REFUSED
        assert await client.send_lines(GOOD) == b"synced %d\n" % (SMALL + 3)
        assert await other.send_lines(BAD) == REFUSED + b"synced %d\n" % (SMALL + 1)


async def test_other_lines_leave_the_multiplexer(daemon: Running) -> None:
    async with multiplexed(daemon) as client:
        assert await client.send_lines(b"put new %d 1 a=b\n" % T) == b"synced %d\n" % (SMALL + 1)
    async with multiplexed(daemon) as client:
        assert (await client.send_lines(b"version\n")).endswith(b"\nsynced %d\n" % SMALL)
    async with multiplexed(daemon) as client:
        assert await client.send_lines(b"put m %d 1 a=b\r\n" % T) == b"synced %d\n" % (SMALL + 1)
        assert daemon.daemon.ingest.ledger.received == 3 * SMALL + 2


@pytest.mark.parametrize("at", [1, len(GOOD) - 1, len(GOOD), len(GOOD) + 1, 1030, 1100])
async def test_login_lines_may_be_split(daemon: Running, at: int) -> None:
    ledger, multiplexer = daemon.daemon.ingest.ledger, daemon.daemon.server.multiplexer
    text = GOOD + b"put m %d 1 %s\n" % (T, b"a" * 1100) + GOOD
    async with multiplexed(daemon) as client:
        received = ledger.received
        await client.send(text[:at])
        await until(lambda: not len(multiplexer) or ledger.received > received)
        assert (await client.send_lines(text[at:])).endswith(b"synced %d\n" % (SMALL + 2))
        assert ledger.received == received + 3


async def test_end_of_multiplexed_connection_is_noticed(daemon: Running) -> None:
    opened = daemon.daemon.server.listener.statistics
    async with multiplexed(daemon) as client:
        await client.stream.send_eof()
        assert await client.stream.receive_some() == b""
    await until(lambda: opened().open == 0)
    async with multiplexed(daemon) as client:
        client.stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    await until(lambda: opened().open == 0)
    assert (opened().reset, opened().failed, len(daemon.daemon.server.multiplexer)) == (1, 0, 0)


async def test_internal_error_ends_one_connection(daemon: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    async with multiplexed(daemon) as client, multiplexed(daemon) as other:
        with monkeypatch.context() as patch:
            patch.setattr(daemon.daemon.ingest.intake, "try_take", None)
            await client.send(GOOD)
            await until(lambda: daemon.daemon.server.listener.statistics().failed == 1)
        assert await other.send_lines(GOOD) == b"synced %d\n" % (SMALL + 1)


async def test_backpressure_stops_the_multiplexer(daemon: Running) -> None:
    backpressure, ledger = daemon.daemon.ingest.backpressure, daemon.daemon.ingest.ledger
    async with multiplexed(daemon) as client:
        received = ledger.received
        backpressure.hold("the test")
        await client.send(GOOD)
        await until(lambda: len(daemon.daemon.server.multiplexer) == 0)  # its own task waits
        assert ledger.received == received
        backpressure.release("the test")
        assert await client.send_lines(b"") == b"synced %d\n" % (SMALL + 1)


async def test_multiplexed_client_over_quota_is_throttled(tmp_path: Path) -> None:
    first, lines = 140, 280  # the debt lasts longer than a slow machine may block
    async with running(tmp_path, {"tsd.quota.lines_per_second": "5"}) as daemon, multiplexed(daemon) as client:
        await client.send(GOOD * first)
        await until(lambda: daemon.daemon.ingest.ledger.received == SMALL + first)
        await client.send(GOOD * (lines - first))
        await until(lambda: daemon.daemon.access.clients.statistics().connections_throttled == 1)
        assert daemon.daemon.ingest.ledger.received == SMALL + first
    assert daemon.daemon.ingest.ledger.received == SMALL + lines  # shutdown waits for no quota


@pytest.mark.parametrize(
    ("settings", "access"),
    [({}, {"tsd.access.anonymous": "read"}), ({"tsd.mode": "ro"}, {"tsd.access.anonymous": "read,write"})],
)
async def test_put_without_write_role_is_refused(
    tmp_path: Path, settings: dict[str, str], access: dict[str, str]
) -> None:
    """The end of a skipped long line must not be processed as a packet of valid lines."""
    async with running(tmp_path, settings, access=access) as daemon, daemon.client() as client:
        await daemon.daemon.ingest.intake.take(GOOD)  # the series is known
        position, sent = daemon.daemon.ingest.journal.position, 0
        for part in (*[b"x" * 9000] * (SMALL + 3), b"\n", *[GOOD] * SMALL):
            await client.send(part)
            sent += len(part)
            await until(lambda: [one.bytes for one in daemon.daemon.access.clients] == [sent])  # noqa: B023 - awaited here
        assert daemon.daemon.ingest.journal.position == position
        assert len(daemon.daemon.server.multiplexer) == 0


@given(
    st.lists(st.sampled_from([b"a", b"bb", b"\r", b"\n", b"c" * 9])).map(b"".join),
    st.lists(st.sampled_from([b"a", b"\n", b"c" * 9, b"\r\n"])).map(b"".join),
)
def test_whole_block_equals_fed_block(before: bytes, data: bytes) -> None:
    lines, fed = LineBuffer(8), LineBuffer(8)
    lines.feed(before)
    fed.feed(before)
    if lines.is_whole(data):
        assert fed.feed(data) == [data]
        assert fed.tail == b""
    elif not lines.tail and data and fed.feed(data) == [data]:
        assert not fed.tail
