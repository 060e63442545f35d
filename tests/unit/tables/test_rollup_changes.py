"""Changes of points by commands, and where one is killed: rollups are those of the points that are left."""

from contextlib import suppress
from pathlib import Path

import pytest
import trio

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
    environment,
    others,
    rollups,
    served,
    uid_of,
)
from tsd.errors import StoreError
from tsd.store.remote import ControlClient
from tsd.tables.opentsdb.rollup_progress import LateDay

STEPS = ["before", "begun", "built again", "deleted", "built after the delete", "ended"]


@pytest.mark.parametrize("last", STEPS)
@pytest.mark.parametrize("restarts", [False, True])
async def test_killed_delete_leaves_no_rollups_of_deleted_points(tmp_path: Path, last: str, restarts: bool) -> None:
    """Regression: after a build between mark and delete, rollups of the deleted points stayed."""
    rolled = await built(tmp_path)
    steps = STEPS[: STEPS.index(last) + 1]
    async with served(tmp_path, rolled) as path:
        command = await ControlClient.connect(path)
        if "begun" in steps:
            change = await command.call("change_days", days=[list(day) for day in await others(rolled)], deleted=True)
        if "built again" in steps:
            await rolled.task.round()
        if "deleted" in steps:
            await delete_others(rolled)
        if "built after the delete" in steps:
            await rolled.task.round()
        if "ended" in steps:
            await command.call("end_change", change=change)
        if not restarts:
            await command.aclose()
            with trio.fail_after(60):
                while await is_held(rolled):
                    await trio.lowlevel.checkpoint()
    await command.aclose()
    if restarts:
        rolled = Rolled(rolled.env, tmp_path, LATER_S)
    await rolled.task.round()
    assert await rollups(rolled.env) == (LEFT if "deleted" in steps else BUILT)
    assert rolled.task.progress.late_days == 0


async def is_held(rolled: Rolled) -> bool:
    """Return whether a day waits for the end of a change."""
    return rolled.task.progress.late_days > len(rolled.task.progress.late())


async def test_days_are_built_once_all_their_changes_have_ended(tmp_path: Path) -> None:
    rolled = await built(tmp_path)
    days = await others(rolled)
    async with rolled.task.changing(days, deleted=True):
        async with rolled.task.changing(days):
            await delete_others(rolled)
        await rolled.task.round()
        assert await rollups(rolled.env) == BUILT
    await rolled.task.round()
    assert await rollups(rolled.env) == LEFT


async def test_points_written_in_a_change_that_failed_are_in_rollups(tmp_path: Path) -> None:
    """Also if their day was complete only after the change had begun."""
    rolled = Rolled(await environment(LINES[:1]), tmp_path, START_S + 600)
    await rolled.task.round()
    with suppress(StoreError):
        async with rolled.task.changing([LateDay(await uid_of(rolled, b"m"), START_S)]):
            rolled.now_s = LATER_S
            await rolled.task.round()
            await rolled.env.put(LINES[1:4])
            raise StoreError("the rest is not written")
    await rolled.task.round()
    assert await rollups(rolled.env) == {place: found for place, found in BUILT.items() if place[2] < DAY_S}
