"""Damage a crashed daemon's journal before the next start: whole blocks are stored. The rest is quarantined, reported
and counted, and `tsd journal` and `tsd import` restore its lines if they can be read."""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import trio

from tests.faults.load import Line, Lines, Sender
from tests.faults.process import address_of, command, on_hbase, served, words_of
from tests.faults.verification import Contents, StoredPoint, embedded_contents, hbase_contents, stored_points
from tests.peers.hbase import RunningHbase
from tsd.cli.torture.proxy import FaultyProxy, ProxyMode
from tsd.ingest.journal.segment import BLOCK_BYTES, HEADER_BYTES, Block, Damage, read_pieces

DAMAGED = "journal.segment_damaged"
STOPPED = "ingest.backpressure_started"
LONG = {"tsd.storage.flush_interval": "3600000"}  # all lines stay in one segment
LINES = 1000


class Left(NamedTuple):
    """A segment left by a crash, before it is damaged."""

    path: Path
    blocks: list[bytes]
    starts: list[int]  # of the block headers in the file

    @property
    def middle(self) -> int:
        """The number of the middle block."""
        return len(self.blocks) // 2


def flip(at: int) -> Callable[[bytes], bytes]:
    """Change a bit of a byte so that the result is never a written value."""
    return lambda text: text[:at] + bytes([text[at] ^ 0x80]) + text[at + 1 :]


def cut(at: int) -> Callable[[bytes], bytes]:
    return lambda text: text[:at]


async def test_changed_byte_in_segment(tmp_path: Path) -> None:
    left = await crashed(tmp_path)
    line = left.starts[left.middle + 1] - 9  # before the checksum of zstd
    kept = await quarantined(tmp_path, left, flip(line), left.blocks[left.middle + 1 :])
    assert (await command("journal", kept)).returncode == 1
    others = [block for number, block in enumerate(left.blocks) if number != left.middle]
    assert stored(await embedded_contents(tmp_path)) == points_of(puts(others))


async def test_damaged_block_header(tmp_path: Path) -> None:
    left = await crashed(tmp_path)
    kept = await quarantined(tmp_path, left, flip(left.starts[left.middle] + 20), left.blocks[left.middle + 1 :])
    lines = tmp_path / "lines"
    lines.write_bytes(await printed(kept))
    done = await command("import", lines, "--data", tmp_path)
    imported = len(puts([left.blocks[left.middle]]))
    assert (done.returncode, done.stderr.decode()) == (0, f"imported {imported:,} data points, refused 0 lines\n")
    assert stored(await embedded_contents(tmp_path)) == points_of(puts(left.blocks))


