"""The embedded store comes back without writes that it had taken, as after a disk that failed to keep them."""

import os
from pathlib import Path

from tests.e2e.command import Tsd
from tsd.torture.process import bound_files

SERIES = 3000  # more than the store writes at once
ROOM_BYTES = 40_000  # for one batch of a window's cells, but not for two
T = 1356998400


def test_the_daemon_ends_and_the_journal_writes_them_again(tmp_path: Path) -> None:
    """It went on for ever without storing anything, and asked to be restarted."""
    tsd = Tsd(tmp_path / "state", {"tsd.storage.flush_interval": "3600000"})
    lines = [f"sys.cpu {T} {number} host=web{number:04}" for number in range(SERIES)]
    with tsd.serve() as daemon:
        assert daemon.tell("".join(f"put {line}\n" for line in lines).encode()) == b"synced %d\n" % SERIES
        log = max((tsd.folder / "store").glob("*.log"), key=lambda path: path.stat().st_mtime)
        safe = log.stat().st_size  # UIDs only: they are synced
        bound_files(daemon.pid, safe + ROOM_BYTES)
        assert daemon.request("flush") is False
        assert log.stat().st_size > safe
        os.truncate(log, safe)
        bound_files(daemon.pid, None)
        assert daemon.wait() == 3
        lost = f"{tsd.folder}/store came back without its last writes, which must be sent again"
        assert f"tsd: {lost}: ended, so that the journal does so at the next start\n" in daemon.said()
    with tsd.serve() as daemon:
        assert daemon.stats()["ledger.stored"] == SERIES
    assert tsd.lines("sys.cpu") == lines
