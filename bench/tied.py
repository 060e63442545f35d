"""Run a command that the kernel ends with this process's parent: `python -m bench.tied COMMAND…`."""

import ctypes
import os
import signal
import sys

PARENT_DEATH_SIGNAL = 1  # of prctl(2)


def end_with_parent() -> None:
    """Let the kernel kill this process when its parent ends. That lasts if the process runs another program."""
    ctypes.CDLL(None).prctl(PARENT_DEATH_SIGNAL, signal.SIGKILL)


if __name__ == "__main__":
    end_with_parent()
    os.execv(sys.argv[1], sys.argv[1:])
