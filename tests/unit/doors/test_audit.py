"""What the log tells of those who administer."""

from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.running import Running, running
from tests.unit.doors.web_parts import get, hear, post
from tsd.access.accounts import Account, write_lines
from tsd.access.needs import endpoints, is_told, needed
from tsd.access.roles import Role
from tsd.access.secret import kept_token, new_token

TOKEN = new_token()
HEADER = f"Authorization: Bearer {TOKEN}"


async def told(daemon: Running, request: bytes) -> list[dict[str, Any]]:
    with capture_logs() as logs:
        async with daemon.client() as client:
            await client.send(request)
            if request.startswith(b"auth"):
                await client.read_to_end()
            else:
                await hear(client)
    return [dict(line) for line in logs if line["event"] == "somebody administers"]


async def test_the_log_tells_who_administers(tmp_path: Path) -> None:
    write_lines(tmp_path / "accounts", [str(Account("root", Role.READ | Role.WRITE | Role.ADMIN, kept_token(TOKEN)))])
    access = {
        "tsd.core.authentication.enable": "true",
        "tsd.auth.file": str(tmp_path / "accounts"),
        "tsd.no_diediedie": "false",
        "tsd.http.query.allow_delete": "true",
    }
    query = b'{"start":1500000000,"end":1500000001,"queries":[{"metric":"m","aggregator":"sum"}],"delete":true}'
    async with running(tmp_path / "state", access=access) as daemon:
        found = []
        for request in (
            post("/api/uid/assign", b'{"metric":["m"]}', HEADER),
            get("/api/uid/rename?metric=m&name=n", HEADER),
            get("/api/dropcaches", HEADER),
            post("/api/query", query.replace(b'"m"', b'"n"'), HEADER),
            f"auth {TOKEN}\ndropcaches\ndiediedie\n".encode(),
        ):
            found += await told(daemon, request)
    assert {(line["account"], line["peer"].rpartition(":")[0], line["log_level"]) for line in found} == {
        ("root", "127.0.0.1", "info")
    }
    assert [(line["asked"], line.get("body"), line.get("outcome")) for line in found] == [
        ("POST /api/uid/assign", '{"metric":["m"]}', "200"),
        ("GET /api/uid/rename?metric=m&name=n", None, "200"),
        ("GET /api/dropcaches", None, "200"),
        ("POST /api/query", query.replace(b'"m"', b'"n"').decode(), "begun"),
        ("dropcaches", None, None),
        ("diediedie", None, None),
    ]
    assert TOKEN not in str(found)


async def test_it_does_not_tell_what_is_asked_all_day(tmp_path: Path) -> None:
    async with running(tmp_path) as daemon:
        for request in (
            post("/api/put", b"[]"),
            get("/api/suggest?type=metrics"),
            get("/logs"),
            get("/api/stats/threads"),
            get("/api/dropcaches", method="OPTIONS"),
            get("/api/nosuch", method="DELETE"),
        ):
            assert await told(daemon, request) == []


@pytest.mark.parametrize(
    ("key", "method", "word", "wanted"),
    [
        ("diediedie", "GET", "", True),
        ("api/uid", "POST", "rename", True),
        ("api/uid", "GET", "assign", True),
        ("api/uid", "GET", "uidmeta", False),
        ("api/uid", "DELETE", "uidmeta", True),
        ("api/annotation", "DELETE", "", True),
        ("api/annotation", "POST", "", False),
        ("api/tree", "PUT", "rules", True),
        ("api/tree", "POST", "", False),
        ("api/query", "DELETE", "", True),
        ("api/query", "POST", "", False),
        ("api/stats", "DELETE", "query", True),
        ("api/stats", "GET", "threads", False),
    ],
)
def test_what_changes_more_than_points_is_told(key: str, method: str, word: str, wanted: bool) -> None:
    need = endpoints("everybody", "read", may_delete=True)[key]
    assert is_told(key, needed(need, method, word), method, word) is wanted
