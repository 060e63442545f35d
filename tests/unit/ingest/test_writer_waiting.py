"""For how long the oldest point has been waiting: what an operator is told first."""

from pathlib import Path

from tests.unit.ingest.parts import Parts, going, line, make_store
from tests.wavering import Fault


async def test_a_point_grows_older_until_it_is_stored(tmp_path: Path) -> None:
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


async def test_the_next_window_is_younger(tmp_path: Path) -> None:
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


async def test_a_clock_that_is_set_back_makes_nothing_younger_than_now(tmp_path: Path) -> None:
    async with going(Parts(tmp_path, await make_store())) as parts:
        await parts.take(line(0, 1))
        parts.now_s -= 1000
        assert parts.writer.waiting_s == 0
