"""Those who may do nothing here: what they are answered without, what they hold, and for how long."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.running import Client, running
from tests.unit.doors.web_parts import Served, echo, get, hear, post, serving
from tsd.access.accounts import Account, write_lines
from tsd.access.doorkeeper import Doorkeeper
from tsd.access.roles import Role
from tsd.access.secret import kept_token, new_token
from tsd.access_settings import AccessSettings
from tsd.doors.signin import PATIENCE_S
from tsd.doors.unfinished import FEW_BYTES, Unfinished
from tsd.doors.web import MAX_REQUEST

TOKEN = new_token()
SHOWN = f"Authorization: Bearer {TOKEN}"
ROUTES = {"api/put": echo, "api/suggest": echo, "health": echo}


@pytest.fixture
def keeper(tmp_path: Path) -> Doorkeeper:
    write_lines(tmp_path / "accounts", [str(Account("a", Role.READ | Role.WRITE, kept_token(TOKEN)))])
    return Doorkeeper(AccessSettings(authentication=True, auth_file=str(tmp_path / "accounts")), lambda: 0)


@pytest.fixture
async def served(keeper: Doorkeeper) -> AsyncIterator[Served]:
    async with serving(ROUTES, doorkeeper=keeper) as served:
        yield served


@pytest.mark.parametrize("coming", ["Content-Length: 1000000", "Transfer-Encoding: chunked"])
@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("OPTIONS", "/api/put", 405), ("POST", "/nowhere", 404), ("POST", "/health", 200), ("POST", "/api/put", 401)],
)
async def test_their_bodies_are_not_read(served: Served, method: str, path: str, status: int, coming: str) -> None:
    """They had as much of the room as bodies that were wanted, and those waited."""
    async with served.client() as client:
        await client.send(get(path, coming, method=method) + b"5\r\nabc")
        with trio.fail_after(60):
            heard = await hear(client)
        assert (heard.status, heard.headers.get("connection")) == (status, "close")
        assert served.room.used == 0
        assert await client.read_to_end() == b""


async def test_a_length_that_is_said_in_two_ways_is_refused_all_the_same(served: Served) -> None:
    heard = await served.ask(get("/nowhere", "Content-Length: 5", "Transfer-Encoding: chunked", method="POST"))
    assert heard.status == 400


async def test_a_body_that_has_come_is_passed_over(served: Served) -> None:
    """Who is known reads on the same connection."""
    async with served.client() as client:
        await client.send(post("/health", b"body") + post("/nowhere", b"x") + post("/api/put", b"abc", SHOWN))
        assert [(await hear(client)).body for _ in range(3)][::2] == [b"", b"abc"]


async def test_bodies_of_those_who_are_known_are_read_wherever_they_go(served: Served) -> None:
    assert (await served.ask(post("/health", b"abc", SHOWN), post("/nowhere", b"abc", SHOWN))).status == 404
    assert (await served.ask(post("/health", b"abc", SHOWN))).body == b"abc"


async def test_who_says_nothing_leaves_in_time(keeper: Doorkeeper, autojump_clock: MockClock) -> None:
    """It stayed for ever, and with it its place among the connections that may be open."""
    async with serving(ROUTES, doorkeeper=keeper) as served:
        async with served.client() as client:
            with trio.fail_after(10 * PATIENCE_S):
                assert await client.read_to_end() == b""
            assert PATIENCE_S <= trio.current_time() < PATIENCE_S + 5
        await wait_all_tasks_blocked()
        statistics = served.listener.statistics()
        assert (statistics.strangers, statistics.silent, statistics.failed) == (1, 1, 0)


@pytest.mark.parametrize("asked", [get("/health"), get("/api/suggest"), get("/", method="OPTIONS"), b"GET x\r\n\r\n"])
async def test_nor_has_who_asked_once_for_ever(keeper: Doorkeeper, autojump_clock: MockClock, asked: bytes) -> None:
    async with serving(ROUTES, doorkeeper=keeper) as served, served.client() as client:
        await client.send(asked)
        with trio.fail_after(PATIENCE_S + 5):
            await client.read_to_end()


async def test_who_is_known_may_be_silent(keeper: Doorkeeper, autojump_clock: MockClock) -> None:
    async with serving(ROUTES, doorkeeper=keeper) as served, served.client() as client:
        for _ in range(3):
            await client.send(get("/api/suggest", SHOWN))
            assert (await hear(client)).status == 200
            await trio.sleep(100 * PATIENCE_S)


async def test_who_asks_for_others_may_be_silent_after_a_stranger(tmp_path: Path, autojump_clock: MockClock) -> None:
    settings = AccessSettings(authentication=True, auth_file=str(tmp_path / "accounts"), forwarding="127.0.0.1")
    write_lines(tmp_path / "accounts", [str(Account("a", Role.READ, kept_token(TOKEN)))])
    async with serving(ROUTES, doorkeeper=Doorkeeper(settings, lambda: 0)) as served, served.client() as proxy:
        for shown in ((), (), (SHOWN,)):
            await proxy.send(get("/health", "X-Forwarded-For: 192.0.2.7", *shown))
            assert (await hear(proxy)).status == 200
            await trio.sleep(100 * PATIENCE_S)


async def test_nor_is_anybody_hurried_where_nobody_must_show_who_it_is(autojump_clock: MockClock) -> None:
    async with serving(ROUTES) as served, served.client() as client:
        await trio.sleep(100 * PATIENCE_S)
        for path in ("/health", "/nowhere"):
            await client.send(get(path))
            await hear(client)
            await trio.sleep(100 * PATIENCE_S)
        await client.send(get("/health"))
        assert (await hear(client)).status == 200


class Held:
    """A connection."""

    def __init__(self) -> None:
        self.is_cut = False

    def cut_off(self) -> None:
        self.is_cut = True


def test_who_has_held_much_for_longest_is_cut_off() -> None:
    first, second, third, small = (Held() for _ in range(4))
    unfinished = Unfinished(3 * FEW_BYTES)
    unfinished.hold(small, FEW_BYTES)
    for one in (first, second):
        unfinished.hold(one, FEW_BYTES + 1)
    unfinished.hold(first, FEW_BYTES + 2)  # one more byte makes it no newcomer
    assert unfinished.used == 2 * FEW_BYTES + 3
    unfinished.hold(third, 2 * FEW_BYTES)
    assert [one.is_cut for one in (small, first, second, third)] == [False, True, True, False]
    assert (unfinished.used, unfinished.cut) == (2 * FEW_BYTES, 2)
    for one in (first, third, small):
        unfinished.hold(one, 0)
    assert unfinished.used == 0


@pytest.mark.parametrize("end", ["", "\r\nContent-Length: 5\r\n\r\n"])
async def test_heads_that_do_not_end_have_a_bound_in_all(end: str) -> None:
    """Each took 90 KiB, of as many connections as there may be; those that are whole, and whose body does not come."""
    unfinished = Unfinished(2 * MAX_REQUEST)
    head = f"POST /health HTTP/1.1\r\nHost: x\r\nX: {'a' * 50_000}{end}".encode()
    async with serving(ROUTES, unfinished=unfinished) as served, served.client() as first, served.client() as second:
        for client in (first, second):
            await client.send_whole(head)
            with trio.fail_after(60):
                while unfinished.used < 50_000 * (1 + (client is second)):
                    await trio.lowlevel.checkpoint()
        async with served.client() as third:
            await third.send(head)
            assert await first.read_to_end() == b""
            assert unfinished.used > 100_000
            await second.send(b"hello" if end else b"\r\n\r\n")
            assert (await hear(second)).status == 200
        assert (await served.ask(post("/health", b"x"))).status == 200
        statistics = served.listener.statistics()
        assert (statistics.cut_off, statistics.failed) == (1, 0)
    assert unfinished.used == 0


async def test_lines_that_do_not_end_have_it_too(tmp_path: Path) -> None:
    async with running(tmp_path, {"tsd.network.unfinished_memory": "1M"}) as daemon, trio.open_nursery() as nursery:
        half = b"put " + b"a" * 16_000

        async def hold() -> None:
            async with daemon.client() as client:
                await client.send(half)
                await client.read_to_end()

        listener = daemon.daemon.listener
        async with daemon.client() as first, daemon.client() as small:
            await small.ask(b"")
            await small.send(b"put m 1500000000 1 ")
            await first.send_whole(half)
            with trio.fail_after(60):
                while not listener.statistics().unfinished:
                    await trio.lowlevel.checkpoint()
            for _ in range((1 << 20) // len(half)):
                nursery.start_soon(hold)
            assert await ended(first)
            await small.send(b"a=b\n")
            assert await small.ask(b"") == b"synced 1\n"
            stats = await small.stats()
        assert (stats["clients.closed reason=unfinished"], stats["telnet.cut-lines"]) == (1, 1)
        assert stats["clients.unfinished-bytes"] <= 1 << 20
        nursery.cancel_scope.cancel()


async def test_a_line_that_has_come_is_not_held_by_whom_we_pause(tmp_path: Path) -> None:
    """Who waited for its quota was cut off as if we waited for it."""
    async with running(tmp_path, {"tsd.quota.lines_per_second": "1"}) as daemon, daemon.client() as client:
        await client.send(b"put " + b"a" * 16_000)
        with trio.fail_after(60):
            while not daemon.daemon.listener.statistics().unfinished:
                await trio.lowlevel.checkpoint()
            await client.send(b" 1500000000 1 a=b\n" + b"put m 1500000000 1 a=b\n" * 1000)
            while not daemon.daemon.clients.statistics().pausing:
                await trio.lowlevel.checkpoint()
        assert daemon.daemon.listener.statistics().unfinished == 0


async def ended(client: Client) -> bool:
    try:
        return await client.read_to_end() == b""
    except trio.BrokenResourceError:
        return True
