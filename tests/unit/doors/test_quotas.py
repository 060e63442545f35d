"""What one client may take: lines, new names, connections, time for a line; and what is told of it."""

import gc
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.running import Running, running
from tests.unit.api.asking import ask, tell
from tsd.access.accounts import Account
from tsd.access.doorkeeper import Badge
from tsd.access.roles import Principal, Role
from tsd.access.secret import kept_token
from tsd.codec.uid import Kind
from tsd.doors import clients as clients_module
from tsd.doors.clients import Client, Clients
from tsd.doors.quotas import NO_QUOTAS, Quotas, Rates, quotas_of
from tsd.doors.visitor import Visitor
from tsd.errors import BadLine
from tsd.ingest.growth import Permit
from tsd.ingest.source import Refusal
from tsd.limit_settings import LimitSettings, exemptions

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


async def test_who_has_shown_its_name_is_counted_by_it() -> None:
    clients = Clients(Quotas(lines_per_s=5, exempt_accounts=frozenset({"relay"})))
    visitor = agent(clients, HERE, "relay")
    visitor.took(1000, [])
    assert (clients.of(HERE).accepted, clients.of(HERE, "relay").accepted) == (0, 1000)
    assert clients.of(HERE, "relay").debt_s == 0
    assert clients.of(HERE, "other").debt_s == 0


async def test_hosts_that_share_a_token_are_told_apart() -> None:
    """They were one client: one that sent too much starved the others, and who of them it was could not be told."""
    clients = Clients(Quotas(lines_per_s=100, names_per_minute=1))
    bad, good = agent(clients, "10.0.0.1", "web-agents"), agent(clients, "10.0.0.2", "web-agents")
    bad.took(0, [Refusal(b"put bad", BadLine("r", "m"))] * 8000)
    bad.named(Kind.TAGV, b"spent")
    good.took(3, [])
    assert (round(bad.client.debt_s), good.client.debt_s) == (70, 0)
    assert bad.why_no_name(Kind.TAGV, b"x") is not None
    assert good.why_no_name(Kind.TAGV, b"x") is None
    assert bad.client.turn is not good.client.turn
    told = {one["client"]: one for one in map(Client.told, clients)}
    assert {name: (one["address"], one["account"], one["connections"], one["lines"]) for name, one in told.items()} == {
        "10.0.0.1": ("10.0.0.1", "", 1, 0),
        "web-agents@10.0.0.1": ("10.0.0.1", "web-agents", 1, 8000),
        "10.0.0.2": ("10.0.0.2", "", 1, 0),
        "web-agents@10.0.0.2": ("10.0.0.2", "web-agents", 1, 3),
    }
    assert told["web-agents@10.0.0.1"]["refused_example"]["peer"] == "10.0.0.1:7"
    bad.leave()
    assert {client.name for client in clients if client.connections} == {"10.0.0.2", "web-agents@10.0.0.2"}


async def test_a_connection_counts_with_the_account_that_it_showed_last() -> None:
    clients = Clients()
    visitor = agent(clients, HERE)
    one, other = visitor.known_by(badge("one"), badge("one").principal), visitor.known_by(badge("other"), NOBODY)
    assert (one.account, other.account) == ("one", "")
    one.took(1, [])
    visitor.known_by(badge("other"), badge("other").principal)
    found = {client.name: (client.connections, client.connections_total) for client in clients}
    assert found == {HERE: (1, 1), f"one@{HERE}": (0, 1), f"other@{HERE}": (1, 1)}
    visitor.leave()
    assert sum(client.connections for client in clients) == 0


async def test_an_account_as_a_whole_has_a_quota_of_its_own() -> None:
    clients = Clients(Quotas(account=Rates(lines_per_s=100, names_per_minute=2)))
    hosts = [agent(clients, f"10.0.0.{number}", "tenant") for number in range(3)]
    stranger, other = agent(clients, "10.0.0.1"), agent(clients, "10.0.0.1", "other")
    for host in hosts:
        host.took(1000, [])
    assert [round(host.client.debt_s) for host in hosts] == [20] * 3
    assert hosts[0].client.exceeded == "tsd.quota.account_lines_per_second"
    for host in hosts[:2]:
        host.named(Kind.TAGV, b"x")
    assert "(tsd.quota.account_new_names_per_minute)" in str(hosts[2].why_no_name(Kind.TAGV, b"x"))
    for one in (stranger, other):
        assert (one.client.debt_s, one.why_no_name(Kind.TAGV, b"x")) == (0, None)
    clients.limit(NO_QUOTAS)
    assert hosts[0].client.debt_s == 0
    exempt = exemptions("@tenant, 10.0.0.1")
    clients.limit(Quotas(account=Rates(lines_per_s=1), exempt=exempt[0], exempt_accounts=exempt[1]))
    for one in (*hosts, other):
        one.took(1000, [])
        assert one.client.debt_s == 0


NOBODY = Principal("", Role(0))


def badge(name: str) -> Badge:
    """What somebody shows."""
    return Badge(Account(name, Role.WRITE, kept_token("t")), Principal(name, Role.WRITE))


def agent(clients: Clients, address: str, account: str = "") -> Visitor:
    """One that has connected, and shown who it is."""
    visitor = Visitor(address, 7, clients.at(address), clients=clients)
    visitor.arrive()
    if account:
        visitor.show(badge(account))
    return visitor


