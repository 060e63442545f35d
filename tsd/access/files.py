"""Files that are read again when they change: when have they?"""

import os
from pathlib import Path

State = tuple[int, int, int, int] | None


def state_of(path: str | Path) -> State:
    """What changes when a file does, also when another takes its place, or others may read it: ctime is that of its
    mode, owner and access list, too. None: it cannot be looked at."""
    try:
        about = os.stat(path)
    except OSError:
        return None
    return about.st_mtime_ns, about.st_ctime_ns, about.st_ino, about.st_size
