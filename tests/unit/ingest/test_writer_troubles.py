"""What a window may run into on its way: dropped caches, series without UIDs, segments that cannot be read."""

from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
import trio

from tests.unit.ingest.parts import BASE, SERIES, Parts, going, line, make_store
from tests.wavering import Fault
from tsd.codec.uid import COUNTER_ROW, Kind, encode_counter
from tsd.ingest.journal import Segment
from tsd.ingest.names import Judged
from tsd.ingest.putlines import SLOW_LINES
from tsd.ingest.segment import Block, Damage
from tsd.ingest.series import KeyParts, SeriesText
from tsd.ingest.writer import Window
from tsd.store import Put

TYPO = "No such name for 'metrics': 'typo'"


def drop_caches(parts: Parts) -> None:
    """As the daemon does."""
    parts.writer.seal()
    parts.uids.drop_caches()
    parts.rows.table.forget_texts()


async def until(done: Callable[[], bool], looked: Callable[[], Awaitable[object]]) -> None:
    with trio.fail_after(60):
        while not done():
            await looked()


async def test_the_last_value_of_a_time_wins_whatever_is_dropped_between(tmp_path: Path) -> None:
    async with going(Parts(tmp_path, await make_store())) as parts:
        await parts.take(line(0, 1))
        drop_caches(parts)
        await parts.take(line(0, 2), line(1, 3))
        drop_caches(parts)
        await parts.take(line(1, 4))
        await parts.writer.flush()
        assert await parts.stored() == {(SERIES, BASE * 1000): 2, (SERIES, (BASE + 1) * 1000): 4}
        assert len(parts.rows.table) <= 3
        parts.uptime_s += 1
        await parts.take(line(2, 5))
        await parts.writer.flush()
        assert len(parts.rows.table) == 1  # what was dropped is gone as soon as no window holds it


async def test_a_series_met_twice_while_the_store_is_away_is_stored_twice(tmp_path: Path) -> None:
    async with going(Parts(tmp_path, await make_store())) as parts:
        parts.store.always = Fault.REFUSED
        await parts.take(line(0, 1))
        drop_caches(parts)
        await parts.take(line(1, 3))
        assert sorted(parts.rows.table.unsettled.values()) == [(b"m", b"host=a")] * 2
        parts.store.always = Fault.NONE
        assert await parts.writer.flush()
        assert await parts.stored() == {(SERIES, BASE * 1000): 1, (SERIES, (BASE + 1) * 1000): 3}


async def test_a_refused_series_that_comes_again_while_the_store_is_away_again(tmp_path: Path) -> None:
    async with going(Parts(tmp_path, await make_store(), metrics=False)) as parts:
        parts.store.always = Fault.REFUSED
        await parts.take(line(0, 1, metric="typo"))
        read_again = parts.writer._read_again
        again = [line(1, 1, metric="typo")]

        async def read_late(window: Window) -> object:
            if again:
                parts.store.always = Fault.REFUSED
                assert (await parts.take(again.pop())).accepted == 1
                parts.store.always = Fault.NONE
            return await read_again(window)

        parts.writer._read_again = read_late  # type: ignore[method-assign, assignment]
        parts.store.always = Fault.NONE
        assert await parts.writer.flush()
        assert await parts.writer.flush()
        assert parts.ledger.refused == {"unknown_metrics": 2}
        kept = b"".join(sorted(path.read_bytes() for path in (tmp_path / "refused").iterdir()))
        assert kept.count(TYPO.encode()) == 2


async def test_series_beyond_the_bound_wait_in_the_journal_alone(tmp_path: Path) -> None:
    async with going(Parts(tmp_path, await make_store(), most_unsettled=10)) as parts:
        await parts.take(line(0, 0, "known"))
        parts.store.always = Fault.REFUSED
        for at in range(50):
            taken = await parts.take(line(at, at, f"h{at}"), line(0, at, "known"), b"put bad:name 1 1 a=b")
            assert (taken.accepted, len(taken.rejects)) == (2, 1)
        assert len(parts.rows.table.unsettled) == 10
        assert not parts.rows.complete
        assert parts.rows.points == 101
        parts.store.always = Fault.NONE
        assert await parts.writer.flush()
        assert parts.rows.complete
        stored = await parts.stored()
        assert sorted(stored.values()) == sorted([*range(50), 49])
        assert parts.ledger.stored == 101


async def test_idle_series_go_though_a_window_always_waits(tmp_path: Path) -> None:
    now = 1_000_000
    async with going(Parts(tmp_path, await make_store())) as parts:
        parts.writer._uptime_s = lambda: now
        for turn in range(20):
            now += 3600
            await parts.take(line(turn, turn, f"h{turn}"))
            parts.writer.seal()
            assert parts.writer.windows
            await until(lambda: parts.writer.windows <= 1, trio.lowlevel.checkpoint)
            parts.store.always = Fault.REFUSED
            await parts.take(line(turn, 1, "late"))
            parts.writer.seal()
            parts.store.always = Fault.NONE
        assert len(parts.rows.table) < 6
    assert len(await parts.stored()) == 40


