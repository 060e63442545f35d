"""Engines that commands are run on."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.command import Tsd, on_hbase
from tests.e2e.notices import Notices
from tests.peers.hbase import RunningHbase

ALONE, SERVED = "embedded", "embedded, with a daemon"
ENGINES = [ALONE, SERVED, pytest.param("hbase", marks=pytest.mark.hbase)]
LONG = {"tsd.storage.flush_interval": "3600000"}  # nothing is written unless somebody asks for it


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Tsd]:
    """Commands on a store of the test's own; on the embedded one also beside a daemon, which then owns it."""
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
def notices(request: pytest.FixtureRequest) -> Iterator[Notices]:
    """A place that listens as systemd does: at a path, or where that is asked for at an abstract address."""
    with tempfile.TemporaryDirectory(prefix="tsd") as folder:
        listening = Notices(f"{getattr(request, 'param', '')}{folder}/notify")
        yield listening
        listening.close()
