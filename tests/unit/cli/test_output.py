"""Progress of a command without a terminal."""

import pytest
import trio
from trio.testing import MockClock

from tsd.cli.output import Progress


@pytest.mark.parametrize(("total", "line"), [(None, "30 rows"), (40, "30 of 40 rows")])
async def test_progress_lines_are_limited_in_rate(
    autojump_clock: MockClock, capsys: pytest.CaptureFixture[str], total: int | None, line: str
) -> None:
    with Progress("rows", total) as progress:
        for _ in range(3):
            progress.add(10)
            with progress.paused():
                print("other text")  # noqa: T201
            assert capsys.readouterr() == ("other text\n", "")
            await trio.sleep(4)
        progress.add(0)
        assert capsys.readouterr() == ("", f"tsd: {line}\n")
        progress.add(5)
    assert capsys.readouterr() == ("", "")
