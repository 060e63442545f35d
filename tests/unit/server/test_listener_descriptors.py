"""Connections take no descriptor that the journal and the store want: on a daemon of its own, with few of them."""

import resource
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import trio

from tests.faults.load import PATIENCE_S
from tests.faults.process import Served, served
from tests.unit.doors.test_listener import OPEN
from tsd.store.remote import Caller

FEW = 200
CROWD = 400
T = 1_500_000_000
REJECTED = "connectionmgr.connections type=rejected"


@pytest.fixture
def low_limit() -> Iterator[None]:
    """A limit of open files that what is started now begins with."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (FEW, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def crowd(daemon: Served, count: int, stack: AsyncExitStack) -> None:
    """Connections that say nothing, once each was either let in or closed."""
    for _ in range(count):
        await stack.enter_async_context(await trio.open_tcp_stream("127.0.0.1", daemon.port))
    with trio.fail_after(PATIENCE_S):
        async with daemon.client() as client:
            assert await client.read_to_end() == b""  # it came last, and is closed


async def test_with_few_descriptors_those_who_are_in_are_served(tmp_path: Path) -> None:
    """400 idle connections once left the journal no file to go on with, and the log a traceback every 100 ms."""
    async with served(tmp_path) as daemon:
        await daemon.ready()
        async with daemon.client() as agent, AsyncExitStack() as stack:
            assert await agent.ask(b"put m %d 1 a=b\n" % T) == b"synced 1\n"
            resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (FEW, FEW))
            await crowd(daemon, CROWD, stack)
            for turn in range(1, 6):  # new names and tags, whose order wants a codec, and new segments of the journal
                lines = b"put m%d %d 1 a=b c%d=d\n" % (turn, T, turn)
                assert await agent.ask(lines) == b"synced %d\n" % (turn + 1)
                assert await flushed(daemon, tmp_path)
            stats = await agent.stats()
            assert FEW // 4 < stats[OPEN] < FEW
            assert stats[OPEN] + stats[REJECTED] == CROWD + 2
            assert stats["connectionmgr.exceptions type=unknown"] == 0
        assert "a connection too many was closed" in await daemon.terminate()


async def flushed(daemon: Served, folder: Path) -> bool:
    """Have it write its open rows; whether it did."""
    caller = await Caller.connect(folder / "control.sock")
    try:
        return await caller.ask("flush") is True
    finally:
        await caller.aclose()


async def test_there_is_room_again_when_some_have_gone(tmp_path: Path) -> None:
    async with served(tmp_path) as daemon:
        await daemon.ready()
        resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (FEW, FEW))
        async with AsyncExitStack() as stack:
            await crowd(daemon, FEW, stack)
        with trio.fail_after(PATIENCE_S):
            while not await is_let_in(daemon):
                pass
        await daemon.terminate()


async def is_let_in(daemon: Served) -> bool:
    """Whether a new connection is served."""
    async with daemon.client() as client:
        try:
            await client.send(b"version\n")
            return await client.stream.receive_some() != b""
        except trio.BrokenResourceError:  # closed before it had spoken
            return False


async def test_a_daemon_raises_its_limit_as_far_as_it_may_and_says_so(tmp_path: Path, low_limit: None) -> None:
    async with served(tmp_path) as daemon:
        event = await daemon.logged("limit of open files raised")
        await daemon.ready()
        assert resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE)[0] == event["now"] > FEW
        assert event["before"] == FEW
        assert 0 < event["now"] - event["for_connections"] <= event["now"] // 4
        await daemon.terminate()
