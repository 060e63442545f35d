"""Roles limited to networks on telnet and HTTP, and lists of networks that change while the daemon runs."""

from pathlib import Path

import trio

from tests.running import Running, running
from tests.unit.server.networks import ADMIN, NO_ROLES, READER, WRITER, changed, client_at, client_disconnects
from tests.unit.server.web_parts import get, post, read_response

LISTS = {
    "tsd.access.read_networks": READER,
    "tsd.access.write_networks": f"{WRITER}/32,fd00::/8",
    "tsd.access.admin_networks": ADMIN,
}
POINT = b'{"metric":"m","timestamp":1500000000,"value":1,"tags":{"a":"b"}}'
OVER_TELNET = {b"sync": b"synced", b"stats": b"tsd.", b"dropcaches": b"Caches"}
OVER_HTTP = {
    "read": get("/api/suggest?type=metrics"),
    "write": post("/api/put", POINT),
    "stats": get("/api/stats"),
    "admin": get("/api/dropcaches"),
}


async def answered(daemon: Running, address: str) -> tuple[str, str]:
    """Return what an address may do on telnet and on HTTP, as initials."""
    done = ""
    async with client_at(daemon, address) as client:
        for command, answer in OVER_TELNET.items():
            await client.send(command + b"\nnosuch\n")
            replies = await client.read_until(b"Try `help'.\n")
            done += command.decode()[:2] if replies.startswith(answer) else ""
    allowed = ""
    async with client_at(daemon, address) as client:
        for name, request in OVER_HTTP.items():
            await client.send(request)
            status = (await read_response(client)).status
            assert status in (200, 204, 403)
            allowed += name[:1] if status != 403 else ""
    return done, allowed


async def test_roles_are_limited_to_networks_on_telnet_and_http(tmp_path: Path) -> None:
    async with running(tmp_path, LISTS) as daemon:
        assert {address: await answered(daemon, address) for address in (READER, WRITER, ADMIN, NO_ROLES)} == {
            READER: ("st", "rs"),
            WRITER: ("sy", "w"),
            ADMIN: ("stdr", "sa"),
            NO_ROLES: ("", ""),
        }


async def test_changed_networks_apply_to_open_connections(tmp_path: Path) -> None:
    async with (
        running(tmp_path) as daemon,
        client_at(daemon, READER) as reader,
        client_at(daemon, WRITER) as writer,
        client_at(daemon, NO_ROLES) as anonymous,
    ):
        await reader.send(get("/api/version"))
        assert (await read_response(reader)).status == 200
        for client in (writer, anonymous):
            assert await client.send_lines(b"") == b"synced 0\n"
        changed(daemon, network_allow="127.0.0.1/32,127.0.0.2/31", write_networks=WRITER, read_networks=WRITER)
        assert await client_disconnects(anonymous)
        assert await client_disconnects(reader)
        async with client_at(daemon, NO_ROLES) as client:
            assert await client_disconnects(client)
        assert await answered(daemon, READER) == ("stdr", "sa")
        assert await writer.send_lines(b"put m 1500000000 1 a=b\n") == b"synced 1\n"  # unchanged for this client


async def test_changed_balancers_and_proxies_apply_too(tmp_path: Path) -> None:
    async with running(tmp_path) as daemon, client_at(daemon, READER) as proxy:
        changed(daemon, trusted_proxies=READER, proxy_protocol_networks=WRITER)
        await proxy.send(get("/api/version", "X-Forwarded-For: 192.0.2.1"))
        assert await client_disconnects(proxy)
        async with client_at(daemon, READER) as client:
            await client.send(get("/api/stats/clients", "X-Forwarded-For: 192.0.2.1"))
            assert "192.0.2.1" in [one["client"] for one in (await read_response(client)).json]
            changed(daemon, read_networks="192.0.2.2")
            assert await client_disconnects(client)  # its client behind the proxy is decided anew
        async with client_at(daemon, WRITER) as client:
            await client.send(b"PROXY TCP4 192.0.2.7 10.0.0.1 4711 4242\r\nsync\n")
            assert await client.read_until(b"\n") == b"synced 0\n"


async def test_connection_stays_while_its_balancer_is_listed(tmp_path: Path) -> None:
    """A client named by a balancer must not keep its address when the balancer is no longer trusted."""
    async with running(tmp_path) as daemon, client_at(daemon, READER) as direct:
        assert await direct.send_lines(b"") == b"synced 0\n"
        changed(daemon, proxy_protocol_networks=WRITER)
        async with client_at(daemon, WRITER) as used_proxy_protocol, client_at(daemon, WRITER) as own:
            for client, header in ((used_proxy_protocol, b"TCP4 192.0.2.7 10.0.0.1 4711 4242"), (own, b"UNKNOWN")):
                await client.send(b"PROXY " + header + b"\r\nsync\n")
                assert await client.read_until(b"\n") == b"synced 0\n"
            changed(daemon, proxy_protocol_networks=f"{WRITER},{ADMIN}")
            for client in (direct, used_proxy_protocol, own):
                assert await client.send_lines(b"") == b"synced 0\n"
            changed(daemon, proxy_protocol_networks=READER)
            for client in (direct, used_proxy_protocol, own):
                assert await client_disconnects(client)


async def test_proxy_header_ignored_after_balancer_removed(tmp_path: Path) -> None:
    async with running(tmp_path) as daemon:
        changed(daemon, proxy_protocol_networks=WRITER)
        async with client_at(daemon, WRITER) as client:
            await client.send(b"PROXY TCP4 192.0.2.7 10")
            with trio.fail_after(60):
                while not daemon.daemon.server.listener.statistics().total:
                    await trio.lowlevel.checkpoint()
            changed(daemon, proxy_protocol_networks="")
            await client.send(b".0.0.1 4711 4242\r\nsync\n")
            assert await client_disconnects(client)
