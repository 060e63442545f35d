"""What a crash left in the journal is damaged on disk before the next start: all whole blocks are stored, the rest is
set aside, named and counted, and its whole lines come back through `tsd import`."""

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import trio

from tests.faults.account import Contents, StoredPoint, embedded_contents, hbase_contents, stored_points
from tests.faults.load import Line, Lines, Sender
from tests.faults.process import address_of, command, on_hbase, served, words_of
from tests.peers.hbase import RunningHbase
from tsd.ingest.segment import BLOCK_BYTES, HEADER_BYTES, Block, read_pieces
from tsd.torture.proxy import FaultyProxy, Mode

DAMAGED = "journal segment damaged"
STOPPED = "reading from clients has stopped"
LONG = {"tsd.storage.flush_interval": "3600000"}  # all of a life waits in one segment
LINES = 1000


class Left(NamedTuple):
    """A segment that a crash left, before it is damaged."""

    path: Path
    blocks: list[bytes]
    starts: list[int]  # of the blocks' own lines in the file

    @property
    def middle(self) -> int:
        """The number of a block in the middle."""
        return len(self.blocks) // 2


def flip(at: int) -> Callable[[bytes], bytes]:
    """A bit of a byte that makes it another than any that is written."""
    return lambda text: text[:at] + bytes([text[at] ^ 0x80]) + text[at + 1 :]


def cut(at: int) -> Callable[[bytes], bytes]:
    return lambda text: text[:at]


async def test_a_byte_in_the_middle_is_another(tmp_path: Path) -> None:
    left = await crashed(tmp_path)
    line = left.starts[left.middle] + BLOCK_BYTES
    kept = await set_aside(tmp_path, left, flip(line), left.blocks[left.middle + 1 :])
    done = await command("import", kept, "--data", tmp_path)
    lost, *back = puts(left.blocks[left.middle : left.middle + 1])
    assert done.returncode == 1  # the block's own line is refused, and the one that was hit
    assert f"imported {len(back)} data points, refused 2 lines\n" in done.stderr.decode()
    assert stored(await embedded_contents(tmp_path)) == points_of(puts(left.blocks)) - points_of([lost])


async def test_a_blocks_own_line_is_damaged(tmp_path: Path) -> None:
    left = await crashed(tmp_path)
    kept = await set_aside(tmp_path, left, flip(left.starts[left.middle]), left.blocks[left.middle + 1 :])
    done = await command("import", kept, "--data", tmp_path)
    assert f"imported {len(puts([left.blocks[left.middle]]))} data points" in done.stderr.decode()
    assert stored(await embedded_contents(tmp_path)) == points_of(puts(left.blocks))


async def test_the_end_is_gone(tmp_path: Path) -> None:
    left = await crashed(tmp_path)
    block = left.blocks[left.middle]
    end = len(block) * 2 // 3  # somewhere in a line
    kept = await set_aside(tmp_path, left, cut(left.starts[left.middle] + BLOCK_BYTES + end))
    whole = block[:end].splitlines(keepends=True)[:-1]
    lines = tmp_path / "lines"
    lines.write_bytes(b"".join(line for line in kept.read_bytes().splitlines(keepends=True)[:-1] if is_put(line)))
    done = await command("import", lines, "--data", tmp_path)
    assert (done.returncode, done.stderr.decode()) == (0, f"imported {len(whole)} data points, refused 0 lines\n")
    assert stored(await embedded_contents(tmp_path)) == points_of([*puts(left.blocks[: left.middle]), *whole])


async def test_the_end_is_gone_at_the_end_of_a_block(tmp_path: Path) -> None:
    left = await crashed(tmp_path)
    damage(left.path, cut(left.starts[left.middle]))
    told, stats = await replayed(tmp_path)
    assert told["level"] == "error"
    assert told["what"].endswith(" bytes that were on disk are gone")
    assert "kept_in" not in told
    before = puts(left.blocks[: left.middle])
    assert stats["ledger.stored"] == stats["ledger.received"] - 1 == len(before)  # how many are gone nobody can tell
    assert stats["ledger.refused reason=journal_damaged"] == 1
    assert stored(await embedded_contents(tmp_path)) == points_of(before)


@pytest.mark.parametrize("at", [0, HEADER_BYTES - 1])
async def test_a_damaged_header_costs_nothing(tmp_path: Path, at: int) -> None:
    left = await crashed(tmp_path)
    damage(left.path, flip(at))
    told, _ = await replayed(tmp_path)
    assert told["level"] == "warning"
    assert "kept_in" not in told
    assert stored(await embedded_contents(tmp_path)) == points_of(puts(left.blocks))


