"""Clients: identity, counts and eviction."""

import gc

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tsd.auth.accounts import Account
from tsd.auth.authenticator import Session
from tsd.auth.credentials import hash_token
from tsd.auth.roles import Principal, Role
from tsd.codec.names import Kind
from tsd.config.limits import exemptions
from tsd.errors import BadLine
from tsd.ingest.limits import RefusedLine
from tsd.server.clients import NO_QUOTAS, Client, Clients, Quotas
from tsd.server.peer import Peer

LOCAL = "127.0.0.1"
NO_ROLES = Principal("", Role(0))


def session(name: str) -> Session:
    """Return a session of an account."""
    return Session(Account(name, Role.WRITE, hash_token("t")), Principal(name, Role.WRITE))


def agent(clients: Clients, address: str, account: str = "") -> Peer:
    """Return the peer of a connected client, authenticated if it has an account."""
    peer = Peer(address, 7, clients.at(address), clients=clients)
    peer.register()
    if account:
        peer.set_session(session(account))
    return peer


async def test_authenticated_client_counts_by_account() -> None:
    clients = Clients(Quotas(lines_per_s=5, exempt_accounts=frozenset({"relay"})))
    peer = agent(clients, LOCAL, "relay")
    peer.count_lines(1000, [])
    assert (clients.of(LOCAL).accepted, clients.of(LOCAL, "relay").accepted) == (0, 1000)
    assert clients.of(LOCAL, "relay").debt_s == 0
    assert clients.of(LOCAL, "other").debt_s == 0


async def test_client_without_points_is_seen() -> None:
    """Regression: `last_seen` of a client that only queries was the time of its first request."""
    now_ms = 1000
    clients = Clients(now_ms=lambda: now_ms, max_idle=0, eviction_batch=1)
    peer = agent(clients, "10.0.0.1")
    now_ms = 2000
    peer.unassigned_bytes = 70
    peer.assign_bytes(peer)
    assert (peer.client.bytes, peer.client.first_ms, peer.client.last_ms) == (70, 1000, 2000)
    now_ms = 3000
    peer.unregister()
    assert (peer.client.bytes, peer.client.last_ms) == (70, 2000)
    for number in range(2, 9):
        clients.at(f"10.0.0.{number}")
    others = [one for one in clients if one.name == "others"]
    assert [(one.bytes, one.last_ms) for one in others] == [(70, 3000)]


async def test_hosts_that_share_a_token_are_separate_clients() -> None:
    """As one client, one host could exhaust the quota of the others."""
    clients = Clients(Quotas(lines_per_s=100, names_per_minute=1))
    bad, good = agent(clients, "10.0.0.1", "web-agents"), agent(clients, "10.0.0.2", "web-agents")
    bad.count_lines(0, [RefusedLine(b"put bad", BadLine("r", "m"))] * 8000)
    bad.count_name(Kind.TAGV, b"spent")
    good.count_lines(3, [])
    assert (round(bad.client.debt_s), good.client.debt_s) == (70, 0)
    assert bad.check_name(Kind.TAGV, b"x") is not None
    assert good.check_name(Kind.TAGV, b"x") is None
    assert bad.client.turn is not good.client.turn
    listed = {one["client"]: one for one in map(Client.as_json, clients)}
    assert {
        name: (one["address"], one["account"], one["connections"], one["lines"]) for name, one in listed.items()
    } == {
        "10.0.0.1": ("10.0.0.1", "", 1, 0),
        "web-agents@10.0.0.1": ("10.0.0.1", "web-agents", 1, 8000),
        "10.0.0.2": ("10.0.0.2", "", 1, 0),
        "web-agents@10.0.0.2": ("10.0.0.2", "web-agents", 1, 3),
    }
    assert listed["web-agents@10.0.0.1"]["refused_example"]["peer"] == "10.0.0.1:7"
    bad.unregister()
    assert {client.name for client in clients if client.connections} == {"10.0.0.2", "web-agents@10.0.0.2"}


async def test_connection_counts_for_its_last_account() -> None:
    clients = Clients()
    peer = agent(clients, LOCAL)
    one, other = (
        peer.authenticated_as(session("one"), session("one").principal),
        peer.authenticated_as(session("other"), NO_ROLES),
    )
    assert (one.account, other.account) == ("one", "")
    one.count_lines(1, [])
    peer.authenticated_as(session("other"), session("other").principal)
    found = {client.name: (client.connections, client.connections_total) for client in clients}
    assert found == {LOCAL: (1, 1), f"one@{LOCAL}": (0, 1), f"other@{LOCAL}": (1, 1)}
    peer.unregister()
    assert sum(client.connections for client in clients) == 0


