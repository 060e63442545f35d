"""What waits of a metric is written for whoever is about to read it: at once, and once for all who ask."""

from pathlib import Path

import trio

from tests.unit.ingest.parts import Parts, going, line, make_store
from tests.wavering import Fault


async def test_what_waits_of_a_metric_is_stored_and_of_others_is_left(tmp_path: Path) -> None:
    async with going(Parts(tmp_path, await make_store())) as parts:
        await parts.take(line(0, 1), line(1, 2))
        assert await parts.writer.show(b"other")
        assert await parts.stored() == {}
        assert await parts.writer.show(b"m")
        assert len(await parts.stored()) == 2


async def test_points_that_came_one_by_one_or_in_a_large_block_are_seen(tmp_path: Path) -> None:
    async with going(Parts(tmp_path, await make_store())) as parts:
        await parts.take(*(line(offset, 1, metric="wide") for offset in range(100)))
        await parts.take(line(0, 1, metric="lone"))
        assert [parts.rows.holds(name) for name in (b"wide", b"lone", b"none")] == [True, True, False]
        assert await parts.writer.show(b"wide")
        assert len(await parts.stored()) == 101  # the window goes as one


async def test_many_who_ask_at_once_share_a_window(tmp_path: Path) -> None:
    async with going(Parts(tmp_path, await make_store())) as parts:
        await parts.take(line(0, 1))
        before = parts.store.calls.count("sync")
        async with trio.open_nursery() as nursery:
            for _ in range(200):
                nursery.start_soon(parts.writer.show, b"m")
        assert parts.store.calls.count("sync") == before + 1
        assert len(await parts.stored()) == 1


async def test_a_store_that_is_away_holds_up_no_reader(tmp_path: Path) -> None:
    async with going(Parts(tmp_path, await make_store())) as parts:
        await parts.take(line(0, 1))
        await parts.writer.flush()
        parts.store.always = Fault.REFUSED
        await parts.take(line(1, 1))
        assert not await parts.writer.show(b"m")
        parts.store.always = Fault.NONE
