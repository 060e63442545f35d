"""The audit log of administrative actions."""

from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from structlog import DropEvent
from structlog.testing import capture_logs
from structlog.typing import EventDict

from tests.running import Running, running
from tests.unit.server.web_parts import get, post, read_response
from tsd.auth.accounts import Account, write_lines
from tsd.auth.authenticator import Authenticator
from tsd.auth.credentials import hash_token, new_token
from tsd.auth.roles import Principal, Role, endpoint_permissions, is_audited, required_roles
from tsd.config.log import BURST, RateLimit
from tsd.config.settings import AccessSettings
from tsd.server.http.messages import Request, Response, parse_target
from tsd.server.http.router import Router
from tsd.server.http.security import Authorizer, Cors
from tsd.server.peer import local_peer

TOKEN = new_token()
SUPERUSER = Role.READ | Role.WRITE | Role.ADMIN
HEADER = f"Authorization: Bearer {TOKEN}"


def authorizer(folder: Path) -> Authorizer:
    authenticator = Authenticator(AccessSettings(auth_file=str(folder / "none")), lambda: 0)
    return Authorizer(Cors("", ""), authenticator, endpoint_permissions("all", "read", may_delete=True))


def request_of(path: str, account: str, method: str = "GET", body: bytes = b"") -> Request:
    """Return a request of an authenticated account."""
    target, peer = parse_target(path), local_peer()
    peer.principal = Principal(account, SUPERUSER)
    return Request(method, target.path, target.segments, target.params, body=body, split=target.split, peer=peer)


async def audited(daemon: Running, request: bytes) -> list[dict[str, Any]]:
    with capture_logs() as logs:
        async with daemon.client() as client:
            await client.send(request)
            if request.startswith(b"auth"):
                await client.read_to_end()
            else:
                await read_response(client)
    return [dict(line) for line in logs if line["event"] == "admin.action"]


async def test_administrative_actions_are_logged(tmp_path: Path) -> None:
    write_lines(tmp_path / "accounts", [str(Account("root", Role.READ | Role.WRITE | Role.ADMIN, hash_token(TOKEN)))])
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
            found += await audited(daemon, request)
    assert {(line["account"], line["peer"].rpartition(":")[0], line["log_level"]) for line in found} == {
        ("root", "127.0.0.1", "info")
    }
    assert [(line["action"], line.get("body"), line.get("outcome")) for line in found] == [
        ("POST /api/uid/assign", '{"metric":["m"]}', "200"),
        ("GET /api/uid/rename?metric=m&name=n", None, "200"),
        ("GET /api/dropcaches", None, "200"),
        ("POST /api/query", query.replace(b'"m"', b'"n"').decode(), "started"),
        ("dropcaches", None, None),
        ("diediedie", None, None),
    ]
    assert TOKEN not in str(found)


async def test_ordinary_requests_are_not_audited(tmp_path: Path) -> None:
    async with running(tmp_path) as daemon:
        for request in (
            post("/api/put", b"[]"),
            get("/api/suggest?type=metrics"),
            get("/logs"),
            get("/api/stats/threads"),
            get("/api/dropcaches", method="OPTIONS"),
            get("/api/nosuch", method="DELETE"),
        ):
            assert await audited(daemon, request) == []


def counted(logs: list[EventDict]) -> Counter[str]:
    """Count the actions that pass the log's rate limit."""
    limit, kept = RateLimit(), Counter[str]()
    for line in logs:
        with suppress(DropEvent):
            kept[str(limit(None, "info", {**line, "_monotonic": 0.0})["action"])] += 1
    return kept


async def test_audit_limits_are_per_account_and_action(tmp_path: Path) -> None:
    """Names assigned by writers must not suppress an administrator's actions in the log."""
    limited = authorizer(tmp_path)
    with capture_logs() as logs:
        for account in ("a", "b"):
            for _ in range(2 * BURST):
                limited.audit("api/uid", request_of("/api/uid/assign?metric=m", account), "200")
            for number in range(2 * BURST):
                limited.audit("api/annotation", request_of(f"/api/annotation/{number}", account, "DELETE"), "204")
        for _ in range(2 * BURST):
            limited.audit("api/uid", request_of("/api/uid/rename?metric=m&name=n", "root"), "200")
    kept = counted(logs)
    assert kept["GET /api/uid/assign?metric=m"] == 2 * BURST
    assert sum(count for line, count in kept.items() if line.startswith("DELETE")) == 2 * BURST
    assert kept["GET /api/uid/rename?metric=m&name=n"] == 2 * BURST


async def test_long_requests_keep_their_parameters_in_the_log(tmp_path: Path) -> None:
    pad = "x" * 5000
    with capture_logs() as logs:
        authorizer(tmp_path).audit(
            "api/uid", request_of(f"/api/uid/rename?a={pad}&metric=m&name=n&b={pad}", "root"), "200"
        )
        authorizer(tmp_path).audit(
            "api/uid", request_of(f"/api/uid/rename?metric={pad}&name=n", "root", body=b"[" * 5000), "200"
        )
        body = b'{"a":"%b","metric":"m","name":"n","b":"%b"}' % (pad.encode(), pad.encode())
        authorizer(tmp_path).audit("api/uid", request_of("/api/uid/rename", "root", "POST", body=body), "200")
    first, second, third = (line for line in logs if line["event"] == "admin.action")
    assert first["parameters"] == third["parameters"] == "metric=m name=n"
    assert str(second["action"]).endswith("x&name=n")
    assert all(len(str(line)) < 2000 for line in (first, second, third))


async def test_cancelled_action_is_logged(tmp_path: Path) -> None:
    """The change may have reached the store."""

    async def rename(_request: Request) -> Response:
        await trio.sleep_forever()
        raise AssertionError

    router = Router({"api/uid": rename}, authorizer(tmp_path))
    path = "/api/uid/rename?metric=m&name=n"
    with capture_logs() as logs:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(router.answer, request_of(path, "root"), parse_target(path))
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
    assert [(line["action"], line["outcome"]) for line in logs if "action" in line] == [(f"GET {path}", "cancelled")]


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
def test_audited_requests(key: str, method: str, word: str, wanted: bool) -> None:
    need = endpoint_permissions("all", "read", may_delete=True)[key]
    assert is_audited(key, required_roles(need, method, word), method, word) is wanted
