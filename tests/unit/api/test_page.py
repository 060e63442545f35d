"""The page's files, and who its user is."""

import gzip
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.running import Running, running
from tests.unit.api.http_requests import http_post, http_request
from tests.unit.server.web_parts import HttpResponse
from tsd.auth.accounts import Account, write_lines
from tsd.auth.credentials import hash_token, new_token
from tsd.auth.roles import Role
from tsd.query.model import AGGREGATORS

ASSET = re.compile(rb'(?:href|src|content)="(ui/[^"]+)"')


@pytest.fixture
async def daemon(tmp_path: Path) -> AsyncIterator[Running]:
    async with running(tmp_path) as daemon:
        yield daemon


def policy(response: HttpResponse) -> dict[str, str]:
    """Return the directives of a response's Content-Security-Policy."""
    return dict(one.split(None, 1) for one in response.headers["content-security-policy"].split(";"))


async def test_page_may_load_nothing_from_elsewhere(daemon: Running) -> None:
    home = await http_request(daemon, "/")
    found = policy(home)
    assert found["default-src"] == "'none'"
    assert found["script-src"] == "'self'"
    assert "http" not in home.headers["content-security-policy"]
    assert b"//" not in home.body
    assert home.headers["x-frame-options"] == "DENY"


async def test_health_checks_may_ask_with_head(daemon: Running) -> None:
    answer = await http_request(daemon, "/", method="HEAD")
    assert (answer.status, answer.headers["content-type"], answer.body) == (200, "text/html; charset=UTF-8", b"")
    assert (await http_request(daemon, "/", method="PUT")).status == 400


async def test_points_to_the_page_are_not_acknowledged(daemon: Running) -> None:
    assert (await http_post(daemon, "/", b'{"metric":"m","timestamp":1,"value":1,"tags":{"a":"b"}}')).status == 400
    assert (await http_post(daemon, "/", b"")).status == 200


async def test_files_of_the_page_are_cached_long(daemon: Running) -> None:
    home = await http_request(daemon, "/")
    paths = {f"/{path.decode()}" for path in ASSET.findall(home.body)}
    assert {Path(path).suffix for path in paths} == {".css", ".js", ".svg"}
    for path in paths:
        found = await http_request(daemon, path)
        assert found.status == 200, path
        assert "immutable" in found.headers["cache-control"]
    assert "no-cache" in home.headers["cache-control"]


async def test_scripts_that_a_script_imports_exist(daemon: Running) -> None:
    home = await http_request(daemon, "/")
    [main] = [f"/{path.decode()}" for path in ASSET.findall(home.body) if path.endswith(b"main.js")]
    wanted, seen = [main], set()
    while wanted:
        path = wanted.pop()
        seen.add(path)
        found = await http_request(daemon, path)
        assert found.status == 200, path
        names = re.findall(rb'from "\./([\w.]+)"', found.body)
        wanted += [new for name in names if (new := f"{path.rpartition('/')[0]}/{name.decode()}") not in seen]
    assert len(seen) > 3


async def test_plotting_library_is_sent_compressed(daemon: Running) -> None:
    home = await http_request(daemon, "/")
    [path] = re.findall(rb'name="tsd-plotly" content="([^"]+)"', home.body)
    small = await http_request(daemon, f"/{path.decode()}", "Accept-Encoding: gzip")
    plain = await http_request(daemon, f"/{path.decode()}")
    assert small.headers["content-encoding"] == "gzip"
    assert gzip.decompress(small.body) == plain.body
    assert len(small.body) < len(plain.body) / 2


@pytest.mark.parametrize("path", ["/ui", "/ui/x/main.js", "/ui/main.js", "/ui/../setup.cfg", "/ui/plotly-0/plotly.js"])
async def test_unknown_files_are_not_found(daemon: Running, path: str) -> None:
    assert (await http_request(daemon, path)).status == 404


async def test_access_names_user_and_roles(tmp_path: Path) -> None:
    token, accounts = new_token(), tmp_path / "accounts"
    write_lines(accounts, [str(Account("grafana", Role.READ, hash_token(token)))])
    access = {"tsd.core.authentication.enable": "true", "tsd.auth.file": str(accounts)}
    async with running(tmp_path / "state", access=access) as daemon:
        assert (await http_request(daemon, "/")).status == 200
        anonymous = await http_request(daemon, "/ui/access")
        every = {"sign_in": True, "entities": None, "aggregators": list(AGGREGATORS)}
        assert anonymous.json == {"name": "", "roles": [], **every}
        known = await http_request(daemon, "/ui/access", f"Authorization: Bearer {token}")
        assert known.json == {"name": "grafana", "roles": ["read"], **every}
        assert (await http_request(daemon, "/ui/access", "Authorization: Bearer x")).status == 401


async def test_scripts_get_no_password_dialog(tmp_path: Path) -> None:
    accounts = tmp_path / "accounts"
    write_lines(accounts, [])
    access = {"tsd.core.authentication.enable": "true", "tsd.auth.file": str(accounts)}
    async with running(tmp_path / "state", access=access) as daemon:
        async with daemon.client() as client:
            await client.send(b"GET /api/stats HTTP/1.1\r\nHost: localhost\r\nX-Requested-With: tsd\r\n\r\n")
            head = await client.read_until(b"\r\n\r\n")
        assert b" 401 " in head.splitlines()[0]
        assert b"Bearer" in head
        assert b"Basic" not in head


async def test_refused_lines_are_grouped(daemon: Running) -> None:
    await daemon.send_lines(b"put a.b 1500000000 x host=a\nput a.b 1500000001 y host=a\n")
    [group] = (await http_request(daemon, "/api/stats/rejected")).json
    assert (group["reason"], group["metric"], group["lines"]) == ("invalid_values", "a.b", 2)
