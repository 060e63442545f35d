"""Quotas of clients: lines, new names, connections, time for a line; and the list of clients."""

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock, memory_stream_pair

from tests.running import Running, running
from tests.unit.api.http_requests import http_post, http_request
from tests.unit.server.telnet_parts import session
from tsd.auth.accounts import Account, write_lines
from tsd.auth.credentials import hash_token, new_token
from tsd.auth.roles import SUPERUSER, Role
from tsd.codec.names import Kind
from tsd.config.limits import LimitSettings
from tsd.daemon.wiring import make_uids
from tsd.errors import BadLine
from tsd.ingest.limits import OriginAdmission, RefusedLine
from tsd.server.clients import Client, Clients, Quotas, configured_quotas
from tsd.server.peer import Peer, peer_at

pytestmark = pytest.mark.slow

T = 1_500_000_000
LOCAL = "127.0.0.1"


def put(number: int, host: str = "a", metric: str = "m") -> bytes:
    return b"put %s %d 1 host=%s\n" % (metric.encode(), T + number, host.encode())


def points(count: int, metric: str = "m") -> bytes:
    """Return a body of /api/put."""
    return json.dumps(
        [{"metric": metric, "timestamp": T + n, "value": 1, "tags": {"host": "a"}} for n in range(count)]
    ).encode()


async def client_list(daemon: Running, query: str = "") -> list[dict[str, Any]]:
    """Return the answer of /api/stats/clients."""
    response = await http_request(daemon, f"/api/stats/clients{query}")
    assert response.status == 200, response
    found: list[dict[str, Any]] = response.json
    return found


async def about_us(daemon: Running) -> dict[str, Any]:
    [us] = [one for one in await client_list(daemon) if one["client"] == LOCAL]
    return us


def quotas(**settings: Any) -> Quotas:
    return configured_quotas(LimitSettings(**settings))


# ---- lines


async def test_client_over_quota_is_throttled_without_loss(autojump_clock: MockClock) -> None:
    clients = Clients(Quotas(lines_per_s=100))
    client = clients.of("10.0.0.1")
    for _ in range(50):
        client.count_lines(1000, [])
        await client.throttle(clients.draining)
    assert client.accepted == 50_000
    assert trio.current_time() == pytest.approx((50_000 - 1000) / 100)
    assert client.throttled_s == pytest.approx(490)


async def test_connections_of_a_client_share_a_quota(autojump_clock: MockClock) -> None:
    clients = Clients(Quotas(lines_per_s=100))

    async def connection() -> None:
        for _ in range(10):
            clients.of("10.0.0.1").count_lines(500, [])
            await clients.of("10.0.0.1").throttle(clients.draining)

    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(connection)
    assert trio.current_time() == pytest.approx((4 * 10 * 500 - 1000) / 100)


async def test_all_lines_of_throttled_client_arrive(tmp_path: Path) -> None:
    async with running(tmp_path, {"tsd.quota.lines_per_second": "300"}) as daemon, daemon.client() as client:
        began_s = trio.current_time()
        for block in range(3):
            await client.send_whole(b"".join(put(block * 1100 + n) for n in range(1100)))
        while daemon.daemon.ingest.ledger.received < 3300:  # one read may exceed the quota, and contain `sync`
            await trio.lowlevel.checkpoint()
        assert await client.send_lines(b"") == b"synced 3300\n"
        us = await about_us(daemon)
        assert (us["accepted"], us["lines"]) == (3300, 3301)
        assert us["paused_ms"] > 0 or trio.current_time() - began_s > 1  # the 300 lines after the burst take so long


async def test_shutdown_waits_for_no_quota(tmp_path: Path) -> None:
    """Received lines are processed, also if the quota would delay them."""
    async with running(tmp_path, {"tsd.quota.lines_per_second": "1"}) as daemon, daemon.client() as client:
        await client.send_whole(b"".join(put(n) for n in range(2000)))
        while not daemon.daemon.access.clients.of(LOCAL).connections_throttled:
            await trio.lowlevel.checkpoint()
        await client.send_whole(b"".join(put(2000 + n) for n in range(2000)))
        daemon.stop.set()
        await client.read_to_end()
        assert daemon.daemon.ingest.ledger.received == 4000


