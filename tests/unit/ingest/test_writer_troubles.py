"""What a window may run into on its way: dropped caches, series without UIDs, segments that cannot be read."""

import errno
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import trio
from structlog.testing import capture_logs

from tests import layouts
from tests.flaky_store import Fault
from tests.unit.ingest.parts import BASE, SERIES, Parts, going, line, make_store
from tsd.codec.names import Kind
from tsd.codec.opentsdb.uid import COUNTER_ROW, encode_counter, id_column
from tsd.codec.putline import NameRules
from tsd.errors import BadLine, StoreDown, StoreError
from tsd.ingest.journal.disk import REAL, Disk
from tsd.ingest.journal.journal import Segment
from tsd.ingest.journal.segment import Block, Damage
from tsd.ingest.series import Validator
from tsd.store import Put
from tsd.tables.writing import SeriesKey, SeriesText

pytestmark = layouts.on_all

TYPO = "No such name for 'metrics': 'typo'"


def drop_caches(parts: Parts) -> None:
    """Seal the window and drop all caches, as the daemon does."""
    parts.writer.expire_names()
    parts.uids.drop_caches()
    parts.open_window.table.invalidate()


async def until(done: Callable[[], bool], looked: Callable[[], Awaitable[object]]) -> None:
    with trio.fail_after(60):
        while not done():
            await looked()


async def test_last_value_wins_though_caches_are_dropped_between(tmp_path: Path) -> None:
    async with going(Parts(tmp_path, await make_store())) as parts:
        await parts.take(line(0, 1))
        drop_caches(parts)
        await parts.take(line(0, 2), line(1, 3))
        drop_caches(parts)
        await parts.take(line(1, 4))
        await parts.writer.flush()
        assert await parts.stored() == {(SERIES, BASE * 1000): 2, (SERIES, (BASE + 1) * 1000): 4}
        assert len(parts.open_window.table) <= 3
        parts.uptime_s += 1
        await parts.take(line(2, 5))
        await parts.writer.flush()
        assert len(parts.open_window.table) == 1  # what was dropped is gone as soon as no window holds it


async def test_known_series_are_not_beyond_the_limit_once_caches_are_dropped(tmp_path: Path) -> None:
    """Regression: `dropcaches` and renames had lines of known series refused for up to a minute."""
    async with going(Parts(tmp_path, await make_store(), max_series=2)) as parts:
        await parts.take(line(0, 1, host="a"), line(0, 1, host="b"))
        drop_caches(parts)
        drop_caches(parts)
        assert (await parts.take(line(1, 2, host="a"), line(1, 2, host="b"))).accepted == 2
        assert (await parts.take(line(1, 2, host="c"))).accepted == 0
        assert parts.open_window.table.linked == 2


async def test_waiting_points_are_read_by_any_name_once_they_are_stored(tmp_path: Path) -> None:
    """Regression: after a rename an answer lacked points that were not stored yet."""
    async with going(Parts(tmp_path, await make_store())) as parts:
        await parts.take(line(0, 1))
        drop_caches(parts)
        assert await parts.unstored.open_points(b"renamed") is None
        assert await parts.writer.write_metric(b"renamed")
        assert await parts.stored() == {(SERIES, BASE * 1000): 1}
        found = await parts.unstored.open_points(b"renamed")
        assert found is not None
        assert not len(found.columns.series)


async def test_series_inserted_twice_in_an_outage_stores_all_points(tmp_path: Path) -> None:
    async with going(Parts(tmp_path, await make_store())) as parts:
        parts.store.always = Fault.REFUSED
        await parts.take(line(0, 1))
        drop_caches(parts)
        await parts.take(line(1, 3))
        assert sorted(parts.open_window.table.unresolved.values()) == [(b"m", b"host=a")] * 2
        parts.store.always = Fault.NONE
        assert await parts.writer.flush()
        assert await parts.stored() == {(SERIES, BASE * 1000): 1, (SERIES, (BASE + 1) * 1000): 3}


async def test_series_sent_again_in_a_second_outage_is_refused_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with going(Parts(tmp_path, await make_store(), metrics=False)) as parts:
        parts.store.always = Fault.REFUSED
        await parts.take(line(0, 1, metric="typo"))
        read = parts.journal.read
        again = [line(1, 1, metric="typo")]

        async def read_late(segment: Segment) -> Iterator[Block | Damage]:
            """Accept another line before a segment is read again."""
            if again:
                parts.store.always = Fault.REFUSED
                assert (await parts.take(again.pop())).accepted == 1
                parts.store.always = Fault.NONE
            return await read(segment)

        monkeypatch.setattr(parts.journal, "read", read_late)
        parts.store.always = Fault.NONE
        assert await parts.writer.flush()
        assert await parts.writer.flush()
        assert parts.ledger.refused == {"unknown_metrics": 2}
        kept = b"".join(sorted(path.read_bytes() for path in (tmp_path / "refused").iterdir()))
        assert kept.count(TYPO.encode()) == 2


