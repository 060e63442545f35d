"""The Host headers that requests may have, against DNS rebinding."""

from pathlib import Path

import pytest

from tests.running import Running, running
from tests.unit.server.web_parts import HttpResponse, read_response
from tsd.auth.hosts import parse_hosts
from tsd.errors import BadConfig


async def request(daemon: Running, head: str) -> HttpResponse:
    """Return the answer to a request with these header lines."""
    async with daemon.client() as client:
        await client.send(f"{head}\r\n\r\n".encode())
        return await read_response(client)


@pytest.mark.difference(
    "foreign-hosts",
    topic="security",
    theirs="A page of any site can read and write, if its name is made to resolve to the daemon's address",
    ours="A daemon on loopback addresses refuses requests with a foreign `Host`: see `tsd.http.hosts`",
)
@pytest.mark.parametrize("host", ["evil.example", "evil.example:4242", "localhost.example", "10.0.0.1", "a b", "["])
async def test_foreign_hosts_are_refused_on_loopback(host: str, tmp_path: Path) -> None:
    async with running(tmp_path) as daemon:
        response = await request(daemon, f"GET /api/version HTTP/1.1\r\nHost: {host}")
        assert response.status == 403
        assert f"[{host}]" in response.json["error"]["details"]
        put = await request(daemon, f"POST /api/put HTTP/1.1\r\nHost: {host}\r\nContent-Length: 0")
        assert put.status == 403


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:4242", "a.localhost", "127.0.0.1:1", "127.9.9.9", "[::1]", ""]
)
async def test_own_hosts_are_answered_on_loopback(host: str, tmp_path: Path) -> None:
    async with running(tmp_path) as daemon:
        assert (await request(daemon, f"GET /api/version HTTP/1.1\r\nHost: {host}")).status == 200


async def test_requests_without_a_host_are_answered(tmp_path: Path) -> None:
    async with running(tmp_path) as daemon:
        assert (await request(daemon, "GET /api/version HTTP/1.0")).status == 200


async def test_any_host_is_answered_off_loopback(tmp_path: Path) -> None:
    async with running(tmp_path, {"tsd.network.bind": "0.0.0.0"}) as daemon:
        assert (await request(daemon, "GET /api/version HTTP/1.1\r\nHost: tsd.example.com")).status == 200


async def test_only_listed_hosts_are_answered(tmp_path: Path) -> None:
    listed = {"tsd.network.bind": "0.0.0.0", "tsd.http.hosts": "tsd.example.com"}
    async with running(tmp_path, listed) as daemon:
        assert (await request(daemon, "GET /api/version HTTP/1.1\r\nHost: tsd.example.com:80")).status == 200
        assert (await request(daemon, "GET /api/version HTTP/1.1\r\nHost: localhost")).status == 403


@pytest.mark.parametrize(
    ("listed", "host", "allowed"),
    [
        ("tsd.lan", "TSD.lan.:9", True),
        ("tsd.lan", "a.tsd.lan", False),
        ("*.lan", "a.b.lan", True),
        ("*.lan", "lan", False),
        ("tsd.lan:4242", "tsd.lan:4242", True),
        ("tsd.lan:4242", "tsd.lan:80", False),
        ("tsd.lan:4242", "tsd.lan", False),
        ("tsd.lan:443", "tsd.lan", True),
        ("2001:db8::7", "[2001:DB8:0::7]:4242", True),
        ("[2001:db8::7]:4242", "[2001:db8::7]:4242", True),
        ("[2001:db8::7]:4242", "[2001:db8::7]:80", False),
        ("2001:db8::/32", "[2001:db8::1]", True),
        ("10.0.0.0/8", "10.1.2.3:4242", True),
        ("10.0.0.0/8", "10.example.com", False),
        ("192.0.2.7:4242", "192.0.2.7:4242", True),
        ("192.0.2.7:4242", "192.0.2.7", False),
        ("a, *", "b", True),
        ("a,b", "b", True),
        ("a", "a:99999999", False),
        ("a", "b@a", False),
    ],
)
def test_a_list_allows_names_addresses_and_ports(listed: str, host: str, allowed: bool) -> None:
    assert parse_hosts(listed).allows(host) is allowed


@pytest.mark.parametrize("listed", ["http://tsd", "a b", "10.0.0.0.1", "10.0.0.1/8", "a:b"])
async def test_invalid_lists_are_refused(listed: str, tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match=r"tsd\.http\.hosts: got"):
        async with running(tmp_path, {"tsd.http.hosts": listed}):
            pass
