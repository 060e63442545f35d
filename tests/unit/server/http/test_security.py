"""What requests may do: here, answers that any web page can load as a script."""

from pathlib import Path

import pytest

from tsd.access.accounts import Account, write_lines
from tsd.access.doorkeeper import Doorkeeper
from tsd.access.needs import endpoints
from tsd.access.roles import Role
from tsd.access.secret import kept_token, new_token
from tsd.config import Given, read_settings
from tsd.doors.clients import Clients
from tsd.doors.cors import Cors
from tsd.doors.permits import Permits
from tsd.doors.target import read_target
from tsd.doors.visitor import visitor_at
from tsd.errors import Refused

QUERY = "/api/suggest?type=metrics&jsonp=f"
SAME = {"sec-fetch-site": "same-origin"}


async def may(folder: Path, headers: dict[str, str], *, anonymous: str, shown: bool = True, query: str = QUERY) -> bool:
    """Whether a question with a callback is answered."""
    token = new_token()
    write_lines(folder / "accounts", [str(Account("a", Role.READ | Role.WRITE | Role.ADMIN, kept_token(token)))])
    given = {
        "tsd.core.authentication.enable": "true",
        "tsd.auth.file": str(folder / "accounts"),
        "tsd.access.anonymous": anonymous,
    }
    config, _ = read_settings(Given("test", key, value) for key, value in given.items())
    keeper = Doorkeeper(config, lambda: 0)
    permits = Permits(keeper, endpoints("everybody", "read", may_delete=False), Cors("", ""))
    stranger = visitor_at("192.0.2.1", 1, Clients())
    stranger.principal = keeper.stranger(stranger.address)
    told = {"host": "tsd", **headers} | ({"authorization": f"Bearer {token}"} if shown else {})
    visitor = await permits.identified(told, stranger)
    target = read_target(query)
    try:
        permits.check(target.key, "GET", target, told, visitor)
    except Refused:
        return False
    return True


@pytest.mark.parametrize(
    ("headers", "anonymous", "wanted"),
    [
        ({}, "", False),  # without TLS a browser does not say whose page it is, nor does a script ask with Origin
        (SAME, "", True),
        ({"sec-fetch-site": "same-site"}, "", False),
        ({"sec-fetch-site": "none"}, "", False),
        ({}, "write", False),
        ({}, "read", True),  # as everybody may ask that
        ({"sec-fetch-site": "cross-site"}, "read", False),
    ],
)
async def test_no_page_reads_with_what_a_browser_keeps_of_somebody(
    tmp_path: Path, headers: dict[str, str], anonymous: str, wanted: bool
) -> None:
    assert await may(tmp_path, headers, anonymous=anonymous) is wanted


@pytest.mark.parametrize("path", ["/logs?json", "/api/stats/threads?a=b", "/api/uid/assign?metric=evil"])
async def test_nor_what_wants_more_than_reading(tmp_path: Path, path: str) -> None:
    assert not await may(tmp_path, {}, anonymous="", query=f"{path}&jsonp=f")
    assert await may(tmp_path, SAME, anonymous="", query=f"{path}&jsonp=f")


async def test_who_needs_to_show_nothing_may_have_it_as_ever(tmp_path: Path) -> None:
    assert await may(tmp_path, {"sec-fetch-site": "cross-site"}, anonymous="read", shown=False)
    assert not await may(tmp_path, {}, anonymous="", shown=False)
