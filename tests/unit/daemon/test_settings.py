"""The clocks of a process."""

import time

from tsd.daemon.settings import elapsed_ms


def test_time_of_a_suspended_machine_passes() -> None:
    assert elapsed_ms() >= time.monotonic() * 1000 - 1
