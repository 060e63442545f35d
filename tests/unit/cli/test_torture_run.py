"""A round that comes to no end says where it waited."""

from pathlib import Path

import trio
from trio.testing import MockClock

from tsd.cli.torture.run import hang_watchdog


async def test_waiting_work_is_reported(tmp_path: Path, autojump_clock: MockClock) -> None:
    async def wait_for_nothing() -> None:
        await trio.sleep_forever()

    others: list[str] = []

    async def report_others() -> None:
        await trio.lowlevel.checkpoint()
        others.append("reported")

    report = tmp_path / "hang.txt"
    async with hang_watchdog(5, report, report_others) as scope, trio.open_nursery() as nursery:
        nursery.start_soon(wait_for_nothing)
    assert scope.cancel_called
    assert trio.current_time() >= 5
    assert "wait_for_nothing" in report.read_text()
    assert "sleep_forever" in report.read_text()
    assert others == ["reported"]


async def test_work_that_ends_in_time_is_not_reported(tmp_path: Path, autojump_clock: MockClock) -> None:
    report = tmp_path / "hang.txt"
    async with hang_watchdog(5, report) as scope:
        await trio.sleep(1)
    assert not scope.cancel_called
    assert not report.exists()
