"""Waits for one process to end, then kills what was started in a folder: the reason that no test leaves a JVM behind.

python -m scripts.peers.watch FOLDER PID
"""

import sys
from pathlib import Path

from scripts.peers.process import died, kill_all, locked


def main(home: Path, owner: int) -> None:
    """Outlive `owner`, then clear `home`."""
    died([owner], within_s=None)
    kill_all(home, but=["watch"])
    with locked(home / "run" / "lock"):  # a start that was under way has failed by now, and has started no more
        kill_all(home, but=["watch"])
    (home / "run" / "watch.pid").unlink(missing_ok=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
