"""`tsd.mode`: endpoints and commands of each mode, from an independent table; OpenTSDB's as in
docs/compat/wire.md §10."""

from pathlib import Path

import pytest

from tests.running import running
from tests.unit.server.web_parts import get, read_response

# Method, path, and the modes that have it: rw, ro, wo. tsd's own endpoints come last and exist in all modes.
TABLE = """
GET    /                        rw ro
GET    /aggregators             rw ro wo
GET    /logs                    rw ro wo
GET    /q?start=1h-ago&m=sum:m&ascii rw ro
GET    /s/a                     rw ro
GET    /favicon.ico             rw ro
GET    /stats                   rw ro wo
GET    /suggest?type=metrics    rw ro
GET    /version                 rw ro wo
GET    /api/aggregators         rw ro wo
GET    /api/annotation          rw wo
GET    /api/annotations         rw wo
GET    /api/config              rw ro wo
GET    /api/config/filters      rw ro wo
GET    /api/dropcaches          rw ro wo
POST   /api/histogram           rw wo
POST   /api/put                 rw wo
GET    /api/query               rw ro
GET    /api/query/last          rw ro
POST   /api/query/exp           rw ro
GET    /api/query/gexp          rw ro
POST   /api/rollup              rw wo
GET    /api/search/lookup       rw ro
GET    /api/serializers         rw ro wo
GET    /api/stats               rw ro wo
GET    /api/suggest?type=metrics rw ro
GET    /api/tree                rw wo
GET    /api/uid/assign          rw wo
GET    /api/version             rw ro wo
GET    /health/live             rw ro wo
GET    /metrics                 rw ro wo
GET    /api/stats/clients       rw ro wo
GET    /api/stats/hot           rw ro wo
GET    /api/stats/query         rw ro wo
"""
COMMANDS = {
    "rw": "stats dropcaches version exit help put rollup histogram",
    "ro": "stats dropcaches version exit help",
    "wo": "stats dropcaches version exit help put rollup histogram",
}
NOWHERE = ("Endpoint not found", "Page Not Found")


@pytest.mark.parametrize("mode", COMMANDS)
async def test_mode_offers_its_endpoints_and_commands(tmp_path: Path, mode: str) -> None:
    wrong = []
    for name in ("a", "favicon.ico"):
        (tmp_path / name).touch()
    settings = {"tsd.mode": mode, "tsd.http.staticroot": str(tmp_path)}
    async with running(tmp_path / "state", settings) as daemon, daemon.client() as client:
        for line in TABLE.strip().splitlines():
            method, path, *modes = line.split()
            await client.send(get(path, "Content-Length: 0", method=method))
            response = await read_response(client)
            nowhere = response.status == 404 and any(words.encode() in response.body for words in NOWHERE)
            if nowhere == (mode in modes):
                wrong.append(f"{line}: {response.status} {response.body[:80]!r}")
        async with daemon.client() as telnet:
            await telnet.send(b"help\nput a.b 1500000000 1 host=a\nsync\nexit\n")
            replies = await telnet.read_to_end()
    assert wrong == []
    commands, rest = replies.split(b"\n", 1)
    assert commands.decode() == f"available commands: {COMMANDS[mode]} "
    unknown = b"unknown command: put.  Try `help'.\nunknown command: sync.  Try `help'.\n"
    assert rest == (unknown if mode == "ro" else b"synced 1\n")
