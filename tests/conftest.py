"""Fixtures of every test: a real HBase, real OpenTSDBs, and what happens where they cannot run.

`hbase` is one for the whole run, with tables to itself for whoever asks; `opentsdb(…)` starts an OpenTSDB for one test,
`opentsdb_shared(…)` gives the one that another test started with the same tables and settings; `program("collectd")` is
the path of an installed agent.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.peers.hbase import RunningHbase
from tests.peers.needs import full_run, need_peer, need_program
from tests.peers.opentsdb import Opentsdb, Opentsdbs

settings.register_profile("quick", max_examples=30)
if not full_run():
    settings.load_profile("quick")  # examples of each property; a full run tries hypothesis' usual number

MARKED_BY = {"hbase": "hbase", "opentsdb": "opentsdb", "opentsdb_shared": "opentsdb", "program": "clients"}


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests by the fixtures they use, so that nobody has to say it twice."""
    for item in items:
        for fixture in getattr(item, "fixturenames", ()):
            if fixture in MARKED_BY:
                item.add_marker(MARKED_BY[fixture])


@pytest.hookimpl(tryfirst=True)  # before fixtures are made
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what cannot run here, or fail it in a full run."""
    for name in ("hbase", "opentsdb"):
        if item.get_closest_marker(name):
            need_peer(name)


@pytest.fixture(scope="session")
def hbase(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningHbase]:
    """The HBase of this run."""
    need_peer("hbase")
    running = RunningHbase(tmp_path_factory.mktemp("hbase"))
    yield running
    running.kill()


@pytest.fixture(autouse=True)
def _gateway_comes_back(request: pytest.FixtureRequest) -> Iterator[None]:
    """After a test that took HBase's gateway away, there is one again for the next."""
    running = request.getfixturevalue("hbase") if "hbase" in request.fixturenames else None
    yield
    if running:
        running.mend()


@pytest.fixture(scope="session")
def opentsdb_shared(hbase: RunningHbase, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Opentsdb]]:
    """`opentsdb_shared(tables=None, **settings)`: an OpenTSDB that tests may share, which lives as long as the run.

    It is found by its arguments: ask alike, get the same. Who shares uses metrics of his own and stops nothing.
    """
    need_peer("opentsdb")
    peers = Opentsdbs(hbase, tmp_path_factory.mktemp)
    yield peers.share
    peers.close()


@pytest.fixture
def opentsdb(hbase: RunningHbase, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Opentsdb]]:
    """`opentsdb(tables=None, **settings)`: a new OpenTSDB on `tables` (None: new ones), ended with the test."""
    need_peer("opentsdb")
    peers = Opentsdbs(hbase, tmp_path_factory.mktemp)
    yield peers.start
    peers.close()


@pytest.fixture
def program() -> Callable[[str], Path]:
    """`program("collectd")`: where it is installed; the test is skipped, or in a full run fails, where it is not."""
    return need_program
