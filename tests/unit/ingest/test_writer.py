"""From accepted lines to stored cells, with a store that comes and goes: nothing lost, nothing doubled, in order."""

from pathlib import Path

import pytest
import trio

from tests.unit.ingest.parts import BASE, SERIES, Parts, going, line, make_store
from tests.wavering import Fault
from tsd.codec.uid import Kind


async def test_a_window_is_one_cell_a_row_and_its_segment_goes(tmp_path: Path) -> None:
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


async def test_the_last_value_of_a_time_wins_within_and_across_windows(tmp_path: Path) -> None:
    async with going(Parts(tmp_path, await make_store())) as parts:
        await parts.take(line(0, 1), line(5, 1), line(0, 2.5))
        await parts.writer.flush()
        assert await parts.stored() == {(SERIES, BASE * 1000): 2.5, (SERIES, (BASE + 5) * 1000): 1}
        await parts.take(line(0, 300))
        await parts.writer.flush()
        assert (await parts.stored())[SERIES, BASE * 1000] == 300


async def test_one_cell_a_point_if_so_configured(tmp_path: Path) -> None:
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
async def test_a_store_that_is_away_for_a_while(fault: Fault, tmp_path: Path) -> None:
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


async def test_strangers_are_taken_in_while_the_store_is_away(tmp_path: Path) -> None:
    async with going(Parts(tmp_path, await make_store())) as parts:
        parts.store.always = Fault.REFUSED
        taken = await parts.take(line(0, 1), b"put bad:name 1 1 a=b", line(1, 2, "b"), line(2, 3))
        assert taken.accepted == 3
        assert [reject.line for reject in taken.rejects] == [1]
        await parts.journal.wait_synced(taken.position)
        assert len(parts.rows.table.unsettled) == 2
        parts.store.always = Fault.NONE
        assert await parts.writer.flush()
        assert len(await parts.stored()) == 3
        assert not parts.rows.table.unsettled
        await parts.take(line(9, 9, "b"))
        await parts.writer.flush()
        assert len(await parts.stored()) == 4


async def test_a_metric_that_turns_out_to_have_no_uid_is_set_aside_not_lost(tmp_path: Path) -> None:
    async with going(Parts(tmp_path, await make_store(), metrics=False)) as parts:
        await parts.uids.find_or_assign(Kind.METRIC, [b"m"])
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


async def test_what_does_not_fit_in_memory_is_read_from_the_journal_again(tmp_path: Path) -> None:
    async with going(Parts(tmp_path, await make_store(), memory_limit=1 << 20)) as parts:
        parts.store.always = Fault.REFUSED
        count = 0
        for round_ in range(30):
            lines = [line(offset, round_ * 1000 + offset, f"h{round_}") for offset in range(2000)]
            count += (await parts.take(*lines)).accepted
            parts.writer.seal()
        assert count == 60_000
        held = sum(window.held for window in parts.writer._windows)
        assert held <= 1 << 20
        parts.store.always = Fault.NONE
        assert await parts.writer.flush()
        stored = await parts.stored()
        assert len(stored) == count
        assert sorted(stored.values()) == sorted(r * 1000 + o for r in range(30) for o in range(2000))


async def test_a_full_journal_shuts_the_gate_and_the_store_opens_it(tmp_path: Path) -> None:
    async with going(Parts(tmp_path, await make_store(), max_bytes=20_000)) as parts:
        parts.store.always = Fault.REFUSED
        taken = 0
        while not parts.gate.held:
            taken += (await parts.take(*(line(taken + o, o) for o in range(10)))).accepted
            parts.writer.seal()
        assert parts.gate.held == {"the journal is full (tsd.journal.max_bytes)"}
        assert parts.journal.size >= 20_000
        parts.store.always = Fault.NONE
        await parts.gate.passed()
        await parts.writer.flush()
        assert len(await parts.stored()) == taken


async def test_a_crash_before_during_and_after_the_write(tmp_path: Path) -> None:
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


async def test_lines_damaged_on_disk_are_counted_and_the_rest_is_stored(tmp_path: Path) -> None:
    async with going(Parts(tmp_path, await make_store())) as parts:
        parts.store.always = Fault.REFUSED
        for offset in range(3):
            await parts.journal.wait_synced((await parts.take(line(offset, 1000 + offset))).position)
        parts.store.calls.clear()
        parts.writer.seal()
        window = parts.writer._windows[0]
        window.columns = None
        path = window.segment.path
        data = path.read_bytes()
        path.write_bytes(data.replace(b" 1001 ", b" 1007 "))
        parts.store.always = Fault.NONE
        assert await parts.writer.flush()
        assert await parts.stored() == {(SERIES, (BASE + at) * 1000): 1000 + at for at in (0, 2)}
        assert parts.ledger.refused == {"journal_damaged": 1}
        [aside] = parts.journal.aside
        assert b" 1007 " in aside.read_bytes()


async def test_lines_that_a_start_finds_damaged_are_counted_and_the_rest_is_stored(tmp_path: Path) -> None:
    """They were not: the account began behind them."""
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


async def test_idle_series_are_forgotten_once_nothing_holds_them(tmp_path: Path) -> None:
    now = 1_000_000
    async with going(Parts(tmp_path, await make_store())) as parts:
        parts.writer._uptime_s = lambda: now
        await parts.take(line(0, 1, "a"), line(0, 1, "b"))
        await parts.writer.flush()
        now += 7000
        await parts.take(line(1, 1, "b"))
        await parts.writer.flush()
        now += 7000
        assert len(parts.rows.table) == 2
        await parts.take(line(2, 1, "b"))
        await parts.writer.flush()
        assert len(parts.rows.table) == 1
        await parts.take(line(3, 1, "a"), line(3, 1, "b"))
        await parts.writer.flush()
        assert len(await parts.stored()) == 6
