"""Fixtures for all tests: a real HBase, a real Cassandra, Bigtable's emulator, real OpenTSDBs and installed agents.

`hbase` is shared by the whole run; each user creates its own tables. `cassandra` is shared, too; each
user has a keyspace; so is `bigtable`, and each user has an instance. `opentsdb(…)` starts an OpenTSDB for one test.
`opentsdb_shared(…)` returns an OpenTSDB that other tests with the same tables and settings use too.
`program("collectd")` is the path of an installed agent.

With several pytest-xdist workers, each has its own peers, and each file runs in one worker. All files that use
Cassandra run in the same worker.
"""

import gc
import os
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from tests import layouts, timeouts
from tests.peers.bigtable import RunningBigtable
from tests.peers.cassandra import RunningCassandra
from tests.peers.hbase import RunningHbase
from tests.peers.needs import fail_unexpected_skip, full_run, need_peer, need_program
from tests.peers.opentsdb import Opentsdb, Opentsdbs
from tests.peers.uses import PeerUses

if TYPE_CHECKING:
    from tests.distribution import FileScheduling

UNTIMED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # no test depends on the machine's load
settings.register_profile("quick", UNTIMED, max_examples=5)
settings.register_profile("full", UNTIMED, derandomize=True, max_examples=30)
# A quick run tries few, new examples of each property. A full run tries a third of hypothesis' usual number, always the
# same ones, so that results are reproducible. For many new examples: scripts/test --full --hypothesis-profile=default.
settings.load_profile("full" if full_run() else "quick")

MARKED_BY = {
    "hbase": "hbase",
    "cassandra": "cassandra",
    "bigtable": "bigtable",
    "opentsdb": "opentsdb",
    "opentsdb_shared": "opentsdb",
    "program": "clients",
}
LONG_FIRST = ("cassandra", "opentsdb", "hbase", "bigtable", "clients", "slow")  # one worker runs all of Cassandra's
PEERS = ("opentsdb", "hbase", "cassandra", "bigtable")  # marks of tests that use them
WORKER_BYTES = 3 << 30  # memory of one worker's HBase and OpenTSDBs
PEER_USES = PeerUses(PEERS)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the garbage collector from the tests' modules and items: nothing of them is garbage before the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_collect_file() -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
    """Collect no doctests here: only the package has some."""
    found = yield
    return [one for one in found if type(one) is pytest.Module]


@pytest.hookimpl(wrapper=True, tryfirst=True)  # before -m selects tests
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    """Mark tests by their fixtures, and let workers run long files first."""
    for item in items:
        for fixture in getattr(item, "fixturenames", ()):
            if fixture in MARKED_BY:
                item.add_marker(MARKED_BY[fixture])
    yield
    if hasattr(config, "workerinput"):  # short files last, so that all workers finish at about the same time
        ranks: dict[Path, int] = {}
        for item in items:
            ranks[item.path] = min(ranks.get(item.path, len(LONG_FIRST)), _rank(item))
        items.sort(key=lambda item: ranks[item.path])


def pytest_collection_finish(session: pytest.Session) -> None:
    """Note the order of all tests, which options such as --failed-first have changed."""
    if hasattr(session.config, "workerinput"):
        from tests.distribution import group_of  # pytest-xdist is not needed without workers

        PEER_USES.note(session.items, group_of)
    else:
        PEER_USES.note(session.items)


def _rank(item: pytest.Item) -> int:
    return next((rank for rank, mark in enumerate(LONG_FIRST) if item.get_closest_marker(mark)), len(LONG_FIRST))


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """Number of workers for `--numprocesses auto`: none for a single file, else one per core if memory suffices."""
    named = {config.invocation_params.dir / word.partition("::")[0] for word in config.args}
    if len(named) == 1 and named.pop().is_file():
        return 0
    if os.environ.get("PYTEST_XDIST_AUTO_NUM_WORKERS"):
        return None  # pytest-xdist reads the variable
    fit = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // WORKER_BYTES
    return max(1, min(len(os.sched_getaffinity(0)), fit))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> "FileScheduling | None":
    """Return the scheduler for `--dist loadfile`."""
    from tests.distribution import FileScheduling  # pytest-xdist is not needed without workers

    return FileScheduling(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.hookimpl(tryfirst=True)  # before fixtures are created
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests that cannot run here. In a full run, fail them. Stop peers that are not used any more."""
    PEER_USES.stop_unneeded(item)
    for name in PEERS:
        if item.get_closest_marker(name):
            need_peer(name)
    if item.get_closest_marker("bigtable"):
        pytest.importorskip("grpc", reason="grpcio is not installed: pip install '.[bigtable]'")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Let no test be skipped in a full run."""
    report = yield
    fail_unexpected_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Iterator[None]:
    """Apply the time limit to each test."""
    with timeouts.time_limit():
        yield


@pytest.fixture(scope="session")
def hbase(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningHbase]:
    """The HBase of the test run."""
    need_peer("hbase")
    running = RunningHbase(tmp_path_factory.mktemp("hbase"))
    with PEER_USES.running("hbase", running.kill):
        yield running


@pytest.fixture(scope="session")
def cassandra(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCassandra]:
    """The Cassandra of the test run."""
    need_peer("cassandra")
    running = RunningCassandra(tmp_path_factory.mktemp("cassandra"))
    with PEER_USES.running("cassandra", running.kill):
        yield running


@pytest.fixture(scope="session")
def bigtable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBigtable]:
    """The Bigtable emulator of the test run."""
    need_peer("bigtable")
    running = RunningBigtable(tmp_path_factory.mktemp("bigtable"))
    with PEER_USES.running("bigtable", running.kill):
        yield running


@pytest.fixture(autouse=True)
def _restored_gateway(request: pytest.FixtureRequest) -> Iterator[None]:
    """Restart HBase's gateway after a test that stopped it."""
    running = request.getfixturevalue("hbase") if "hbase" in request.fixturenames else None
    yield
    if running:
        running.restore()


@pytest.fixture(scope="session")
def opentsdb_shared(hbase: RunningHbase, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Opentsdb]]:
    """`opentsdb_shared(tables=None, **settings)`: an OpenTSDB that tests share until the run ends.

    The same arguments give the same OpenTSDB. Tests that share one use their own metrics and do not stop it.
    """
    need_peer("opentsdb")
    peers = Opentsdbs(hbase, tmp_path_factory.mktemp)
    with PEER_USES.running("opentsdb", peers.close):
        yield peers.share


@pytest.fixture
def opentsdb(hbase: RunningHbase, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Opentsdb]]:
    """`opentsdb(tables=None, **settings)`: a new OpenTSDB on `tables` (None: new tables), stopped after the test."""
    need_peer("opentsdb")
    peers = Opentsdbs(hbase, tmp_path_factory.mktemp)
    yield peers.start
    peers.close()


@pytest.fixture(params=[layouts.OPENTSDB, layouts.READABLE])
def layout(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run the test on each table layout. A test of OpenTSDB's rows has the mark `layouts.opentsdb_only`."""
    monkeypatch.setattr(layouts, "chosen", request.param)
    return str(request.param)


@pytest.fixture
def program() -> Callable[[str], Path]:
    """`program("collectd")`: the path of an installed program. If missing, skip the test, or fail it in a full run."""
    return need_program
