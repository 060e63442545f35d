"""The journal's calls of the disk, and their order."""

import errno
import os
from pathlib import Path

import trio

from tests.unit.ingest.journals import LINE, PATIENCE_S, make, written
from tsd.ingest.journal.disk import Disk
from tsd.ingest.journal.segment import HEADER_BYTES, Block, read_pieces


async def test_header_claims_only_synced_bytes(tmp_path: Path) -> None:
    """If the power is lost during a sync, any part of what was written may be on disk."""
    synced = {HEADER_BYTES}
    promised = []

    class Watched(Disk):
        def sync(self, fd: int) -> None:
            promised.append(int(os.pread(fd, HEADER_BYTES, 0).split()[5]))
            assert promised[-1] in synced
            super().sync(fd)
            synced.add(os.fstat(fd).st_size)

    path = await written(tmp_path, [LINE, LINE * 2, LINE * 3], Watched())
    assert len(promised) == 4  # with that of the header, before the segment has its name
    assert int(path.read_bytes().split()[5]) == path.stat().st_size


async def test_segment_has_a_header_once_it_is_named(tmp_path: Path) -> None:
    seen = []

    class Watched(Disk):
        def sync_folder(self, folder: Path) -> None:
            seen.extend([list(read_pieces(path)) for path in tmp_path.glob("*.journal")])
            super().sync_folder(folder)

        def sync(self, fd: int) -> None:
            seen.extend([size for path in tmp_path.glob("*.journal") if not (size := path.stat().st_size)])
            super().sync(fd)

    await written(tmp_path, [LINE], Watched())
    assert seen == [[]]  # when the folder was synced; not when the header was


async def test_removed_segments_stay_removed_once_that_is_synced(tmp_path: Path) -> None:
    """Regression: points that a command had deleted came back after a loss of power, whose replay found them."""
    calls = []

    class Watched(Disk):
        fails = False

        def remove(self, path: Path) -> None:
            super().remove(path)
            calls.append("remove")

        def sync_folder(self, folder: Path) -> None:
            if self.fails:
                raise OSError(errno.EIO, "as the test wants")
            super().sync_folder(folder)
            calls.append("sync")

    disk = Watched()
    journal = make(tmp_path, disk=disk)
    journal.recover()
    assert await journal.sync_removals()  # what an earlier run removed
    assert calls.pop() == "sync"
    async with trio.open_nursery() as nursery:
        nursery.start_soon(journal.run)
        await journal.wait_synced(journal.append(LINE, 1))
        segment = journal.rotate()
        assert segment is not None
        assert await journal.remove(segment)
        disk.fails = True
        assert not await journal.sync_removals()
        disk.fails = False
        assert await journal.sync_removals()
        assert calls[-2:] == ["remove", "sync"]
        journal.close()


async def test_disk_error_at_a_segments_end_spares_the_next(tmp_path: Path) -> None:
    """Its lines are on disk by then, so the window may be stored and the file removed before a second try."""

    class Failing(Disk):
        fails = False

        def sync(self, fd: int) -> None:
            if self.fails:
                self.fails = False
                raise OSError(errno.EIO, "as the test wants")
            super().sync(fd)

    disk = Failing()
    journal = make(tmp_path, disk=disk)
    journal.recover()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(journal.run)
        await journal.wait_synced(journal.append(LINE, 1))
        disk.fails = True
        segment = journal.rotate()
        assert segment is not None
        await journal.remove(segment)
        with trio.fail_after(PATIENCE_S):
            await journal.wait_synced(journal.append(LINE, 1))
        assert not disk.fails
        assert journal.trouble is None
        journal.close()


async def test_descriptor_is_not_reused_after_a_close_error(tmp_path: Path) -> None:
    """The kernel closes it in spite of the error, and its number is soon that of another file."""

    class Failing(Disk):
        fails = False

        def close(self, fd: int) -> None:
            super().close(fd)
            if self.fails:
                raise OSError(errno.EIO, "as the test wants")

    disk = Failing()
    journal = make(tmp_path, disk=disk)
    journal.recover()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(journal.run)
        await journal.wait_synced(journal.append(LINE, 1))
        disk.fails = True
        journal.append(LINE, 1)
        segment = journal.rotate()
        assert segment is not None
        with trio.fail_after(PATIENCE_S):
            await journal.wait_synced(2)
            disk.fails = False
            await journal.wait_synced(journal.append(LINE, 1))
        journal.close()
    assert [piece.lines for piece in segment.pieces() if isinstance(piece, Block)] == [1, 1]
