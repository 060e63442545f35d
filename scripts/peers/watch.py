"""Wait for a process to end, then kill everything that was started in a folder, so that no test leaves a JVM behind.

python -m scripts.peers.watch FOLDER PID
"""

import sys
from pathlib import Path

from scripts.peers.process import died, kill_all, locked


def main(home: Path, owner: int) -> None:
    """Wait for the end of `owner`, then clear `home`."""
    died([owner], within_s=None)
    kill_all(home, but=["watch"])
    with locked(home / "run" / "lock"):  # a start in progress has failed by now, and starts nothing more
        kill_all(home, but=["watch"])
    (home / "run" / "watch.pid").unlink(missing_ok=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
