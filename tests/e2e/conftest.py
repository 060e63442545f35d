"""Storage engines on which commands run."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.command import Tsd, on_hbase
from tests.e2e.notify_socket import NotifySocket
from tests.peers.hbase import RunningHbase

ALONE, SERVED = "embedded", "embedded, with a daemon"
ENGINES = [ALONE, SERVED, pytest.param("hbase", marks=pytest.mark.hbase)]
LONG = {"tsd.storage.flush_interval": "3600000"}  # nothing is written without a request


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Tsd]:
    """Commands on the test's own store; on the embedded one also with a running daemon, which then owns the store."""
    if request.param == ALONE:
        yield Tsd(tmp_path / "state")
    elif request.param == SERVED:
        tsd = Tsd(tmp_path / "state", LONG)
        with tsd.serve():
            yield tsd
    else:
        hbase: RunningHbase = request.getfixturevalue("hbase")
        yield Tsd(tmp_path / "state", on_hbase(hbase, hbase.new_tables()))


@pytest.fixture
def notify_socket(request: pytest.FixtureRequest) -> Iterator[NotifySocket]:
    """A notify socket as systemd provides: at a path, or at an abstract address if the parameter is "@"."""
    with tempfile.TemporaryDirectory(prefix="tsd") as folder:
        listening = NotifySocket(f"{getattr(request, 'param', '')}{folder}/notify")
        yield listening
        listening.close()
