"""The live journal: grouped, durable, bounded by what the disk takes, and whole after any crash."""

import os
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tsd.ingest.journal import Journal, Segment

LINE = b"put m 1356998400 1 host=web01\n"


def make(folder: Path, sync_interval_s: float = 0.001) -> Journal:
    return Journal(folder, sync_interval_s=sync_interval_s, max_bytes=1 << 30)


def lines_of(segment: Segment) -> bytes:
    return b"".join(block.text for block in segment.blocks())


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


async def test_nothing_is_synced_before_the_disk_has_it(tmp_path: Path) -> None:
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


async def test_groups_share_a_sync(tmp_path: Path) -> None:
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


async def test_each_window_has_its_segment_and_takes_it_along(tmp_path: Path) -> None:
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


async def test_what_a_crash_left_is_found_oldest_first(tmp_path: Path) -> None:
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


async def written(folder: Path, groups: list[bytes]) -> Path:
    """A segment of several groups, as a crashed daemon leaves it."""
    journal = make(folder)
    journal.recover()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(journal.run)
        for group in groups:
            await journal.wait_synced(journal.append(group, group.count(b"\n")))
        journal.close()
    [path] = folder.glob("*.journal")
    return path


async def test_a_damaged_end_is_set_aside_and_named(tmp_path: Path) -> None:
    path = await written(tmp_path, [LINE, LINE * 2, LINE * 3])
    data = bytearray(path.read_bytes())
    data[data.index(LINE * 2) + 4] ^= 1
    path.write_bytes(data)
    journal = make(tmp_path)
    [segment] = journal.recover()
    assert lines_of(segment) == LINE
    assert segment.lines == 1
    [aside] = journal.aside
    assert aside.parent == tmp_path / "aside"
    assert path.read_bytes() + aside.read_bytes() == bytes(data[: len(path.read_bytes())]).replace(
        data[:47], path.read_bytes()[:47]
    ) + bytes(data[len(path.read_bytes()) :])
    assert make(tmp_path).recover()[0].lines == 1  # the second start finds a whole segment


async def test_a_segment_without_a_whole_block_is_set_aside_entirely(tmp_path: Path) -> None:
    path = await written(tmp_path, [LINE])
    path.write_bytes(path.read_bytes()[:-1])
    journal = make(tmp_path)
    assert journal.recover() == []
    assert len(journal.aside) == 1
    assert LINE[:-1] in journal.aside[0].read_bytes()
    assert not path.exists()


async def test_a_damaged_header_costs_no_line(tmp_path: Path) -> None:
    path = await written(tmp_path, [LINE, LINE])
    path.write_bytes(b"X" + path.read_bytes()[1:])
    journal = make(tmp_path)
    [segment] = journal.recover()
    assert lines_of(segment) == LINE * 2
    assert journal.aside == []
    assert make(tmp_path).recover()[0].lines == 2


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """The kernel lets this process write no file beyond `size` bytes."""
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
        signal.signal(signal.SIGXFSZ, handler)


async def test_a_disk_that_takes_no_more_and_then_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tsd.ingest.journal.RETRY_S", 0.001)
    journal = make(tmp_path)
    journal.recover()
    troubles: list[str | None] = []
    journal.on_progress = lambda: troubles.append(journal.trouble)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(journal.run)
        with largest_file(400):
            await journal.wait_synced(journal.append(LINE * 3, 3))
            position = journal.append(LINE * 50, 50)
            while journal.trouble is None:
                await wait_all_tasks_blocked(0.001)
            assert journal.synced == 3
            [path] = tmp_path.glob("*.journal")
            assert [block.text for block in Segment(path).blocks()][:1] == [LINE * 3]
        await journal.wait_synced(position)
        assert lines_of(Segment(path)) == LINE * 53
        assert journal.trouble is None
        journal.close()
    assert any(troubles)
    assert journal.statistics().failures >= 1


async def test_a_write_of_many_blocks_is_whole(tmp_path: Path) -> None:
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
