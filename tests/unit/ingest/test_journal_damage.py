"""Damaged parts of the journal are quarantined, logged and counted; intact parts are kept."""

import errno
import re
from pathlib import Path

import pytest

from tests.unit.ingest.journals import LINE, OWN, lines_of, make, various, written
from tsd.errors import TsdError
from tsd.ingest.journal.disk import Disk
from tsd.ingest.journal.quarantine import quarantine_damage
from tsd.ingest.journal.segment import BLOCK_BYTES, HEADER_BYTES, Block, Damage, header, read_pieces


def starts_of(path: Path) -> list[int]:
    """Return the offsets of a segment's blocks, and its size."""
    data = path.read_bytes()
    return [match.start() for match in re.finditer(rb"P\*M\x18....block ", data, re.DOTALL)] + [len(data)]


async def test_damaged_blocks_are_quarantined_and_later_ones_kept(tmp_path: Path) -> None:
    path = await written(tmp_path, [LINE, LINE * 2, LINE * 3, LINE * 4])
    data = bytearray(path.read_bytes())
    starts = starts_of(path)
    data[starts[1] + BLOCK_BYTES + 4] ^= 1
    data[-1] ^= 1
    path.write_bytes(data)
    journal = make(tmp_path)
    [segment] = journal.recover()
    assert lines_of(segment) == LINE * 4
    assert (segment.lines, segment.size) == (4, path.stat().st_size)
    assert {copy.name: copy.read_bytes() for copy in journal.quarantined} == {
        f"{path.stem}-from-byte-{starts[1]}.journal": bytes(data[starts[1] : starts[2]]),
        f"{path.stem}-from-byte-{starts[3]}.journal": bytes(data[starts[3] :]),
    }
    assert all(copy.parent == tmp_path / "quarantine" for copy in journal.quarantined)
    assert (journal.damaged, journal.statistics().quarantined) == (2 + 4, 2)
    assert [piece.text for piece in read_pieces(path) if isinstance(piece, Block)] == [LINE, LINE * 3]
    for count in (6, 0):
        again = make(tmp_path)
        assert again.recover()[0].lines == 4  # the second start finds a whole segment
        assert (again.damaged, again.quarantined) == (count, [])  # and counts it, where the first was not ready
        again.confirm_damage_counted()


async def test_torn_end_is_not_counted_as_damage(tmp_path: Path) -> None:
    path = await written(tmp_path, [LINE, LINE * 2])
    data = path.read_bytes()
    first = starts_of(path)[1]
    path.write_bytes(header(first, OWN) + data[HEADER_BYTES:-1])
    journal = make(tmp_path)
    assert [lines_of(segment) for segment in journal.recover()] == [LINE]
    assert path.stat().st_size == first
    assert journal.damaged == 0
    assert [copy.read_bytes() for copy in journal.quarantined] == [data[first:-1]]


async def test_interrupted_repair_is_completed_by_the_next_start(tmp_path: Path) -> None:
    class Cut(Disk):
        left = 0  # before the crash

        def sync(self, fd: int) -> None:
            if not self.left:
                raise OSError(errno.EIO, "as the test wants")
            self.left -= 1

    path = await written(tmp_path, [LINE, LINE * 2, LINE * 3])
    data = bytearray(path.read_bytes())
    second = starts_of(path)[1]
    data[HEADER_BYTES + BLOCK_BYTES] ^= 1
    path.write_bytes(data)
    for syncs in range(3):
        disk = Cut()
        disk.left = syncs
        with pytest.raises(TsdError):
            make(tmp_path, disk=disk).recover()
    journal = make(tmp_path)
    assert [lines_of(segment) for segment in journal.recover()] == [LINE * 5]
    assert journal.damaged == 1
    assert [copy.read_bytes() for copy in (tmp_path / "quarantine").iterdir()] == [bytes(data[HEADER_BYTES:second])]


async def test_damage_that_cannot_be_repaired_is_copied_once(tmp_path: Path) -> None:
    """The writer tries again without end, and filled the disk with copies."""

    class Whole(Disk):
        def truncate(self, fd: int, size: int) -> None:
            raise OSError(errno.EIO, "as the test wants")

    path = await written(tmp_path, [LINE, LINE * 2, LINE * 3])
    data = path.read_bytes()
    _, *ends, _ = starts_of(path)
    for _ in range(3):
        path.write_bytes(data[: HEADER_BYTES + 50] + b"X" + data[HEADER_BYTES + 51 : -1] + b"X")
        with pytest.raises(TsdError):
            make(tmp_path, disk=Whole()).recover()
    assert {copy.name for copy in (tmp_path / "quarantine").iterdir()} == {
        f"{path.stem}-from-byte-{HEADER_BYTES}.journal",
        f"{path.stem}-from-byte-{ends[1]}.journal",
    }
    path.write_bytes(data[: ends[0] - 1] + b"Y" + data[ends[0] :])  # other bytes of the same place
    [segment] = make(tmp_path).recover()
    assert lines_of(segment) == LINE * 5
    other = tmp_path / "quarantine" / f"{path.stem}-from-byte-{HEADER_BYTES}-2.journal"
    assert other.read_bytes() == data[HEADER_BYTES : ends[0] - 1] + b"Y"


async def test_large_damage_is_filled_with_several_blocks(tmp_path: Path) -> None:
    for chunk in range(BLOCK_BYTES, BLOCK_BYTES + 60):
        folder = tmp_path / str(chunk)
        path = await written(folder, [various(9), LINE * 2])
        data = bytearray(path.read_bytes())
        data[starts_of(path)[1] - 1] ^= 1
        path.write_bytes(data)
        damages = [piece for piece in read_pieces(path) if isinstance(piece, Damage)]
        quarantine_damage(Disk(), path, damages, OWN, chunk_bytes=chunk)
        journal = make(folder)
        assert [lines_of(segment) for segment in journal.recover()] == [LINE * 2], chunk
        assert journal.damaged == 9
        assert [lines_of(segment) for segment in make(folder).recover()] == [LINE * 2]
        assert path.read_bytes().count(b"lines 00000000") >= 1
