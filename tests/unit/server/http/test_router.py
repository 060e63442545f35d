"""Routing of requests to endpoints, and error responses."""

import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace

import pytest

from tsd.config.settings import Mode
from tsd.errors import BadQuery, NoSuchName, Refused, StoreDown
from tsd.server.http.messages import JSON, WARNINGS, Request, Response, Target, parse_target
from tsd.server.http.router import Router
from tsd.server.http.security import Authorizer, Cors, EndpointSwitches
from tsd.server.peer import local_peer

FAILURES: Mapping[str, Exception] = {
    "refused": Refused(418, 'a "teapot"', "short\nand stout"),
    "bad": BadQuery("Missing sub queries"),
    "store": StoreDown("no answer"),
    "name": NoSuchName("no such name"),
    "group": ExceptionGroup("tasks", [ExceptionGroup("of tasks", [BadQuery("inner")])]),
    "script": Refused(400, "<script>alert(1)</script>, missing <code>m</code>"),
    "missing": Refused(404, "Page not found"),
    "bug": RuntimeError("a bug"),
    "mute": RuntimeError(),
}


async def fail(request: Request) -> Response:
    raise FAILURES[request.param("how") or request.segments[-1]]


async def send(request: Request) -> Response:
    return Response(200, request.path.encode())


TOO_NEW = "Requested API version is greater than the max implemented"
NO_VERSION = "Invalid API version format supplied"
NO_SERIALIZER = "Requested serializer was not found"
ROUTES = {
    "": send,
    "api/fail": fail,
    "api/put": send,
    "api/query": fail,
    "api/query/last": send,
    "api/version": send,
    "fail": fail,
    "health": send,
    "q": send,
    "s": fail,
    "suggest": send,
}


def make_request(path: str, method: str, headers: Mapping[str, str]) -> tuple[Request, Target]:
    target = parse_target(path)
    request = Request(
        method, target.path, target.segments, target.params, headers, is_api=target.is_api, split=target.split
    )
    return request, target


async def respond(router: Router, path: str, method: str, headers: Mapping[str, str]) -> Response:
    """Return the response as a connection sends it."""
    request, target = make_request(path, method, headers)
    decision = await router.decide(method, target, headers, local_peer())
    if decision.refused is not None:
        return router.refuse(decision.refused, target, decision.headers)
    return await router.answer(request, target, decision.headers)


async def answer(
    path: str, *, method: str = "GET", authorizer: Authorizer | None = None, shows_traces: bool = False, **headers: str
) -> tuple[int, str | None, str]:
    router = Router(ROUTES, authorizer or Authorizer(Cors("", "")), shows_traces=shows_traces)
    response = await respond(router, path, method, headers)
    assert isinstance(response.body, bytes)
    return response.status, response.content_type, response.body.decode()


@pytest.mark.parametrize(
    ("path", "reached"),
    [
        ("/api/put", True),
        ("/API/V1/Put/", True),
        ("/api/put/more/words", True),
        ("/api/query/last", True),
        ("/api/query/LAST/x", True),
        ("/q?a=b", True),
        ("/Q/", True),
        ("/api", False),
        ("/api/v1", False),
        ("/api/vx/put", False),
        ("/put", False),
        ("/api/q", False),
    ],
)
async def test_paths_route_like_opentsdbs(path: str, reached: bool) -> None:
    status, _, body = await answer(path)
    assert (status == 200) == reached
    assert not reached or body == path.partition("?")[0]


@pytest.mark.parametrize(
    ("path", "status", "message", "details"),
    [
        ("/api/v2/put", 501, TOO_NEW, "API version [2] is greater than the max [1]"),
        ("/api/v1x/put", 400, NO_VERSION, "API version [1x] cannot be parsed to an integer"),
        ("/api/v%C2%B2/put", 400, NO_VERSION, "API version [²] cannot be parsed to an integer"),
        ("/api/v1234567890/put", 400, NO_VERSION, "API version [1234567890] cannot be parsed to an integer"),
        ("/api/nowhere", 404, "Endpoint not found", None),
        ("/api/put?serializer=x", 400, NO_SERIALIZER, "Could not find a serializer with the name: x"),
        ("/api/fail/refused", 418, 'a "teapot"', "short\nand stout"),
        ("/api/fail/bad", 400, "Missing sub queries", None),
        ("/api/fail/store", 503, "no answer", None),
        ("/api/query?how=store", 424, "no answer", None),
        ("/api/fail/name", 400, "no such name", None),
        ("/api/fail/group", 400, "inner", None),
        ("/api/fail/bug", 500, "a bug", None),
        ("/api/fail/mute", 500, "An unknown exception occurred", None),
    ],
)  # fmt: skip
async def test_errors_have_opentsdbs_form(path: str, status: int, message: str, details: str | None) -> None:
    found, kind, body = await answer(path)
    assert (found, kind) == (status, JSON)
    wanted = {"code": status, "message": message} | ({"details": details} if details else {})
    assert json.dumps(json.loads(body)) == json.dumps({"error": wanted})


