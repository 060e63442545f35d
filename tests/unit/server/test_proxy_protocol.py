"""Clients behind balancers and proxies: limits, networks and accounts apply to the address that a trusted one names."""

import json
import struct
from pathlib import Path

import pytest

from tests.running import Client, Running, running
from tests.unit.server.networks import client_disconnects
from tsd.server.proxy_protocol import (
    SIGNATURE_V2,
    MissingProxyHeader,
    ProxiedAddress,
    header_bytes,
    is_complete,
    parse_header,
)

T = 1_500_000_000
V4 = bytes([192, 0, 2, 7, 10, 0, 0, 1]) + struct.pack("!HH", 4711, 4242)
V6 = bytes.fromhex("20010db8" + "0" * 23 + "1" + "0" * 31 + "1") + struct.pack("!HH", 4711, 4242)
SIGNATURE_V1 = b"PROXY TCP4 192.0.2.7 10.0.0.1 4711 4242\r\n"


def second(body: bytes, command: int = 0x21, family: int = 0x11) -> bytes:
    return SIGNATURE_V2 + struct.pack("!BBH", command, family, len(body)) + body


GOOD = [
    (SIGNATURE_V1, ProxiedAddress("192.0.2.7", 4711)),
    (b"PROXY TCP6 2001:db8::1 ::1 4711 4242\r\n", ProxiedAddress("2001:db8::1", 4711)),
    (b"PROXY UNKNOWN\r\n", None),
    (b"PROXY UNKNOWN ffff::1 ffff::2 1 2\r\n", None),
    (second(V4), ProxiedAddress("192.0.2.7", 4711)),
    (second(V4 + b"\x03\x00\x04abcd"), ProxiedAddress("192.0.2.7", 4711)),  # with an extension
    (second(V6, family=0x21), ProxiedAddress("2001:db8::1", 4711)),
    (second(bytes(10) + b"\xff\xff" + V4[:4] + bytes(20), family=0x21), ProxiedAddress("192.0.2.7", 0)),
    (second(b"", command=0x20, family=0), None),  # the balancer's own connection
    (second(b"x" * 216, family=0x31), None),
    (second(b"", family=0), None),
]
BAD = [
    b"GET / HTTP/1.1\r\n",
    b"put m 1 1 a=b\n",
    b"\x16\x03\x01",
    b"PROXY TCP4 192.0.2.7 10.0.0.1 4711 4242\n",
    b"PROXY TCP4 192.0.2.7 10.0.0.1 4711\r\n",
    b"PROXY TCP4 192.0.2.777 10.0.0.1 4711 4242\r\n",
    b"PROXY TCP4 2001:db8::1 ::1 4711 4242\r\n",
    b"PROXY TCP6 192.0.2.7 10.0.0.1 4711 4242\r\n",
    b"PROXY TCP4 192.0.2.7 10.0.0.1 70000 4242\r\n",
    b"PROXY UDP4 192.0.2.7 10.0.0.1 4711 4242\r\n",
    b"PROXY " + b"x" * 200,
    b"proxy TCP4 192.0.2.7 10.0.0.1 4711 4242\r\n",
    second(V4, command=0x11),
    second(V4, command=0x22),
    second(V4, family=0x12),
    second(V4[:-1]),
    second(bytes(4000)),
]


def parse(text: bytes, step: int) -> tuple[ProxiedAddress | None, bytes]:
    """Parse a header of which `step` bytes arrive at a time. Return its address and the rest."""
    head, at = b"", 0
    while not is_complete(head):
        there = text[at : at + step]
        assert there, head
        count = header_bytes(head, there)
        assert 0 < count <= len(there)
        head += there[:count]
        at += count
    return parse_header(head), text[at:]


@pytest.mark.parametrize(("header", "wanted"), GOOD)
def test_proxy_header_split_anywhere(header: bytes, wanted: ProxiedAddress | None) -> None:
    for step in (1, 7, 4000):
        for rest in (b"put m 1 1 a=b\n", b"", b"PROXY UNKNOWN\r\n", second(V4)):
            assert parse(header + rest, step) == (wanted, rest)


@pytest.mark.parametrize("header", BAD)
def test_invalid_proxy_header_is_refused_early(header: bytes) -> None:
    for step in (1, 4000):
        with pytest.raises(MissingProxyHeader):
            parse(header, step)


BALANCED = {"tsd.network.proxy_protocol": "127.0.0.0/8"}
PROXIED = {"tsd.http.trusted_proxies": "127.0.0.0/8"}


def names(daemon: Running) -> set[str]:
    return {client.name for client in daemon.daemon.access.clients if client.lines}


async def request(client: Client, target: str, body: bytes = b"", header: str = "") -> int:
    """Send a request and return the response."""
    lines = [header] if header else []
    lines += ["Host: localhost", f"Content-Length: {len(body)}"]
    await client.send(f"{'POST' if body else 'GET'} {target} HTTP/1.1\r\n".encode())
    await client.send("".join(f"{line}\r\n" for line in lines).encode() + b"\r\n" + body)
    head = (await client.read_until(b"\r\n\r\n")).lower()
    length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0] or 0)
    await client.read_bytes(length)
    return int(head.split(b" ")[1])