async def test_memory_is_bounded_by_summing_up_who_was_seen_longest_ago(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients_module, "REMEMBERED", 10)
    monkeypatch.setattr(clients_module, "AT_ONCE", 1)
    clients = Clients()
    here = clients.of("10.0.0.0")
    here.connections = 1
    for number in range(1, 101):
        clients.of(f"10.0.0.{number}").took(1, [Refusal(b"x", BadLine("r", "m"))])
    told = [client.told() for client in clients]
    assert len(clients) <= 12
    assert clients.of("10.0.0.0") is here  # it has a connection
    assert (told[-1]["client"], told[-1]["accepted"], told[-1]["refused_by_reason"]) == (
        "others",
        clients.forgotten,
        {"r": clients.forgotten},
    )
    assert sum(one["accepted"] for one in told) == 100


async def test_an_account_is_not_forgotten_because_many_addresses_are_connected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It used to be the first to leave, and to begin anew without its debt; so did an address that had just come."""
    monkeypatch.setattr(clients_module, "REMEMBERED", 10)
    monkeypatch.setattr(clients_module, "AT_ONCE", 1)
    clients = Clients(Quotas(lines_per_s=100))
    relay, inventor = clients.of(HERE, "relay"), clients.of(HERE, "inventor")
    relay.sent(5000)
    for number in range(100):
        client = clients.of(f"10.0.0.{number}")
        assert clients.of(f"10.0.0.{number}") is client
        client.connections = 1
    assert clients.of(HERE, "relay") is relay
    assert relay.debt_s
    assert clients.of(HERE, "inventor") is inventor
    for number in range(100):
        clients.of(f"10.0.1.{number}")
    assert clients.of(HERE, "relay") is relay
    assert clients.of(HERE, "inventor") is not inventor  # who has nothing to be remembered for


async def test_of_ipv6_a_network_is_one_client() -> None:
    clients = Clients(Quotas(connections=2, exempt=exemptions("2001:db8::7,2001:db8:5::/48")[0]), prefix=64)
    for host in ("1", "2"):
        clients.at(f"2001:db8::{host}").connections += 1
    client = clients.at("2001:db8::ffff:1")
    assert (client.name, client.may_connect) == ("2001:db8::/64", False)
    assert clients.at("2001:db8:0:1::1").may_connect
    assert clients.at("2001:db8::7").name == "2001:db8::7"  # it is exempt, its neighbours are not
    inside = clients.at("2001:db8:5:6::7")
    inside.connections = 100
    assert inside.may_connect
    assert [clients.at(address).name for address in ("192.0.2.1", "::1", "fe80::1", "::ffff:192.0.2.1")] == [
        "192.0.2.1", "::1", "fe80::1", "192.0.2.1"
    ]  # fmt: skip
    assert Clients(prefix=128).at("2001:db8::1").name == "2001:db8::1"


async def test_an_example_holds_no_more_than_itself() -> None:
    """An error that was raised holds the frames it went through, and so a block of lines."""
    client = Client("10.0.0.1")
    held: list[object] = []

    class Block(bytes):
        pass

    def judge(block: bytes) -> None:
        raise BadLine("r", "m")

    try:
        judge(block := Block(b"put x\n" * 1000))
    except BadLine as error:
        client.took(0, [Refusal(bytes(block[:5]), error)])
        held.append(id(block))
    del block
    assert not [one for one in gc.get_objects() if isinstance(one, Block)]


@pytest.fixture
async def limited(tmp_path: Path) -> AsyncIterator[Running]:
    async with running(tmp_path, {"tsd.quota.lines_per_second": "5"}) as daemon:
        yield daemon


async def test_quotas_that_are_changed_act_at_once(limited: Running) -> None:
    limited.daemon.clients.of(HERE).took(1000, [])
    assert limited.daemon.clients.of(HERE).debt_s > 100
    limited.daemon.clients.limit(quotas())
    assert limited.daemon.clients.of(HERE).debt_s == 0


async def test_who_is_paused_goes_on_when_the_quota_is_raised() -> None:
    """It slept off the debt that it had when it began to."""
    clients = Clients(Quotas(lines_per_s=10))
    client = clients.at(HERE)
    client.sent(5000)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.rest, clients.leaving)
        await wait_all_tasks_blocked()
        clients.limit(Quotas(lines_per_s=10, connections=5))  # another setting forgives nothing
        await wait_all_tasks_blocked()
        assert (client.pausing, round(client.debt_s)) == (1, 490)
        clients.limit(Quotas(lines_per_s=100_000))
    assert client.pausing == 0


async def test_for_how_long_somebody_is_paused_is_told_while_it_is(autojump_clock: MockClock) -> None:
    clients = Clients(Quotas(lines_per_s=10))
    client = clients.at(HERE)
    client.sent(5000)
    async with trio.open_nursery() as nursery:
        for connections in (1, 2):
            nursery.start_soon(client.rest, clients.leaving)
            await trio.sleep(100)
            assert clients.statistics() == (1, connections, (100, 300)[connections - 1] * 1000)
            assert client.told()["paused_ms"] == clients.statistics().paused_ms
        clients.leave()
    await trio.sleep(100)
    assert clients.statistics() == (1, 0, 300_000)
