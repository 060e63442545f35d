"""A daemon whose journal's disk hangs in each sync and each read once a file exists. Run as a module with the words of
the command:

python -m tests.faults.hanging_daemon FILE serve …
"""

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tsd.cli import main
from tsd.ingest.journal.disk import Disk
from tsd.ingest.journal.journal import Segment


def run(file: Path) -> None:
    """Run the command."""

    def hanging(call: Callable[..., Any]) -> Callable[..., Any]:
        def hang(*words: Any) -> Any:
            if file.exists():
                threading.Event().wait()
            return call(*words)

        return hang

    with patch.object(Disk, "sync", hanging(Disk.sync)), patch.object(Segment, "pieces", hanging(Segment.pieces)):
        main()


if __name__ == "__main__":
    run(Path(sys.argv.pop(1)))
