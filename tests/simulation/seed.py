"""Runs one seed, the same way each time: on virtual time, with trio's order of tasks drawn from the seed."""

import logging
import random
import shutil
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import structlog
import trio
from trio._core import _run as scheduler
from trio.testing import MockClock

from tests.simulation.account import Violation
from tests.simulation.chance import Plan, plan
from tests.simulation.daemon import Makers
from tests.simulation.world import World

SHM = Path("/dev/shm")
MOST_STEPS = 30_000  # of tasks; a run that takes more stands still: they take 2,000 at most


class Outcome(NamedTuple):
    """What a seed came to."""

    seed: int
    plan: Plan
    events: list[str]
    steps: int
    crashes: int
    acked: int
    digest: str  # of every step: which task, when, and what the disk and the store held
    error: BaseException | None


class _Steps(trio.abc.Instrument):
    """Looks at the world between any two steps."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.count = 0
        self.digest = 0

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self.count += 1
        world = self.world
        state = world.disk.calls, world.backend.calls, world.account.acked
        step = f"{task.name} {trio.current_time():.6f} {state}"
        self.digest = zlib.crc32(step.encode(), self.digest)
        self.world.check_step()
        if self.count > MOST_STEPS:
            self.world.patience.cancel()


AS_IT_IS = Makers()


def simulate(seed: int, makers: Makers = AS_IT_IS, *, silent: bool = True) -> Outcome:
    """Run a seed; `silent`: the daemon's log is dropped."""
    drawn = plan(random.Random(seed))
    folder = Path(tempfile.mkdtemp(prefix="simulation-", dir=SHM if SHM.is_dir() else None))
    error: BaseException | None = None
    steps = world = None
    try:
        with determined(seed), _logging(silent):
            world = World(seed, drawn, folder, makers)
            steps = _Steps(world)
            with patch("trio.to_thread.run_sync", world.in_thread):
                trio.run(world.run, clock=MockClock(autojump_threshold=0), instruments=[steps])
            if world.violation:
                raise Violation(world.violation)
    except Exception as exc:  # noqa: BLE001 - whatever it is, it is what the seed came to
        error = _innermost(exc)
    finally:
        shutil.rmtree(folder)
    assert world is not None
    assert steps is not None
    return Outcome(
        seed, drawn, world.events, steps.count, world.crashes, world.account.acked, f"{steps.digest:08x}", error
    )


@contextmanager
def _logging(silent: bool) -> Iterator[None]:
    before = structlog.get_config()
    if silent:
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    try:
        yield
    finally:
        structlog.configure(**before)


def _innermost(error: Exception) -> Exception:
    """What a group of one came from."""
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


@contextmanager
def determined(seed: int) -> Iterator[None]:
    """Whatever is drawn by chance within is drawn from the seed.

    Tasks that are ready together run in an order that trio draws: so that it can be repeated, they are sorted before
    they are shuffled, as trio does for hypothesis.
    """
    state, ours = random.getstate(), scheduler._r.getstate()
    random.seed(seed)
    scheduler._r.seed(seed)
    try:
        with patch.object(scheduler, "_ALLOW_DETERMINISTIC_SCHEDULING", new=True):
            yield
    finally:
        random.setstate(state)
        scheduler._r.setstate(ours)
