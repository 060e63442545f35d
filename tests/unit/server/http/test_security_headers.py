"""Headers of responses."""

from pathlib import Path

import pytest
from trio.testing import MockClock

from tests.unit.server.web_parts import LIMITS, echo, get, post, serving
from tsd.auth.accounts import Account, write_lines
from tsd.auth.authenticator import Authenticator
from tsd.auth.credentials import hash_token, new_token
from tsd.auth.roles import Role
from tsd.config.settings import AccessSettings
from tsd.server.http.heads import MAX_HEAD_BYTES
from tsd.server.http.messages import JSON, Request, Response


async def plain(request: Request) -> Response:
    return Response(200, b"[]", JSON, (("X-Own", "1"),))


async def none(request: Request) -> Response:
    return Response(304, b"", None)


async def packed(request: Request) -> Response:
    return Response(200, b"x" * 1000, "image/png", (("Content-Encoding", "br"),))


ROUTES = {"api/plain": plain, "api/none": none, "api/packed": packed, "echo": echo}


@pytest.mark.difference(
    "content-type-sniffing",
    topic="security",
    theirs="Browsers may guess the type of answers",
    ours="Answers have `X-Content-Type-Options: nosniff`, except for jsonp",
)
async def test_nosniff_is_sent_except_for_jsonp() -> None:
    """nosniff would block a response that a page loads as a script, which is the purpose of jsonp."""
    async with serving(ROUTES) as served:
        assert (await served.request(get("/api/plain"))).headers["x-content-type-options"] == "nosniff"
        assert "x-content-type-options" not in (await served.request(get("/api/plain?jsonp=f"))).headers
        assert (await served.request(get("/echo?jsonp=f"))).headers["x-content-type-options"] == "nosniff"


async def test_valid_proxy_headers_round_trip() -> None:
    async def again(request: Request) -> Response:
        return Response(200, b"", None, (("X-Again", request.headers["origin"]),))

    async with serving({"again": again}) as served:
        response = await served.request(
            get("/again", "Origin: http://b\u00fccher", "Origin: b").decode().encode("latin-1")
        )
    assert response.headers["x-again"] == "http://bücher, b"


@pytest.mark.parametrize(("path", "status"), [("/api/none", 304), ("/api/plain", 200)])
async def test_bodiless_response_has_no_length(path: str, status: int) -> None:
    async with serving(ROUTES) as served:
        response = await served.request(get(path), get(path))
        assert response.status == status
        assert ("content-length" in response.headers) == (status == 200)
        assert response.headers.get("x-own") == ("1" if status == 200 else None)


async def test_compressed_body_is_not_compressed_again() -> None:
    async with serving(ROUTES) as served:
        response = await served.request(get("/api/packed", "Accept-Encoding: gzip"))
        assert response.headers["content-encoding"] == "br"
        assert response.body == b"x" * 1000


async def test_vary_is_sent_for_encodings() -> None:
    async with serving(ROUTES) as served:
        response = await served.request(post("/echo", b"x" * 1000, "Accept-Encoding: gzip"))
        assert response.headers["vary"] == "Accept-Encoding"


@pytest.mark.parametrize("path", ["/api/plain", "/api/none", "/nowhere", "/api/nowhere"])
async def test_response_has_its_reason(path: str) -> None:
    reasons = {"/api/plain": b"OK", "/api/none": b"Not Modified"}
    async with serving(ROUTES) as served, served.client() as client:
        await client.send(get(path))
        first = await client.read_until(b"\r\n")
        assert first.endswith(b" " + reasons.get(path, b"Not Found") + b"\r\n")


async def test_page_of_an_allowed_origin_may_read_refusals(tmp_path: Path) -> None:
    """Without the headers of CORS a browser hides even the status from the page's script."""
    token, origin = new_token(), "Origin: http://a"
    write_lines(tmp_path / "accounts", [str(Account("a", Role.WRITE, hash_token(token)))])
    authenticator = Authenticator(AccessSettings(authentication=True, auth_file=str(tmp_path / "accounts")), lambda: 0)
    shown = (origin, f"Authorization: Bearer {token}")
    requests = {
        get("/api/suggest", origin): 401,
        get("/api/suggest", origin, "Authorization: Bearer wrong"): 401,
        get("/api/suggest", *shown): 403,
        post("/api/put", b"x" * (LIMITS.body + 1), *shown): 413,
        post("/api/put", b"x", "Content-Encoding: gzip", *shown): 400,
        post("/api/put", b"x", *shown): 200,
        get("/api/nowhere", *shown): 404,
    }
    routes = {"api/put": echo, "api/suggest": echo}
    async with serving(routes, authenticator=authenticator, cors_domains="http://a") as served:
        for request, status in requests.items():
            response = await served.request(request)
            assert (response.status, response.headers.get("access-control-allow-origin")) == (status, "http://a")
        response = await served.request(get("/api/suggest", "Origin: http://b"))
        assert response.status == 401
        assert "access-control-allow-origin" not in response.headers


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (get("/echo?a=%zz", "Origin: http://a"), 400),
        (get("/echo", "Origin: http://a", "Transfer-Encoding: chunked", method="POST") + b"no size\r\n", 400),
        (get("/echo", "Origin: http://a", "Content-Length: 5", method="POST") + b"abc", 408),
        (get("/echo", "Origin: http://a", "A B: c"), 400),
        (get("/é", "origin:http://a"), 400),
        (get("/echo", "Origin: http://a", method="CONNECT"), 405),
        (get("/echo", "Content-Length: 1", "Content-Length: 2", "Origin: http://a", method="POST"), 400),
        (get("/echo", *["A: " + "b" * 20] * 1000, "Origin: http://a"), 431),
        (get("/echo", "Origin: http://a", "Cookie: " + "a" * MAX_HEAD_BYTES)[:-4], 431),
        (get("/echo", "Origin: http://a")[:-2], 408),
    ],
)
async def test_pages_that_cors_allows_read_refusals_of_incomplete_requests(
    request_: bytes, status: int, autojump_clock: MockClock
) -> None:
    """A script saw a network error in place of the status and its text."""
    async with serving({"echo": echo}, cors_domains="http://a") as served:
        found = await served.request(request_)
        assert (found.status, found.headers["access-control-allow-origin"]) == (status, "http://a")
        found = await served.request(request_.replace(b"http://a", b"http://localhost"))
        assert (found.status, "access-control-allow-origin" in found.headers) == (status, False)


@pytest.mark.parametrize(
    "more",
    [
        ("Origin: http://a", "Origin: http://a"),
        ("X: Origin: http://a",),
        ("Origin: http://a b",),
        ("Origins: http://a",),
    ],
)
async def test_origin_of_an_unread_head_is_unique_and_whole(more: tuple[str, ...]) -> None:
    async with serving({"echo": echo}, cors_domains="http://a") as served:
        for request in (get("/é", *more), get("/é") + b"Origin: http://a\r\n\r\n"):
            found = await served.request(request)
            assert (found.status, "access-control-allow-origin" in found.headers) == (400, False)


async def test_any_page_may_read_the_refusal_of_a_long_target_if_all_origins_are_allowed() -> None:
    """The header Origin has not arrived yet."""
    for domains, allowed in (("*", "*"), ("http://a", None)):
        async with serving({"echo": echo}, cors_domains=domains) as served:
            found = await served.request(b"GET /" + b"a" * MAX_HEAD_BYTES)
            assert (found.status, found.headers.get("access-control-allow-origin")) == (414, allowed)
