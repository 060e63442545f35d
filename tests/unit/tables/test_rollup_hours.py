"""Late points of a few hours: only these hours are built again, and queries read rollups of the hours before them."""

import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tests.unit.query.engines import START_S
from tests.unit.tables.rollup_parts import (
    DAY_S,
    EVERYTHING,
    HOUR_S,
    Rolled,
    build,
    builder,
    environment,
    lines_of,
    rollups,
    shown,
)
from tsd.errors import StoreError
from tsd.query.rollups import RAW
from tsd.store.memory import MemoryStore

TODAY_S = 2 * DAY_S  # after START_S
HOURS = 8  # of today that are over
LINES = lines_of(2 + HOURS / 24, step_s=300)


class HookedStore(MemoryStore):
    """A store that calls `hook` before each sync, which ends each part of a build."""

    hook: Callable[[], Awaitable[None]] | None = None

    async def sync(self) -> None:
        if self.hook is not None:
            await self.hook()
        await super().sync()


async def rolled_in(tmp_path: Path) -> tuple[Rolled, HookedStore]:
    """Return rollups of two days and some hours."""
    store = HookedStore(lambda: 0)
    rolled = Rolled(await environment([], store=store), tmp_path, START_S + TODAY_S + HOURS * HOUR_S + 600)
    await rolled.put(LINES)
    await rolled.task.round()
    return rolled, store


def late(at_s: int, value: float = 1e6) -> str:
    return f"m {START_S + at_s + 11} {value} host=b"


async def assert_built(rolled: Rolled, added: list[str]) -> None:
    """Assert that rollups are those of all points, as far as they are due."""
    other = await environment([*LINES, *added])
    await build(builder(other), EVERYTHING._replace(end_s=rolled.now_s))
    assert await rollups(rolled.env) == await rollups(other)
    assert rolled.task.progress.late_days == 0


async def built_points(rolled: Rolled) -> int:
    """Return the number of points of which rollups are built in a round."""
    before = rolled.task.points
    await rolled.task.round()
    return rolled.task.points - before


def points_between(lines: list[str], first_s: int, end_s: int) -> int:
    return sum(first_s <= int(line.split()[1]) - START_S < end_s for line in lines)


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("hours", [(3,), (0, 1, HOURS - 1)])
async def test_only_late_hours_of_a_day_that_goes_on_are_built_again(
    tmp_path: Path, hours: tuple[int, ...], *, restarts: bool
) -> None:
    rolled, _ = await rolled_in(tmp_path)
    added = [late(TODAY_S + hour * HOUR_S) for hour in hours]
    await rolled.put(added)
    if restarts:
        rolled = Rolled(rolled.env, tmp_path, rolled.now_s)
    spans = [(TODAY_S + hour * HOUR_S, TODAY_S + (hour + 1) * HOUR_S) for hour in hours]
    wanted = sum(points_between([*LINES, *added], *span) for span in spans)
    assert await built_points(rolled) == wanted
    await assert_built(rolled, added)


async def test_day_that_is_over_is_built_again_as_a_whole(tmp_path: Path) -> None:
    rolled, _ = await rolled_in(tmp_path)
    added = [late(DAY_S + 3 * HOUR_S)]
    await rolled.put(added)
    assert await built_points(rolled) == points_between([*LINES, *added], DAY_S, 2 * DAY_S)
    await assert_built(rolled, added)


async def test_file_of_late_days_lets_whole_days_be_built_again(tmp_path: Path) -> None:
    """As earlier versions wrote it."""
    rolled, _ = await rolled_in(tmp_path)
    added = [late(TODAY_S + 3 * HOUR_S)]
    await rolled.put(added)
    file = tmp_path / "rollup-progress.json"
    saved = json.loads(file.read_text())
    file.write_text(json.dumps(saved | {"late": [day[:2] for day in saved["late"]]}))
    rolled = Rolled(rolled.env, tmp_path, rolled.now_s)
    assert await built_points(rolled) == points_between([*LINES, *added], TODAY_S, TODAY_S + HOURS * HOUR_S)
    await assert_built(rolled, added)


