"""What one client may take: lines, new names, connections, time for a line; and what is told of it."""

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from tests.running import Running, running
from tests.unit.api.asking import ask, tell
from tsd.codec.uid import Kind
from tsd.doors.clients import Client, Clients
from tsd.doors.quotas import Quotas, quotas_of
from tsd.doors.visitor import Visitor
from tsd.errors import BadLine
from tsd.ingest.growth import Permit
from tsd.ingest.source import Refusal
from tsd.limit_settings import LimitSettings

pytestmark = pytest.mark.slow

T = 1_500_000_000
HERE = "127.0.0.1"


def put(number: int, host: str = "a", metric: str = "m") -> bytes:
    return b"put %s %d 1 host=%s\n" % (metric.encode(), T + number, host.encode())


def points(count: int, metric: str = "m") -> bytes:
    """A body of /api/put."""
    return json.dumps(
        [{"metric": metric, "timestamp": T + n, "value": 1, "tags": {"host": "a"}} for n in range(count)]
    ).encode()


async def told(daemon: Running, query: str = "") -> list[dict[str, Any]]:
    """The answer of /api/stats/clients."""
    heard = await ask(daemon, f"/api/stats/clients{query}")
    assert heard.status == 200, heard
    found: list[dict[str, Any]] = heard.json
    return found


async def about_us(daemon: Running) -> dict[str, Any]:
    [us] = [one for one in await told(daemon) if one["client"] == HERE]
    return us


def quotas(**settings: Any) -> Quotas:
    return quotas_of(LimitSettings(**settings))


# ---- lines


async def test_who_sends_faster_than_its_quota_waits_and_loses_nothing(autojump_clock: MockClock) -> None:
    clients = Clients(Quotas(lines_per_s=100))
    client = clients.of("10.0.0.1")
    for _ in range(50):
        client.took(1000, [])
        await client.rest(clients.leaving)
    assert client.accepted == 50_000
    assert trio.current_time() == pytest.approx((50_000 - 1000) / 100)
    assert client.paused_s == pytest.approx(490)


async def test_a_quota_is_one_for_all_connections_of_a_client(autojump_clock: MockClock) -> None:
    clients = Clients(Quotas(lines_per_s=100))

    async def connection() -> None:
        for _ in range(10):
            clients.of("10.0.0.1").took(500, [])
            await clients.of("10.0.0.1").rest(clients.leaving)

    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(connection)
    assert trio.current_time() == pytest.approx((4 * 10 * 500 - 1000) / 100)


async def test_over_the_port_all_lines_of_a_paused_client_arrive(tmp_path: Path) -> None:
    async with running(tmp_path, {"tsd.quota.lines_per_second": "300"}) as daemon, daemon.client() as client:
        began_s = trio.current_time()
        for block in range(3):
            await client.send_whole(b"".join(put(block * 1100 + n) for n in range(1100)))
        while daemon.daemon.ledger.received < 3300:  # one read may go beyond the quota, and take `sync` with it
            await trio.lowlevel.checkpoint()
        assert await client.ask(b"") == b"synced 3300\n"
        us = await about_us(daemon)
        assert (us["accepted"], us["lines"]) == (3300, 3301)
        assert us["paused_ms"] > 0 or trio.current_time() - began_s > 1  # so long the 300 beyond the burst take to come


async def test_the_end_of_the_daemon_waits_for_no_quota(tmp_path: Path) -> None:
    """What a client has sent is taken, however long its quota would have had it wait."""
    async with running(tmp_path, {"tsd.quota.lines_per_second": "1"}) as daemon, daemon.client() as client:
        await client.send_whole(b"".join(put(n) for n in range(2000)))
        while not daemon.daemon.clients.of(HERE).pausing:
            await trio.lowlevel.checkpoint()
        await client.send_whole(b"".join(put(2000 + n) for n in range(2000)))
        daemon.stop.set()
        await client.read_to_end()
        assert daemon.daemon.ledger.received == 4000


async def test_an_exempt_address_has_no_quota(tmp_path: Path) -> None:
    settings = {"tsd.quota.lines_per_second": "1", "tsd.quota.exempt": "10.0.0.0/8, 127.0.0.0/8"}
    async with running(tmp_path, settings) as daemon:
        assert await daemon.tell(b"".join(put(n) for n in range(3000))) == b"synced 3000\n"
        assert (await about_us(daemon))["paused_ms"] == 0


