"""Fixtures of every test: a real HBase, real OpenTSDBs, and what happens where they cannot run.

`hbase` is one for the whole run, with tables to itself for whoever asks; `opentsdb(…)` starts an OpenTSDB for one test,
`opentsdb_shared(…)` gives the one that another test started with the same tables and settings; `program("collectd")` is
the path of an installed agent.

Where pytest-xdist runs several workers, each has peers of its own, and a file is one worker's.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests import overdue
from tests.peers.hbase import RunningHbase
from tests.peers.needs import full_run, need_peer, need_program
from tests.peers.opentsdb import Opentsdb, Opentsdbs

UNTIMED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # how busy a machine is, no test asks
settings.register_profile("quick", UNTIMED, max_examples=30)
settings.register_profile("full", UNTIMED, derandomize=True)
# Examples of each property: few, and new ones every time; in a full run hypothesis' usual number, and the same ones, so
# that what passes once passes again. New ones in plenty: scripts/test --full --hypothesis-profile=default.
settings.load_profile("full" if full_run() else "quick")

MARKED_BY = {"hbase": "hbase", "opentsdb": "opentsdb", "opentsdb_shared": "opentsdb", "program": "clients"}
LONG_FIRST = ("opentsdb", "hbase", "clients", "slow")
WORKER_BYTES = 3 << 30  # a worker's HBase and OpenTSDBs


@pytest.hookimpl(wrapper=True, tryfirst=True)  # marks are there before -m chooses
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    """Mark tests by the fixtures they use, so that nobody has to say it twice; put workers' long files first."""
    for item in items:
        for fixture in getattr(item, "fixturenames", ()):
            if fixture in MARKED_BY:
                item.add_marker(MARKED_BY[fixture])
    yield
    if hasattr(config, "workerinput"):  # with the short files last, no worker waits long for another at the end
        ranks: dict[Path, int] = {}
        for item in items:
            ranks[item.path] = min(ranks.get(item.path, len(LONG_FIRST)), _rank(item))
        items.sort(key=lambda item: ranks[item.path])


def _rank(item: pytest.Item) -> int:
    return next((rank for rank, mark in enumerate(LONG_FIRST) if item.get_closest_marker(mark)), len(LONG_FIRST))


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """Of `--numprocesses auto`: none for a single file, else as many as cores, if that much memory is there."""
    named = {config.invocation_params.dir / word.partition("::")[0] for word in config.args}
    if len(named) == 1 and named.pop().is_file():
        return 0
    if os.environ.get("PYTEST_XDIST_AUTO_NUM_WORKERS"):
        return None  # xdist reads it
    fit = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // WORKER_BYTES
    return max(1, min(len(os.sched_getaffinity(0)), fit))


@pytest.hookimpl(tryfirst=True)  # before fixtures are made
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what cannot run here, or fail it in a full run."""
    for name in ("hbase", "opentsdb"):
        if item.get_closest_marker(name):
            need_peer(name)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Iterator[None]:
    """No test keeps the others waiting for ever."""
    with overdue.bounded():
        yield


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