@pytest.mark.parametrize("late_hour", [0, 5])
async def test_hours_before_a_late_one_are_answered_from_rollups(tmp_path: Path, late_hour: int) -> None:
    rolled, _ = await rolled_in(tmp_path)
    await rolled.put([late(TODAY_S + late_hour * HOUR_S)])
    start_s = START_S + TODAY_S
    found = await rolled.answer("sum:1h-max:m", start_s=start_s)
    assert found.rollup_table == ("1h" if late_hour else "raw")
    assert shown(found) == shown(await rolled.answer("sum:1h-max:m", start_s=start_s, usage=RAW))


@pytest.mark.parametrize("parts", range(1, 4))
async def test_crash_in_a_build_leaves_its_hours_late(tmp_path: Path, parts: int) -> None:
    rolled, store = await rolled_in(tmp_path)
    added = [late(TODAY_S + 3 * HOUR_S), late(TODAY_S + 6 * HOUR_S), late(DAY_S)]
    await rolled.put(added)
    left = parts

    async def crash() -> None:
        nonlocal left
        left -= 1
        if not left:
            raise RuntimeError("killed")

    store.hook = crash
    with suppress(RuntimeError):
        await rolled.task.round()
    assert not left
    store.hook = None
    rolled = Rolled(rolled.env, tmp_path, rolled.now_s)
    await rolled.task.round()
    await assert_built(rolled, added)


async def test_hours_stay_late_until_their_build_is_recorded(tmp_path: Path) -> None:
    rolled, _ = await rolled_in(tmp_path)
    added = [late(TODAY_S + 3 * HOUR_S)]
    await rolled.put(added)
    lock = tmp_path / "rollup-progress.json.lock"
    lock.unlink()
    lock.mkdir()
    with pytest.raises(OSError, match="directory"):
        await rolled.task.round()
    lock.rmdir()
    rolled = Rolled(rolled.env, tmp_path, rolled.now_s)
    assert await built_points(rolled) == points_between([*LINES, *added], TODAY_S + 3 * HOUR_S, TODAY_S + 4 * HOUR_S)
    await assert_built(rolled, added)


@pytest.mark.parametrize("hour", [3, 5])
async def test_points_that_come_in_a_build_are_built_in_the_next(tmp_path: Path, hour: int) -> None:
    rolled, store = await rolled_in(tmp_path)
    added = [late(TODAY_S + 3 * HOUR_S)]
    await rolled.put(added)
    more = [f"m {START_S + TODAY_S + hour * HOUR_S + 17} -1e6 host=a"]

    async def put() -> None:
        store.hook = None
        await rolled.put(more)

    store.hook = put
    await rolled.task.round()
    assert rolled.task.progress.late_days == 1
    assert await built_points(rolled) == points_between(
        [*LINES, *added, *more], TODAY_S + hour * HOUR_S, TODAY_S + (hour + 1) * HOUR_S
    )
    await assert_built(rolled, [*added, *more])


async def test_late_points_of_hours_are_lost_by_no_failing_write(tmp_path: Path) -> None:
    """The points are not stored before their hour is recorded."""
    rolled, _ = await rolled_in(tmp_path)
    lock = tmp_path / "rollup-progress.json.lock"
    lock.unlink()
    lock.mkdir()
    with pytest.raises(StoreError):
        await rolled.put([late(TODAY_S + 3 * HOUR_S)])
    lock.rmdir()
    await rolled.put([late(TODAY_S + 3 * HOUR_S)])
    rolled = Rolled(rolled.env, tmp_path, rolled.now_s)
    await rolled.task.round()
    await assert_built(rolled, [late(TODAY_S + 3 * HOUR_S)])