async def test_truncated_segment(tmp_path: Path) -> None:
    left = await crashed(tmp_path)
    start, end = left.starts[left.middle], left.starts[left.middle + 1]
    kept = await quarantined(tmp_path, left, cut(start + BLOCK_BYTES + (end - start - BLOCK_BYTES) * 2 // 3))
    done = await command("journal", kept)
    assert (done.returncode, done.stdout) == (1, b"")
    assert stored(await embedded_contents(tmp_path)) == points_of(puts(left.blocks[: left.middle]))


async def test_segment_truncated_at_block_end(tmp_path: Path) -> None:
    left = await crashed(tmp_path)
    damage(left.path, cut(left.starts[left.middle]))
    event, stats = await replayed(tmp_path)
    assert event["level"] == "error"
    assert (event["path"], event["offset"]) == (str(left.path), left.starts[left.middle])
    assert "kept_in" not in event
    before = puts(left.blocks[: left.middle])
    assert stats["ledger.stored"] == stats["ledger.received"] - 1 == len(before)  # the number of lost lines is unknown
    assert stats["ledger.refused reason=journal_damaged"] == 1
    assert stored(await embedded_contents(tmp_path)) == points_of(before)


@pytest.mark.parametrize("at", [0, HEADER_BYTES - 1])
async def test_damaged_segment_header_loses_nothing(tmp_path: Path, at: int) -> None:
    left = await crashed(tmp_path)
    damage(left.path, flip(at))
    event, _ = await replayed(tmp_path)
    assert event["level"] == "warning"
    assert "kept_in" not in event
    assert stored(await embedded_contents(tmp_path)) == points_of(puts(left.blocks))


async def test_damaged_segments_of_full_journal(hbase: RunningHbase, tmp_path: Path) -> None:
    """HBase is unreachable, the journal is full and the daemon is killed. Then three of its segments are damaged."""
    tables = hbase.new_tables()
    with FaultyProxy(hbase.host, hbase.thrift_port) as proxy:
        proxy.mode = ProxyMode.REFUSE
        settings = {**on_hbase(address_of(proxy), tables), "tsd.journal.max_bytes": "1M"}
        segments = await crashed_full(tmp_path, settings)
        several = [left for left in segments if len(left.blocks) > 1]
        first, second, third = several[0], several[len(several) // 2], several[-1]
        damage(first.path, flip(first.starts[0] + BLOCK_BYTES))
        damage(second.path, flip(second.starts[second.middle] + 20))
        damage(third.path, cut(third.starts[third.middle] + BLOCK_BYTES))
        proxy.mode = ProxyMode.PASS
        async with served(tmp_path, settings) as daemon:
            await daemon.ready()
            damages = [event for event in daemon.events if event["event"] == DAMAGED]
            await daemon.terminate()
        for left, event in zip((first, second, third), damages, strict=True):
            assert event["path"] == str(left.path)
        gone = points_of(puts(third.blocks[third.middle :]))
        quarantined_points = points_of(puts([first.blocks[0], second.blocks[second.middle]]))
        sent = points_of([line for left in segments for line in puts(left.blocks)])
        assert (
            stored(await trio.to_thread.run_sync(hbase_contents, hbase.tables, tables))
            == sent - gone - quarantined_points
        )
        lines = tmp_path / "lines"
        lines.write_bytes(await printed(Path(damages[1]["kept_in"])))
        await command("import", lines, "--data", tmp_path, *words_of(settings))
    lost = points_of(puts(first.blocks[:1])) | gone
    assert stored(await trio.to_thread.run_sync(hbase_contents, hbase.tables, tables)) == sent - lost


def make_senders(**lines: int) -> list[Sender]:
    return [Sender(Lines(number, **lines), seed=number) for number in range(3)]


async def crashed(folder: Path) -> Left:
    """Return the one segment of a daemon that was killed under load."""
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
    """Return the segments of a daemon that was killed with a full journal."""
    async with served(folder, settings) as daemon, trio.open_nursery() as nursery:
        await daemon.ready()
        for sender in make_senders(life=1000):  # HBase takes a minute to name thousands of series
            nursery.start_soon(sender.run, daemon.port)
        await daemon.logged(STOPPED)
        await daemon.kill()
    return found(folder)


def found(folder: Path) -> list[Left]:
    """Return the segments of a state folder's journal with their whole blocks."""
    return [read(path) for path in sorted((folder / "journal").glob("*.journal"))]


def read(path: Path) -> Left:
    """Return a segment without its incomplete last block."""
    pieces, text = list(read_pieces(path)), path.read_bytes()
    end = next((piece.offset for piece in pieces if isinstance(piece, Damage)), len(text))
    path.write_bytes(text[:end])
    starts = [match.start() for match in re.finditer(rb"P\*M\x18.{4}block ", text[:end], re.DOTALL)]
    return Left(path, [piece.text for piece in pieces if isinstance(piece, Block)], starts)


async def printed(path: Path) -> bytes:
    """Return the lines of a quarantined file that can be read as a whole."""
    done = await command("journal", path)
    assert done.returncode == 0, done.stderr
    return done.stdout


def damage(path: Path, way: Callable[[bytes], bytes]) -> None:
    path.write_bytes(way(path.read_bytes()))


async def quarantined(folder: Path, left: Left, way: Callable[[bytes], bytes], behind: Sequence[bytes] = ()) -> Path:
    """Damage the middle block of a segment and start: the blocks before it and the blocks `behind` it are stored.
    Return the file with the rest."""
    damage(left.path, way)
    offset = left.starts[left.middle]
    rest = left.path.read_bytes()[offset:]
    if behind:
        rest = rest[: left.starts[left.middle + 1] - offset]
    event, stats = await replayed(folder)
    assert event["level"] == "error"
    assert (event["path"], event["offset"]) == (str(left.path), offset)
    assert event["bytes"] == len(rest)
    kept = Path(event["kept_in"])
    assert kept.read_bytes() == rest
    whole = puts([*left.blocks[: left.middle], *behind])
    lines = len(puts([left.blocks[left.middle]]))
    assert stats["ledger.stored"] == stats["ledger.received"] - lines == len(whole)
    assert stats["ledger.refused reason=journal_damaged"] == event["lines"] == lines
    assert stats["ledger.balance"] == 0
    assert stats["journal.quarantined"] == 1
    assert stored(await embedded_contents(folder)) == points_of(whole)
    return kept


async def replayed(folder: Path) -> tuple[dict[str, Any], dict[str, int]]:
    """Return what a daemon reports about the damage, and its stats. Stop it cleanly."""
    async with served(folder) as daemon:
        await daemon.ready()
        event = await daemon.logged(DAMAGED)
        async with daemon.client() as client:
            stats = await client.stats()
        assert (await daemon.terminate()).count(DAMAGED) == 1
    assert list((folder / "journal").glob("*.journal")) == []
    assert not (folder / "journal" / "pending-damage").exists()  # the next start counts nothing of it
    return event, stats


def puts(blocks: Sequence[bytes]) -> list[bytes]:
    """Return the lines of blocks."""
    return [line for block in blocks for line in block.splitlines(keepends=True)]


def points_of(lines: Sequence[bytes]) -> set[StoredPoint]:
    """Parse put lines."""
    points = set()
    for line in lines:
        _, metric, time, value, *tags = line.decode().split()
        pairs = sorted((tagk, tagv) for tagk, _, tagv in (tag.partition("=") for tag in tags))
        points.add(StoredPoint(Line(metric, tuple(pairs), int(time)), int(value)))
    return points


def stored(contents: Contents) -> set[StoredPoint]:
    """Return the points that a store has."""
    return set(stored_points(contents))
