"""CPU time and memory of a process."""

import os
from pathlib import Path
from typing import NamedTuple

TICK_S = 1 / os.sysconf("SC_CLK_TCK")


class Usage(NamedTuple):
    """Usage of a process since its start."""

    cpu_s: float
    peak_mib: float
    now_mib: float


def usage(pid: int) -> Usage:
    """Return the usage of a process."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return Usage(
        (int(words[11]) + int(words[12])) * TICK_S,
        int(status["VmHWM"].split()[0]) / 1024,
        int(status["VmRSS"].split()[0]) / 1024,
    )


def written_bytes(pid: int) -> int:
    """Return the bytes that a process caused to be written to disks since its start. Raise OSError if it has ended."""
    counts = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
    return int(counts["write_bytes"])
