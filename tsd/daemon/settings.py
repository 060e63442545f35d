"""The checked configuration, the place of the control socket, and the clocks.

Commands that only read files or talk to a daemon import this module and neither the daemon nor an engine, so that they
start fast.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from tsd.auth.accounts import contradictions
from tsd.config.contradictions import CONTRADICTIONS
from tsd.config.loader import Given, Ignored, Loaded, load, read_settings, state_folder
from tsd.config.settings import Config

Clock = Callable[[], int]  # wall clock in milliseconds
CHECKS = (contradictions, *CONTRADICTIONS)  # of the configuration
_ELAPSED = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # the first one goes on while the machine is suspended


def load_config(path: Path | None, overrides: Sequence[Given] = ()) -> Loaded:
    """Read the configuration with every check, as `tsd.config.loader.load` does. Raise BadConfig."""
    return load(path, overrides, CHECKS)


def read_config(given: Iterable[Given]) -> tuple[Config, Ignored]:
    """Make a Config of settings with every check, as `tsd.config.loader.read_settings` does. Raise BadConfig."""
    return read_settings(given, CHECKS)


def now_ms() -> int:
    """Return the wall clock."""
    return time.time_ns() // 1_000_000


def elapsed_ms() -> float:
    """Return the time since the machine was started, which no one sets."""
    return time.clock_gettime(_ELAPSED) * 1000


def control_path(config: Config) -> Path:
    """Return the path of the control socket."""
    return state_folder(config) / "control.sock"
