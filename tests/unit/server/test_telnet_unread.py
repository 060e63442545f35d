"""Replies that are not read: their cost, and the lines of the same connection."""

from itertools import islice, repeat
from pathlib import Path

import pytest
import trio
from trio.testing import lockstep_stream_pair, memory_stream_pair, wait_all_tasks_blocked

from tests.running import Running, running
from tests.unit.server.telnet_parts import BAD, DEFAULT_OPTIONS, GOOD, REFUSED, VERSION, T, reluctant, session
from tsd.server.peer import local_peer
from tsd.server.replies import CHUNK_OVERHEAD, ReplyBudget
from tsd.server.telnet import DaemonCommands, TelnetPort, TelnetSession, TelnetStats


async def test_commands_of_disconnected_client_are_skipped(daemon: Running) -> None:
    """`stats` of a disconnected client must not keep the connection open for minutes."""
    ours, theirs = memory_stream_pair()
    await theirs.aclose()
    reads = 0

    async def stats() -> bytes:
        nonlocal reads
        reads += 1
        return b"tsd.stat 1 1\n"

    async def receive() -> bytes:
        await wait_all_tasks_blocked()  # the disconnect is noticed now
        return next(left, b"")

    left = iter([b"stats\n" * 1000 + GOOD + b"stats\nversion\nhelp\n", GOOD])
    commands = DaemonCommands(stats, lambda: VERSION, lambda: None, lambda: None)
    port = TelnetPort(daemon.daemon.ingest.intake, commands, DEFAULT_OPTIONS, TelnetStats(), ReplyBudget(1 << 30))
    talk = TelnetSession(port, ours, local_peer())
    with pytest.raises(ExceptionGroup) as caught:
        await talk.run(b"version\n", receive)
    assert caught.group_contains(trio.BrokenResourceError)
    assert reads == 0
    assert daemon.daemon.ingest.ledger.received == 2


@pytest.mark.slow
async def test_client_that_never_reads_gets_a_summary(tmp_path: Path) -> None:
    line = b"put m %d 1 %s\n" % (T, b"x" * 900)
    refused = b"put: illegal argument: invalid tag: %s\n" % (b"x" * 900)
    blocked = "rpc.errors type=socket_writes_blocked"
    async with running(tmp_path) as daemon:
        async with reluctant(daemon) as mute, daemon.client() as other:
            turns = 0
            while turns < 1000 and (stats := await other.stats())[blocked] == 0:
                await mute.send(line * 500)
                turns += 1
                assert await other.send_lines(GOOD) == b"synced %d\n" % turns
            await mute.send(line * 500 + b"sync\n")
            text = await mute.read_until(b"synced 0\n")
            stats = await other.stats()
        one_by_one = text.count(refused)
        assert one_by_one + stats[blocked] == 500 * (turns + 1)
        rest = text.replace(refused, b"").decode().splitlines()[:-1]
        wording = "more lines were refused while this connection did not read:"
        sums = [int(result.removeprefix("put: ").split(" ")[0]) for result in rest if wording in result]
        assert len(sums) == len(rest)
        assert sum(sums) == stats[blocked]


async def test_commands_wait_if_replies_are_not_read(daemon: Running) -> None:
    ours, theirs = lockstep_stream_pair()  # sends only when it is read
    talk, _, _ = session(ours, daemon.daemon.ingest.intake)
    taken = 0

    async def receive() -> bytes:
        nonlocal taken
        taken += 1
        return b"version\n" if taken < 1000 else b""

    async with trio.open_nursery() as nursery:
        nursery.start_soon(talk.run, b"version\n", receive)
        await wait_all_tasks_blocked()
        room = (DEFAULT_OPTIONS.reply_buffer - 2 * CHUNK_OVERHEAD) // len(VERSION)
        assert room < taken <= room + 3
        text = b""
        while text.count(VERSION) < 1000:
            text += await theirs.receive_some()
    assert text == VERSION * 1000


async def test_refused_lines_are_processed_if_replies_are_not_read(daemon: Running) -> None:
    ours, theirs = lockstep_stream_pair()
    talk, stats, _ = session(ours, daemon.daemon.ingest.intake)
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
        assert daemon.daemon.ingest.ledger.received == 11_001
        text = b""
        while not text.endswith(b"illegal_arguments\n"):
            text += await theirs.receive_some()
    lines = text.splitlines(keepends=True)
    assert lines[:-1] == [REFUSED] * (len(lines) - 1)
    assert len(text) < DEFAULT_OPTIONS.reply_buffer + 4 * len(REFUSED)
    assert lines[-1].startswith(b"put: %d more lines were refused" % stats.summarized)
    assert stats.summarized == 10_000 - (len(lines) - 1)