async def test_throttled_client_is_not_idle(tmp_path: Path) -> None:
    clients = Clients(Quotas(lines_per_s=1))
    peer = peer_at("10.0.0.1", 1, clients)
    peer.principal = SUPERUSER
    stream, _ = memory_stream_pair()
    async with running(tmp_path) as daemon, trio.open_nursery() as nursery:
        await daemon.send_lines(put(0))
        talk, *_ = session(stream, daemon.daemon.ingest.intake, peer=peer)
        nursery.start_soon(talk.run, put(0) * 1000, trio.sleep_forever)
        while not peer.client.connections_throttled:
            await trio.lowlevel.checkpoint()
        assert peer.idle_since is None
        nursery.cancel_scope.cancel()


async def test_exempt_address_has_no_quota(tmp_path: Path) -> None:
    settings = {"tsd.quota.lines_per_second": "1", "tsd.quota.exempt": "10.0.0.0/8, 127.0.0.0/8"}
    async with running(tmp_path, settings) as daemon:
        assert await daemon.send_lines(b"".join(put(n) for n in range(3000))) == b"synced 3000\n"
        assert (await about_us(daemon))["paused_ms"] == 0


@pytest.mark.difference("quotas")
async def test_http_client_far_over_quota_gets_retry_after(tmp_path: Path) -> None:
    async with running(tmp_path, {"tsd.quota.lines_per_second": "10"}) as daemon:
        assert (await http_post(daemon, "/api/put", points(1000))).status == 204
        response = await http_post(daemon, "/api/put", points(1))
        assert response.status == 429
        assert response.json["error"]["message"] == "Please throttle writes"
        assert 80 <= int(response.headers["retry-after"]) <= 90
        assert (await http_request(daemon, "/api/version")).status == 200  # quotas limit writes only
        assert daemon.daemon.ingest.ledger.received == 1000


# ---- new names and series


@pytest.mark.difference(
    "quotas",
    topic="limits",
    theirs="One client can use all resources, and its new names use UIDs up for good",
    ours=(
        "There are quotas of lines and of new names for each client, and limits on series and on new names of all, "
        "off by default. Only new names and series are refused. A client that sends too fast is not read from, or "
        "answered with 429 over HTTP ([Limits](limits.md))"
    ),
)
async def test_new_names_over_quota_are_refused_known_ones_accepted(tmp_path: Path) -> None:
    async with running(tmp_path, {"tsd.quota.new_names_per_minute": "10"}) as daemon:
        answer = await daemon.send_lines(b"".join(put(n, f"h{n}") for n in range(20)))
        lines = answer.splitlines()
        # The metric, the tag key and eight of its values.
        assert lines[-1] == b"synced 8"
        assert lines[0] == (
            b"put: too many new names: 'h8' of 'tagv' is new, and tsd.quota.new_names_per_minute allows 10 a minute: "
            b"stop generating names, or send the line again later"
        )
        assert len(lines) == 13
        assert await daemon.send_lines(b"".join(put(100 + n, f"h{n}") for n in range(8))) == b"synced 8\n"
        us = await about_us(daemon)
        assert (us["new_names"], us["new_series"], us["new_name_example"]) == (10, 8, "tagv h7")
        assert us["refused_by_reason"] == {"too_many_new_names": 12}
        async with daemon.client() as client:
            stats = await client.stats()
        assert stats["ledger.refused reason=too_many_new_names"] == 12
        assert stats["ledger.balance"] == 0


@pytest.mark.parametrize(("per_minute", "wanted"), [("5", 3), ("0", 6)])
async def test_new_names_of_all_clients_are_limited(tmp_path: Path, per_minute: str, wanted: int) -> None:
    async with running(tmp_path, {"tsd.uid.new_per_minute": per_minute}) as daemon:
        answer = await daemon.send_lines(b"".join(put(n, f"h{n}") for n in range(6)))
        assert answer.endswith(b"synced %d\n" % wanted)
        assert (b"tsd.uid.new_per_minute" in answer) == (wanted < 6)


async def test_assigned_names_count_as_new_names(tmp_path: Path) -> None:
    """Regression: a client could assign UIDs without end at /api/uid/assign."""
    settings = {"tsd.quota.new_names_per_minute": "3", "tsd.uid.new_per_minute": "1000"}
    async with running(tmp_path, settings) as daemon:
        response = await http_request(daemon, "/api/uid/assign?metric=a,b&tagk=c,d")
        assert (response.status, list(response.json["metric"]), list(response.json["tagk"])) == (400, ["a", "b"], ["c"])
        assert "tsd.quota.new_names_per_minute allows 3" in response.json["tagk_errors"]["d"]
        assert (await about_us(daemon))["new_names"] == 3
        known = await http_request(daemon, "/api/uid/assign?metric=a")
        assert known.json["metric_errors"] == {"a": "Name already exists with UID: 000001"}
    anonymous = {"tsd.access.anonymous": "read,write"}
    async with running(tmp_path / "paced", {"tsd.quota.new_names_pace": "1"}, access=anonymous) as daemon:
        many = [f"n{number}" for number in range(5000)]
        assert (await http_post(daemon, "/api/uid/assign", json.dumps({"tagv": many}).encode())).status == 200
        assert (await about_us(daemon))["names_over_pace"] > 0