async def test_lines_that_want_a_closer_look_are_taken_a_part_at_a_time(tmp_path: Path) -> None:
    lines = [line(at, at).replace(b"put m ", b"put m +") for at in range(2 * SLOW_LINES + 1)]
    lines[SLOW_LINES + 1] = b"put m x 1 host=a"
    block = b"".join(text + b"\n" for text in lines)
    async with going(Parts(tmp_path, await make_store())) as parts:
        turns = []
        rest = block
        while rest:
            taken = await parts.intake.take_in(rest)
            turns.append((taken.accepted, [reject.line for reject in taken.rejects]))
            rest = taken.rest
        assert turns == [(SLOW_LINES, []), (SLOW_LINES - 1, [1]), (1, [])]
        parts.writer.seal()
        parts.writer._windows[0].columns = None  # so that they are read from the journal again
        await parts.writer.flush()
        assert sorted((await parts.stored()).values()) == [n for n in range(len(lines)) if n != SLOW_LINES + 1]


async def test_a_segment_that_cannot_be_read_is_read_later(tmp_path: Path) -> None:
    async with going(Parts(tmp_path, await make_store())) as parts:
        await parts.journal.wait_synced((await parts.take(line(0, 1))).position)
        parts.writer.seal()
        window = parts.writer._windows[0]
        window.columns = None
        path = window.segment.path
        path.rename(tmp_path / "elsewhere")
        path.mkdir()
        await until(lambda: parts.writer.trouble is not None, trio.lowlevel.checkpoint)
        assert parts.writer.trouble is not None
        assert "the state folder cannot be used" in parts.writer.trouble
        path.rmdir()
        (tmp_path / "elsewhere").rename(path)
        await until(lambda: parts.ledger.stored == 1, trio.lowlevel.checkpoint)
        assert await parts.stored() == {(SERIES, BASE * 1000): 1}


async def test_a_segment_that_somebody_removed_is_an_error_in_the_log_and_in_the_account(tmp_path: Path) -> None:
    async with going(Parts(tmp_path, await make_store())) as parts:
        await parts.journal.wait_synced((await parts.take(line(0, 1))).position)
        parts.writer.seal()
        parts.writer._windows[0].columns = None
        parts.writer._windows[0].segment.path.unlink()
        await parts.take(line(1, 2))
        assert await parts.writer.flush()
        assert parts.ledger.refused == {"journal_damaged": 1}
        assert await parts.stored() == {(SERIES, (BASE + 1) * 1000): 2}


async def test_a_uid_counter_that_is_none_stops_nothing_but_new_names(tmp_path: Path) -> None:
    store = await make_store()
    async with going(Parts(tmp_path, store)) as parts:
        await parts.take(line(0, 1))
        broken = Put(COUNTER_ROW, Kind.TAGV.id_column, b"\0\0\0\1")
        await store.put("tsdb-uid", [broken])
        taken = await parts.take(line(0, 2, "new"), line(1, 3))
        assert (taken.accepted, taken.rejects) == (2, [])
        assert not await parts.writer.flush(patient=False)
        assert parts.writer.trouble is not None
        assert "00000001" in parts.writer.trouble
        await store.put("tsdb-uid", [broken._replace(value=encode_counter(1))])
        assert await parts.writer.flush()
        assert sorted((await parts.stored()).values()) == [1, 2, 3]


async def test_strangers_are_judged_a_part_at_a_time(tmp_path: Path) -> None:
    async with going(Parts(tmp_path, await make_store())) as parts:
        judge = parts.intake._names.judge
        turn = 0
        turns: list[tuple[int, int]] = []

        def note(texts: list[SeriesText]) -> Judged:
            turns.append((turn, len(texts)))
            return judge(texts)

        parts.intake._names.judge = note  # type: ignore[method-assign, assignment]
        async with trio.open_nursery() as nursery:

            async def others() -> None:
                nonlocal turn
                while True:
                    turn += 1
                    await trio.lowlevel.checkpoint()

            nursery.start_soon(others)
            count = 3 * SLOW_LINES + 1
            taken = await parts.take(*(b"put m 1 1 h=%d u=$" % n for n in range(count)))
            nursery.cancel_scope.cancel()
        assert (taken.accepted, len(taken.rejects)) == (0, SLOW_LINES)  # the others come with the rest
        assert [size for _, size in turns] == [SLOW_LINES] * 3 + [1]
        moments = [at for at, _ in turns]
        assert moments[0] < moments[2]  # trio may give two turns to one task before another
        assert moments[1] < moments[3]


async def test_a_series_that_a_replay_meets_is_not_idle_when_the_first_window_ends(tmp_path: Path) -> None:
    """Its number would be given to the next series, and its points with it."""
    async with going(Parts(tmp_path, await make_store())) as parts:  # what was left is adopted
        text = SeriesText(b"m", b"host=b")
        parts.rows.table.enter(text, KeyParts(SERIES[:3], SERIES[3:]))
        await parts.take(line(0, 1))
        parts.writer.seal()
        assert parts.rows.table.find(text) is not None


async def test_names_that_are_dropped_while_a_window_is_read_again_make_no_two_series_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its points came under two numbers, in two cells of one row, and which was the later could not be told."""
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

    def meddled(segment: Segment) -> Iterator[Block | Damage]:
        for piece in read(segment):
            yield piece
            after.rows.table.forget_texts()  # as `dropcaches` has it

    monkeypatch.setattr(Segment, "pieces", meddled)
    async with going(after):
        assert await after.writer.flush()
        assert after.writer.cells == 1
    assert list((await after.stored()).values()) == [3, 2, 3]