async def test_unresolved_series_over_the_limit_wait_in_the_journal(tmp_path: Path) -> None:
    async with going(Parts(tmp_path, await make_store(), max_unresolved=10)) as parts:
        await parts.take(line(0, 0, "known"))
        parts.store.always = Fault.REFUSED
        for at in range(50):
            taken = await parts.take(line(at, at, f"h{at}"), line(0, at, "known"), b"put bad:name 1 1 a=b")
            assert (taken.accepted, len(taken.rejects)) == (2, 1)
        assert len(parts.open_window.table.unresolved) == 10
        assert not parts.open_window.complete
        assert parts.open_window.points == 101
        parts.store.always = Fault.NONE
        assert await parts.writer.flush()
        assert parts.open_window.complete
        stored = await parts.stored()
        assert sorted(stored.values()) == sorted([*range(50), 49])
        assert parts.ledger.stored == 101


async def test_idle_series_are_evicted_while_windows_wait(tmp_path: Path) -> None:
    async with going(Parts(tmp_path, await make_store())) as parts:
        for turn in range(20):
            parts.uptime_s += 3600
            await parts.take(line(turn, turn, f"h{turn}"))
            parts.writer.seal()
            assert parts.writer.windows
            await until(lambda: parts.writer.windows <= 1, trio.lowlevel.checkpoint)
            parts.store.always = Fault.REFUSED
            await parts.take(line(turn, 1, "late"))
            parts.writer.seal()
            parts.store.always = Fault.NONE
        assert len(parts.open_window.table) < 6
    assert len(await parts.stored()) == 40


async def test_slow_lines_are_parsed_in_batches(tmp_path: Path) -> None:
    invalid = 234
    lines = [line(at, at).replace(b"put m ", b"put m +") for at in range(500)]
    lines[invalid] = b"put m x 1 host=a"
    block = b"".join(text + b"\n" for text in lines)
    async with going(Parts(tmp_path, await make_store())) as parts:
        batches, rejected = [], []
        rest = block
        while rest:
            taken = await parts.intake.take(rest)
            rejected += [sum(batches) + reject.line for reject in taken.rejects]
            batches.append(taken.accepted + len(taken.rejects))
            rest = taken.rest
        assert (sum(batches), rejected) == (len(lines), [invalid])
        assert max(batches) <= len(lines) // 2
        parts.writer.seal()
        parts.window().drop()  # so that they are read from the journal again
        await parts.writer.flush()
        assert sorted((await parts.stored()).values()) == [n for n in range(len(lines)) if n != invalid]


async def test_unreadable_segment_is_read_again_later(tmp_path: Path) -> None:
    async with going(Parts(tmp_path, await make_store())) as parts:
        await parts.journal.wait_synced((await parts.take(line(0, 1))).position)
        parts.writer.seal()
        window = parts.window()
        window.drop()
        path = window.segments[0].segment.path
        path.rename(tmp_path / "elsewhere")
        path.mkdir()
        await until(lambda: parts.writer.trouble is not None, trio.lowlevel.checkpoint)
        path.rmdir()
        (tmp_path / "elsewhere").rename(path)
        await until(lambda: parts.ledger.stored == 1, trio.lowlevel.checkpoint)
        assert await parts.stored() == {(SERIES, BASE * 1000): 1}


async def test_end_stores_windows_after_one_that_cannot_be_read(tmp_path: Path) -> None:
    """Regression: later windows waited for it until `tsd.core.drain_timeout`, and stayed in the journal, too."""
    parts = Parts(tmp_path, await make_store())
    with trio.fail_after(60), capture_logs() as events:
        async with going(parts):
            parts.store.always = Fault.REFUSED
            await parts.journal.wait_synced((await parts.take(line(0, 1), line(1, 1))).position)
            parts.writer.seal()
            window = parts.window()
            window.drop()
            path = window.segments[0].segment.path
            path.rename(tmp_path / "elsewhere")
            path.mkdir()
            await parts.take(line(1, 2), line(2, 2))
            parts.store.always = Fault.NONE
    assert sorted((await parts.stored()).values()) == [2, 2]
    assert (parts.writer.waiting_points, parts.journal.lost) == (2, 0)
    [left] = [event for event in events if event["event"] == "journal.window_left"]
    assert (left["points"], left["paths"]) == (2, [str(path)])
    path.rmdir()
    (tmp_path / "elsewhere").rename(path)
    async with going(Parts(tmp_path, parts.store)) as after:  # whose segments are written in order, the newer one again
        await after.writer.flush()
        assert sorted((await after.stored()).values()) == [1, 2, 2]


