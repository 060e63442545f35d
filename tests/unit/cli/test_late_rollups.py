"""What commands tell a daemon that builds rollups."""

from pathlib import Path

import pytest

from tests.unit.query.engines import START_S
from tests.unit.tables.rollup_parts import (
    BUILT,
    DAY_S,
    LATER_S,
    LEFT,
    LINES,
    Rolled,
    built,
    delete_others,
    others,
    rollups,
    served,
)
from tsd.cli.context import Access
from tsd.cli.late_rollups import changing
from tsd.config.settings import Backend, Config
from tsd.errors import StoreError
from tsd.store.remote import ControlClient
from tsd.tables.opentsdb.rollup_progress import LateDay


async def test_daemon_that_starts_during_a_command_is_told(tmp_path: Path) -> None:
    """Regression: the command wrote the days to a file that the daemon of shared tables had read before."""
    rolled = await built(tmp_path)
    config = Config(path=str(tmp_path), backend=Backend.HBASE)
    opened = Access(rolled.env.store, rolled.env.uids, None, config)
    async with served(tmp_path, rolled):
        async with changing(config, opened, await others(rolled), deleted=True):
            await delete_others(rolled)
            await rolled.task.round()
            assert await rollups(rolled.env) == BUILT
        await rolled.task.round()
        assert await rollups(rolled.env) == LEFT


def access_to(rolled: Rolled, folder: Path, daemon: ControlClient | None = None) -> Access:
    """Return a command's access to shared tables."""
    return Access(rolled.env.store, rolled.env.uids, daemon, Config(path=str(folder), backend=Backend.HBASE))


async def test_changes_of_one_connection_do_not_end_each_other(tmp_path: Path) -> None:
    """Regression: the end of one ended all, and rollups kept points that were deleted after that."""
    rolled = await built(tmp_path)
    async with served(tmp_path, rolled) as path:
        daemon = await ControlClient.connect(path)
        opened = access_to(rolled, tmp_path, daemon)
        async with changing(opened.config, opened, await others(rolled), deleted=True):
            async with changing(opened.config, opened, {LateDay(b"\0\0\1", START_S)}):
                pass
            await rolled.task.round()
            await delete_others(rolled)
            await rolled.task.round()
            assert await rollups(rolled.env) == BUILT
        await rolled.task.round()
        assert await rollups(rolled.env) == LEFT
        await daemon.aclose()


@pytest.mark.parametrize("serves", [False, True])
async def test_days_of_a_change_are_built_again_if_the_daemon_was_restarted_in_it(tmp_path: Path, serves: bool) -> None:
    """Regression: the new daemon built them, and then took the end of the change for one of its own."""
    rolled = await built(tmp_path)
    async with served(tmp_path, rolled) as path:
        daemon = await ControlClient.connect(path)
        opened = access_to(rolled, tmp_path, daemon)
        change = changing(opened.config, opened, await others(rolled), deleted=True)
        await change.__aenter__()
    rolled = Rolled(rolled.env, tmp_path, LATER_S)
    await rolled.task.round()
    await delete_others(rolled)
    if serves:
        async with served(tmp_path, rolled):
            await change.__aexit__(None, None, None)
    else:
        await change.__aexit__(None, None, None)
    await rolled.task.round()
    assert await rollups(rolled.env) == LEFT
    await daemon.aclose()


async def test_days_that_a_command_records_while_a_daemon_starts_are_not_lost(tmp_path: Path) -> None:
    """Regression: the daemon had read the file before, and overwrote it."""
    rolled = await built(tmp_path)
    opened = access_to(rolled, tmp_path)
    starting = Rolled(rolled.env, tmp_path, LATER_S)
    async with changing(opened.config, opened, await others(rolled), deleted=True):
        await starting.task.round()
        await delete_others(rolled)
    await starting.put(LINES[:1])
    restarted = Rolled(rolled.env, tmp_path, LATER_S)
    for daemon in (restarted, starting):
        await daemon.task.round()
        assert await rollups(rolled.env) == LEFT
        assert daemon.task.progress.late_days == 0


async def test_days_of_a_change_that_fails_are_built_again(tmp_path: Path) -> None:
    """Regression: a daemon that started during the change kept what it had built in it."""
    rolled = await built(tmp_path)
    opened = access_to(rolled, tmp_path)
    starting = Rolled(rolled.env, tmp_path, LATER_S)
    change = changing(opened.config, opened, await others(rolled), deleted=True)
    await change.__aenter__()
    await starting.task.round()
    await delete_others(rolled)
    error = StoreError("as the test wants")
    assert not await change.__aexit__(StoreError, error, None)
    await starting.task.round()
    assert await rollups(rolled.env) == LEFT


async def test_file_that_a_daemon_saves_keeps_what_a_command_rewound(tmp_path: Path) -> None:
    rolled = await built(tmp_path)
    opened = access_to(rolled, tmp_path)
    days = {LateDay(at.to_bytes(3, "big"), START_S + at % 5 * DAY_S) for at in range(10_001)}
    async with changing(opened.config, opened, days):
        pass
    await rolled.put(LINES[:1])
    assert max(rolled.task.progress.complete_s.values()) == START_S