async def test_over_http_who_is_far_over_its_quota_is_told_when_to_come_again(tmp_path: Path) -> None:
    async with running(tmp_path, {"tsd.quota.lines_per_second": "10"}) as daemon:
        assert (await tell(daemon, "/api/put", points(1000))).status == 204
        heard = await tell(daemon, "/api/put", points(1))
        assert heard.status == 429
        assert heard.json["error"]["message"] == "Please throttle writes"
        assert 80 <= int(heard.headers["retry-after"]) <= 90
        assert (await ask(daemon, "/api/version")).status == 200  # only what writes is limited
        assert daemon.daemon.ledger.received == 1000


# ---- new names and series


async def test_new_names_beyond_the_quota_are_refused_and_known_ones_are_not(tmp_path: Path) -> None:
    async with running(tmp_path, {"tsd.quota.new_names_per_minute": "10"}) as daemon:
        answer = await daemon.tell(b"".join(put(n, f"h{n}") for n in range(20)))
        lines = answer.splitlines()
        # The metric, the tag's name and eight of its values.
        assert lines[-1] == b"synced 8"
        assert lines[0] == (
            b"put: too many new names: 'h8' of 'tagv' is new, and 10 a minute may be "
            b"(tsd.quota.new_names_per_minute): stop what makes names up, or send the line again later"
        )
        assert len(lines) == 13
        assert await daemon.tell(b"".join(put(100 + n, f"h{n}") for n in range(8))) == b"synced 8\n"
        us = await about_us(daemon)
        assert (us["new_names"], us["new_series"], us["new_name_example"]) == (10, 8, "tagv h7")
        assert us["refused_by_reason"] == {"too_many_new_names": 12}
        async with daemon.client() as client:
            stats = await client.stats()
        assert stats["ledger.refused reason=too_many_new_names"] == 12
        assert stats["ledger.balance"] == 0


@pytest.mark.parametrize(("per_minute", "wanted"), [("5", 3), ("0", 6)])
async def test_new_names_of_all_are_bounded(tmp_path: Path, per_minute: str, wanted: int) -> None:
    async with running(tmp_path, {"tsd.uid.new_per_minute": per_minute}) as daemon:
        answer = await daemon.tell(b"".join(put(n, f"h{n}") for n in range(6)))
        assert answer.endswith(b"synced %d\n" % wanted)
        assert (b"(tsd.uid.new_per_minute)" in answer) == (wanted < 6)


async def test_a_name_that_several_want_gets_its_uid_if_one_of_them_may_bring_it(tmp_path: Path) -> None:
    async with running(tmp_path) as daemon:
        poor, rich = Clients(Quotas(names_per_minute=1)).of("10.0.0.1"), Clients().of("10.0.0.2")
        poor.named(Kind.TAGV, b"spent")
        found = []

        async def ask(client: Client) -> None:
            permit = Permit(daemon.daemon.growth, Visitor(client.name, 1, client))
            found.append((await daemon.daemon.uids.find_or_assign(Kind.TAGV, [b"shared"], permit))[b"shared"])

        async with trio.open_nursery() as nursery:  # both are on their way before either is answered
            nursery.start_soon(ask, poor)
            nursery.start_soon(ask, rich)
        assert found == [b"\0\0\1"] * 2
        assert (poor.new_names, rich.new_names) == (1, 1)


async def test_series_beyond_the_cap_are_refused_and_known_ones_go_on(tmp_path: Path) -> None:
    async with running(tmp_path, {"tsd.ingest.max_series": "3"}) as daemon:
        answer = await daemon.tell(b"".join(put(n, f"h{n}") for n in range(5)))
        assert answer.splitlines()[0] == (
            b"put: too many series: m host=h3 is not known, and 3 are (tsd.ingest.max_series): "
            b"stop what makes series up, or raise the cap"
        )
        assert answer.endswith(b"synced 3\n")
        # In whatever order and with however many blanks its tags are sent, a series that is known goes on.
        assert await daemon.tell(b"put m %d 1  host=h1 \n" % T + put(9, "h2")) == b"synced 2\n"
        assert await daemon.daemon.flush()
        async with daemon.client() as client:
            assert (await client.stats())["ledger.stored"] == 5


