"""Telnet in KairosDB's dialect: recorded lines and replies on a whole daemon."""

import json
import zlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests import layouts
from tests.kairosdb_series import recorded
from tests.running import Running, running
from tests.unit.api.http_requests import http_post

pytestmark = layouts.on_all
QUERY = "/api/v1/datapoints/query"
SETTINGS = {"tsd.kairosdb.enabled": "true", "tsd.kairosdb.dialect": "true"}

# What differs from KairosDB, and why (docs/kairosdb.md).
DIFFERENT = {
    "command puts {m} 1356998400 7 host=a": "strings have no place in these tables",
    "quotes inside a word": "names without quotes",
    "quoted tag with spaces": "names without blanks",
    "quote not closed": "names without blanks",
    "quote closed in mid word": "names without blanks",
    "line of 1025 bytes without its line end, then version": "lines may be longer",
    "line of 2000 bytes without its line end, then version": "lines may be longer",
    "bytes that are no UTF-8": "names of letters",
    "UTF-8 in a tag": "UTF-8 is read",
    "VERSION": "capitals begin an HTTP request",
    "command PUT {m} 1356998400 7 host=a": "capitals begin an HTTP request",
    "command Put {m} 1356998400 7 host=a": "capitals begin an HTTP request",
    "HTTP to the telnet port": "capitals begin an HTTP request",
    "command exit": "a command of this daemon",
    "command diediedie": "a command of this daemon",
    "put without line end": "sync follows and completes the line",
    "5,000 bytes without a line end": "sync follows and completes the line",
}


@pytest.fixture
async def daemon(tmp_path: Path) -> AsyncIterator[Running]:
    async with running(tmp_path, SETTINGS) as daemon:
        yield daemon


def cases() -> list[dict[str, Any]]:
    return [case for case in recorded()["wire"] if "request" not in case]


def sent(case: dict[str, Any]) -> bytes:
    if "telnet" in case:
        return str(case["telnet"]).encode("latin-1")
    return zlib.decompress(bytes.fromhex(case["telnet_hex_zlib"]))


async def stored(daemon: Running, metric: str) -> list[list[Any]]:
    """The points of a metric as the recordings show them."""
    wanted = {"name": metric, "group_by": [{"name": "tag", "tags": ["host"]}]}
    body = {"start_absolute": 0, "metrics": [wanted]}
    response = await http_post(daemon, QUERY, json.dumps(body).encode())
    assert response.status == 200, response.body
    results = response.json["queries"][0]["results"]
    return [["number", one["tags"], one["values"]] for one in results if one["values"]]


async def test_recorded_lines_are_taken(daemon: Running) -> None:
    wrong = []
    for case in cases():
        if case["name"] in DIFFERENT:
            continue
        reply = await daemon.send_lines(sent(case))
        versions = reply.count(b"KairosDB 1.3.0 ")
        found = await stored(daemon, case["metric"]) if case.get("metric") else []
        if case["stored"] and isinstance(case["stored"][0][2], int):  # the recording has their number
            found = [[kind, tags, len(points)] for kind, tags, points in found]
        if versions != case["reply"].count("KairosDB 1.3.0") or found != case["stored"]:
            wrong.append((case["name"], reply, found, case["stored"]))
    assert wrong == []
    async with daemon.client() as client:
        assert (await client.stats())["ledger.balance"] == 0


async def test_refused_line_has_its_reason(daemon: Running) -> None:
    reply = await daemon.send_lines(
        b"putm a.b 1356998400500 1 host=a\nputs a.b 1356998400500 text host=a\nput a.b x 1\n"
    )
    replies = reply.splitlines()
    assert [line.partition(b":")[0] for line in replies] == [b"puts", b"put", b"synced 1"]
    assert await stored(daemon, "a.b") == [["number", {"host": ["a"]}, [[1_356_998_400_500, 1]]]]


async def test_small_senders_share_the_dialect(daemon: Running) -> None:
    """Times from 3,000,000,000 on are milliseconds, also in packets that are read together with others'."""
    async with daemon.client() as one, daemon.client() as other:
        for turn in range(1, 10):
            for client in (one, other):
                await client.send_whole(b"put a.b %d 1 host=a\n" % (1_356_998_400 + turn))
                await client.send_whole(b"put a.b %d000 2 host=b\n" % (3_600_000 + turn))
            assert await one.send_lines(b"") == b"synced %d\n" % (2 * turn)
            assert await other.send_lines(b"") == b"synced %d\n" % (2 * turn)
    found = {one[1]["host"][0]: [time_ms for time_ms, _ in one[2]] for one in await stored(daemon, "a.b")}
    assert found == {
        "a": [1_356_998_400_000 + turn * 1000 for turn in range(1, 10)],
        "b": [3_600_000_000 + turn * 1000 for turn in range(1, 10)],
    }


async def test_names_are_read_as_utf8(daemon: Running) -> None:
    assert await daemon.send_lines("put m.ü 1356998400 1 host=a\n".encode()) == b"synced 1\n"
    assert await daemon.send_lines("put m.ü 1356998401 2 host=a\n".encode("latin-1")) == b"synced 1\n"
    assert len((await stored(daemon, "m.ü"))[0][2]) == 2


async def test_dialect_is_off_by_default(tmp_path: Path) -> None:
    async with running(tmp_path, {"tsd.kairosdb.enabled": "true"}) as daemon:
        assert b"unknown command: putm" in await daemon.send_lines(b"putm a.b 1356998400500 1 host=a\n")
