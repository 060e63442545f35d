"""From accepted lines to stored cells, with a store that comes and goes: nothing lost, nothing doubled, in order."""

import math
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from tests import layouts
from tests.flaky_store import Fault
from tests.unit.ingest.parts import BASE, SERIES, Parts, going, line, make_store
from tsd.codec.points import POINT_BYTES
from tsd.ingest.accepted import JOURNAL_FULL
from tsd.tables.writing import SeriesText

pytestmark = layouts.on_all


@layouts.opentsdb_only
async def test_stored_window_has_a_cell_per_row_and_no_segment(tmp_path: Path) -> None:
    async with going(Parts(tmp_path, await make_store())) as parts:
        await parts.take(line(0, 1), line(10, 2), line(3600, 3), line(20, 4, "b"))
        assert parts.ledger.stored == 0
        parts.check_ledger()
        assert await parts.writer.flush()
        assert parts.ledger.stored == 4
        assert parts.writer.cells == 3
        assert list((tmp_path / "journal").glob("*.journal")) == []
        assert await parts.stored() == {
            (SERIES, BASE * 1000): 1,
            (SERIES, (BASE + 10) * 1000): 2,
            (SERIES, (BASE + 3600) * 1000): 3,
            (SERIES[:-1] + b"\2", (BASE + 20) * 1000): 4,
        }
    assert parts.store.calls.count("sync") >= 1


async def test_last_value_wins_within_and_across_windows(tmp_path: Path) -> None:
    async with going(Parts(tmp_path, await make_store())) as parts:
        await parts.take(line(0, 1), line(5, 1), line(0, 2.5))
        await parts.writer.flush()
        assert await parts.stored() == {(SERIES, BASE * 1000): 2.5, (SERIES, (BASE + 5) * 1000): 1}
        await parts.take(line(0, 300))
        await parts.writer.flush()
        assert (await parts.stored())[SERIES, BASE * 1000] == 300


@layouts.opentsdb_only
async def test_each_point_has_its_cell_if_configured(tmp_path: Path) -> None:
    async with going(Parts(tmp_path, await make_store(), join=False)) as parts:
        await parts.take(line(0, 1), line(10, 2), line(10, 2.5), line(10, 3))
        await parts.writer.flush()
    rows = (await parts.store.store.page("tsdb", b"", None, limit=10)).rows
    assert [(cell.column, cell.value) for cell in rows[0].cells] == [
        (b"t:\x00\x00", b"\1"),
        (b"t:\x00\xa0", b"\3"),
        (b"t:\x00\xab", bytes.fromhex("40200000")),
    ]


@pytest.mark.parametrize("fault", [Fault.REFUSED, Fault.ANSWER_LOST])
async def test_points_are_stored_after_a_store_outage(fault: Fault, tmp_path: Path) -> None:
    async with going(Parts(tmp_path, await make_store())) as parts:
        await parts.take(line(0, 1))
        await parts.writer.flush()
        parts.store.always = fault
        for offset in range(1, 20):
            await parts.take(line(offset, offset))
            assert not await parts.writer.flush(patient=False)
        assert parts.writer.trouble
        assert parts.writer.windows == 19
        parts.check_ledger()
        parts.store.always = Fault.NONE
        assert await parts.writer.flush()
        assert parts.writer.trouble is None
        assert await parts.stored() == {(SERIES, (BASE + o) * 1000): max(o, 1) for o in range(20)}


async def test_unknown_series_are_accepted_during_a_store_outage(tmp_path: Path) -> None:
    async with going(Parts(tmp_path, await make_store())) as parts:
        parts.store.always = Fault.REFUSED
        taken = await parts.take(line(0, 1), b"put bad:name 1 1 a=b", line(1, 2, "b"), line(2, 3))
        assert taken.accepted == 3
        assert [reject.line for reject in taken.rejects] == [1]
        await parts.journal.wait_synced(taken.position)
        assert len(parts.open_window.table.unresolved) == 2
        parts.store.always = Fault.NONE
        assert await parts.writer.flush()
        assert len(await parts.stored()) == 3
        assert not parts.open_window.table.unresolved
        await parts.take(line(9, 9, "b"))
        await parts.writer.flush()
        assert len(await parts.stored()) == 4


