"""Authorization of requests: answers that a page can load as a script."""

from pathlib import Path

import pytest

from tsd.auth.accounts import Account, write_lines
from tsd.auth.authenticator import Authenticator
from tsd.auth.credentials import hash_token, new_token
from tsd.auth.roles import Role, endpoint_permissions
from tsd.config.loader import Given
from tsd.daemon.settings import read_config
from tsd.server.clients import Clients
from tsd.server.http.messages import parse_target
from tsd.server.http.security import Authorizer, Cors
from tsd.server.peer import peer_at

QUERY = "/api/suggest?type=metrics&jsonp=f"
SAME = {"sec-fetch-site": "same-origin"}


async def may(
    folder: Path, headers: dict[str, str], *, anonymous: str, last_credentials: bool = True, query: str = QUERY
) -> bool:
    """Return whether a query with a callback is answered."""
    token = new_token()
    write_lines(folder / "accounts", [str(Account("a", Role.READ | Role.WRITE | Role.ADMIN, hash_token(token)))])
    given = {
        "tsd.core.authentication.enable": "true",
        "tsd.auth.file": str(folder / "accounts"),
        "tsd.access.anonymous": anonymous,
    }
    config, _ = read_config(Given("test", key, value) for key, value in given.items())
    authenticator = Authenticator(config, lambda: 0)
    authorizer = Authorizer(Cors("", ""), authenticator, endpoint_permissions("all", "read", may_delete=False))
    sender = peer_at("192.0.2.1", 1, Clients())
    sender.principal = authenticator.anonymous(sender.address)
    sent = {"host": "tsd", **headers} | ({"authorization": f"Bearer {token}"} if last_credentials else {})
    target = parse_target(query)
    decision = await authorizer.decide(target.key, "GET", target, sent, sender)
    return decision.refused is None


@pytest.mark.difference(
    "jsonp-credentials",
    topic="security",
    theirs="`jsonp` answers a page of any site with the credentials that a browser sends",
    ours=(
        "Answers with credentials are sent only to pages of the daemon's own origin, or where anonymous clients "
        "have the same permission"
    ),
)
@pytest.mark.parametrize(
    ("headers", "anonymous", "wanted"),
    [
        ({}, "", False),  # without TLS a browser does not name the page, and a script element sends no Origin
        (SAME, "", True),
        ({"sec-fetch-site": "same-site"}, "", False),
        ({"sec-fetch-site": "none"}, "", False),
        ({}, "write", False),
        ({}, "read", True),  # every client may read it
        ({"sec-fetch-site": "cross-site"}, "read", False),
    ],
)
async def test_jsonp_with_credentials_needs_same_origin(
    tmp_path: Path, headers: dict[str, str], anonymous: str, wanted: bool
) -> None:
    assert await may(tmp_path, headers, anonymous=anonymous) is wanted


@pytest.mark.parametrize("path", ["/logs?json", "/api/stats/threads?a=b", "/api/uid/assign?metric=evil"])
async def test_jsonp_of_changes_needs_same_origin(tmp_path: Path, path: str) -> None:
    assert not await may(tmp_path, {}, anonymous="", query=f"{path}&jsonp=f")
    assert await may(tmp_path, SAME, anonymous="", query=f"{path}&jsonp=f")


async def test_jsonp_of_public_data_is_allowed(tmp_path: Path) -> None:
    assert await may(tmp_path, {"sec-fetch-site": "cross-site"}, anonymous="read", last_credentials=False)
    assert not await may(tmp_path, {}, anonymous="", last_credentials=False)
