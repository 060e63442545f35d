"""Clients without any role: their answers, their memory and their timeouts."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.running import running
from tests.unit.server.networks import client_disconnects
from tests.unit.server.web_parts import Served, echo, get, post, read_response, serving
from tsd.auth.accounts import Account, write_lines
from tsd.auth.authenticator import Authenticator
from tsd.auth.credentials import hash_token, new_token
from tsd.auth.roles import Role
from tsd.config.settings import AccessSettings
from tsd.server.http.heads import MAX_HEAD_BYTES
from tsd.server.listener import UNCOUNTED_BYTES, PartialInputBudget
from tsd.server.telnet import LOGIN_TIMEOUT_S

TOKEN = new_token()
SHOWN = f"Authorization: Bearer {TOKEN}"
ROUTES = {"api/put": echo, "api/suggest": echo, "health": echo}


@pytest.fixture
def authenticator(tmp_path: Path) -> Authenticator:
    write_lines(tmp_path / "accounts", [str(Account("a", Role.READ | Role.WRITE, hash_token(TOKEN)))])
    return Authenticator(AccessSettings(authentication=True, auth_file=str(tmp_path / "accounts")), lambda: 0)


@pytest.fixture
async def served(authenticator: Authenticator) -> AsyncIterator[Served]:
    async with serving(ROUTES, authenticator=authenticator) as served:
        yield served


@pytest.mark.parametrize("coming", ["Content-Length: 1000000", "Transfer-Encoding: chunked"])
@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("OPTIONS", "/api/put", 405), ("POST", "/nowhere", 404), ("POST", "/health", 200), ("POST", "/api/put", 401)],
)
async def test_bodies_of_unauthenticated_senders_are_not_read(
    served: Served, method: str, path: str, status: int, coming: str
) -> None:
    """They would take memory from bodies of authenticated senders."""
    async with served.client() as client:
        await client.send(get(path, coming, method=method) + b"5\r\nabc")
        with trio.fail_after(60):
            response = await read_response(client)
        assert (response.status, response.headers.get("connection")) == (status, "close")
        assert served.budget.used == 0
        assert await client.read_to_end() == b""


@pytest.mark.parametrize("path", ["/nowhere", "/health", "/api/put"])
async def test_two_body_lengths_are_refused(served: Served, path: str) -> None:
    """Also of a request that is refused without a look at its body: a proxy takes what follows for another one's."""
    async with served.client() as client:
        lengths = get(path, "Content-Length: 5", "Transfer-Encoding: chunked", method="POST")
        await client.send(lengths + b"0\r\n\r\n" + get("/health"))
        response = await read_response(client)
        assert (response.status, response.headers.get("connection")) == (400, "close")
        assert await client.read_to_end() == b""


async def test_received_body_of_refused_request_is_skipped(served: Served) -> None:
    """An authenticated sender may follow on the same connection."""
    async with served.client() as client:
        await client.send(post("/health", b"body") + post("/nowhere", b"x") + post("/api/put", b"abc", SHOWN))
        assert [(await read_response(client)).body for _ in range(3)][::2] == [b"", b"abc"]


async def test_bodies_of_authenticated_senders_are_read(served: Served) -> None:
    assert (await served.request(post("/api/put", b"abc", SHOWN), post("/nowhere", b"abc", SHOWN))).status == 404
    assert (await served.request(post("/api/put", b"abc", SHOWN))).body == b"abc"


async def test_silent_unauthenticated_client_is_closed(authenticator: Authenticator, autojump_clock: MockClock) -> None:
    """Otherwise it would hold one of the connections that may be open."""
    async with serving(ROUTES, authenticator=authenticator) as served:
        async with served.client() as client:
            with trio.fail_after(10 * LOGIN_TIMEOUT_S):
                assert await client.read_to_end() == b""
            assert LOGIN_TIMEOUT_S <= trio.current_time() < LOGIN_TIMEOUT_S + 5
        await wait_all_tasks_blocked()
        statistics = served.listener.statistics()
        assert (statistics.unauthenticated, statistics.timed_out, statistics.failed) == (1, 1, 0)


@pytest.mark.parametrize("data", [get("/health"), get("/api/suggest"), get("/", method="OPTIONS"), b"GET x\r\n\r\n"])
async def test_unauthenticated_client_may_not_idle_after_request(
    authenticator: Authenticator, autojump_clock: MockClock, data: bytes
) -> None:
    async with serving(ROUTES, authenticator=authenticator) as served, served.client() as client:
        await client.send(data)
        with trio.fail_after(LOGIN_TIMEOUT_S + 5):
            await client.read_to_end()


async def test_authenticated_client_may_idle(authenticator: Authenticator, autojump_clock: MockClock) -> None:
    async with serving(ROUTES, authenticator=authenticator) as served, served.client() as client:
        for _ in range(3):
            await client.send(get("/api/suggest", SHOWN))
            assert (await read_response(client)).status == 200
            await trio.sleep(100 * LOGIN_TIMEOUT_S)


