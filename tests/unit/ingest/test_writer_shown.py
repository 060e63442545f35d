"""Pending points of a metric are written before it is read: at once, and once for concurrent readers."""

from pathlib import Path

import trio

from tests import layouts
from tests.flaky_store import Fault
from tests.unit.ingest.parts import Parts, going, line, make_store

pytestmark = layouts.on_all


async def test_waiting_points_of_the_metric_only_are_written(tmp_path: Path) -> None:
    async with going(Parts(tmp_path, await make_store())) as parts:
        await parts.take(line(0, 1), line(1, 2))
        assert await parts.writer.write_metric(b"other")
        assert await parts.stored() == {}
        assert await parts.writer.write_metric(b"m")
        assert len(await parts.stored()) == 2


async def test_points_of_small_and_large_blocks_are_written(tmp_path: Path) -> None:
    async with going(Parts(tmp_path, await make_store())) as parts:
        await parts.take(*(line(offset, 1, metric="wide") for offset in range(100)))
        await parts.take(line(0, 1, metric="lone"))
        assert [parts.open_window.has_metric(name) for name in (b"wide", b"lone", b"none")] == [True, True, False]
        assert await parts.writer.write_metric(b"wide")
        assert len(await parts.stored()) == 101  # the window goes as one


async def test_concurrent_readers_share_a_window(tmp_path: Path) -> None:
    async with going(Parts(tmp_path, await make_store())) as parts:
        await parts.take(line(0, 1))
        before = parts.store.calls.count("sync")
        async with trio.open_nursery() as nursery:
            for _ in range(200):
                nursery.start_soon(parts.writer.write_metric, b"m")
        assert parts.store.calls.count("sync") == before + 1
        assert len(await parts.stored()) == 1


async def test_store_outage_does_not_block_readers(tmp_path: Path) -> None:
    async with going(Parts(tmp_path, await make_store())) as parts:
        await parts.take(line(0, 1))
        await parts.writer.flush()
        parts.store.always = Fault.REFUSED
        await parts.take(line(1, 1))
        assert not await parts.writer.write_metric(b"m")
        parts.store.always = Fault.NONE