async def test_end_leaves_the_rest_to_the_journal_while_the_disk_of_the_store_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: a stop took as long as `tsd.core.drain_timeout`."""
    parts = Parts(tmp_path, await make_store())
    with trio.fail_after(60):
        async with going(parts):
            monkeypatch.setattr(parts.points, "write", no_space)
            await parts.take(line(0, 1))
            parts.writer.seal()
            await parts.journal.wait_synced((await parts.take(line(1, 2))).position)
    assert (parts.writer.waiting_points, parts.journal.lost) == (2, 0)
    async with going(Parts(tmp_path, parts.store)) as after:
        await after.writer.flush()
        assert sorted((await after.stored()).values()) == [1, 2]


async def test_end_waits_for_space_while_lines_are_not_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = Parts(tmp_path, await make_store())
    write, tries = parts.points.write, 0

    async def has_space_late(*args: object, **options: object) -> None:
        nonlocal tries
        tries += 1
        await (no_space() if tries < 20 else write(*args, **options))  # type: ignore[arg-type]

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    async with going(parts):
        monkeypatch.setattr(parts.points, "write", has_space_late)
        monkeypatch.setattr(Disk, "write", full)
        await parts.take(line(0, 1))
    assert list((await parts.stored()).values()) == [1]
    assert (parts.writer.waiting_points, parts.journal.lost) == (0, 0)


async def no_space(*_: object, **__: object) -> None:
    """Fail as a store on a full disk."""
    raise StoreError("IO error: No space left on device")


async def test_end_goes_on_though_a_stored_segment_cannot_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: later windows were not stored."""

    def fails(_disk: Disk, path: Path) -> None:
        raise OSError(errno.EIO, "Input/output error")

    parts = Parts(tmp_path, await make_store())
    with trio.fail_after(60):
        async with going(parts):
            parts.store.always = Fault.REFUSED
            for at in range(3):
                position = (await parts.take(line(at, at))).position
                parts.writer.seal()
            await parts.journal.wait_synced(position)
            monkeypatch.setattr(Disk, "remove", fails)
            parts.store.always = Fault.NONE
    assert sorted((await parts.stored()).values()) == [0, 1, 2]
    assert (parts.writer.waiting_points, parts.journal.lost) == (0, 0)


async def test_lines_of_a_removed_segment_are_counted_as_damaged(tmp_path: Path) -> None:
    async with going(Parts(tmp_path, await make_store())) as parts:
        await parts.journal.wait_synced((await parts.take(line(0, 1))).position)
        parts.writer.seal()
        parts.window().drop()
        parts.window().segments[0].segment.path.unlink()
        await parts.take(line(1, 2))
        assert await parts.writer.flush()
        assert parts.ledger.refused == {"journal_damaged": 1}
        assert await parts.stored() == {(SERIES, (BASE + 1) * 1000): 2}


async def test_reads_of_series_fail_while_only_the_journal_has_their_points(tmp_path: Path) -> None:
    async with going(Parts(tmp_path, await make_store())) as parts:
        numbers = np.arange(1, dtype=np.int32)
        parts.store.always = Fault.REFUSED
        await parts.take(line(0, 1))
        series = numbers, parts.open_window.table.generations(numbers)
        assert len((await parts.unstored.open_series(*series)).series) == 1
        parts.writer.seal()
        parts.window().drop()
        with pytest.raises(StoreDown, match="journal"):
            await parts.unstored.open_series(*series)
        parts.store.always = Fault.NONE
        await until(lambda: parts.ledger.stored == 1, trio.lowlevel.checkpoint)
        assert len((await parts.unstored.open_series(*series)).series) == 0


@layouts.opentsdb_only
async def test_invalid_uid_counter_blocks_only_new_names(tmp_path: Path) -> None:
    store = await make_store()
    async with going(Parts(tmp_path, store)) as parts:
        await parts.take(line(0, 1))
        broken = Put(COUNTER_ROW, id_column(Kind.TAGV), b"\0\0\0\1")
        await store.put("tsdb-uid", [broken])
        taken = await parts.take(line(0, 2, "new"), line(1, 3))
        assert (taken.accepted, taken.rejects) == (2, [])
        assert not await parts.writer.flush(patient=False)
        assert parts.writer.trouble is not None
        assert broken.value.hex() in parts.writer.trouble
        await store.put("tsdb-uid", [broken._replace(value=encode_counter(1))])
        assert await parts.writer.flush()
        assert sorted((await parts.stored()).values()) == [1, 2, 3]


