"""Run one seed reproducibly: on virtual time, with trio's task order taken from the seed."""

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

from tests.simulation.daemon import Parts
from tests.simulation.plan import Plan, random_plan
from tests.simulation.sent_points import Violation
from tests.simulation.simulation import Simulation

SHM = Path("/dev/shm")
MOST_STEPS = 30_000  # a run needs 2,000 at most; more means that it makes no progress


class Outcome(NamedTuple):
    """Result of a seed."""

    seed: int
    plan: Plan
    events: list[str]
    steps: int
    crashes: int
    acked: int
    digest: str  # of every step: the task, the time, and call counts of disk and store
    error: BaseException | None


class _Steps(trio.abc.Instrument):
    """Checks the simulation after every step of a task."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.count = 0
        self.digest = 0

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self.count += 1
        simulation = self.simulation
        state = simulation.disk.calls, simulation.server.calls, simulation.sent_points.acked
        step = f"{task.name} {trio.current_time():.6f} {state}"
        self.digest = zlib.crc32(step.encode(), self.digest)
        self.simulation.check_step()
        if self.count > MOST_STEPS:
            self.simulation.patience.cancel()


AS_IT_IS = Parts()


@contextmanager
def threads_of(simulation: Simulation) -> Iterator[None]:
    """Let the simulation run what would run in threads."""
    with (
        patch("trio.to_thread.run_sync", simulation.in_thread),
        patch("tsd.ingest.journal.journal.QuietThread.run", simulation.in_thread),
    ):
        yield


def simulate(seed: int, parts: Parts = AS_IT_IS, *, silent: bool = True) -> Outcome:
    """Run a seed. With `silent`, the daemon's log is dropped."""
    drawn = random_plan(random.Random(seed))
    folder = Path(tempfile.mkdtemp(prefix="simulation-", dir=SHM if SHM.is_dir() else None))
    error: BaseException | None = None
    steps = simulation = None
    try:
        with determined(seed), _logging(silent):
            simulation = Simulation(seed, drawn, folder, parts)
            steps = _Steps(simulation)
            with threads_of(simulation):
                trio.run(simulation.run, clock=MockClock(autojump_threshold=0), instruments=[steps])
            if simulation.violation:
                raise Violation(simulation.violation)
    except Exception as exc:  # noqa: BLE001 - any exception is the seed's result
        error = _innermost(exc)
    finally:
        shutil.rmtree(folder)
    assert simulation is not None
    assert steps is not None
    return Outcome(
        seed,
        drawn,
        simulation.events,
        steps.count,
        simulation.crashes,
        simulation.sent_points.acked,
        f"{steps.digest:08x}",
        error,
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
    """Unwrap groups of one exception."""
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


@contextmanager
def determined(seed: int) -> Iterator[None]:
    """Take all randomness within the block from the seed.

    trio shuffles tasks that are ready together. To be reproducible they are sorted first, as trio does for hypothesis.
    """
    state, stream = random.getstate(), scheduler._r.getstate()
    random.seed(seed)
    scheduler._r.seed(seed)
    try:
        with patch.object(scheduler, "_ALLOW_DETERMINISTIC_SCHEDULING", new=True):
            yield
    finally:
        random.setstate(state)
        scheduler._r.setstate(stream)
