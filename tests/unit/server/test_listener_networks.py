"""Roles that act from some networks only, over both doors; and lists of networks that change in a daemon that runs."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import trio

from tests.running import Client, Running, running
from tests.unit.doors.web_parts import get, hear, post
from tsd.access.doorkeeper import NETWORKS
from tsd.config import keys

READER, WRITER, ADMIN, NOBODY = (f"127.0.0.{number}" for number in (2, 3, 4, 5))
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


@asynccontextmanager
async def coming(daemon: Running, address: str) -> AsyncIterator[Client]:
    """A connection from an address."""
    async with await trio.open_tcp_stream("127.0.0.1", daemon.port, local_address=address) as stream:
        yield Client(stream)


async def answered(daemon: Running, address: str) -> tuple[str, str]:
    """What is done for an address, over telnet and over HTTP, by initials."""
    done = ""
    async with coming(daemon, address) as client:
        for command, answer in OVER_TELNET.items():
            await client.send(command + b"\nnosuch\n")
            said = await client.read_until(b"Try `help'.\n")
            done += command.decode()[:2] if said.startswith(answer) else ""
    allowed = ""
    async with coming(daemon, address) as client:
        for name, request in OVER_HTTP.items():
            await client.send(request)
            status = (await hear(client)).status
            assert status in (200, 204, 403)
            allowed += name[:1] if status != 403 else ""
    return done, allowed


async def test_each_role_acts_from_its_networks_over_telnet_and_http(tmp_path: Path) -> None:
    async with running(tmp_path, LISTS) as daemon:
        assert {address: await answered(daemon, address) for address in (READER, WRITER, ADMIN, NOBODY)} == {
            READER: ("st", "rs"),
            WRITER: ("sy", "w"),
            ADMIN: ("stdr", "sa"),
            NOBODY: ("", ""),
        }


def changed(daemon: Running, **settings: str) -> None:
    """As SIGHUP has it: each of the keys, one after the other."""
    config = daemon.daemon.config = replace(daemon.daemon.config, **settings)
    for key in NETWORKS:
        if keys()[key].name in settings:
            daemon.daemon.live[key](config)


async def hung_up(client: Client) -> bool:
    with trio.fail_after(60):
        try:
            return await client.read_to_end() == b""
        except trio.BrokenResourceError:
            return True


async def test_a_change_of_the_lists_holds_at_once_and_for_those_who_are_in(tmp_path: Path) -> None:
    async with (
        running(tmp_path) as daemon,
        coming(daemon, READER) as reader,
        coming(daemon, WRITER) as writer,
        coming(daemon, NOBODY) as nobody,
    ):
        await reader.send(get("/api/version"))
        assert (await hear(reader)).status == 200
        for client in (writer, nobody):
            assert await client.ask(b"") == b"synced 0\n"
        changed(daemon, network_allow="127.0.0.1/32,127.0.0.2/31", write_networks=WRITER, read_networks=WRITER)
        assert await hung_up(nobody)
        assert await hung_up(reader)
        async with coming(daemon, NOBODY) as client:
            assert await hung_up(client)
        assert await answered(daemon, READER) == ("stdr", "sa")
        assert await writer.ask(b"put m 1500000000 1 a=b\n") == b"synced 1\n"  # nothing has changed for it


async def test_balancers_and_proxies_too(tmp_path: Path) -> None:
    async with running(tmp_path) as daemon, coming(daemon, READER) as proxy:
        changed(daemon, forwarding=READER, announcing=WRITER)
        await proxy.send(get("/api/version", "X-Forwarded-For: 192.0.2.1"))
        assert await hung_up(proxy)
        async with coming(daemon, READER) as client:
            await client.send(get("/api/stats/clients", "X-Forwarded-For: 192.0.2.1"))
            assert "192.0.2.1" in [one["client"] for one in (await hear(client)).json]
            changed(daemon, read_networks="192.0.2.2")
            assert await hung_up(client)  # what was found out of who is behind it no longer holds
        async with coming(daemon, WRITER) as client:
            await client.send(b"PROXY TCP4 192.0.2.7 10.0.0.1 4711 4242\r\nsync\n")
            assert await client.read_until(b"\n") == b"synced 0\n"


async def test_who_came_by_a_balancer_stays_as_long_as_it_is_one(tmp_path: Path) -> None:
    """Whoever was announced kept what its address may, though nobody is believed any more who announces."""
    async with running(tmp_path) as daemon, coming(daemon, READER) as direct:
        assert await direct.ask(b"") == b"synced 0\n"
        changed(daemon, announcing=WRITER)
        async with coming(daemon, WRITER) as announced, coming(daemon, WRITER) as own:
            for client, header in ((announced, b"TCP4 192.0.2.7 10.0.0.1 4711 4242"), (own, b"UNKNOWN")):
                await client.send(b"PROXY " + header + b"\r\nsync\n")
                assert await client.read_until(b"\n") == b"synced 0\n"
            changed(daemon, announcing=f"{WRITER},{ADMIN}")
            for client in (direct, announced, own):
                assert await client.ask(b"") == b"synced 0\n"
            changed(daemon, announcing=READER)
            for client in (direct, announced, own):
                assert await hung_up(client)


async def test_nor_is_a_balancer_believed_that_is_none_any_more_when_it_has_announced(tmp_path: Path) -> None:
    async with running(tmp_path) as daemon:
        changed(daemon, announcing=WRITER)
        async with coming(daemon, WRITER) as client:
            await client.send(b"PROXY TCP4 192.0.2.7 10")
            with trio.fail_after(60):
                while not daemon.daemon.listener.statistics().total:
                    await trio.lowlevel.checkpoint()
            changed(daemon, announcing="")
            await client.send(b".0.0.1 4711 4242\r\nsync\n")
            assert await hung_up(client)
