"""Two lines, torn in two and three pieces at every byte: a session answers and keeps the same."""

import random
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.simulation.chance import Engine, Plan
from tests.simulation.daemon import Life, Makers
from tests.simulation.pipe import connection
from tests.simulation.seed import determined
from tests.simulation.store import Line
from tests.simulation.world import World, make_tables
from tsd.ingest.journal import Journal

CALM = Plan(
    engine=Engine.EMBEDDED,
    clients=0,
    rounds=0,
    batch=0,
    flush_interval_s=3600,
    sync_interval_s=0,
    memory_limit=64 << 20,
    journal_max_bytes=1 << 30,
    most_unsettled=1000,
    join=True,
    compacts=False,
    strict=False,
    readers=0,
    neighbour=False,
    hurried=False,
    events=(),
)
STREAMS = {
    "good and bad": b"put m 1356998400 1 a=b\nput m 1 x a=b\n",
    "CR and LF": b"put m 1356998400 1 a=b\r\nversion\r\r\n",
    "telnet's own bytes": b"\xff\xfb\x1fput m 17 1 a=b\nsync\n",
    "an empty one": b"\nput m 1356998400 1.5 a=b c=d\nsync\n",
    "others": b"put\nrollup 1h x\nput m 2 2 a=b",
    "bytes": b"put m\xe9 1356998400.5 -0.0 \xff=\xb5\n\0\nexit\nput m 1 1 a=b\n",
}
LONG = {
    "as long as may be": b"put m 1356998400 1 " + b"a=b " * 251 + b"a" + b"\r\nput m 3 3 a=b\n",
    "too long": b"put m 1356998400 1 " + b"a=b " * 252 + b"\nput m 4 4 a=b\n",
}


class Came(NamedTuple):
    """What a stream came to."""

    replies: bytes
    kept: bytes
    received: int


class Noted(Journal):
    """Remembers what was appended."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.kept = b""

    def append(self, lines: bytes, count: int) -> int:
        self.kept += lines
        return super().append(lines, count)


class Whole(random.Random):
    """Has a session read all that is there."""

    def choice(self, seq: Any) -> Any:
        return seq[0]


async def send(life: Life, pieces: Iterable[bytes]) -> Came:
    """One connection that sends these pieces, each when the last was taken in."""
    journal = life.journal
    assert isinstance(journal, Noted)
    journal.kept, before = b"", life.ledger.received
    ours, theirs = connection()
    assert life.connect(theirs, Whole())
    with suppress(trio.BrokenResourceError):  # after `exit`
        for piece in pieces:
            await ours.send_all(piece)
            await wait_all_tasks_blocked()
    ours.send_eof()
    replies = b""
    while data := await ours.receive_some():
        replies += data
    return Came(replies, journal.kept, life.ledger.received - before)


def torn(stream: bytes, pieces: int) -> Iterator[tuple[bytes, ...]]:
    """A stream in so many pieces, in every way."""
    for cuts in combinations(range(1, len(stream)), pieces - 1):
        ends = (*cuts, len(stream))
        yield tuple(stream[start:end] for start, end in zip((0, *cuts), ends, strict=True))


def play(folder: Path, stream: bytes, pieces: Iterable[tuple[bytes, ...]]) -> tuple[Came, int]:
    """What a stream comes to when it comes whole, which must be the same in pieces; and in how many ways it came."""
    world = World(0, CALM, folder, Makers())
    ways = 0

    async def run() -> Came:
        nonlocal ways
        await make_tables(world.backend)
        line = Line(world.backend, sound=True)
        life = Life(1, CALM, Makers(journal=Noted), line, world.disk, folder, world.now_ms)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(life.run)
            await wait_all_tasks_blocked()
            whole = await send(life, [stream])
            for some in pieces:
                assert await send(life, some) == whole, some
                ways += 1
            life.stop.set()
        return whole

    with determined(0), patch("trio.to_thread.run_sync", world.in_thread):
        return trio.run(run, clock=MockClock(autojump_threshold=0)), ways


@pytest.mark.parametrize("name", STREAMS)
def test_two_lines_in_two_pieces(tmp_path: Path, name: str) -> None:
    stream = STREAMS[name]
    came, ways = play(tmp_path, stream, torn(stream, 2))
    assert ways == len(stream) - 1
    assert came.replies or came.kept


@pytest.mark.slow
@pytest.mark.parametrize("name", STREAMS)
def test_two_lines_in_three_pieces(tmp_path: Path, name: str) -> None:
    stream = STREAMS[name]
    _, ways = play(tmp_path, stream, torn(stream, 3))
    assert ways == (len(stream) - 1) * (len(stream) - 2) // 2


@pytest.mark.slow
@pytest.mark.parametrize("name", LONG)
def test_a_long_line_and_another(tmp_path: Path, name: str) -> None:
    stream = LONG[name]
    came, ways = play(tmp_path, stream, torn(stream, 2))
    assert ways == len(stream) - 1
    assert (b"line too long" in came.replies) == (name == "too long")
