"""Storage engines on which commands run, and tabs of a browser."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.e2e.command import Tsd, on_hbase
from tests.e2e.notify_socket import NotifySocket
from tests.peers.hbase import RunningHbase

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

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


@pytest.fixture(scope="module")
def browser() -> "Iterator[Browser]":
    """One Chromium for all tests of a file."""
    from tests.browser import chromium  # few tests need playwright

    with chromium() as running:
        yield running


@pytest.fixture(scope="module")
def _tab(browser: "Browser") -> "Iterator[Page]":
    """One tab for all tests of a file. In it the plotting library starts once."""
    from tests.browser import tab

    with tab(browser) as opened:
        yield opened


@pytest.fixture
def page(request: pytest.FixtureRequest, browser: "Browser") -> "Iterator[Page]":
    """The tab that other tests of the file used before, with what they left in it. With the parameter "new" one of this
    test alone, without a cache."""
    from tests.browser import SIZE, tab, watched

    if getattr(request, "param", "") == "new":
        with tab(browser) as opened:
            yield opened
        return
    used: Page = request.getfixturevalue("_tab")
    with watched(used):
        yield used
    used.unroute_all(behavior="ignoreErrors")
    used.set_viewport_size({"width": SIZE[0], "height": SIZE[1]})
