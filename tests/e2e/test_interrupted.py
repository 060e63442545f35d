"""Commands that are interrupted while they delete: what they have reported survives a loss of power."""

import os
import re
import signal
from pathlib import Path

import pytest

from tests.e2e.command import PATIENCE_S, Tsd
from tsd.store import Put

pytestmark = pytest.mark.slow
BROKEN = 5000  # rows whose report is longer than a pipe's buffer


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_fsck_syncs_the_store(tmp_path: Path, number: signal.Signals) -> None:
    """Regression: SIGTERM killed the command, and a loss of power brought deleted rows back. Later it had no effect
    while nothing read the output.
    """
    tsd = Tsd(tmp_path / "state")
    assert tsd.run("create-tables").status == 0
    tsd.put_directly("tsdb", *(Put(b"%05d" % n, b"t:\0\0", b"\1") for n in range(BROKEN)))
    with tsd.popen("fsck", "--full-scan", "--fix", "--delete-bad-rows", "--force") as process:
        first = process.stdout.readline()  # the next ones wait for a reader
        process.send_signal(number)
        process.wait(PATIENCE_S)
        rest, errors = process.communicate()
    assert process.returncode == (130 if number == signal.SIGINT else -number), errors
    reported = {bytes.fromhex(row) for row in re.findall(r"row ([0-9a-f]{10})", (first + rest).decode())}
    assert 0 < len(reported) < BROKEN
    for log in (tsd.folder / "store").glob("*.log"):  # a store that was closed has all writes in its tables
        os.truncate(log, 0)
    assert not reported & {row.key for row in tsd.read_directly("tsdb")}
