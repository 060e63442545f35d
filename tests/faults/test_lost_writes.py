"""The embedded store loses writes that it had accepted, as after a disk failure."""

import os
from pathlib import Path

from tests.e2e.command import Tsd
from tsd.cli.torture.process import limit_file_size

SERIES = 3000  # more than one batch of the store
ROOM_BYTES = 40_000  # enough for one batch of a window's cells, but not for two
T = 1356998400


def test_daemon_exits_and_journal_restores_lost_writes(tmp_path: Path) -> None:
    """Regression: the daemon kept running without storing anything, and asked for a restart."""
    tsd = Tsd(tmp_path / "state", {"tsd.storage.flush_interval": "3600000"})
    lines = [f"sys.cpu {T} {number} host=web{number:04}" for number in range(SERIES)]
    with tsd.serve() as daemon:
        assert daemon.send_lines("".join(f"put {line}\n" for line in lines).encode()) == b"synced %d\n" % SERIES
        log = max((tsd.folder / "store").glob("*.log"), key=lambda path: path.stat().st_mtime)
        safe = log.stat().st_size  # only UIDs: they are synced
        limit_file_size(daemon.pid, safe + ROOM_BYTES)
        assert daemon.request("flush") is False
        assert log.stat().st_size > safe
        os.truncate(log, safe)
        limit_file_size(daemon.pid, None)
        assert daemon.wait() == 3
        assert f"tsd: {tsd.folder}/store was reopened without its last writes" in daemon.log_text()
    with tsd.serve() as daemon:
        assert daemon.stats()["ledger.stored"] == SERIES
    assert tsd.lines("sys.cpu") == lines
