"""Peers of a test run are stopped once no test uses them any more."""

import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests import conftest
from tests.peers.uses import PeerUses

NAMES = ("opentsdb", "hbase")
TESTS = {"a.py::1": NAMES, "b.py::1": (), "c.py::1": ("hbase",), "a.py::2": ("hbase",), "c.py::2": (), "d.py::1": ()}


class Marked(pytest.Item):
    """A test with marks."""

    def runtest(self) -> None:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("by_file", "stopped"),
    [
        (False, [("b.py::1", "opentsdb"), ("c.py::2", "hbase")]),
        (True, [("b.py::1", "opentsdb"), ("d.py::1", "hbase")]),
    ],
)
def test_peer_is_stopped_before_the_first_test_after_its_users(
    by_file: bool, stopped: list[tuple[str, str]], request: pytest.FixtureRequest
) -> None:
    tests = [Marked.from_parent(request.session, name=name, nodeid=name) for name in TESTS]
    for test in tests:
        for name in TESTS[test.nodeid]:
            test.add_marker(name)
    uses = PeerUses(NAMES)
    uses.note(tests, (lambda nodeid: nodeid[0]) if by_file else str)
    found: list[tuple[str, str]] = []
    at = ""
    with ExitStack() as stack:
        for name in NAMES:
            stack.enter_context(uses.running(name, lambda name=name: found.append((at, name))))  # type: ignore[misc]
        for test in sorted(tests, key=lambda test: test.nodeid) if by_file else tests:
            at = test.nodeid
            uses.stop_unneeded(test)
    assert found == stopped


def test_peer_is_stopped_at_the_end() -> None:
    now: list[str] = []
    with PeerUses(NAMES).running("hbase", lambda: now.append("hbase")):
        assert not now
    assert now == ["hbase"]


FAKE_PEER = """
import pytest
from tests import conftest
from tests.conftest import *

conftest.need_peer = lambda name: None

@pytest.fixture(scope="session")
def hbase():
    stopped = []
    with conftest.PEER_USES.running("hbase", lambda: stopped.append(True)):
        yield stopped
"""
USERS = """
import os

def test_one(hbase):
    assert not hbase
    assert "FAILING" not in os.environ

def test_another(hbase):
    assert not hbase

def test_without():
    assert "FAILING" not in os.environ
"""


def test_peer_runs_for_its_users_also_if_failed_tests_come_first(tmp_path: Path) -> None:
    """Regression: the failed test without a peer, which came before the others, stopped it."""
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "conftest.py").write_text(FAKE_PEER)
    (tmp_path / "test_users.py").write_text(USERS)
    root = str(Path(conftest.__file__).parent.parent)
    environ = {**os.environ, "PYTHONPATH": root, "PYTEST_ADDOPTS": "-n 0"}
    command = [sys.executable, "-m", "pytest", "-q", "--failed-first"]
    first = subprocess.run(command, cwd=tmp_path, env=environ | {"FAILING": "1"}, capture_output=True, text=True)
    assert "2 failed, 1 passed" in first.stdout
    second = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True)
    assert "3 passed" in second.stdout, second.stdout