async def test_line_of_metric_without_uid_is_kept_in_a_file(tmp_path: Path) -> None:
    async with going(Parts(tmp_path, await make_store(), metrics=False)) as parts:
        await parts.resolver.assign(SeriesText(b"m", b"host=z"))
        parts.uids.drop_caches()
        parts.store.always = Fault.REFUSED
        assert (await parts.take(line(0, 1), line(0, 2, metric="typo"), line(1, 3))).accepted == 3
        parts.store.always = Fault.NONE
        assert await parts.writer.flush()
        assert len(await parts.stored()) == 2
        assert parts.ledger.refused == {"unknown_metrics": 1}
        [kept] = (tmp_path / "refused").iterdir()
        assert kept.read_bytes() == (
            b"# unknown metric: No such name for 'metrics': 'typo'\nput typo 1356998400 2 host=a\n"
        )
        taken = await parts.take(line(0, 2, metric="typo"))
        assert [str(reject.error) for reject in taken.rejects] == ["unknown metric: No such name for 'metrics': 'typo'"]


@pytest.mark.slow
async def test_windows_over_the_memory_limit_are_read_from_the_journal(tmp_path: Path) -> None:
    async with going(Parts(tmp_path, await make_store(), memory_limit=1 << 20)) as parts:
        parts.store.always = Fault.REFUSED
        count = 0
        for round_ in range(30):
            lines = [line(offset, round_ * 1000 + offset, f"h{round_}") for offset in range(2000)]
            count += (await parts.take(*lines)).accepted
            parts.writer.seal()
        assert count == 60_000
        held = parts.writer.memory.size
        assert held <= 1 << 20
        parts.store.always = Fault.NONE
        assert await parts.writer.flush()
        stored = await parts.stored()
        assert len(stored) == count
        assert sorted(stored.values()) == sorted(r * 1000 + o for r in range(30) for o in range(2000))


@pytest.mark.slow
async def test_one_window_is_in_memory_while_the_store_is_away(tmp_path: Path) -> None:
    async with going(Parts(tmp_path, await make_store())) as parts:
        parts.store.always = Fault.REFUSED
        await parts.take(*(line(offset, offset) for offset in range(2000)))
        assert not await parts.writer.flush(patient=False)
        held = parts.writer.memory.size
        for host in range(20):
            await parts.take(*(line(offset, offset, f"h{host}") for offset in range(2000)))
            parts.writer.seal()
        assert 0 < parts.writer.memory.size == held
        parts.store.always = Fault.NONE
        assert await parts.writer.flush()
        assert len(await parts.stored()) == 21 * 2000
        parts.check_ledger()


@pytest.mark.slow
@layouts.opentsdb_only
async def test_open_points_are_dropped_while_the_store_is_away(tmp_path: Path) -> None:
    async with going(Parts(tmp_path, await make_store())) as parts:
        parts.store.always = Fault.REFUSED
        await parts.take(line(0, 0))
        assert not await parts.writer.flush(patient=False)
        most, hosts = 0, 150
        for host in range(hosts):
            await parts.take(*(line(offset, offset, f"h{host}") for offset in range(2000)))
            parts.writer.regulate()
            most = max(most, parts.open_window.size)
        assert parts.writer.waiting_points == 2000 * hosts + 1
        assert parts.open_window.size <= most < 1000 * hosts * POINT_BYTES
        parts.store.always = Fault.NONE
        assert await parts.writer.flush()
        assert len(await parts.stored()) == 2000 * hosts + 1
        parts.check_ledger()


