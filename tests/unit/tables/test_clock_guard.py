"""Whether the wall clock is trusted to delete old points, also after it has jumped."""

from pathlib import Path

import pytest

from tsd.tables.clock_guard import ClockGuard

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
NOW_MS = 1_700_000_000_000


class Machine:
    """A machine with a wall clock that may jump; a restart keeps the file only."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "retention.json"
        self.monotonic_ms = 5.0
        self.wall_ms = NOW_MS
        self.guard = self._started()

    def _started(self) -> ClockGuard:
        return ClockGuard(self._file, lambda: self.monotonic_ms)

    def restart(self) -> None:
        self.monotonic_ms = 1e9
        self.guard = self._started()

    def pass_time(self, ms: int) -> None:
        self.monotonic_ms += ms
        self.wall_ms += ms

    def trusts(self) -> bool:
        """Check the clock, and record it, as a round of retention does."""
        is_trusted = self.guard.doubt(self.wall_ms) is None
        if is_trusted:
            self.guard.trust(self.wall_ms)
        return is_trusted


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_first_check_wants_points_with_the_current_time(machine: Machine) -> None:
    assert not machine.trusts()
    machine.guard.observe(machine.wall_ms - HOUR_MS)
    assert machine.trusts()


def test_first_check_with_a_clock_ahead_of_all_points_waits(machine: Machine) -> None:
    machine.guard.observe(machine.wall_ms - 30 * DAY_MS)
    assert not machine.trusts()


def test_a_backfill_of_old_points_is_no_sign_of_a_clock_that_is_ahead(machine: Machine) -> None:
    machine.guard.observe(machine.wall_ms - 54 * DAY_MS)
    doubt = machine.guard.doubt(machine.wall_ms)
    assert doubt is not None
    assert doubt.is_contradicted
    assert "54.0 days" in doubt.reason
    machine.guard.observe(machine.wall_ms)
    machine.guard.observe(machine.wall_ms - 54 * DAY_MS)
    assert machine.trusts()


def test_a_clock_ahead_is_not_trusted_after_current_points_and_a_backfill(machine: Machine) -> None:
    machine.guard.observe(machine.wall_ms)
    machine.wall_ms += 2 * DAY_MS
    machine.guard.observe(machine.wall_ms - 54 * DAY_MS)
    assert not machine.trusts()


def test_clock_that_runs_is_trusted(machine: Machine) -> None:
    machine.guard.trust(machine.wall_ms)
    for _ in range(100):
        machine.pass_time(5 * DAY_MS)
        assert machine.trusts()


def test_clock_that_jumps_ahead_is_not_trusted_until_it_is_back(machine: Machine) -> None:
    machine.guard.trust(machine.wall_ms)
    machine.wall_ms += 2 * DAY_MS
    assert not machine.trusts()
    machine.pass_time(10 * DAY_MS)
    assert not machine.trusts()
    machine.wall_ms -= 2 * DAY_MS
    assert machine.trusts()


def test_points_do_not_excuse_a_jump_while_the_daemon_runs(machine: Machine) -> None:
    machine.guard.trust(machine.wall_ms)
    machine.wall_ms += 400 * DAY_MS
    machine.guard.observe(machine.wall_ms)
    assert not machine.trusts()


def test_clock_set_back_is_trusted(machine: Machine) -> None:
    machine.guard.trust(machine.wall_ms)
    machine.wall_ms -= 30 * DAY_MS
    assert machine.trusts()


def test_short_restart_needs_no_points(machine: Machine) -> None:
    machine.guard.trust(machine.wall_ms)
    machine.wall_ms += HOUR_MS
    machine.restart()
    assert machine.trusts()


def test_long_stop_needs_points(machine: Machine) -> None:
    machine.guard.trust(machine.wall_ms)
    machine.wall_ms += 5 * DAY_MS
    machine.restart()
    assert not machine.trusts()
    machine.guard.observe(machine.wall_ms - HOUR_MS)
    assert machine.trusts()


def test_nothing_contradicts_a_clock_before_points_come(machine: Machine) -> None:
    first = machine.guard.doubt(machine.wall_ms)
    machine.guard.trust(machine.wall_ms)
    machine.wall_ms += 5 * DAY_MS
    machine.restart()
    later = machine.guard.doubt(machine.wall_ms)
    assert first is not None
    assert later is not None
    assert not first.is_contradicted
    assert not later.is_contradicted
    assert "5.0 days" in later.reason


def test_a_jump_while_the_daemon_runs_contradicts_the_clock(machine: Machine) -> None:
    machine.guard.trust(machine.wall_ms)
    machine.wall_ms += 2 * DAY_MS
    doubt = machine.guard.doubt(machine.wall_ms)
    assert doubt is not None
    assert doubt.is_contradicted
    assert "2.0 days" in doubt.reason


def test_jump_during_a_stop_is_not_trusted(machine: Machine) -> None:
    machine.guard.trust(machine.wall_ms)
    points_ms = machine.wall_ms + HOUR_MS
    machine.wall_ms += 400 * DAY_MS
    machine.restart()
    machine.guard.observe(points_ms)
    assert not machine.trusts()


def test_operator_may_trust_the_clock(machine: Machine) -> None:
    assert not machine.trusts()
    machine.guard.trust(machine.wall_ms)
    assert machine.trusts()


@pytest.mark.parametrize("content", [b"", b"[]", b'{"checked_ms": "x"}', b'{"checked_ms": null}'])
def test_damaged_record_counts_as_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "retention.json").write_bytes(content)
    assert not Machine(tmp_path).trusts()