async def test_new_name_is_assigned_if_one_client_may_add_it(tmp_path: Path) -> None:
    async with running(tmp_path) as daemon:
        poor, rich = Clients(Quotas(names_per_minute=1)).of("10.0.0.1"), Clients().of("10.0.0.2")
        poor.count_name(Kind.TAGV, b"spent")
        uids = make_uids(daemon.daemon.config, daemon.daemon.store)
        found = []
        uids = make_uids(daemon.daemon.config, daemon.daemon.store)

        async def http_request(client: Client) -> None:
            permit = OriginAdmission(daemon.daemon.ingest.new_names, Peer(client.name, 1, client))
            found.append((await uids.find_or_assign(Kind.TAGV, [b"shared"], permit))[b"shared"])

        async with trio.open_nursery() as nursery:  # both are sent before either is answered
            nursery.start_soon(http_request, poor)
            nursery.start_soon(http_request, rich)
        assert found == [b"\0\0\1"] * 2
        assert (poor.new_names, rich.new_names) == (1, 1)


async def test_series_over_the_cap_are_refused_known_ones_accepted(tmp_path: Path) -> None:
    async with running(tmp_path, {"tsd.ingest.max_series": "3"}) as daemon:
        answer = await daemon.send_lines(b"".join(put(n, f"h{n}") for n in range(5)))
        assert answer.splitlines()[0] == (
            b"put: too many series: m host=h3 is new, and tsd.ingest.max_series allows 3: "
            b"stop generating series, or raise the limit"
        )
        assert answer.endswith(b"synced 3\n")
        # Any order of tags and any number of blanks names the same series.
        assert await daemon.send_lines(b"put m %d 1  host=h1 \n" % T + put(9, "h2")) == b"synced 2\n"
        assert await daemon.daemon.flush()
        async with daemon.client() as client:
            assert (await client.stats())["ledger.stored"] == 5


async def test_refused_and_equal_series_of_a_block_take_no_room(tmp_path: Path) -> None:
    """Regression: series after them were refused though there was room."""
    settings = {"tsd.ingest.max_series": "3", "tsd.core.auto_create_tagks": "false"}
    async with running(tmp_path, settings) as daemon:
        uids = make_uids(daemon.daemon.config, daemon.daemon.store)
        await uids.find_or_assign(Kind.TAGK, [b"host", b"dc"])
        unknown = b"".join(b"put m %d 1 unknown=%d\n" % (T, at) for at in range(3))
        equal = b"put m %d 1 host=a dc=b\nput m %d 2 dc=b host=a\n" % (T, T + 1)
        answer = await daemon.send_lines(unknown + equal + b"".join(put(n, f"h{n}") for n in range(4)))
        assert answer.count(b"unknown metric") == 3
        assert answer.count(b"too many series") == 2
        assert answer.endswith(b"synced 4\n")


async def test_acknowledged_points_are_stored_under_new_caps(tmp_path: Path) -> None:
    """Replay after a crash is not limited by caps."""
    async with running(tmp_path, {"tsd.storage.flush_interval": "3600000"}) as daemon:
        await daemon.send_lines(b"".join(put(n, f"h{n}") for n in range(20)))
        daemon.daemon.ingest.new_names.set_limits(max_series=1, names_per_minute=1)
        daemon.daemon.ingest.open_window.complete = False  # as after an eviction of points
        daemon.daemon.drop_caches()
        assert await daemon.daemon.flush()
        assert daemon.daemon.ingest.ledger.stored == 20


# ---- connections