async def test_windows_left_to_the_journal_are_small(tmp_path: Path) -> None:
    """They are read again as a whole, next to the points that arrive."""
    most = 4000  # points of a window
    async with going(Parts(tmp_path, await make_store(), memory_limit=8 * most * POINT_BYTES)) as parts:
        await parts.take(*(line(0, 0, f"h{host}") for host in range(100)))
        assert await parts.writer.flush()
        parts.store.always = Fault.REFUSED
        await parts.take(line(1, 1, "h0"))
        assert not await parts.writer.flush(patient=False)
        waiting = parts.writer.windows
        for host in range(100):
            await parts.take(*(line(offset, offset, f"h{host}") for offset in range(most // 100)))
            parts.writer.regulate()
        assert parts.writer.windows == waiting + 4
        parts.store.always = Fault.NONE
        assert await parts.writer.flush()
        assert len(await parts.stored()) == most
        parts.check_ledger()


@pytest.mark.slow
@layouts.opentsdb_only
async def test_open_points_are_dropped_once_the_store_takes_nothing(tmp_path: Path, mock_clock: MockClock) -> None:
    mock_clock.rate = 0.01  # so slow that no pause of the machine counts
    async with going(Parts(tmp_path, await make_store())) as parts:
        await parts.take(*(line(0, 0, f"h{host}") for host in range(100)))
        assert await parts.writer.flush()
        await parts.take(line(1, 0, "h0"))
        parts.store.hold = trio.Event()
        parts.writer.seal()
        await parts.store.held.wait()
        for host in range(100):
            await parts.take(*(line(offset, offset, f"h{host}") for offset in range(2000)))
        assert parts.open_window.size == 100 * 2000 * POINT_BYTES
        mock_clock.jump(60)
        parts.writer.regulate()
        assert parts.open_window.size == 0
        parts.store.hold.set()
        assert await parts.writer.flush()
        assert len(await parts.stored()) == 2000 * 100
        parts.check_ledger()


@pytest.mark.slow
async def test_open_points_stay_in_memory_while_a_window_waits(tmp_path: Path) -> None:
    """The store works: the journal is not read again."""
    parts = Parts(tmp_path, await make_store(), memory_limit=256 << 20)
    parts.journal.recover()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(parts.journal.run)
        await parts.take(line(0, 0))
        parts.writer.seal()
        for host in range(60):
            await parts.take(*(line(offset, offset, f"h{host}") for offset in range(2000)))
        assert parts.writer.unstored(None) is not None
        nursery.cancel_scope.cancel()


@pytest.mark.slow
async def test_open_points_stay_in_memory_while_the_store_is_away_if_hours_are_held(tmp_path: Path) -> None:
    """Queries read the hour from memory, and its rows get one cell."""
    async with going(Parts(tmp_path, await make_store(), memory_limit=256 << 20, hold_intervals=math.inf)) as parts:
        parts.store.always = Fault.REFUSED
        await parts.take(line(0, 0))
        assert not await parts.writer.flush(patient=False)
        for host in range(60):
            await parts.take(*(line(offset, offset, f"h{host}") for offset in range(2000)))
        assert parts.writer.unstored(None) is not None
        parts.store.always = Fault.NONE


@pytest.mark.slow
@layouts.opentsdb_only
@pytest.mark.parametrize("seals", [False, True])
async def test_points_wait_in_the_journal_while_older_ones_are_read_from_it(tmp_path: Path, *, seals: bool) -> None:
    before = Parts(tmp_path, await make_store())
    before.journal.recover()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(before.journal.run)
        await before.journal.wait_synced((await before.take(line(0, 0))).position)
        nursery.cancel_scope.cancel()  # nothing of it was written
    after = Parts(tmp_path, before.store)
    segments = after.journal.recover()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(after.journal.run)
        after.writer.adopt(segments)
        most, hosts = 0, 150
        for host in range(hosts):
            await after.take(*(line(offset, offset, f"h{host}") for offset in range(2000)))
            if seals and not host:
                after.writer.seal()
            after.writer.regulate()
            most = max(most, after.open_window.size)
        assert after.writer.memory.size == 0
        assert most < 1000 * hosts * POINT_BYTES
        nursery.start_soon(after.writer.write_windows)
        assert await after.writer.flush()
        assert len(await after.stored()) == 2000 * hosts + 1
        after.check_ledger()
        nursery.cancel_scope.cancel()


async def test_full_journal_holds_lines_until_the_store_works(tmp_path: Path) -> None:
    async with going(Parts(tmp_path, await make_store(), max_bytes=20_000)) as parts:
        parts.store.always = Fault.REFUSED
        taken = 0
        while not parts.backpressure.reasons:
            taken += (await parts.take(*(line(taken + o, o) for o in range(10)))).accepted
            parts.writer.seal()
        assert parts.backpressure.reasons == {JOURNAL_FULL}
        assert parts.journal.size >= 20_000
        parts.store.always = Fault.NONE
        await parts.backpressure.wait_open()
        await parts.writer.flush()
        assert len(await parts.stored()) == taken


async def test_crash_before_the_write_loses_no_line(tmp_path: Path) -> None:
    store = await make_store()
    before = Parts(tmp_path, store)
    before.journal.recover()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(before.journal.run)
        await before.take(line(0, 1), line(1, 2))
        before.writer.seal()
        taken = await before.take(line(0, 7), line(2, 3))
        await before.journal.wait_synced(taken.position)
        nursery.cancel_scope.cancel()  # nothing of it was written
    async with going(Parts(tmp_path, store)) as after:
        assert after.ledger.received == 4
        assert await after.writer.flush()
        assert await after.stored() == {(SERIES, (BASE + o) * 1000): v for o, v in ((0, 7), (1, 2), (2, 3))}
        assert after.ledger.stored == 4


async def test_lines_damaged_on_disk_are_counted_and_others_stored(tmp_path: Path) -> None:
    async with going(Parts(tmp_path, await make_store())) as parts:
        parts.store.always = Fault.REFUSED
        for offset in range(3):
            await parts.journal.wait_synced((await parts.take(line(offset, 1000 + offset))).position)
        parts.store.calls.clear()
        parts.writer.seal()
        window = parts.window()
        window.drop()
        path = window.segments[0].segment.path
        data = path.read_bytes()
        path.write_bytes(data.replace(b" 1001 ", b" 1007 "))
        parts.store.always = Fault.NONE
        assert await parts.writer.flush()
        assert await parts.stored() == {(SERIES, (BASE + at) * 1000): 1000 + at for at in (0, 2)}
        assert parts.ledger.refused == {"journal_damaged": 1}
        [copy] = parts.journal.quarantined
        assert b" 1007 " in copy.read_bytes()


async def test_damage_found_at_start_is_counted_and_others_stored(tmp_path: Path) -> None:
    """Regression: neither was counted, because the ledger began after the lines that were found."""
    before = Parts(tmp_path, await make_store())
    before.journal.recover()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(before.journal.run)
        for offset in range(100):
            await before.journal.wait_synced((await before.take(line(offset, 1000 + offset))).position)
        before.journal.close()
    [path] = (tmp_path / "journal").glob("*.journal")
    path.write_bytes(path.read_bytes().replace(b" 1000 ", b" 1001 "))
    async with going(Parts(tmp_path, before.store)) as parts:
        assert await parts.writer.flush()
        assert await parts.stored() == {(SERIES, (BASE + at) * 1000): 1000 + at for at in range(1, 100)}
        assert (parts.ledger.received, parts.ledger.stored) == (100, 99)
        assert parts.ledger.refused == {"journal_damaged": 1}
        parts.check_ledger()


async def test_idle_series_are_evicted_if_no_window_holds_them(tmp_path: Path) -> None:
    async with going(Parts(tmp_path, await make_store())) as parts:
        await parts.take(line(0, 1, "a"), line(0, 1, "b"))
        await parts.writer.flush()
        parts.uptime_s += 7000
        await parts.take(line(1, 1, "b"))
        await parts.writer.flush()
        parts.uptime_s += 7000
        assert len(parts.open_window.table) == 2
        await parts.take(line(2, 1, "b"))
        await parts.writer.flush()
        assert len(parts.open_window.table) == 1
        await parts.take(line(3, 1, "a"), line(3, 1, "b"))
        await parts.writer.flush()
        assert len(await parts.stored()) == 6
