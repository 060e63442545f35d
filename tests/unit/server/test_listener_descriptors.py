"""Connections leave file descriptors for the journal and the store: a daemon with a low limit."""

import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import trio

from tests.faults.load import PATIENCE_S
from tests.faults.process import Served, served
from tests.unit.server.test_listener import OPEN
from tsd.store.remote import ControlClient

FEW, NONE_FREE = 200, 40
CONNECTIONS = 400
T = 1_500_000_000
REJECTED = "connectionmgr.connections type=rejected"


@pytest.fixture
def low_limit() -> Iterator[None]:
    """Set a limit of open files for child processes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (FEW, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def multiplexer(daemon: Served, count: int, stack: AsyncExitStack) -> None:
    """Open silent connections, and wait until each is accepted or closed."""
    for _ in range(count):
        await stack.enter_async_context(await trio.open_tcp_stream("127.0.0.1", daemon.port))
    with trio.fail_after(PATIENCE_S):
        async with daemon.client() as client:
            assert await client.read_to_end() == b""  # the last one is over the limit


@pytest.mark.difference(
    "descriptor-reserve",
    topic="connections",
    theirs="With `tsd.core.connections.limit = 0` connections can use every file descriptor of the process",
    ours=(
        "A number of descriptors is reserved for the journal and the store. Further connections are closed at once "
        "and counted"
    ),
)
async def test_few_descriptors_keep_open_connections_served(tmp_path: Path) -> None:
    """Idle connections must not use the descriptors that the journal needs."""
    async with served(tmp_path) as daemon:
        await daemon.ready()
        async with daemon.client() as agent, AsyncExitStack() as stack:
            assert await agent.send_lines(b"put m %d 1 a=b\n" % T) == b"synced 1\n"
            resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (FEW, FEW))
            await multiplexer(daemon, CONNECTIONS, stack)
            for turn in range(1, 6):  # new names and tags and new journal segments
                lines = b"put m%d %d 1 a=b c%d=d\n" % (turn, T, turn)
                assert await agent.send_lines(lines) == b"synced %d\n" % (turn + 1)
                assert await flushed(daemon, tmp_path)
            stats = await agent.stats()
            assert FEW // 4 < stats[OPEN] < FEW
            assert stats[OPEN] + stats[REJECTED] == CONNECTIONS + 2
            assert stats["connectionmgr.exceptions type=unknown"] == 0
        assert "connection.over_limit" in await daemon.terminate()


async def flushed(daemon: Served, folder: Path) -> bool:
    """Flush the daemon's open window. Return whether it succeeded."""
    caller = await ControlClient.connect(folder / "control.sock")
    try:
        return await caller.call("flush") is True
    finally:
        await caller.aclose()


async def test_connections_are_accepted_after_others_end(tmp_path: Path) -> None:
    async with served(tmp_path) as daemon:
        await daemon.ready()
        resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (FEW, FEW))
        async with AsyncExitStack() as stack:
            await multiplexer(daemon, FEW, stack)
        with trio.fail_after(PATIENCE_S):
            while not await is_let_in(daemon):
                pass
        await daemon.terminate()


async def is_let_in(daemon: Served) -> bool:
    """Return whether a new connection is served."""
    async with daemon.client() as client:
        try:
            await client.send(b"version\n")
            return await client.stream.receive_some() != b""
        except trio.BrokenResourceError:  # closed at once
            return False


async def test_descriptor_limit_is_raised_and_logged(tmp_path: Path, low_limit: None) -> None:
    async with served(tmp_path) as daemon:
        event = await daemon.logged("descriptor_limit.raised")
        await daemon.ready()
        assert resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE)[0] == event["limit"] > FEW
        assert event["before"] == FEW
        assert 0 < event["limit"] - event["for_connections"] <= event["limit"] // 4
        await daemon.terminate()


def test_limit_without_room_for_connections_is_refused(tmp_path: Path) -> None:
    """Regression: the daemon said that it was ready, and then closed every connection."""
    done = subprocess.run(
        [sys.executable, "-m", "tsd", "serve", "--port", "0", "--data", tmp_path / "state"],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (NONE_FREE, NONE_FREE)),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 1
    assert f"got a limit of {NONE_FREE} open files" in done.stderr
    assert "daemon.ready" not in done.stderr