async def test_connections_per_address_are_limited(tmp_path: Path) -> None:
    settings = {"tsd.network.connections_per_address": "3"}
    async with running(tmp_path, settings) as daemon, AsyncExitStack() as stack:
        held = [await stack.enter_async_context(daemon.client()) for _ in range(3)]
        for client in held:
            assert await client.send_lines(b"") == b"synced 0\n"
        async with daemon.client() as one_more:
            assert await one_more.read_to_end() == b""
        stats = await held[0].stats()
        assert stats["clients.closed reason=address"] == stats["connectionmgr.connections type=rejected"] == 1
        await held[2].stream.aclose()
        while daemon.daemon.access.clients.of(LOCAL).connections > 2:
            await trio.lowlevel.checkpoint()
        assert await daemon.send_lines(b"") == b"synced 0\n"
        assert daemon.daemon.access.clients.of(LOCAL).connections_refused == 1


async def test_slow_line_is_disconnected_but_silence_between_is_not(tmp_path: Path) -> None:
    async with running(tmp_path, {"tsd.network.line_timeout": "1"}) as daemon:
        async with daemon.client() as silent, daemon.client() as slow:
            await silent.send_lines(put(1))
            await slow.send(put(2) + b"put m")
            with trio.fail_after(30):
                assert await slow.read_to_end() == b""
            assert await silent.send_lines(b"") == b"synced 1\n"
            stats = await silent.stats()
        assert (stats["clients.closed reason=line-timeout"], stats["telnet.truncated-lines"]) == (1, 1)
        assert stats["connectionmgr.exceptions type=timeout"] == 1


# ---- list of clients


async def test_client_counts_what_it_sends(tmp_path: Path) -> None:
    async with running(tmp_path) as daemon:
        await daemon.send_lines(put(1) + b"put m x\n" + put(2) + b"put m %d 1 a=$\nversion\n" % T)
        us = await about_us(daemon)
    assert us["lines"] == 6
    assert (us["accepted"], us["refused"], us["new_names"], us["new_series"]) == (2, 2, 3, 1)
    assert us["refused_by_reason"] == {"illegal_arguments": 2}
    example = us["refused_example"]
    assert example["line"] == f"put m {T} 1 a=$"
    assert example["message"].startswith("illegal argument: Invalid tag value")
    assert us["first_seen"] <= example["time"] <= us["last_seen"]
    assert (us["connections"], us["connections_total"]) == (1, 2)  # the connection that asks
    assert us["bytes"] > 80


async def test_bytes_count_with_the_account_that_sends_them(tmp_path: Path) -> None:
    """Regression: they counted with the address: accounts over HTTP had 0 bytes."""
    token = new_token()
    write_lines(tmp_path / "accounts", [str(Account("a", Role.WRITE, hash_token(token)))])
    settings = {
        "tsd.core.authentication.enable": "true", "tsd.auth.file": str(tmp_path / "accounts"),
        "tsd.access.anonymous": "",
    }  # fmt: skip
    async with running(tmp_path / "state", settings) as daemon:
        assert (await http_post(daemon, "/api/put", points(1))).status == 401
        found = await http_post(daemon, "/api/put", points(1).ljust(5000), f"Authorization: Bearer {token}")
        assert found.status == 204
        counted = {client.name: client.bytes for client in daemon.daemon.access.clients}
        assert 0 < counted[LOCAL] < 1000
        assert 5000 < counted[f"a@{LOCAL}"] < 6000


async def test_client_list_is_sorted_and_limited(tmp_path: Path) -> None:
    async with running(tmp_path) as daemon:
        clients = daemon.daemon.access.clients
        for number in range(5):
            clients.of(f"10.0.0.{number}").count_lines(number, [RefusedLine(b"x", BadLine("r", "m"))] * (10 - number))
        assert [one["client"] for one in await client_list(daemon, "?limit=2")] == ["10.0.0.0", "10.0.0.1"]
        assert [one["client"] for one in await client_list(daemon, "?sort=accepted&limit=1")] == ["10.0.0.4"]
        assert (await http_request(daemon, "/api/stats/clients?sort=nonsense")).status == 400
        assert (await http_request(daemon, "/api/stats/clients?limit=-1")).status == 400


@pytest.fixture
async def limited(tmp_path: Path) -> AsyncIterator[Running]:
    async with running(tmp_path, {"tsd.quota.lines_per_second": "5"}) as daemon:
        yield daemon


async def test_changed_quotas_apply_at_once(limited: Running) -> None:
    limited.daemon.access.clients.of(LOCAL).count_lines(1000, [])
    assert limited.daemon.access.clients.of(LOCAL).debt_s > 100
    limited.daemon.access.clients.set_quotas(quotas())
    assert limited.daemon.access.clients.of(LOCAL).debt_s == 0
