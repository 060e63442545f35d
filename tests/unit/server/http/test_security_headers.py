"""What answers carry beside their bodies."""

import pytest

from tests.unit.doors.web_parts import echo, get, post, serving
from tsd.doors.exchange import JSON, Request, Response


async def plain(request: Request) -> Response:
    return Response(200, b"[]", JSON, (("X-Own", "1"),))


async def none(request: Request) -> Response:
    return Response(304, b"", None)


async def packed(request: Request) -> Response:
    return Response(200, b"x" * 1000, "image/png", (("Content-Encoding", "br"),))


ROUTES = {"api/plain": plain, "api/none": none, "api/packed": packed, "echo": echo}


async def test_browsers_are_told_to_keep_to_the_type_but_for_jsonp() -> None:
    """A page that loads an answer as a script, which is what jsonp is for, would be refused it."""
    async with serving(ROUTES) as served:
        assert (await served.ask(get("/api/plain"))).headers["x-content-type-options"] == "nosniff"
        assert "x-content-type-options" not in (await served.ask(get("/api/plain?jsonp=f"))).headers
        assert (await served.ask(get("/echo?jsonp=f"))).headers["x-content-type-options"] == "nosniff"


async def test_a_header_says_again_whatever_it_was_told() -> None:
    async def again(request: Request) -> Response:
        return Response(200, b"", None, (("X-Again", request.headers["origin"]),))

    async with serving({"again": again}) as served:
        heard = await served.ask(get("/again", "Origin: http://b\u00fccher", "Origin: b").decode().encode("latin-1"))
    assert heard.headers["x-again"] == "http://bücher, b"


@pytest.mark.parametrize(("path", "status"), [("/api/none", 304), ("/api/plain", 200)])
async def test_what_has_no_body_has_no_length(path: str, status: int) -> None:
    async with serving(ROUTES) as served:
        heard = await served.ask(get(path), get(path))
        assert heard.status == status
        assert ("content-length" in heard.headers) == (status == 200)
        assert heard.headers.get("x-own") == ("1" if status == 200 else None)


async def test_what_is_packed_is_not_packed_again() -> None:
    async with serving(ROUTES) as served:
        heard = await served.ask(get("/api/packed", "Accept-Encoding: gzip"))
        assert heard.headers["content-encoding"] == "br"
        assert heard.body == b"x" * 1000


async def test_caches_know_that_answers_differ() -> None:
    async with serving(ROUTES) as served:
        heard = await served.ask(post("/echo", b"x" * 1000, "Accept-Encoding: gzip"))
        assert heard.headers["vary"] == "Accept-Encoding"


@pytest.mark.parametrize("path", ["/api/plain", "/api/none", "/nowhere", "/api/nowhere"])
async def test_an_answer_has_its_reason(path: str) -> None:
    reasons = {"/api/plain": b"OK", "/api/none": b"Not Modified"}
    async with serving(ROUTES) as served, served.client() as client:
        await client.send(get(path))
        first = await client.read_until(b"\r\n")
        assert first.endswith(b" " + reasons.get(path, b"Not Found") + b"\r\n")
