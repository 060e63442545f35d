"""Every endpoint and command with every role, from a table that is independent of the daemon's. `none` has no role;
`-` is an unauthenticated client."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import trio

from tests.running import Client, Running, running
from tests.unit.server.web_parts import get, post, read_response
from tsd.auth.accounts import Account, write_lines
from tsd.auth.credentials import hash_token, new_token
from tsd.auth.roles import COMMAND_PERMISSIONS, Role, endpoint_permissions

# Method, target, and permission: e everybody, k any role, else the roles of which one is enough.
HTTP = """
GET    /                                  e
GET    /aggregators                       k
GET    /api/aggregators                   k
GET    /api/annotation?start_time=1       r
POST   /api/annotation                    w
PUT    /api/annotation                    w
DELETE /api/annotation?start_time=1       w
GET    /api/annotation?method_override=delete&start_time=1   w
GET    /api/annotation?method_override=POST&start_time=1     w
POST   /api/annotation/bulk               w
DELETE /api/annotation/bulk               a
GET    /api/annotation/bulk?method_override=DELETE   a
GET    /API/Annotation/BULK?method_override=Delete   a
GET    /api/annotations?start_time=1      r
DELETE /api/annotations/bulk              a
DELETE /api/annotations?start_time=1      a
GET    /api/config                        ra
GET    /api/config/filters                ra
POST   /api/v1/datapoints                 w
POST   /api/v1/datapoints/query           r
POST   /api/v1/datapoints/query/tags      r
POST   /api/v1/datapoints/delete          a
GET    /api/entity                        r
GET    /api/entity/web01                  r
GET    /api/entity/web01?method_override=delete   w
PUT    /api/entity/web01                  w
POST   /api/entity/web01                  w
DELETE /api/entity/web01                  w
GET    /api/v1/features                   k
GET    /api/v1/health/status              k
GET    /api/v1/metadata/a/b/c             r
POST   /api/v1/metadata/a/b/c             w
DELETE /api/v1/metadata/a/b/c             w
DELETE /api/v1/metric/m                   a
GET    /api/v1/metricnames                r
GET    /api/v1/tagnames                   r
GET    /api/v1/tagvalues                  r
GET    /api/dropcaches                    a
DELETE /api/v1/dropcaches                 a
GET    /api/v1/dropcaches/x/y             a
GET    /API/DropCaches                    a
POST   /api/histogram                     w
POST   /api/put                           w
GET    /api/put                           w
POST   /api/put/x                         w
POST   /api/v1/put?details                w
GET    /api/query?start=1h-ago&m=sum:m    r
POST   /api/query                         r
DELETE /api/query?start=1h-ago&m=sum:m    a
GET    /api/query?start=1h-ago&m=sum:m&method_override=delete   a
GET    /api/query/last?timeseries=m       r
POST   /api/query/exp                     r
GET    /api/query/gexp?start=1h-ago&exp=m r
POST   /api/rollup                        w
GET    /api/search/lookup?m=m             r
GET    /api/serializers                   k
GET    /api/stats                         ra
GET    /api/stats/jvm                     ra
GET    /api/stats/threads                 a
GET    /api/stats/Threads                 a
GET    /api/stats/region_clients          ra
GET    /api/stats/clients                 ra
GET    /api/stats/hot                     ra
GET    /api/stats/query                   ra
GET    /api/stats/rejected                ra
DELETE /api/stats/query?id=1              a
GET    /api/stats/query?id=1&method_override=delete   a
GET    /api/suggest?type=metrics          r
GET    /api/tree                          r
POST   /api/tree                          w
PUT    /api/tree                          w
DELETE /api/tree?treeid=1                 a
GET    /api/tree?treeid=1&method_override=delete   a
POST   /api/tree/rule                     w
DELETE /api/tree/rule?treeid=1            a
POST   /api/tree/rules                    w
PUT    /api/tree/rules                    a
GET    /api/tree/rules?method_override=put   a
DELETE /api/tree/rules?treeid=1           a
GET    /api/tree/branch?treeid=1          r
POST   /api/tree/test                     r
GET    /api/tree/collisions?treeid=1      r
GET    /api/tree/notmatched?treeid=1      r
GET    /api/uid/assign?metric=a           w
POST   /api/uid/assign                    w
GET    /api/uid/rename?metric=a&name=b    a
POST   /api/uid/rename                    a
POST   /api/UID/Rename                    a
GET    /api/uid/uidmeta?uid=000001&type=metric   r
POST   /api/uid/uidmeta                   w
DELETE /api/uid/uidmeta                   a
GET    /api/uid/uidmeta?method_override=delete   a
GET    /api/uid/tsmeta?m=m                r
PUT    /api/uid/tsmeta                    w
DELETE /api/uid/tsmeta                    a
GET    /api/uid/delete?metric=a           a
GET    /api/uid/nosuch                    k
GET    /api/version                       k
GET    /diediedie                         a
GET    /favicon.ico                       k
GET    /health                            e
GET    /health/ready                      e
GET    /health/store                      e
GET    /logs                              a
GET    /logs?level=debug                  a
GET    /LOGS                              a
GET    /metrics                           ra
GET    /q?start=1h-ago&m=sum:m&ascii      r
DELETE /q?start=1h-ago&m=sum:m&ascii      a
GET    /s/x                               k
GET    /stats                             ra
GET    /suggest?type=metrics              r
GET    /ui/access                         e
GET    /ui/x                              e
GET    /version                           k
POST   /write                             w
OPTIONS /api/dropcaches                   e
GET    /nosuchthing                       e
"""
TELNET = """
put a.b 1500000000 1 host=a               w
rollup 1h-sum a.b 1500000000 1 host=a     w
histogram a.b 1500000000 1:1=2 host=a     w
meta web01 rack=r1                        w
sync                                      w
stats                                     ra
version                                   e
help                                      e
dropcaches                                a
diediedie                                 a
"""
CLIENTS = {"tsd.kairosdb.enabled": "true", "tsd.heroic.enabled": "true", "tsd.entity.enabled": "true"}
WHO = {"none": "", "reader": "r", "writer": "w", "admin": "a", "all": "rwa", "-": None}
ROLE = {"r": Role.READ, "w": Role.WRITE, "a": Role.ADMIN}
ENDS = ("/diediedie", "diediedie")  # tested separately for permitted roles


class Case(NamedTuple):
    """One line of a table."""

    action: str
    who: str

    def allows(self, roles: str | None) -> bool:
        return self.who == "e" or bool(set(roles or "") & set("rwa" if self.who == "k" else self.who))


def cases(table: str) -> Iterator[Case]:
    for line in table.strip().splitlines():
        action, _, who = line.rpartition(" ")
        yield Case(" ".join(action.split()), who)


class Everybody:
    """A daemon with a token for each of `WHO`."""

    def __init__(self, daemon: Running, tokens: dict[str, str]) -> None:
        self.daemon = daemon
        self.tokens = tokens

    async def status(self, client: Client, who: str, action: str) -> int:
        method, target = action.split(" ")
        headers = [f"Authorization: Bearer {self.tokens[who]}"] if who in self.tokens else []
        request = get(target, *headers, method=method) if method in ("GET", "DELETE", "OPTIONS") else b""
        if not request:
            request = post(target, b"[]", *headers).replace(b"POST ", f"{method} ".encode(), 1)
        await client.send(request)
        return (await read_response(client)).status


@pytest.fixture
async def everybody(tmp_path: Path) -> AsyncIterator[Everybody]:
    tokens = {who: new_token() for who, roles in WHO.items() if roles}
    lines = []
    for who, token in tokens.items():
        granted = Role.NONE
        for letter in WHO[who] or "":
            granted |= ROLE[letter]
        lines.append(str(Account(who, granted, hash_token(token))))
    write_lines(tmp_path / "accounts", lines)
    access = {
        "tsd.core.authentication.enable": "true",
        "tsd.auth.file": str(tmp_path / "accounts"),
        "tsd.no_diediedie": "false",
        "tsd.http.query.allow_delete": "true",
    }
    async with running(tmp_path / "state", CLIENTS, access=access) as daemon:
        yield Everybody(daemon, tokens)


async def test_endpoint_requires_its_role(everybody: Everybody) -> None:
    wrong = []
    for who, roles in WHO.items():
        if who == "none":
            continue
        async with everybody.daemon.client() as client:
            for case in cases(HTTP):
                if case.action.endswith(ENDS) and case.allows(roles):
                    continue
                status = await everybody.status(client, who, case.action)
                wanted = None if case.allows(roles) else 401 if roles is None else 403
                if (status if status in (401, 403) else None) != wanted:
                    wrong.append(f"{who}: {case.action}: {status}, wanted {wanted or 'another'}")
    assert wrong == []


async def test_command_requires_its_role(everybody: Everybody) -> None:
    wrong = []
    for who, token in everybody.tokens.items():
        async with everybody.daemon.client() as client:
            await client.send(f"auth {token}\n".encode())
            assert await client.read_until(b"\n") == b"AUTH_SUCCESS\r\n"
            for case in cases(TELNET):
                if case.action in ENDS and case.allows(WHO[who]):
                    continue
                await client.send(case.action.encode() + b"\nnosuchcommand\n")
                reply = await client.read_until(b"unknown command: nosuchcommand.  Try `help'.\n")
                name = case.action.partition(" ")[0].encode()
                refused = name + b": illegal argument: Unauthorized command: " + name in reply
                if refused == case.allows(WHO[who]):
                    wrong.append(f"{who}: {case.action}: {reply!r}")
    assert wrong == []


@pytest.mark.parametrize("action", ENDS)
async def test_admin_can_stop_the_daemon(everybody: Everybody, action: str) -> None:
    async with everybody.daemon.client() as client:
        if action.startswith("/"):
            assert await everybody.status(client, "admin", f"GET {action}") == 200
        else:
            await client.send(f"auth {everybody.tokens['admin']}\ndiediedie\n".encode())
        with trio.fail_after(60):
            await everybody.daemon.stop.wait()


@pytest.mark.difference("diediedie")
@pytest.mark.difference(
    "administration",
    topic="security",
    theirs=(
        "Any client may drop caches, rename UIDs, delete trees, read the log, and delete data where deletion is enabled"
    ),
    ours="Each needs the role admin, which only `tsd.access.anonymous` or an account gives; 403",
)
async def test_administration_is_off_by_default(tmp_path: Path) -> None:
    """Without authentication and with default settings: exactly the lines of the tables that need admin."""
    settings = {**CLIENTS, "tsd.no_diediedie": "false", "tsd.http.query.allow_delete": "true"}
    wrong = []
    async with running(tmp_path, settings, access={}) as daemon, daemon.client() as client:
        everybody = Everybody(daemon, {})
        for case in cases(HTTP):
            status = await everybody.status(client, "-", case.action)
            if (status in (401, 403)) == case.allows("rw"):
                wrong.append(f"{case.action}: {status}")
        reply = await daemon.send_lines(b"dropcaches\ndiediedie\n")
    assert wrong == []
    assert reply.count(b"Unauthorized command") == 2


async def test_every_endpoint_and_command_has_a_permission(tmp_path: Path) -> None:
    """New endpoints and commands need an entry in tsd.auth.roles and in these tables."""
    async with running(tmp_path, {**CLIENTS, "tsd.no_diediedie": "false"}) as daemon:
        routes = set(daemon.daemon.server.http.endpoints)
        reply = await daemon.send_lines(b"help\n")
    known = set(endpoint_permissions("all", "read", may_delete=True))
    assert routes == known
    targets = [case.action.split(" ")[1].partition("?")[0].lower() for case in cases(HTTP)]
    action = {target.lstrip("/").replace("api/v1/", "api/") for target in targets}
    assert {route for route in routes if not any(f"{path}/".startswith(f"{route}/") for path in action)} == set()
    commands = reply.split(b"\n")[0].decode().partition(": ")[2].split()
    assert set(commands) | {"sync"} == set(COMMAND_PERMISSIONS)
