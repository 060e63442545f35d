"""Progress of a command without a terminal."""

import pytest
import trio
from trio.testing import MockClock

from tsd.cli.output import EVERY_S, Progress


@pytest.mark.parametrize(("total", "told"), [(None, "30 rows"), (40, "30 of 40 rows")])
async def test_progress_lines_are_limited_in_rate(
    autojump_clock: MockClock, capsys: pytest.CaptureFixture[str], total: int | None, told: str
) -> None:
    progress = Progress("rows", total)
    for _ in range(3):
        progress.add(10)
        with progress.paused():
            print("said meanwhile")  # noqa: T201
        assert capsys.readouterr() == ("said meanwhile\n", "")
        await trio.sleep(EVERY_S / 2.5)
    progress.add(0)
    assert capsys.readouterr() == ("", f"tsd: {told}\n")
    progress.add(5)
    progress.close()
    assert capsys.readouterr() == ("", "")
