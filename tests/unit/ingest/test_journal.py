"""The live journal: grouped, durable, bounded by what the disk takes, and whole after any crash."""

import errno
import os
import resource
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs
from trio.testing import MockClock

from tests.unit.ingest.journals import LINE, OTHER, PATIENCE_S, lines_of, make, various, written
from tsd.errors import TsdError
from tsd.ingest.journal.disk import Disk
from tsd.ingest.journal.journal import Journal, Segment
from tsd.ingest.journal.segment import HEADER_BYTES, Block


async def test_appended_lines_are_on_disk_once_synced(tmp_path: Path) -> None:
    journal = make(tmp_path)
    assert journal.recover() == []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(journal.run)
        position = journal.append(LINE * 3, 3)
        assert position == 3
        assert journal.append(b"put m 1356998401 2 host=web01\n", 1) == 4
        await journal.wait_synced(4)
        [path] = tmp_path.glob("*.journal")
        assert lines_of(Segment(path)) == LINE * 3 + b"put m 1356998401 2 host=web01\n"
        assert journal.pending == 0
        journal.close()


async def test_lines_are_not_synced_before_they_are_on_disk(tmp_path: Path) -> None:
    journal = make(tmp_path)
    journal.recover()
    journal.append(LINE, 1)
    with trio.move_on_after(0) as scope:
        await journal.wait_synced(1)
    assert scope.cancelled_caught
    assert journal.pending == len(LINE)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(journal.run)
        await journal.wait_synced(1)
        journal.close()


async def test_hurry_writes_before_the_sync_interval_ends(tmp_path: Path) -> None:
    journal = make(tmp_path, sync_interval_s=10 * PATIENCE_S)
    journal.recover()
    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(journal.run)
            for position in range(1, 4):
                journal.append(LINE, 1)
                journal.hurry()
                await journal.wait_synced(position)
            journal.close()


async def test_appends_within_an_interval_share_a_sync(tmp_path: Path) -> None:
    journal = make(tmp_path, sync_interval_s=60)
    journal.recover()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(journal.run)
        journal.append(LINE, 1)
        await journal.wait_synced(1)  # the first one after a pause is written at once
        for _ in range(100):
            journal.append(LINE, 1)
            await trio.lowlevel.checkpoint()
        assert journal.statistics().syncs == 1
        journal.close()
    assert journal.synced == 101
    assert journal.statistics().syncs == 2


@pytest.mark.parametrize("trigger", ["wait", "hurry", "rotate", "many", "gathered", "close", "time"])
async def test_lines_are_gathered_until_a_caller_waits(trigger: str, tmp_path: Path) -> None:
    journal = make(tmp_path, gather_s=0.01 if trigger == "time" else 10 * PATIENCE_S)
    journal.recover()
    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(journal.run)
            journal.append(LINE, 1)
            if trigger != "time":
                await trio.testing.wait_all_tasks_blocked()
                assert journal.synced == journal.statistics().syncs == 0
            journal.append(LINE, 1)
            match trigger:
                case "wait":
                    await journal.wait_synced(2)
                case "hurry":
                    journal.hurry()
                case "rotate":
                    journal.rotate()
                case "many":
                    journal.append(LINE * 20_000, 20_000)
                case "gathered":
                    journal.write_gathered()
                case "close":
                    journal.close()
            while journal.synced < journal.position:  # without a wait for progress, which would be a trigger
                await trio.lowlevel.checkpoint()
            if trigger != "time":
                assert journal.statistics().syncs == 1
            journal.close()
    assert lines_of(Segment(min(tmp_path.glob("*.journal")))).startswith(LINE * 2)


async def test_lines_that_come_later_have_gathered_ones_written(tmp_path: Path, autojump_clock: MockClock) -> None:
    journal = make(tmp_path, gather_s=10)
    journal.recover()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(journal.run)
        for round_ in range(3):  # nothing waits for the end of a group when the next one begins
            began_s = trio.current_time()
            for _ in range(3):
                journal.append(LINE, 1)
                await trio.sleep(2)
                assert journal.synced == 4 * round_
            journal.append(LINE, 1)
            while journal.synced < journal.position:
                await trio.lowlevel.checkpoint()
            assert trio.current_time() == pytest.approx(began_s + 6, abs=0.1)
            assert journal.statistics().syncs == round_ + 1
            await trio.sleep(100)
        journal.close()