async def test_segments_of_a_full_journal(hbase: RunningHbase, tmp_path: Path) -> None:
    """HBase is away, the journal is full, the daemon is killed; three of its segments are damaged, each in its way."""
    tables = hbase.new_tables()
    with FaultyProxy(hbase.host, hbase.thrift_port) as proxy:
        proxy.mode = Mode.REFUSE
        settings = {**on_hbase(address_of(proxy), tables), "tsd.journal.max_bytes": "1M"}
        segments = await crashed_full(tmp_path, settings)
        several = [left for left in segments if len(left.blocks) > 1]
        first, second, third = several[0], several[len(several) // 2], several[-1]
        damage(first.path, flip(first.starts[0] + BLOCK_BYTES))
        damage(second.path, flip(second.starts[second.middle]))
        damage(third.path, cut(third.starts[third.middle] + BLOCK_BYTES))
        proxy.mode = Mode.PASS
        async with served(tmp_path, settings) as daemon:
            await daemon.ready()
            told = [event for event in daemon.events if event["event"] == DAMAGED]
            await daemon.terminate()
        for left, event in zip((first, second, third), told, strict=True):
            assert str(left.path) in event["what"]
        gone = points_of(puts(third.blocks[third.middle :]))
        aside = points_of(puts([first.blocks[0], second.blocks[second.middle]]))
        sent = points_of([line for left in segments for line in puts(left.blocks)])
        assert stored(await trio.to_thread.run_sync(hbase_contents, hbase.tables, tables)) == sent - gone - aside
        kept = [event["kept_in"] for event in told]
        await command("import", *kept, "--data", tmp_path, *words_of(settings))
    lost = points_of(puts(first.blocks)[:1]) | gone
    assert stored(await trio.to_thread.run_sync(hbase_contents, hbase.tables, tables)) == sent - lost


def make_senders() -> list[Sender]:
    return [Sender(Lines(number), seed=number) for number in range(3)]


async def crashed(folder: Path) -> Left:
    """The one segment of a daemon that was killed under load."""
    senders = make_senders()
    async with served(folder, LONG) as daemon, trio.open_nursery() as nursery:
        await daemon.ready()
        for sender in senders:
            nursery.start_soon(sender.run, daemon.port)
        for sender in senders:
            await sender.more_confirmed(LINES)
        await daemon.kill()
    [left] = found(folder)
    assert sum(len(confirmed) for sender in senders for confirmed in sender.confirmed()) <= len(puts(left.blocks))
    return left


async def crashed_full(folder: Path, settings: Mapping[str, str]) -> list[Left]:
    """The segments of a daemon that was killed when its journal was full."""
    async with served(folder, settings) as daemon, trio.open_nursery() as nursery:
        await daemon.ready()
        for sender in make_senders():
            nursery.start_soon(sender.run, daemon.port)
        await daemon.logged(STOPPED)
        await daemon.kill()
    return found(folder)


def found(folder: Path) -> list[Left]:
    """The segments in a state folder's journal, each with its whole blocks."""
    return [read(path) for path in sorted((folder / "journal").glob("*.journal"))]


def read(path: Path) -> Left:
    """A segment, without what was being written when the crash came."""
    blocks = [piece.text for piece in read_pieces(path) if isinstance(piece, Block)]
    *starts, end = accumulate((BLOCK_BYTES + len(block) for block in blocks), initial=HEADER_BYTES)
    path.write_bytes(path.read_bytes()[:end])
    return Left(path, blocks, starts)


def damage(path: Path, way: Callable[[bytes], bytes]) -> None:
    path.write_bytes(way(path.read_bytes()))


async def set_aside(folder: Path, left: Left, way: Callable[[bytes], bytes], behind: Sequence[bytes] = ()) -> Path:
    """Damage a segment in its middle block and start again: what is before it is stored, and the blocks `behind` it;
    the rest is in the file given."""
    damage(left.path, way)
    offset = left.starts[left.middle]
    rest = left.path.read_bytes()[offset:]
    if behind:
        rest = rest[: left.starts[left.middle + 1] - offset]
    told, stats = await replayed(folder)
    assert told["level"] == "error"
    assert told["what"].startswith(f"{left.path}: at byte {offset}: ")
    assert told["bytes_set_aside"] == len(rest)
    kept = Path(told["kept_in"])
    assert kept.read_bytes() == rest
    whole = puts([*left.blocks[: left.middle], *behind])
    lines = len(rest[BLOCK_BYTES:].splitlines())
    assert stats["ledger.stored"] == stats["ledger.received"] - lines == len(whole)
    assert stats["ledger.refused reason=journal_damaged"] == told["lines"] == lines
    assert stats["ledger.balance"] == 0
    assert stats["journal.set-aside"] == 1
    assert stored(await embedded_contents(folder)) == points_of(whole)
    return kept


async def replayed(folder: Path) -> tuple[dict[str, Any], dict[str, int]]:
    """What a daemon says of the damage that it finds, and its stats; it ends in an orderly way."""
    async with served(folder) as daemon:
        await daemon.ready()
        told = await daemon.logged(DAMAGED)
        async with daemon.client() as client:
            stats = await client.stats()
        assert (await daemon.terminate()).count(DAMAGED) == 1
    assert list((folder / "journal").glob("*.journal")) == []
    assert not (folder / "journal" / "untold").exists()  # the next start counts nothing of it
    return told, stats


def is_put(line: bytes) -> bool:
    return line.startswith(b"put ")


def puts(blocks: Sequence[bytes]) -> list[bytes]:
    """The lines of blocks."""
    return [line for block in blocks for line in block.splitlines(keepends=True)]


def points_of(lines: Sequence[bytes]) -> set[StoredPoint]:
    """What put lines say."""
    points = set()
    for line in lines:
        _, metric, time, value, *tags = line.decode().split()
        pairs = sorted((tagk, tagv) for tagk, _, tagv in (tag.partition("=") for tag in tags))
        points.add(StoredPoint(Line(metric, tuple(pairs), int(time)), int(value)))
    return points


def stored(contents: Contents) -> set[StoredPoint]:
    """The points that a store holds."""
    return set(stored_points(contents))
