"""A session that is opened by the first call, and opened again after a backoff."""

from itertools import pairwise

import pytest
import trio
from trio.testing import MockClock

from tsd.errors import StoreDown, StoreError
from tsd.store.session import LazySession


class Server:
    """Accepts or refuses sessions, and is the session."""

    def __init__(self) -> None:
        self.attempts = 0
        self.closed = 0
        self.error: StoreError | None = None

    def connect(self) -> "Server":
        self.attempts += 1
        if self.error is not None:
            raise self.error
        return self

    def close(self) -> None:
        self.closed += 1


async def test_session_is_opened_once_for_all_tasks() -> None:
    server = Server()
    session = LazySession(server.connect)
    found: list[Server] = []

    async def call() -> None:
        found.append(await session.get())

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(call)
    assert found == [server] * 3
    assert server.attempts == 1


async def test_closed_session_is_opened_again() -> None:
    server = Server()
    session = LazySession(server.connect)
    await session.aclose()
    assert server.closed == 0
    await session.get()
    await session.aclose()
    await session.get()
    assert (server.attempts, server.closed) == (2, 1)


@pytest.mark.parametrize("kind", [StoreDown, StoreError])
async def test_calls_fail_as_the_last_attempt_until_the_next_one(kind: type[StoreError], mock_clock: MockClock) -> None:
    """Wrong credentials are no server that is down: what is logged depends on it."""
    server = Server()
    server.error = kind("refused")
    session = LazySession(server.connect)
    for _ in range(3):
        with pytest.raises(StoreError, match="refused") as raised:
            await session.get()
        assert type(raised.value) is kind
    assert server.attempts == 1
    server.error = None
    mock_clock.jump(60)
    assert await session.get() is server
    assert server.attempts == 2


async def test_pauses_grow_while_the_server_refuses(mock_clock: MockClock) -> None:
    server = Server()
    server.error = StoreDown("no answer")
    session = LazySession(server.connect)
    attempted_at: list[float] = []
    while len(attempted_at) < 6:
        before = server.attempts
        with pytest.raises(StoreDown):
            await session.get()
        if server.attempts > before:
            attempted_at.append(trio.current_time())
        mock_clock.jump(0.25)
    pauses = [later - earlier for earlier, later in pairwise(attempted_at)]
    assert pauses == sorted(pauses)
    assert pauses[0] < pauses[-1]