class RecordingValidator(Validator):
    """Notes in which turn of the event loop each text is checked."""

    def __init__(self, turn: Callable[[], int]) -> None:
        super().__init__(NameRules())
        self._turn = turn
        self.turns: Counter[int] = Counter()

    def check(self, text: SeriesText) -> BadLine | None:
        self.turns[self._turn()] += 1
        return super().check(text)


async def test_unknown_series_are_validated_in_batches(tmp_path: Path) -> None:
    async with going(Parts(tmp_path, await make_store())) as parts:
        turn = 0
        validator = parts.open_window.validator = RecordingValidator(lambda: turn)
        async with trio.open_nursery() as nursery:

            async def others() -> None:
                nonlocal turn
                while True:
                    turn += 1
                    await trio.lowlevel.checkpoint()

            nursery.start_soon(others)
            count = 1000
            taken = await parts.take(*(b"put m 1 1 h=%d u=$" % n for n in range(count)))
            nursery.cancel_scope.cancel()
        assert taken.accepted == 0
        assert 0 < len(taken.rejects) < count // 2  # the others are left in the rest
        assert validator.turns.total() == count
        assert max(validator.turns.values()) < count // 2


async def test_replayed_series_is_not_idle_after_the_first_window(tmp_path: Path) -> None:
    """Its number would be given to the next series, and its points with it."""
    async with going(Parts(tmp_path, await make_store())) as parts:  # what was left is adopted
        text = SeriesText(b"m", b"host=b")
        parts.open_window.table.insert(text, SeriesKey(SERIES[:3], SERIES[3:]))
        await parts.take(line(0, 1))
        parts.writer.seal()
        assert parts.open_window.table.find(text) is not None


@layouts.opentsdb_only
async def test_caches_dropped_during_replay_split_no_series(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: its points came under two numbers, in two cells of one row, and readers could not see which was the
    later."""
    store = await make_store()
    before = Parts(tmp_path, store)
    before.journal.recover()
    blocks = [[line(0, 1), line(1, 1)], [line(1, 2)], [line(0, 3), line(2, 3)]]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(before.journal.run)
        for block in blocks:
            await before.journal.wait_synced((await before.take(*block)).position)
        before.journal.close()
    after = Parts(tmp_path, store)
    read = Segment.pieces

    def with_interference(segment: Segment) -> Iterator[Block | Damage]:
        for piece in read(segment):
            yield piece
            after.open_window.table.invalidate()  # as `dropcaches` does

    monkeypatch.setattr(Segment, "pieces", with_interference)
    async with going(after):
        assert await after.writer.flush()
        assert after.writer.cells == 1
    assert list((await after.stored()).values()) == [3, 2, 3]


class Full(Disk):
    """A disk that takes nothing."""

    def write(self, fd: int, parts: Sequence[bytes | memoryview], at: int) -> int:
        raise OSError(errno.EFBIG, "File too large")


async def test_stored_lines_that_the_journal_never_got_are_not_lost(tmp_path: Path) -> None:
    """Regression: at the end the daemon said that they were."""

    parts = Parts(tmp_path, await make_store())
    parts.journal.disk = Full()
    async with going(parts), trio.open_nursery() as nursery:
        await parts.take(line(0, 1), line(1, 2))
        nursery.start_soon(parts.writer.flush)
        with trio.fail_after(60):
            while parts.journal.lost:
                await trio.lowlevel.checkpoint()
        assert len(await parts.stored()) == 2
        await parts.take(line(2, 3))
        assert (parts.journal.unsynced, parts.journal.lost) == (3, 1)
        parts.journal.disk = REAL
    assert (parts.journal.unsynced, parts.journal.lost) == (0, 0)


@pytest.mark.parametrize("store", [Fault.NONE, Fault.REFUSED])
async def test_end_stores_all_windows_though_the_journal_cannot_be_written(tmp_path: Path, store: Fault) -> None:
    """Regression: at a stop only the first window was stored, since its segment waited for the disk. After an outage of
    the store only the journal has the lines of the others."""
    parts = Parts(tmp_path, await make_store())
    with trio.fail_after(60):
        async with going(parts):
            position = (await parts.take(line(0, 1))).position
            parts.writer.seal()
            await parts.journal.wait_synced(position)
            parts.journal.disk = Full()
            parts.store.always = store
            for at in range(3):
                await parts.take(line(at, 10 + at), line(at, 20 + at, "b"))
                parts.writer.seal()
                await parts.journal.wait_failure()
            parts.writer.regulate()
            parts.store.always = Fault.NONE
    assert sorted((await parts.stored()).values()) == [10, 11, 12, 20, 21, 22]
    assert (parts.ledger.stored, parts.journal.lost) == (7, 0)
    assert Parts(tmp_path, parts.store).journal.recover() == []
