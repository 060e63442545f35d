"""`meta` by telnet: metadata of entities is journaled, acknowledged by `sync` and counted as put lines are."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.running import Running, running
from tests.unit.api.http_requests import http_request
from tests.unit.server.telnet_parts import GOOD

SETTINGS = {"tsd.entity.enabled": "true", "tsd.core.auto_create_metrics": "true"}


@pytest.fixture
async def daemon(tmp_path: Path) -> AsyncIterator[Running]:
    async with running(tmp_path, SETTINGS) as made:
        yield made


async def send(daemon: Running, text: bytes) -> bytes:
    """Send lines and return the replies up to that of `sync`."""
    async with daemon.client() as client:
        await client.send(text + b"sync\n")
        return await client.read_until(b"synced ") + await client.read_until(b"\n")


async def metadata(daemon: Running, name: str) -> object:
    found = await http_request(daemon, f"/api/entity/{name}")
    return found.json["metadata"] if found.status == 200 else found.status


async def test_lines_are_acknowledged_counted_and_found_at_once(daemon: Running) -> None:
    lines = (
        b"meta web01 rack=r1 note=two%20words%20%E2%82%AC\n"
        + GOOD
        + b"meta web01 rack=r2 empty=\nmeta db/1 owner=o\xfc\n"
    )
    assert await send(daemon, lines) == b"synced 4\n"
    assert await metadata(daemon, "web01") == {"rack": "r2", "note": "two words €", "empty": ""}
    assert await metadata(daemon, "db%2F1") == {"owner": "oü"}
    await daemon.daemon.ingest.writer.flush()
    ledger = daemon.daemon.ingest.ledger
    assert (ledger.received, ledger.stored, ledger.balance(0)) == (4, 4, 0)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b"meta", b"not enough arguments (need least 2, got 0)"),
        (b"meta web01", b"not enough arguments (need least 2, got 1)"),
        (b"meta web01 rack", b"'rack'"),
        (b"meta web01 =r1", b"'=r1'"),
        (b"meta web01 a=1 a=2", b"'a'"),
        (b"meta web:01 a=1", b"'web:01'"),
        (b"meta " + b"x" * 1025 + b" a=1", b"1025 bytes"),
        (b"meta web01 a:b=1", b"'a:b'"),
        (b"meta web01 a=%ff", b"'%ff'"),
        (b"meta web01 " + b"a= " * 1001, b"1001 keys"),
        (b"meta web01 a=" + b"x" * 20_000, b"line too long"),
    ],
)
async def test_a_bad_line_is_refused_alone(line: bytes, expected: bytes, daemon: Running) -> None:
    replies = await send(daemon, b"meta web01 a=1\n" + line + b"\nmeta web01 b=2\n")
    refused, synced = replies.splitlines()
    assert b": illegal argument: " in refused
    assert expected in refused
    assert synced == b"synced 2"
    assert await metadata(daemon, "web01") == {"a": "1", "b": "2"}
    assert daemon.daemon.ingest.ledger.refused.total() == 1


async def test_requests_and_lines_keep_their_order(daemon: Running) -> None:
    await send(daemon, b"meta web01 a=1 b=1\n")
    assert (await http_request(daemon, "/api/entity/web01?keys=a", method="DELETE")).status == 204
    await daemon.daemon.ingest.writer.flush()
    assert await metadata(daemon, "web01") == {"b": "1"}
    await send(daemon, b"meta web01 a=2\n")
    assert await metadata(daemon, "web01") == {"a": "2", "b": "1"}


async def test_unknown_without_entities(tmp_path: Path) -> None:
    async with running(tmp_path) as daemon:
        replies = await send(daemon, b"meta web01 a=1\nhelp\n")
        assert replies.startswith(b"unknown command: meta.  Try `help'.\navailable commands: ")
        assert b" meta " not in replies
        assert daemon.daemon.ingest.ledger.received == 0


async def test_help_names_it_with_entities(daemon: Running) -> None:
    assert b" meta " in await send(daemon, b"help\n")
