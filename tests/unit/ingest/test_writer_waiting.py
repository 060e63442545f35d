"""Waiting time of the oldest point: the first figure that an operator reads."""

from pathlib import Path

from tests import layouts
from tests.flaky_store import Fault
from tests.unit.ingest.parts import Parts, going, line, make_store

pytestmark = layouts.on_all


async def test_age_of_waiting_points_grows_until_they_are_stored(tmp_path: Path) -> None:
    async with going(Parts(tmp_path, await make_store())) as parts:
        assert parts.writer.waiting_s == 0
        await parts.take(line(0, 1))
        parts.now_s += 60
        await parts.take(line(1, 1))
        assert parts.writer.waiting_s == 60
        parts.store.always = Fault.REFUSED
        assert not await parts.writer.flush(patient=False)
        await parts.take(line(2, 1))
        parts.now_s += 3600
        assert parts.writer.waiting_s == 3660
        parts.store.always = None
        assert await parts.writer.flush()
        assert parts.writer.waiting_s == 0


async def test_age_is_that_of_the_oldest_waiting_window(tmp_path: Path) -> None:
    async with going(Parts(tmp_path, await make_store())) as parts:
        await parts.take(line(0, 1))
        parts.now_s += 60
        parts.writer.seal()
        await parts.take(line(1, 1))
        parts.now_s += 5
        assert await parts.writer.flush()
        await parts.take(line(2, 1))
        parts.now_s += 7
        assert parts.writer.waiting_s == 7


async def test_age_is_not_negative_if_the_clock_is_set_back(tmp_path: Path) -> None:
    async with going(Parts(tmp_path, await make_store())) as parts:
        await parts.take(line(0, 1))
        parts.now_s -= 1000
        assert parts.writer.waiting_s == 0