@pytest.mark.difference(
    "stack-traces",
    topic="security",
    theirs="Every API error has a Java stack trace",
    ours="There is none, unless `tsd.http.show_stack_trace = true`, and then for admins only",
)
async def test_traces_are_shown_if_enabled() -> None:
    """OpenTSDB shows one with every error."""
    assert "trace" not in (await answer("/api/fail/bug"))[2]
    assert "test_router.py" in (await answer("/api/fail/bug", shows_traces=True))[2]
    assert "test_router.py" in (await answer("/fail?how=bug", shows_traces=True))[2]
    assert "test_router.py" not in (await answer("/fail?how=bug"))[2]


@pytest.mark.parametrize(
    ("path", "status", "kind", "part"),
    [
        ("/nowhere", 404, "text/html", "Page Not Found"),
        ("/nowhere?json", 404, "application/json", '{"err":"Page Not Found"}'),
        ("/plugin/x", 404, None, ""),
        ("/fail?how=refused", 400, "text/html", "The reason provided was:<br>a &quot;teapot&quot;"),
        ("/fail?how=refused&json", 400, "application/json", '{"err":"a \\"teapot\\""}'),
        ("/fail?how=bug&json", 500, "application/json", '{"err":"a bug"}'),
        ("/fail?how=bug", 500, "text/html", "Internal Server Error"),
        ("/s/x?how=missing", 404, "application/json", '{"error":{"code":404,"message":"Page not found"}}'),
        ("/suggest", 200, "application/json", "/suggest"),
        ("/api/v0/put", 200, "application/json", "/api/v0/put"),
        ("/api/v0/nowhere", 404, "text/html", "Page Not Found"),
    ],
)
async def test_errors_outside_the_api_are_pages(path: str, status: int, kind: str | None, part: str) -> None:
    found, found_kind, body = await answer(path)
    assert found == status
    assert (found_kind or "").partition(";")[0] == (kind or "")
    assert part in body
    assert kind != "application/json" or found_kind == kind  # without a charset


@pytest.mark.difference(
    "error-page-escaping",
    topic="security",
    theirs="Error pages repeat the request unescaped, so that a link can carry a script",
    ours="The text is escaped, except `<code>`",
)
async def test_error_page_escapes_the_request() -> None:
    _, _, body = await answer("/fail?how=script")
    assert "<script>" not in body
    assert "missing <code>m</code>" in body


@pytest.mark.parametrize(
    ("path", "status", "body"),
    [
        ("/api/put?jsonp=f", 200, "f(/api/put)"),
        ("/api/fail/bad?jsonp=f", 400, 'f({"error":{"code":400,"message":"Missing sub queries"}})'),
        ("/api/nowhere?jsonp=f", 404, 'f({"error":{"code":404,"message":"Endpoint not found"}})'),
        ("/api/put?jsonp=", 500, '{"error":{"code":500,"message":"Missing callback name"}}'),
        ("/api/fail/bad?jsonp", 400, '{"error":{"code":400,"message":"Missing sub queries"}}'),
    ],
)
async def test_jsonp_wraps_json_in_a_call(path: str, status: int, body: str) -> None:
    assert await answer(path) == (status, JSON, body)


async def test_unsent_body_is_closed() -> None:
    closing = []

    async def parts() -> AsyncIterator[bytes]:
        try:
            for _ in range(3):
                yield b"1"
        finally:
            closing.append(True)

    async def endless(request: Request) -> Response:
        return Response(200, parts())

    router = Router({"api/parts": endless}, Authorizer(Cors("", "")))
    response = await router.answer(*make_request("/api/parts?jsonp=", "GET", {}))
    assert response.status == 500
    assert closing == [True]


@pytest.mark.parametrize("name", ["f", "a.b_1.$c", "angular.callbacks._0", "jQuery[12]", "f" * 200])
async def test_callback_must_be_a_function_name(name: str) -> None:
    assert await answer(f"/api/put?jsonp={name}") == (200, JSON, f"{name}(/api/put)")


@pytest.mark.difference(
    "jsonp-callback",
    topic="security",
    theirs="`jsonp` may be any text, so that a link can carry a script",
    ours="It must be the name of a function or a path of names",
)
@pytest.mark.parametrize(
    "name", ["alert(1)//", "</script>", "f%3Bg", "%0a", "é", "a..b", "1f", "f%00", " ", "a[b]", "f" * 201, " f"]
)
async def test_invalid_callback_is_refused(name: str) -> None:
    for path in ("/api/put", "/api/fail/bad", "/api/nowhere"):
        status, kind, body = await answer(f"{path}?jsonp={name}")
        assert (status, kind) == (400, JSON)
        assert json.loads(body)["error"]["message"] == "Invalid callback name"