async def test_lines_after_which_none_come_are_written_in_time(tmp_path: Path, autojump_clock: MockClock) -> None:
    journal = make(tmp_path, gather_s=10)
    journal.recover()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(journal.run)
        for written in range(3):
            journal.append(LINE, 1)
            await trio.sleep(9.9)
            assert journal.synced == written
            await trio.sleep(0.2)
            while journal.synced < journal.position:
                await trio.lowlevel.checkpoint()
            await trio.sleep(100)
        journal.close()


class HeldDisk(Disk):
    """Its syncs wait until `may_sync` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.syncing, self.may_sync = threading.Event(), threading.Event()

    def sync(self, fd: int) -> None:
        self.syncing.set()
        self.may_sync.wait()
        super().sync(fd)


async def test_lines_and_segments_that_arrive_during_a_write_are_synced_though_no_task_waits(tmp_path: Path) -> None:
    disk = HeldDisk()
    journal = make(tmp_path, disk=disk)
    journal.recover()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(journal.run)
        journal.append(LINE, 1)
        await trio.to_thread.run_sync(disk.syncing.wait)
        journal.append(LINE, 1)
        journal.rotate()
        journal.append(LINE, 1)  # waits for two groups
        disk.may_sync.set()
        with trio.fail_after(PATIENCE_S):
            while journal.synced < 3:
                await trio.lowlevel.checkpoint()
        journal.close()
    assert journal.pending == 0


async def test_each_window_has_a_segment_that_is_removed_with_it(tmp_path: Path) -> None:
    journal = make(tmp_path)
    journal.recover()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(journal.run)
        journal.append(LINE, 1)
        first = journal.rotate()
        assert journal.rotate() is None
        journal.append(LINE * 2, 2)
        second = journal.rotate()
        assert first is not None
        assert second is not None
        await journal.wait_synced(3)
        await journal.remove(first)
        assert sorted(tmp_path.glob("*.journal")) == [second.path]
        assert lines_of(second) == LINE * 2
        await journal.remove(second)
        assert journal.size == 0
        assert list(tmp_path.glob("*.journal")) == []
        journal.close()


async def test_segments_of_a_crash_are_recovered_oldest_first(tmp_path: Path) -> None:
    before = make(tmp_path)
    before.recover()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(before.run)
        for number in range(3):
            before.append(b"put m %d 1 host=a\n" % (number + 1), 1)
            before.rotate()
        await before.wait_synced(3)
        before.close()
    after = make(tmp_path)
    found = after.recover()
    assert [lines_of(segment) for segment in found] == [b"put m %d 1 host=a\n" % n for n in (1, 2, 3)]
    assert [segment.lines for segment in found] == [1, 1, 1]
    assert after.size == sum(path.stat().st_size for path in tmp_path.glob("*.journal"))
    after.append(LINE, 1)
    new = after.rotate()
    assert new is not None
    assert new.path > found[-1].path


async def test_segment_without_intact_block_is_quarantined(tmp_path: Path) -> None:
    path = await written(tmp_path, [LINE])
    damaged = path.read_bytes()[:-1]
    path.write_bytes(damaged)
    journal = make(tmp_path)
    assert journal.recover() == []
    assert len(journal.quarantined) == 1
    assert journal.quarantined[0].read_bytes() == damaged[HEADER_BYTES:]
    assert not path.exists()


async def test_damaged_header_loses_no_line(tmp_path: Path) -> None:
    path = await written(tmp_path, [LINE, LINE])
    path.write_bytes(b"X" + path.read_bytes()[1:])
    journal = make(tmp_path)
    [segment] = journal.recover()
    assert lines_of(segment) == LINE * 2
    assert journal.quarantined == []
    assert make(tmp_path).recover()[0].lines == 2


@pytest.mark.parametrize("size", [0, 1, HEADER_BYTES - 1])
async def test_segment_cut_in_its_header_is_quarantined_and_logged(tmp_path: Path, size: int) -> None:
    path = await written(tmp_path, [LINE])
    left = path.read_bytes()[:size]
    path.write_bytes(left)
    journal = make(tmp_path)
    with capture_logs() as logs:
        assert journal.recover() == []
    kept = tmp_path / "quarantine" / f"{path.stem}-from-byte-0.journal"
    assert journal.quarantined == [kept]
    assert kept.read_bytes() == left
    [event] = logs
    assert event.pop("error")
    assert event == {
        "event": "journal.segment_damaged",
        "log_level": "error",
        "path": str(path),
        "offset": size,
        "lines": 1,
        "bytes": size,
        "kept_in": str(kept),
    }
    assert not path.exists()


async def test_file_that_is_not_a_segment_is_kept(tmp_path: Path) -> None:
    path = await written(tmp_path, [LINE])
    stray = tmp_path / "copy.journal"
    stray.write_bytes(path.read_bytes())
    draft = path.with_suffix(".new")  # of a segment whose daemon was killed before it had lines
    draft.write_bytes(b"tsd-jour")
    with capture_logs() as logs:
        assert [segment.path for segment in make(tmp_path).recover()] == [path]
    assert logs == [{"event": "journal.file_unknown", "log_level": "warning", "path": str(stray)}]
    assert stray.exists()
    assert not draft.exists()


async def test_unreadable_segment_raises_an_error(tmp_path: Path) -> None:
    segment = tmp_path / "0000000000000000.journal"
    segment.mkdir()
    with pytest.raises(TsdError, match=f"{segment}: .*{os.strerror(errno.EISDIR)}"):
        make(tmp_path).recover()


async def test_journal_size_is_the_size_of_its_files(tmp_path: Path) -> None:
    journal = make(tmp_path)
    journal.recover()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(journal.run)
        for group in range(1, 4):
            for _ in range(group):
                journal.append(LINE, 1)
            await journal.wait_synced(journal.position)
            if group == 2:
                first = journal.rotate()
        journal.close()
    sizes = [path.stat().st_size for path in sorted(tmp_path.glob("*.journal"))]
    assert first is not None
    assert first.size == sizes[0]
    assert journal.size == sum(sizes)
    assert make(tmp_path).recover()[0].size == sizes[0]


async def test_lines_at_the_pace_of_agents_are_compressed_and_a_flood_is_not(tmp_path: Path) -> None:
    lines = b"".join(
        b"put bench.metric%02d 1356998400 %d host=web%05d dc=fra\n" % (metric, host * 7919 % 1000, host)
        for host in range(10)
        for metric in range(50)
    )
    flood = lines * 500
    journal = make(tmp_path)
    journal.recover()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(journal.run)
        position = journal.append(lines, 500)
        assert journal.size > len(lines)
        await journal.wait_synced(position)
        assert journal.size < len(lines) / 4
        calm = journal.rotate()
        await journal.wait_synced(journal.append(flood, 500 * 500))
        assert journal.size > len(flood)
        flooded = journal.rotate()
        journal.close()
    assert calm is not None
    assert flooded is not None
    assert lines_of(calm) == lines
    assert lines_of(flooded) == flood
    assert journal.size == calm.size + flooded.size
    assert [calm.size, flooded.size] == [path.stat().st_size for path in sorted(tmp_path.glob("*.journal"))]


async def test_existing_file_is_not_overwritten(tmp_path: Path) -> None:
    journal = make(tmp_path)
    journal.recover()
    other = tmp_path / "0000000000000000.journal"
    other.write_bytes(b"of another")
    journal.append(LINE, 1)
    journal.close(deadline=trio.current_time())
    await journal.run()
    assert journal.trouble == f"[Errno 17] a segment that is not this daemon's: '{other}'"
    assert other.read_bytes() == b"of another"


async def test_close_does_not_wait_for_a_full_disk(tmp_path: Path) -> None:
    journal = make(tmp_path)
    journal.recover()
    ended = trio.Event()

    async def run() -> None:
        await journal.run()
        ended.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        await journal.wait_synced(journal.append(LINE * 3, 3))
        with largest_file(250):
            journal.append(various(50), 50)
            while journal.trouble is None:
                await trio.lowlevel.checkpoint()
            journal.rotate()
            journal.append(LINE, 1)
            journal.close(deadline=trio.current_time())
            with trio.fail_after(PATIENCE_S):
                await ended.wait()
    assert journal.unsynced == 51
    [segment] = make(tmp_path).recover()
    assert lines_of(segment) == LINE * 3


async def test_close_before_its_deadline_retries_the_write(tmp_path: Path) -> None:
    journal = make(tmp_path)
    journal.recover()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(journal.run)
        with largest_file(0):
            journal.append(LINE, 1)
            journal.close(deadline=trio.current_time() + 60)
            while journal.trouble is None:
                await trio.lowlevel.checkpoint()
    assert journal.unsynced == 0
    assert [lines_of(segment) for segment in make(tmp_path).recover()] == [LINE]


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """The kernel lets this process write no file beyond `size` bytes; the one that its log goes to is spared."""
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, old[1]))
    try:
        with capture_logs():
            yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
        signal.signal(signal.SIGXFSZ, handler)


async def test_full_disk_is_retried_until_it_has_room(tmp_path: Path) -> None:
    journal = make(tmp_path)
    journal.recover()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(journal.run)
        with largest_file(450):
            await journal.wait_synced(journal.append(LINE * 3, 3))
            position = journal.append(various(50), 50)
            while journal.trouble is None:
                await trio.lowlevel.checkpoint()
            assert journal.synced == 3
            [path] = tmp_path.glob("*.journal")
            first = next(Segment(path).pieces())
            assert isinstance(first, Block)
            assert first.text == LINE * 3  # what follows may just be tried
        await journal.wait_synced(position)
        assert lines_of(Segment(path)) == LINE * 3 + various(50)
        assert journal.size == path.stat().st_size
        assert journal.trouble is None
        journal.close()
    assert journal.statistics().failures >= 1


async def test_write_of_more_blocks_than_one_call_takes_is_whole(tmp_path: Path) -> None:
    journal = make(tmp_path, sync_interval_s=60)
    journal.recover()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(journal.run)
        await journal.wait_synced(journal.append(LINE, 1))
        for _ in range(3000):  # more than one writev takes
            journal.append(LINE, 1)
        journal.close()
    [path] = tmp_path.glob("*.journal")
    assert lines_of(Segment(path)) == LINE * 3001
    assert os.stat(path).st_size < 1.1 * len(LINE) * 3001


async def test_segment_of_another_daemon_is_quarantined_and_logged(tmp_path: Path) -> None:
    """A file that was copied here, or a disk with others' on it: it used to be stored as if it were ours."""
    other = make(tmp_path / "other", owner=OTHER)
    other.recover()
    await wait_written(other, b"put theirs 1356998400 1 h=a\n")
    ours = make(tmp_path / "ours")
    ours.recover()
    await wait_written(ours, LINE)
    [theirs] = (tmp_path / "other").glob("*.journal")
    copy = tmp_path / "ours" / "0000000000000004.journal"
    copy.write_bytes(theirs.read_bytes())
    journal = make(tmp_path / "ours")
    with capture_logs() as logs:
        assert [lines_of(segment) for segment in journal.recover()] == [LINE]
    kept = tmp_path / "ours" / "quarantine" / f"0000000000000004-of-{OTHER}.journal"
    assert journal.quarantined == [kept]
    assert kept.read_bytes() == theirs.read_bytes()
    assert logs == [
        {
            "event": "journal.foreign_segment",
            "log_level": "error",
            "path": str(copy),
            "of": OTHER,
            "kept_in": str(kept),
        }
    ]
    assert not copy.exists()
    kept.rename(copy)
    [_, adopted] = make(tmp_path / "ours", adopted=[OTHER]).recover()
    assert lines_of(adopted) == b"put theirs 1356998400 1 h=a\n"


