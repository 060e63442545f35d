"""Tasks that go on after an error of ours."""

from itertools import pairwise
from pathlib import Path

import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock

from tests.running import running
from tsd.upkeep import LONGEST_PAUSE_S, Upkeep


async def test_a_task_that_fails_begins_anew_and_is_counted(autojump_clock: MockClock) -> None:
    """One error in reading a certificate's names ended the daemon."""
    began: list[float] = []

    async def fail() -> None:
        began.append(trio.current_time())
        if len(began) < 10:
            raise ZeroDivisionError("as the test wants")

    upkeep = Upkeep()
    with capture_logs() as logs:
        await upkeep.lasting("certificate", fail)()
    assert upkeep.failures == 9
    assert [line["task"] for line in logs] == ["certificate"] * 9
    pauses = [after - before for before, after in pairwise(began)]
    assert (pauses[0], pauses[-1]) == (1.0, LONGEST_PAUSE_S)


async def test_a_daemon_goes_on_without_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(_: object) -> None:
        raise ZeroDivisionError("as the test wants")

    monkeypatch.setattr("tsd.daemon.watch_counters", fail)
    async with running(tmp_path) as daemon, daemon.client() as client:
        assert await client.ask(b"put m 1500000000 1 a=b\n") == b"synced 1\n"
        assert (await client.stats())["rpc.exceptions"] == 1


async def test_to_end_it_ends_it(autojump_clock: MockClock) -> None:
    upkeep = Upkeep()
    with trio.move_on_after(5) as scope:
        await upkeep.lasting("host", trio.sleep_forever)()
    assert scope.cancelled_caught
    assert upkeep.failures == 0

    async def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        await upkeep.lasting("host", interrupted)()