async def test_proxy_may_idle_after_unauthenticated_request(tmp_path: Path, autojump_clock: MockClock) -> None:
    settings = AccessSettings(authentication=True, auth_file=str(tmp_path / "accounts"), trusted_proxies="127.0.0.1")
    write_lines(tmp_path / "accounts", [str(Account("a", Role.READ, hash_token(TOKEN)))])
    async with serving(ROUTES, authenticator=Authenticator(settings, lambda: 0)) as served, served.client() as proxy:
        for last_credentials in ((), (), (SHOWN,)):
            await proxy.send(get("/health", "X-Forwarded-For: 192.0.2.7", *last_credentials))
            assert (await read_response(proxy)).status == 200
            await trio.sleep(100 * LOGIN_TIMEOUT_S)


async def test_no_login_timeout_without_authentication(autojump_clock: MockClock) -> None:
    async with serving(ROUTES) as served, served.client() as client:
        await trio.sleep(100 * LOGIN_TIMEOUT_S)
        for path in ("/health", "/nowhere"):
            await client.send(get(path))
            await read_response(client)
            await trio.sleep(100 * LOGIN_TIMEOUT_S)
        await client.send(get("/health"))
        assert (await read_response(client)).status == 200


class Held:
    """A connection that records its end."""

    def __init__(self) -> None:
        self.is_cut = False

    def disconnect(self) -> None:
        self.is_cut = True


def test_oldest_partial_input_is_disconnected() -> None:
    first, second, third, small = (Held() for _ in range(4))
    partial_input = PartialInputBudget(3 * UNCOUNTED_BYTES)
    partial_input.set_size(small, UNCOUNTED_BYTES)
    for one in (first, second):
        partial_input.set_size(one, UNCOUNTED_BYTES + 1)
    partial_input.set_size(first, UNCOUNTED_BYTES + 2)  # one more byte keeps its age
    assert partial_input.used == 2 * UNCOUNTED_BYTES + 3
    partial_input.set_size(third, 2 * UNCOUNTED_BYTES)
    assert [one.is_cut for one in (small, first, second, third)] == [False, True, True, False]
    assert (partial_input.used, partial_input.disconnected) == (2 * UNCOUNTED_BYTES, 2)
    for one in (first, third, small):
        partial_input.set_size(one, 0)
    assert partial_input.used == 0


@pytest.mark.parametrize("end", ["", "\r\nContent-Length: 5\r\n\r\n"])
async def test_incomplete_heads_are_bounded_together(end: str) -> None:
    """Each complete head without its body counts, too: it takes 90 KiB."""
    head = f"POST /api/put HTTP/1.1\r\nHost: x\r\nX: {'a' * 50_000}{end}".encode()
    async with (
        serving(ROUTES, partial_input_bytes=2 * MAX_HEAD_BYTES) as served,
        served.client() as first,
        served.client() as second,
    ):
        for client in (first, second):
            await client.send_whole(head)
            with trio.fail_after(60):
                while served.listener.statistics().partial_input_bytes < 50_000 * (1 + (client is second)):
                    await trio.lowlevel.checkpoint()
        async with served.client() as third:
            await third.send(head)
            assert await first.read_to_end() == b""
            assert served.listener.statistics().partial_input_bytes > 100_000
            await second.send(b"hello" if end else b"\r\n\r\n")
            assert (await read_response(second)).status == 200
        assert (await served.request(post("/api/put", b"x"))).status == 200
        statistics = served.listener.statistics()
        assert (statistics.over_partial_input_limit, statistics.failed) == (1, 0)
    assert served.listener.statistics().partial_input_bytes == 0


async def test_incomplete_lines_are_bounded_together(tmp_path: Path) -> None:
    async with running(tmp_path, {"tsd.network.partial_input_memory": "1M"}) as daemon, trio.open_nursery() as nursery:
        half = b"put " + b"a" * 16_000

        async def hold() -> None:
            async with daemon.client() as client:
                await client.send(half)
                await client.read_to_end()

        listener = daemon.daemon.server.listener
        async with daemon.client() as first, daemon.client() as small:
            await small.send_lines(b"")
            await small.send(b"put m 1500000000 1 ")
            await first.send_whole(half)
            with trio.fail_after(60):
                while not listener.statistics().partial_input_bytes:
                    await trio.lowlevel.checkpoint()
            for _ in range((1 << 20) // len(half)):
                nursery.start_soon(hold)
            assert await client_disconnects(first)
            await small.send(b"a=b\n")
            assert await small.send_lines(b"") == b"synced 1\n"
            stats = await small.stats()
        assert (stats["clients.closed reason=partial-input"], stats["telnet.truncated-lines"]) == (1, 1)
        assert stats["clients.partial-input-bytes"] <= 1 << 20
        nursery.cancel_scope.cancel()


async def test_complete_line_of_throttled_client_is_not_partial(tmp_path: Path) -> None:
    """A throttled client must not be disconnected for what the daemon delays."""
    async with running(tmp_path, {"tsd.quota.lines_per_second": "1"}) as daemon, daemon.client() as client:
        await client.send(b"put " + b"a" * 16_000)
        with trio.fail_after(60):
            while not daemon.daemon.server.listener.statistics().partial_input_bytes:
                await trio.lowlevel.checkpoint()
            await client.send(b" 1500000000 1 a=b\n" + b"put m 1500000000 1 a=b\n" * 1000)
            while not daemon.daemon.access.clients.statistics().connections_throttled:
                await trio.lowlevel.checkpoint()
        assert daemon.daemon.server.listener.statistics().partial_input_bytes == 0
