"""The statistics of the command `stats`, and the form of its lines."""

import json
import re
import socket
from pathlib import Path

import trio

from tests.running import Running, running
from tests.unit.api.http_requests import http_post
from tsd.api.stats import render
from tsd.tables.catalog import Stat


async def lines(daemon: Running) -> list[str]:
    """The reply of `stats`."""
    async with daemon.client() as client:
        await client.send(b"stats\nexit\n")
        return (await client.read_to_end()).decode().splitlines()


def test_tags_of_a_line_are_in_opentsdbs_order() -> None:
    stats = [Stat("a", 1), Stat("b", 2, "type=x"), Stat("c", 3, "type=all", "class=TSDB")]
    assert render(stats, 1700000000, "port=1 host=h") == (
        b"tsd.a 1700000000 1 port=1 host=h\n"
        b"tsd.b 1700000000 2 type=x port=1 host=h\n"
        b"tsd.c 1700000000 3 type=all port=1 host=h class=TSDB\n"
    )


async def test_every_line_can_be_put(tmp_path: Path) -> None:
    """Users put the reply of `stats` back into the daemon as their first series."""
    settings = {"tsd.core.stats_with_port": "true"}
    async with running(tmp_path, settings) as daemon:
        found = await lines(daemon)
        assert f"port={daemon.daemon.config.port} host={socket.gethostname()}" in found[0]
        assert await daemon.send_lines("".join(f"put {line}\n" for line in found).encode()) == b"synced %d\n" % len(
            found
        )


async def test_replayed_lines_are_not_counted_as_received(tmp_path: Path) -> None:
    """Regression: replayed lines counted as received again after each restart."""
    put = b"put a.b 1356998400 1 host=web01\n"
    async with running(tmp_path, {"tsd.core.drain_timeout": "0"}) as daemon:
        assert (await daemon.send_lines(put * 3 + b"put a.b x\n")).endswith(b"synced 3\n")
        async with daemon.client() as client:
            stats = await client.stats()
        assert stats["rpc.received type=telnet"] == 4 + 2  # and two commands
        assert stats["datapoints.added type=all class=TSDB"] == 3
        assert stats["rpc.received type=put"] == 0
    async with running(tmp_path) as daemon, daemon.client() as client:
        stats = await client.stats()
        assert stats["rpc.received type=telnet"] == 1
        assert stats["datapoints.added type=all class=TSDB"] == 0
        assert stats["ledger.received"] == stats["ledger.stored"] == 3
        await client.send_lines(put)
        stats = await client.stats()
        assert stats["datapoints.added type=all class=TSDB"] == 1


async def test_points_over_http_are_added_points_and_no_telnet_commands(tmp_path: Path) -> None:
    """Regression: points over HTTP counted as commands of telnet, and not as added data points."""
    async with running(tmp_path) as daemon:
        point = {"metric": "m", "timestamp": 1500000000, "value": 1, "tags": {"a": "b"}}
        body = json.dumps([point, point | {"value": "x"}, point]).encode()
        assert (await http_post(daemon, "/api/put", body)).status == 400  # of one point
        async with daemon.client() as client:
            await client.send_lines(b"put m 1500000001 1 a=b\nput m x 1 a=b\nrollup 1h-sum m x 1 a=b\n")
            stats = await client.stats()
    assert stats["datapoints.added type=all class=TSDB"] == 2 + 1
    assert stats["rpc.received type=telnet"] == 3 + 2  # and `sync` and `stats`
    assert stats["rpc.received type=put"] == 1


async def test_reply_to_a_closed_connection_is_counted(tmp_path: Path) -> None:
    async with running(tmp_path) as daemon, daemon.client() as watcher:
        with trio.fail_after(60):
            while not (await watcher.stats())["connectionmgr.exceptions type=closed"]:
                async with daemon.client() as client:
                    await client.send(b"version\n")
        assert (await watcher.stats())["connectionmgr.exceptions type=reset"] == 0


async def test_canonical_host_name_is_used_once_resolved(tmp_path: Path) -> None:
    full = await trio.to_thread.run_sync(socket.getfqdn)
    async with running(tmp_path, {"tsd.stats.canonical": "true"}) as daemon:
        with trio.fail_after(60):
            while not all(
                re.search(rf" fqdn={re.escape(full)}( (class|plugin)=\w+)?$", line) for line in await lines(daemon)
            ):
                pass