async def test_account_quota_covers_all_its_addresses() -> None:
    clients = Clients(Quotas(account_lines_per_s=100, account_names_per_minute=2))
    hosts = [agent(clients, f"10.0.0.{number}", "tenant") for number in range(3)]
    anonymous, other = agent(clients, "10.0.0.1"), agent(clients, "10.0.0.1", "other")
    for host in hosts:
        host.count_lines(1000, [])
    assert [round(host.client.debt_s) for host in hosts] == [20] * 3
    assert hosts[0].client.limiting_key == "tsd.quota.account_lines_per_second"
    for host in hosts[:2]:
        host.count_name(Kind.TAGV, b"x")
    assert "tsd.quota.account_new_names_per_minute" in str(hosts[2].check_name(Kind.TAGV, b"x"))
    for one in (anonymous, other):
        assert (one.client.debt_s, one.check_name(Kind.TAGV, b"x")) == (0, None)
    clients.set_quotas(NO_QUOTAS)
    assert hosts[0].client.debt_s == 0
    exempt = exemptions("@tenant, 10.0.0.1")
    clients.set_quotas(Quotas(account_lines_per_s=1, exempt=exempt[0], exempt_accounts=exempt[1]))
    for one in (*hosts, other):
        one.count_lines(1000, [])
        assert one.client.debt_s == 0


async def test_least_recent_clients_are_evicted_into_others() -> None:
    clients = Clients(max_idle=10, eviction_batch=1)
    local_peer = clients.of("10.0.0.0")
    local_peer.connections = 1
    for number in range(1, 101):
        clients.of(f"10.0.0.{number}").count_lines(1, [RefusedLine(b"x", BadLine("r", "m"))])
    listed = [client.as_json() for client in clients]
    assert len(clients) <= 12
    assert clients.of("10.0.0.0") is local_peer  # is connected
    assert (listed[-1]["client"], listed[-1]["accepted"], listed[-1]["refused_by_reason"]) == (
        "others",
        clients.evicted,
        {"r": clients.evicted},
    )
    assert sum(one["accepted"] for one in listed) == 100


async def test_connected_account_is_not_evicted() -> None:
    """An evicted account would start without its debt; so would an address that has just connected."""
    clients = Clients(Quotas(lines_per_s=100), max_idle=10, eviction_batch=1)
    relay, inventor = clients.of(LOCAL, "relay"), clients.of(LOCAL, "inventor")
    relay.count_received(5000)
    for number in range(100):
        client = clients.of(f"10.0.0.{number}")
        assert clients.of(f"10.0.0.{number}") is client
        client.connections = 1
    assert clients.of(LOCAL, "relay") is relay
    assert relay.debt_s
    assert clients.of(LOCAL, "inventor") is inventor
    for number in range(100):
        clients.of(f"10.0.1.{number}")
    assert clients.of(LOCAL, "relay") is relay
    assert clients.of(LOCAL, "inventor") is not inventor  # has no debt and was evicted


async def test_ipv6_prefix_is_one_client() -> None:
    clients = Clients(Quotas(connections=2, exempt=exemptions("2001:db8::7,2001:db8:5::/48")[0]), prefix=64)
    for host in ("1", "2"):
        clients.at(f"2001:db8::{host}").connections += 1
    client = clients.at("2001:db8::ffff:1")
    assert (client.name, client.may_connect) == ("2001:db8::/64", False)
    assert clients.at("2001:db8:0:1::1").may_connect
    assert clients.at("2001:db8::7").name == "2001:db8::7"  # exempt; its neighbours are not
    inside = clients.at("2001:db8:5:6::7")
    inside.connections = 100
    assert inside.may_connect
    assert [clients.at(address).name for address in ("192.0.2.1", "::1", "fe80::1", "::ffff:192.0.2.1")] == [
        "192.0.2.1", "::1", "fe80::1", "192.0.2.1"
    ]  # fmt: skip
    assert Clients(prefix=128).at("2001:db8::1").name == "2001:db8::1"


async def test_example_keeps_no_larger_buffer() -> None:
    """A raised error references the frames it passed through, and so a block of lines."""
    client = Client("10.0.0.1")
    held: list[object] = []

    class Block(bytes):
        pass

    def judge(block: bytes) -> None:
        raise BadLine("r", "m")

    try:
        judge(block := Block(b"put x\n" * 1000))
    except BadLine as error:
        client.count_lines(0, [RefusedLine(bytes(block[:5]), error)])
        held.append(id(block))
    del block
    assert not [one for one in gc.get_objects() if isinstance(one, Block)]


async def test_raised_quota_ends_the_pause() -> None:
    """The pause must not last for the debt that it started with."""
    clients = Clients(Quotas(lines_per_s=10))
    client = clients.at(LOCAL)
    client.count_received(5000)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.throttle, clients.draining)
        await wait_all_tasks_blocked()
        clients.set_quotas(Quotas(lines_per_s=10, connections=5))  # another limit keeps the debt
        await wait_all_tasks_blocked()
        assert (client.connections_throttled, round(client.debt_s)) == (1, 490)
        clients.set_quotas(Quotas(lines_per_s=100_000))
    assert client.connections_throttled == 0


async def test_paused_time_grows_while_throttled(autojump_clock: MockClock) -> None:
    clients = Clients(Quotas(lines_per_s=10))
    client = clients.at(LOCAL)
    client.count_received(5000)
    async with trio.open_nursery() as nursery:
        for connections in (1, 2):
            nursery.start_soon(client.throttle, clients.draining)
            await trio.sleep(100)
            assert clients.statistics()[:3] == (1, connections, (100, 300)[connections - 1] * 1000)
            assert client.as_json()["paused_ms"] == clients.statistics().throttled_ms
        clients.drain()
    await trio.sleep(100)
    assert clients.statistics()[:3] == (1, 0, 300_000)