async def test_what_was_acknowledged_is_stored_whatever_the_caps_say_by_then(tmp_path: Path) -> None:
    """A window that is read again, as after a crash, brings no new names as far as caps go."""
    async with running(tmp_path, {"tsd.storage.flush_interval": "3600000"}) as daemon:
        await daemon.tell(b"".join(put(n, f"h{n}") for n in range(20)))
        daemon.daemon.growth.limit(max_series=1, names_per_minute=1)
        daemon.daemon.rows.complete = False  # as if its points had had to make room
        daemon.daemon.drop_caches()
        assert await daemon.daemon.flush()
        assert daemon.daemon.ledger.stored == 20


# ---- connections


async def test_an_address_has_no_more_connections_than_it_may(tmp_path: Path) -> None:
    settings = {"tsd.network.connections_per_address": "3"}
    async with running(tmp_path, settings) as daemon, AsyncExitStack() as stack:
        held = [await stack.enter_async_context(daemon.client()) for _ in range(3)]
        for client in held:
            assert await client.ask(b"") == b"synced 0\n"
        async with daemon.client() as one_more:
            assert await one_more.read_to_end() == b""
        stats = await held[0].stats()
        assert stats["clients.closed reason=address"] == stats["connectionmgr.connections type=rejected"] == 1
        await held[2].stream.aclose()
        while daemon.daemon.clients.of(HERE).connections > 2:
            await trio.lowlevel.checkpoint()
        assert await daemon.tell(b"") == b"synced 0\n"
        assert daemon.daemon.clients.of(HERE).connections_refused == 1


async def test_who_does_not_end_its_line_is_hung_up_on_and_who_is_silent_between_lines_is_not(tmp_path: Path) -> None:
    async with running(tmp_path, {"tsd.network.line_timeout": "1"}) as daemon:
        async with daemon.client() as silent, daemon.client() as slow:
            await silent.ask(put(1))
            await slow.send(put(2) + b"put m")
            with trio.fail_after(30):
                assert await slow.read_to_end() == b""
            assert await silent.ask(b"") == b"synced 1\n"
            stats = await silent.stats()
        assert (stats["clients.closed reason=line"], stats["telnet.cut-lines"]) == (1, 1)
        assert stats["connectionmgr.exceptions type=timeout"] == 1


# ---- what is told


async def test_a_client_is_told_apart_by_what_it_sends(tmp_path: Path) -> None:
    async with running(tmp_path) as daemon:
        await daemon.tell(put(1) + b"put m x\n" + put(2) + b"put m %d 1 a=$\nversion\n" % T)
        us = await about_us(daemon)
    assert us["lines"] == 6
    assert (us["accepted"], us["refused"], us["new_names"], us["new_series"]) == (2, 2, 3, 1)
    assert us["refused_by_reason"] == {"illegal_arguments": 2}
    example = us["refused_example"]
    assert example["line"] == f"put m {T} 1 a=$"
    assert example["message"].startswith("illegal argument: Invalid tag value")
    assert us["first_seen"] <= example["time"] == us["last_seen"]
    assert (us["connections"], us["connections_total"]) == (1, 2)  # the one that asks
    assert us["bytes"] > 80


async def test_the_answer_is_sorted_and_cut_as_asked(tmp_path: Path) -> None:
    async with running(tmp_path) as daemon:
        clients = daemon.daemon.clients
        for number in range(5):
            clients.of(f"10.0.0.{number}").took(number, [Refusal(b"x", BadLine("r", "m"))] * (10 - number))
        assert [one["client"] for one in await told(daemon, "?limit=2")] == ["10.0.0.0", "10.0.0.1"]
        assert [one["client"] for one in await told(daemon, "?sort=accepted&limit=1")] == ["10.0.0.4"]
        assert (await ask(daemon, "/api/stats/clients?sort=nonsense")).status == 400
        assert (await ask(daemon, "/api/stats/clients?limit=-1")).status == 400


@pytest.fixture
async def limited(tmp_path: Path) -> AsyncIterator[Running]:
    async with running(tmp_path, {"tsd.quota.lines_per_second": "5"}) as daemon:
        yield daemon


async def test_quotas_that_are_changed_act_at_once(limited: Running) -> None:
    limited.daemon.clients.of(HERE).took(1000, [])
    assert limited.daemon.clients.of(HERE).debt_s > 100
    limited.daemon.clients.limit(quotas())
    assert limited.daemon.clients.of(HERE).debt_s == 0
