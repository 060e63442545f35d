"""What the log tells of those who administer."""

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
from tests.unit.doors.web_parts import get, hear, post
from tsd.access.accounts import Account, write_lines
from tsd.access.doorkeeper import Doorkeeper
from tsd.access.needs import endpoints, is_told, needed
from tsd.access.roles import Principal, Role
from tsd.access.secret import kept_token, new_token
from tsd.access_settings import AccessSettings
from tsd.doors.cors import Cors
from tsd.doors.dispatch import Dispatcher, Rules
from tsd.doors.exchange import Request, Response
from tsd.doors.permits import Permits
from tsd.doors.target import read_target
from tsd.doors.visitor import here
from tsd.log import BURST, RateLimit

TOKEN = new_token()
EVERYTHING = Role.READ | Role.WRITE | Role.ADMIN
HEADER = f"Authorization: Bearer {TOKEN}"


def permitting(folder: Path) -> Permits:
    keeper = Doorkeeper(AccessSettings(auth_file=str(folder / "none")), lambda: 0)
    return Permits(keeper, endpoints("everybody", "read", may_delete=True), Cors("", ""))


def asked(path: str, account: str, method: str = "GET", body: bytes = b"") -> Request:
    """A request of somebody who is known."""
    target, visitor = read_target(path), here()
    visitor.principal = Principal(account, EVERYTHING)
    return Request(method, target.path, target.segments, target.params, body=body, split=target.split, visitor=visitor)


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


def counted(logs: list[EventDict]) -> Counter[str]:
    """What is left of lines where their number is limited."""
    limit, kept = RateLimit(), Counter[str]()
    for line in logs:
        with suppress(DropEvent):
            kept[str(limit(None, "info", {**line, "_monotonic": 0.0})["asked"])] += 1
    return kept


async def test_what_one_does_hides_nothing_that_others_do(tmp_path: Path) -> None:
    """Who may write gave names away, and what an administrator did in that minute was left out."""
    permits = permitting(tmp_path)
    with capture_logs() as logs:
        for account in ("a", "b"):
            for _ in range(2 * BURST):
                permits.tell("api/uid", asked("/api/uid/assign?metric=m", account), "200")
            for number in range(2 * BURST):
                permits.tell("api/annotation", asked(f"/api/annotation/{number}", account, "DELETE"), "204")
        for _ in range(2 * BURST):
            permits.tell("api/uid", asked("/api/uid/rename?metric=m&name=n", "root"), "200")
    kept = counted(logs)
    assert kept["GET /api/uid/assign?metric=m"] == 2 * BURST
    assert sum(count for line, count in kept.items() if line.startswith("DELETE")) == 2 * BURST
    assert kept["GET /api/uid/rename?metric=m&name=n"] == 2 * BURST


async def test_no_padding_hides_what_was_done(tmp_path: Path) -> None:
    pad = "x" * 5000
    with capture_logs() as logs:
        permitting(tmp_path).tell("api/uid", asked(f"/api/uid/rename?a={pad}&metric=m&name=n&b={pad}", "root"), "200")
        permitting(tmp_path).tell(
            "api/uid", asked(f"/api/uid/rename?metric={pad}&name=n", "root", body=b"[" * 5000), "200"
        )
        body = b'{"a":"%b","metric":"m","name":"n","b":"%b"}' % (pad.encode(), pad.encode())
        permitting(tmp_path).tell("api/uid", asked("/api/uid/rename", "root", "POST", body=body), "200")
    first, second, third = (line for line in logs if line["event"] == "somebody administers")
    assert first["of_it"] == third["of_it"] == "metric=m name=n"
    assert str(second["asked"]).endswith("x&name=n")
    assert all(len(str(line)) < 2000 for line in (first, second, third))


async def test_what_was_cut_off_is_told(tmp_path: Path) -> None:
    """It may have reached the store."""

    async def rename(_request: Request) -> Response:
        await trio.sleep_forever()
        raise AssertionError

    dispatcher = Dispatcher({"api/uid": rename}, Rules(), Cors("", ""), permitting(tmp_path))
    path = "/api/uid/rename?metric=m&name=n"
    with capture_logs() as logs:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(dispatcher.answer, asked(path, "root"), read_target(path))
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
    assert [(line["asked"], line["outcome"]) for line in logs if "asked" in line] == [(f"GET {path}", "cut off")]


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