@pytest.mark.difference(
    "client-address",
    topic="connections",
    theirs="Behind a load balancer all clients have its address",
    ours=(
        "The client is the address in the PROXY protocol header, or in `X-Forwarded-For` or `Forwarded`, of "
        "configured networks"
    ),
)
async def test_proxy_header_names_the_client(tmp_path: Path) -> None:
    settings = {
        **BALANCED, "tsd.network.allow": "192.0.2.0/24,2001:db8::/32", "tsd.network.connections_per_address": "1"
    }  # fmt: skip
    point = b'{"metric":"m","timestamp":%d,"value":2,"tags":{"a":"c"}}' % T
    async with running(tmp_path, settings) as daemon, daemon.client() as telnet:
        await telnet.send(SIGNATURE_V1)
        assert await telnet.send_lines(b"put m %d 1 a=b\n" % T) == b"synced 1\n"
        async with daemon.client() as http:
            await http.send(second(V6, family=0x21))
            assert await request(http, "/api/put", point) == 204
            assert names(daemon) == {"192.0.2.7", "2001:db8::/64"}
            async with daemon.client() as outside:
                await outside.send(b"PROXY TCP4 203.0.113.1 10.0.0.1 4711 4242\r\nversion\n")
                assert await client_disconnects(outside)
            async with daemon.client() as one_more:
                await one_more.send(SIGNATURE_V1 + b"version\n")
                assert await client_disconnects(one_more)


@pytest.mark.parametrize("first", [b"version\n", b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"])
async def test_proxy_header_is_required_of_balancers_only(tmp_path: Path, first: bytes) -> None:
    async with running(tmp_path / "a", BALANCED) as daemon, daemon.client() as client:
        await client.send(first)
        assert await client_disconnects(client)
        statistics = daemon.daemon.server.listener.statistics()
        assert (statistics.missing_proxy_header, statistics.failed) == (1, 0)  # not an internal error
    async with (
        running(tmp_path / "b", {"tsd.network.proxy_protocol": "192.0.2.1"}) as daemon,
        daemon.client() as client,
    ):
        await client.send(SIGNATURE_V1 + b"version\n")
        assert b"net.opentsdb" not in await client.read_to_end()
        assert not names(daemon) & {"192.0.2.7"}


async def test_forwarded_header_names_the_client(tmp_path: Path) -> None:
    settings = {
        **PROXIED, "tsd.network.allow": "192.0.2.0/24", "tsd.access.write_networks": "192.0.2.7",
        "tsd.network.connections_per_address": "1",
    }  # fmt: skip
    point = json.dumps({"metric": "m", "timestamp": T, "value": 1, "tags": {"a": "b"}}).encode()
    async with running(tmp_path, settings) as daemon, daemon.client() as client, daemon.client() as other:
        answered = [
            await request(client, "/api/put", point, "X-Forwarded-For: 10.9.9.9, 192.0.2.7"),
            await request(client, "/api/put", point, "Forwarded: for=192.0.2.8"),
        ]
        assert answered == [204, 403]
        assert names(daemon) == {"192.0.2.7"}
        for header in ("X-Forwarded-For: 203.0.113.9", ""):  # the proxy itself is not allowed, either
            async with daemon.client() as anonymous:
                assert await request(anonymous, "/version", header=header) == 403
        assert await request(other, "/version", header="X-Forwarded-For: not an address") == 400
        async with daemon.client() as telnet:
            await telnet.send(b"version\n")
            assert await client_disconnects(telnet)


async def test_bytes_count_with_the_client_behind_a_proxy(tmp_path: Path) -> None:
    """Regression: they counted with the proxy: its clients had 0 bytes in /api/stats/clients."""
    point = json.dumps({"metric": "m", "timestamp": T, "value": 1, "tags": {"a": "b"}}).encode()
    async with running(tmp_path, PROXIED) as daemon:
        async with daemon.client() as proxy:
            for address, body in (("192.0.2.7", point), ("192.0.2.8", point.ljust(200_000))):
                assert await request(proxy, "/api/put", body, f"X-Forwarded-For: {address}") == 204
        counted = {client.name: client.bytes for client in daemon.daemon.access.clients}
        assert len(point) < counted["192.0.2.7"] < 1000
        assert 200_000 < counted["192.0.2.8"] < 201_000
        assert counted["127.0.0.1"] == 0


async def test_forwarded_header_of_untrusted_peer_is_ignored(tmp_path: Path) -> None:
    async with running(tmp_path, {"tsd.access.write_networks": "192.0.2.7"}) as daemon, daemon.client() as client:
        assert await request(client, "/api/put", b"[]", "X-Forwarded-For: 192.0.2.7") == 403
