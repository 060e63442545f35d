"""Who is a client, what is known of each, and for how long."""

import gc

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tsd.access.accounts import Account
from tsd.access.doorkeeper import Badge
from tsd.access.roles import Principal, Role
from tsd.access.secret import kept_token
from tsd.codec.uid import Kind
from tsd.doors import clients as clients_module
from tsd.doors.clients import Client, Clients
from tsd.doors.quotas import NO_QUOTAS, Quotas, Rates
from tsd.doors.visitor import Visitor
from tsd.errors import BadLine
from tsd.ingest.source import Refusal
from tsd.limit_settings import exemptions

HERE = "127.0.0.1"
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