@pytest.mark.parametrize(
    ("switches", "gone", "there"),
    [
        (EndpointSwitches(mode=Mode.READ_ONLY), ("/api/put",), ("/api/version", "/q", "/api/query/last", "/health")),
        (
            EndpointSwitches(mode=Mode.WRITE_ONLY),
            ("/", "/q", "/suggest", "/api/query/last", "/s"),
            ("/api/put", "/health"),
        ),
        (EndpointSwitches(with_api=False), ("/api/put", "/api/query/last"), ("/q", "/health")),
        (EndpointSwitches(with_ui=False), ("/", "/q", "/suggest"), ("/api/put", "/health")),
    ],
)
async def test_modes_and_switches_hide_endpoints(
    switches: EndpointSwitches, gone: tuple[str, ...], there: tuple[str, ...]
) -> None:
    assert [(await answer(path, authorizer=Authorizer(Cors("", ""), switches=switches)))[0] for path in gone] == [
        404
    ] * len(gone)
    assert [(await answer(path, authorizer=Authorizer(Cors("", ""), switches=switches)))[0] for path in there] == [
        200
    ] * len(there)


@pytest.mark.parametrize(
    ("domains", "origin", "fine"),
    [("*", "http://a", True), ("http://a", "HTTP://A", True), ("http://a", "http://b", False)],
)
async def test_cors_allows_listed_origins(domains: str, origin: str, fine: bool) -> None:
    router = Router(ROUTES, Authorizer(Cors(domains, "X-A")))
    for method in ("OPTIONS", "GET"):
        response = await respond(router, "/api/put", method, {"origin": origin})
        headers = dict(response.headers)
        assert response.status == 200
        assert headers.get("Access-Control-Allow-Origin") == (origin if fine else None)
        assert headers.get("Access-Control-Allow-Headers") == ("X-A" if fine else None)
        exposed = headers.get("Access-Control-Expose-Headers", "").split(", ")
        assert (WARNINGS in exposed, "Retry-After" in exposed) == (fine, fine)
        assert isinstance(response.body, bytes)
        assert (b"CORS domain not allowed" in response.body) == (not fine)


@pytest.mark.difference(
    "cors-own-origin",
    topic="security",
    theirs="With `tsd.http.request.cors_domains` set to other origins, a page of the server's own origin cannot write",
    ours="Pages of the daemon's own origin are always allowed",
)
async def test_own_page_needs_no_cors() -> None:
    router = Router(ROUTES, Authorizer(Cors("http://a", "X-A")))
    own: tuple[dict[str, str], ...] = (
        {"origin": "http://tsd:4242", "host": "tsd:4242"},
        {"origin": "https://proxy", "host": "tsd:4242", "sec-fetch-site": "same-origin"},
    )
    for headers in own:  # as a browser sends them with every POST and DELETE
        response = await respond(router, "/api/put", "POST", headers)
        assert (response.status, response.body) == (200, b"/api/put")
    response = await respond(router, "/api/put", "POST", own[1] | {"sec-fetch-site": "same-site"})
    assert isinstance(response.body, bytes)
    assert b"CORS domain not allowed" in response.body


async def test_options_without_origin_is_refused() -> None:
    for cors in (Cors("", ""), Cors("*", "")):
        status, _, body = await answer("/nowhere", method="OPTIONS", authorizer=Authorizer(cors))
        assert (status, "Bad Request" in body) == (400, True)
        status, _, body = await answer("/api/put", method="OPTIONS", authorizer=Authorizer(cors))
        assert status == 405
        assert "The HTTP method [OPTIONS] is not permitted" in body


@pytest.mark.difference(
    "points-to-the-home-page",
    topic="http",
    theirs="`POST //api/put` (its URL ends in a slash) and `POST /` are answered with the home page: points are lost",
    ours="`//…` is 404, and `POST /` with points 400",
)
@pytest.mark.parametrize(("path", "status"), [("//api/put", 404), ("///api/put", 404), ("//", 200), ("/", 200)])
async def test_path_that_begins_with_two_slashes_is_not_the_home_page(path: str, status: int) -> None:
    assert (await answer(path, method="POST"))[0] == status


@pytest.mark.parametrize("body", [b"", b" ", b"{}", b"[]\n", b"null", b"{ }", b"[\n]"])
async def test_empty_body_is_allowed_everywhere(body: bytes) -> None:
    router = Router(ROUTES, Authorizer(Cors("", "")))
    request, target = make_request("/api/version", "POST", {})
    assert (await router.answer(replace(request, body=body), target)).status == 200