async def wait_written(journal: Journal, lines: bytes) -> None:
    """Have lines on disk, as a daemon leaves them that is killed."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(journal.run)
        await journal.wait_synced(journal.append(lines, lines.count(b"\n")))
        journal.close()


async def test_journal_stays_full_until_a_segment_is_removed(tmp_path: Path) -> None:
    """Although its lines take less of the disk than of memory."""
    journal = make(tmp_path, max_bytes=3000)
    journal.recover()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(journal.run)
        await journal.wait_synced(journal.append(LINE, 1))
        first = journal.rotate()
        assert first is not None
        assert not journal.is_full
        journal.append(LINE * 100, 100)
        assert journal.is_full
        await journal.wait_synced(101)
        assert journal.size < 3000
        assert journal.is_full
        journal.max_bytes = 4000
        assert not journal.is_full
        journal.max_bytes = journal.size
        assert journal.is_full
        journal.max_bytes = 3000
        assert journal.is_full
        await journal.remove(first)
        assert not journal.is_full
        journal.close()


async def test_stored_lines_are_written_if_the_next_start_replays_older_ones(tmp_path: Path) -> None:
    """Regression: only the older ones were in the journal, and their replay overwrote newer values."""
    journal = make(tmp_path)
    journal.recover()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(journal.run)
        await journal.wait_synced(journal.append(LINE, 1))
        journal.rotate()
        journal.append(LINE * 2, 2)
        newer = journal.rotate()
        assert newer is not None
        newer.is_stored = True
        journal.close()
    assert [segment.lines for segment in make(tmp_path).recover()] == [1, 2]
