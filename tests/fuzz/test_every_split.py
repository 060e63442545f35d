"""Split two lines at every byte into two and three pieces: replies and journaled lines are the same as unsplit."""

import random
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.simulation.daemon import Parts, SimulatedDaemon
from tests.simulation.plan import Engine, Plan
from tests.simulation.seed import determined, threads_of
from tests.simulation.simulation import Simulation, make_tables
from tests.simulation.store import FaultyStore
from tests.simulation.streams import stream_pair
from tsd.ingest.journal.journal import Journal

CALM = Plan(
    engine=Engine.EMBEDDED,
    clients=0,
    rounds=0,
    batch=0,
    flush_interval_s=3600,
    sync_interval_s=0,
    gather_s=0,
    memory_limit=64 << 20,
    journal_max_bytes=1 << 30,
    max_unresolved=1000,
    join=True,
    compacts=False,
    strict=False,
    readers=0,
    second_daemon=False,
    hurried=False,
    hold_intervals=0,
    deletes=False,
    writer_lag_s=0,
    events=(),
)
STREAMS = {
    "good and bad": b"put m 1356998400 1 a=b\nput m 1 x a=b\n",
    "CR LF": b"put m 1356998400 1 a=b\r\nversion\r\r\n",
    "telnet negotiation": b"\xff\xfb\x1fput m 17 1 a=b\nsync\n",
    "empty line": b"\nput m 1356998400 1.5 a=b c=d\nsync\n",
    "incomplete commands": b"put\nrollup 1h x\nput m 2 2 a=b",
    "not ASCII": b"put m\xe9 1356998400.5 -0.0 \xff=\xb5\n\0\nexit\nput m 1 1 a=b\n",
}
LONG = {
    "longest allowed": b"put m 1356998400 1 " + b"a=b " * 251 + b"a" + b"\r\nput m 3 3 a=b\n",
    "too long": b"put m 1356998400 1 " + b"a=b " * 252 + b"\nput m 4 4 a=b\n",
}


class Outcome(NamedTuple):
    """Result of one connection."""

    replies: bytes
    journaled: bytes
    received: int  # lines


class RecordingJournal(Journal):
    """Keeps the appended lines in memory."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.lines = b""

    def append(self, lines: bytes, count: int) -> int:
        self.lines += lines
        return super().append(lines, count)


class LargestReads(random.Random):
    """Makes a session read as much as is available."""

    def choice(self, seq: Any) -> Any:
        return seq[0]


async def send(daemon: SimulatedDaemon, pieces: Iterable[bytes]) -> Outcome:
    """Send pieces over one connection, each after the previous one is processed."""
    journal = daemon.journal
    assert isinstance(journal, RecordingJournal)
    journal.lines, before = b"", daemon.ledger.received
    stream, remote = stream_pair()
    assert daemon.connect(remote, LargestReads())
    with suppress(trio.BrokenResourceError):  # after `exit`
        for piece in pieces:
            await stream.send_all(piece)
            await wait_all_tasks_blocked()
    stream.send_eof()
    replies = b""
    while data := await stream.receive_some():
        replies += data
    return Outcome(replies, journal.lines, daemon.ledger.received - before)


def splits(stream: bytes, pieces: int) -> Iterator[tuple[bytes, ...]]:
    """Return every split of a stream into this many pieces."""
    for cuts in combinations(range(1, len(stream)), pieces - 1):
        ends = (*cuts, len(stream))
        yield tuple(stream[start:end] for start, end in zip((0, *cuts), ends, strict=True))


def play(folder: Path, stream: bytes, pieces: Iterable[tuple[bytes, ...]]) -> tuple[Outcome, int]:
    """Send the stream unsplit, then split, and assert equal outcomes. Return the outcome and the number of splits."""
    simulation = Simulation(0, CALM, folder, Parts())
    count = 0

    async def run() -> Outcome:
        nonlocal count
        await make_tables(simulation.server)
        store = FaultyStore(simulation.server, sound=True)
        parts = Parts(journal=RecordingJournal)
        daemon = SimulatedDaemon(1, CALM, parts, store, simulation.disk, folder, simulation.now_ms)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(daemon.run)
            await wait_all_tasks_blocked()
            unsplit = await send(daemon, [stream])
            for split in pieces:
                assert await send(daemon, split) == unsplit, split
                count += 1
            daemon.stop.set()
        return unsplit

    with determined(0), threads_of(simulation):
        return trio.run(run, clock=MockClock(autojump_threshold=0)), count


@pytest.mark.parametrize("name", STREAMS)
def test_same_replies_for_two_lines_in_two_pieces(tmp_path: Path, name: str) -> None:
    stream = STREAMS[name]
    outcome, count = play(tmp_path, stream, splits(stream, 2))
    assert count == len(stream) - 1
    assert outcome.replies or outcome.journaled


@pytest.mark.slow
@pytest.mark.parametrize("name", STREAMS)
def test_same_replies_for_two_lines_in_three_pieces(tmp_path: Path, name: str) -> None:
    stream = STREAMS[name]
    _, count = play(tmp_path, stream, splits(stream, 3))
    assert count == (len(stream) - 1) * (len(stream) - 2) // 2


@pytest.mark.slow
@pytest.mark.parametrize("name", LONG)
def test_same_replies_for_long_line_in_two_pieces(tmp_path: Path, name: str) -> None:
    stream = LONG[name]
    outcome, count = play(tmp_path, stream, splits(stream, 2))
    assert count == len(stream) - 1
    assert (b"line too long" in outcome.replies) == (name == "too long")
