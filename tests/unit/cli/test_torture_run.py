"""A round that comes to no end says where it waited."""

from pathlib import Path

import trio
from trio.testing import MockClock

from tsd.torture.stuck import bounded


async def test_what_waits_is_told(tmp_path: Path, autojump_clock: MockClock) -> None:
    async def wait_for_nothing() -> None:
        await trio.sleep_forever()

    others: list[str] = []

    async def tell() -> None:
        await trio.lowlevel.checkpoint()
        others.append("told")

    told = tmp_path / "stuck.txt"
    async with bounded(5, told, tell) as scope, trio.open_nursery() as nursery:
        nursery.start_soon(wait_for_nothing)
    assert scope.cancel_called
    assert trio.current_time() >= 5
    assert "wait_for_nothing" in told.read_text()
    assert "sleep_forever" in told.read_text()
    assert others == ["told"]


async def test_who_comes_to_an_end_is_left_alone(tmp_path: Path, autojump_clock: MockClock) -> None:
    told = tmp_path / "stuck.txt"
    async with bounded(5, told) as scope:
        await trio.sleep(1)
    assert not scope.cancel_called
    assert not told.exists()
