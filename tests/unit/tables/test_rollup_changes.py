"""Changes of points by commands, and where one is killed: rollups are those of the points that are left."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
import trio

from tests.unit.query.engines import DATA, START_S
from tests.unit.tables.rollup_parts import BUILT, DAY_S, LATER_S, LINES, TABLES, Rolled, environment, rollups
from tsd.codec.names import Kind
from tsd.errors import StoreError
from tsd.server import control
from tsd.store import scan
from tsd.store.cells import prefix_end
from tsd.store.remote import ControlClient
from tsd.tables.opentsdb.delete import remove_rows
from tsd.tables.opentsdb.rollup_progress import LateDay

LEFT = {place: found for place, found in BUILT.items() if place not in {(name, "c", DAY_S) for name in TABLES}}


async def uid_of(rolled: Rolled, metric: bytes) -> bytes:
    uid = (await rolled.env.uids.find(Kind.METRIC, [metric]))[metric]
    assert isinstance(uid, bytes)
    return uid


async def others(rolled: Rolled) -> set[LateDay]:
    """Return the days of the metric `other`."""
    return {LateDay(await uid_of(rolled, b"other"), START_S + DAY_S)}


async def delete_others(rolled: Rolled) -> None:
    """Delete the points of the metric `other`, and record nothing."""
    uid = await uid_of(rolled, b"other")
    async for rows in scan(rolled.env.store, DATA, uid, prefix_end(uid)):
        await remove_rows(rolled.env.store, DATA, rows, read_ms=LATER_S * 1000)


@asynccontextmanager
async def served(folder: Path, rolled: Rolled) -> AsyncIterator[Path]:
    """A daemon's control socket."""
    path = folder / "control.sock"
    listener = await control.open_listener(path)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(control.serve, listener, {}, rolled.task.operations)
        yield path
        nursery.cancel_scope.cancel()


async def built(tmp_path: Path) -> Rolled:
    rolled = Rolled(await environment(LINES), tmp_path, LATER_S)
    await rolled.task.round()
    return rolled


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
