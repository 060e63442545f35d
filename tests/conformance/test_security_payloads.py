"""Published attacks on OpenTSDB, and common attacks on HTTP servers, have no effect on a daemon.

OpenTSDB passed parameters of /q to Gnuplot's scripts unchecked (CVE-2018-12972, CVE-2020-35476, CVE-2023-25826,
CVE-2023-36812), and others to pages and answers (CVE-2018-12973, CVE-2018-13003, CVE-2023-25827).
"""

import html
import json
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import quote, urlencode

import pytest

from tests.running import Running, running
from tests.unit.api.http_requests import http_post, http_request
from tests.unit.server.web_parts import HttpResponse

pytestmark = pytest.mark.slow

SECRET = "root-of-all-secrets"
BASE = 1_500_000_000
Q = f"/q?start={BASE}&end={BASE + 60}&m=sum:a.b"


@pytest.fixture
async def daemon(tmp_path: Path) -> AsyncIterator[Running]:
    """A daemon with a series, static files, and a secret file next to them."""
    files = tmp_path / "static"
    files.mkdir()
    (files / "a.html").write_text("<p>ours</p>")
    (tmp_path / "secret").write_text(SECRET)
    (files / "link").symlink_to(tmp_path / "secret")
    async with running(tmp_path / "state", {"tsd.http.staticroot": str(files)}) as daemon:
        await daemon.send_lines(b"put a.b %d 1 host=a\n" % BASE)
        yield daemon


COMMANDS = [
    "[33:system('touch {mark}')]",  # CVE-2020-35476
    "[0:system(`touch {mark}`)]",
    "[0:`touch {mark}`]",  # CVE-2018-12972
    "%60touch {mark}%60",
    '"; system "touch {mark}"; "',
    'out right top\nsystem "touch {mark}"',  # CVE-2023-25826
    "out right top\n!touch {mark}\n",
    'x"\nset output "{mark}"\nplot 1',  # CVE-2023-36812
    "{{%touch {mark}%}}",
    "$(touch {mark})",
    "|touch {mark}",
    "__import__('os').system('touch {mark}')",
    "{{{{().__class__.__base__.__subclasses__()}}}}",
    "$\\input{{{mark}}}$",  # the drawing library knows some TeX
]
PARAMETERS = (
    "yrange", "y2range", "key", "o", "wxh", "style", "ylabel", "y2label", "yformat", "y2format", "xformat", "title",
    "bgcolor", "fgcolor", "smooth", "tz",
)  # fmt: skip


@pytest.mark.difference(
    "graph-parameters",
    topic="security",
    theirs="Parameters of `/q` reach a shell or a Gnuplot script (CVE-2020-35476, CVE-2023-25826 and others)",
    ours="None does",
)
@pytest.mark.parametrize("form", ["json", "png"])
@pytest.mark.parametrize("command", range(len(COMMANDS)))
async def test_graph_parameter_is_not_executed(daemon: Running, tmp_path: Path, command: int, form: str) -> None:
    """Put the text into all parameters at once, and into each that is checked separately."""
    mark = tmp_path / "mark"
    text = COMMANDS[command].format(mark=mark)
    for names in (PARAMETERS, *((name,) for name in ("yrange", "y2range", "key", "o", "wxh", "style"))):
        response = await http_request(daemon, f"{Q}&{form}&{urlencode(dict.fromkeys(names, text))}")
        assert response.status in (200, 400), response.body
        assert not mark.exists()


@pytest.mark.parametrize("command", range(len(COMMANDS)))
async def test_graph_text_is_not_executed(daemon: Running, tmp_path: Path, command: int) -> None:
    """Parameters for free text are drawn."""
    mark = tmp_path / "mark"
    text = COMMANDS[command].format(mark=mark)
    if command in (0, 5):  # each starts a process
        await http_request(daemon, f"{Q}&png&{urlencode(dict.fromkeys(('title', 'ylabel', 'y2label'), text))}")
    await http_request(daemon, f"/api/query/gexp?start=1h-ago&exp={quote(text)}")
    for member in ("expr", "id"):
        expression = {"id": "e", "expr": "a+b", member: text}
        time = {"start": "1h-ago", "aggregator": "sum"}
        body = {"time": time, "filters": [], "metrics": [], "expressions": [expression]}
        await http_post(daemon, "/api/query/exp", json.dumps(body).encode())
    assert not mark.exists()


SCRIPT = "<script>alert(1)</script>"
SCRIPTS = [
    SCRIPT,
    '"><img src=x onerror=alert(1)>',
    "'-alert(1)-'",
    "<svg/onload=alert(1)>",
    "</pre><script>1</script>",
]
REFLECTING = [
    "/q?start=1h-ago&m=sum:{}&json",  # CVE-2018-12973
    "/q?start={}&m=sum:a.b",
    "/q?start=1h-ago&m={}&ascii",
    "/q?start=1h-ago&m=sum:a.b&png&yrange={}",
    "/q?{}",
    "/suggest?type={}",  # CVE-2018-13003
    "/suggest?type=metrics&q={}&json",
    "/suggest?type=metrics&max={}",
    "/logs?level={}",  # CVE-2023-25827
    "/logs?json&level={}",
    "/s/{}",
    "/s/..{}",
    "/{}",
    "/api/{}",
    "/api/v{}/x",
    "/api/query?start={}&m=sum:a.b",
    "/api/query?start=1h-ago&m={}",
    "/api/query?start=1h-ago&m=sum:{}",
    "/api/search/{}",
    "/api/search/lookup?m={}",
    "/api/suggest?type={}",
    "/api/uid/assign?metric={}",
    "/api/annotation?start_time={}",
    "/api/version?serializer={}",
    "/api/tree?treeid={}",
    "/version?json={}",
    "/aggregators?jsonp={}",
]


def is_harmless(response: HttpResponse, script: str) -> bool:
    """Whether a browser executes nothing of an answer: it is no page, or the script is escaped."""
    assert response.headers.get("x-content-type-options") == "nosniff"
    assert "default-src 'none'" in response.headers["content-security-policy"]
    if not response.headers["content-type"].startswith("text/html"):
        return response.headers["content-type"].partition(";")[0] in ("application/json", "text/plain", "image/png")
    return script.encode() not in response.body or script == html.escape(script)


@pytest.mark.parametrize("target", REFLECTING)
async def test_answer_contains_no_script_of_the_request(daemon: Running, target: str) -> None:
    for script in SCRIPTS:
        for text in {quote(script), quote(script, safe="<>/'\"()=").replace(" ", "+")}:
            response = await http_request(daemon, target.format(text))
            assert is_harmless(response, script), (target, script, response.body)


async def test_names_in_answers_are_not_scripts(daemon: Running) -> None:
    """Names have no such characters. Other stored text is returned as JSON only."""
    assert b"illegal character: <" in await daemon.send_lines(b"put <script> 1 1 a=b\n")
    note = {"startTime": BASE, "description": SCRIPT, "notes": SCRIPT, "custom": {SCRIPT: SCRIPT}}
    response = await http_post(daemon, "/api/annotation", json.dumps(note).encode())
    assert response.status == 200
    assert is_harmless(await http_request(daemon, f"/api/annotation?start_time={BASE}"), SCRIPT)
    await http_request(daemon, f"/api/nosuch{quote(SCRIPT)}", f"User-Agent: {SCRIPT}")
    for path in (
        "/logs",
        "/logs?json",
        "/api/stats/query",
        "/api/stats/clients",
        "/api/stats/hot",
        "/stats",
        "/metrics",
        "/api/config",
    ):
        assert is_harmless(await http_request(daemon, path), SCRIPT)


CALLBACKS = [
    "alert(1)//", "a;alert(1)", "<script>", "a(", "a b", "a%0d%0aX-Evil:1", "%00", "a\u2028b", "x" * 201, "[1]", "1a",
    "a.", "a[b]", "/*", "a\\u0028",
]  # fmt: skip


@pytest.mark.parametrize("callback", CALLBACKS, ids=range(len(CALLBACKS)))
async def test_jsonp_callback_must_be_a_function_name(daemon: Running, callback: str) -> None:
    raw = callback if "%" in callback else quote(callback)
    response = await http_request(daemon, f"/api/version?jsonp={raw}")
    assert response.status == 400
    assert response.json["error"]["message"] == "Invalid callback name"
    assert "x-evil" not in response.headers


BEYOND = [
    "../secret", "..%2fsecret", "%2e%2e/secret", "%2e%2e%2fsecret", "....//secret", "a/../../secret", "./../secret",
    "..\\secret", "..%5csecret", "/etc/passwd", "//etc/passwd", "%2fetc%2fpasswd", "a.html%00.png", "%00", "link",
    "..%c0%afsecret", "%252e%252e%252fsecret", "..;/secret", ".%00./secret", "x" * 8000, "x/" * 3000, "", ".", "./",
    "../state/LOCK", "~/x", "file:///etc/passwd", "\u2025/secret",
]  # fmt: skip


@pytest.mark.parametrize("path", BEYOND, ids=range(len(BEYOND)))
async def test_path_outside_static_root_is_refused(daemon: Running, path: str) -> None:
    for root in ("/s/", "/S/", "/favicon.ico/", "/s//", "/"):
        response = await http_request(daemon, root + (path if path.isascii() else quote(path)).replace("\\", "%5C"))
        assert SECRET.encode() not in response.body
        assert b"root:" not in response.body
        assert response.status in (200, 400, 404)
        assert response.status != 200 or path in ("", ".", "./") or root == "/" or response.body == b"<p>ours</p>"


async def test_static_files_are_served(daemon: Running) -> None:
    response = await http_request(daemon, "/s/a.html")
    assert response.body == b"<p>ours</p>"
    assert response.headers["content-security-policy"] == "frame-ancestors 'self'"


INJECTED = "x%0d%0aSet-Cookie:%20a=b%0d%0a%0d%0a<script>"


@pytest.mark.parametrize(
    "target",
    ["/q?{}", "/s/{}", "/{}", "/api/{}", "/api/version?jsonp={}", "/suggest?type={}", "/api/version?serializer={}"],
)
async def test_request_cannot_inject_response_headers(daemon: Running, target: str) -> None:
    for text in (INJECTED, INJECTED.replace("%0d%0a", "%0a"), INJECTED.replace("%0d%0a", "%E5%98%8D%E5%98%8A")):
        response = await http_request(daemon, target.format(text))
        assert "set-cookie" not in response.headers


async def test_origin_returned_only_if_allowed(tmp_path: Path) -> None:
    async with running(tmp_path, {"tsd.http.request.cors_domains": "http://a.example"}) as daemon:
        response = await http_request(daemon, "/api/version", "Origin: http://a.example")
        assert response.headers["access-control-allow-origin"] == "http://a.example"
        assert "access-control-allow-credentials" not in response.headers
        for origin in ("http://b.example", "http://a.example.b", "null", "http://a.example\tx", "*"):
            response = await http_request(daemon, "/api/version", f"Origin: {origin}")
            assert "access-control-allow-origin" not in response.headers


SMUGGLED = [
    b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
    b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n[]   ",
    b"Content-Length: 5, 6\r\n\r\n[]   ",
    b"Content-Length: +5\r\n\r\n[]   ",
    b"Content-Length: 0x5\r\n\r\n[]   ",
    b"Content-Length: -1\r\n\r\n[]   ",
    b"Content-Length: 5 \x00\r\n\r\n[]   ",
    b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n",
    b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
    b"Transfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n",
    b"Transfer-Encoding: chunked\r\n\r\n1\r\n[\r\nzz\r\n",
    b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n",
    b" Content-Length: 5\r\n\r\n[]   ",
    b"X: y\r\n Content-Length: 5\r\n\r\n[]   ",
    b"X\x00: y\r\n\r\n",
    b"Host: a\r\nHost: b\r\n\r\n",
    b": empty\r\n\r\n",
    b"X: a\rb\r\n\r\n",
    b"X: a\x00b\r\n\r\n",
]


@pytest.mark.parametrize("rest", SMUGGLED, ids=range(len(SMUGGLED)))
async def test_request_smuggling_is_refused(daemon: Running, rest: bytes) -> None:
    """Ambiguous requests are refused, and nothing after them is served."""
    hidden = b"GET /api/dropcaches HTTP/1.1\r\nHost: localhost\r\n\r\n"
    host = b"" if rest.startswith(b"Host") else b"Host: localhost\r\n"
    async with daemon.client() as client:
        await client.send(b"POST /api/put HTTP/1.1\r\n" + host + rest + hidden)
        await client.stream.send_eof()
        response = await client.read_to_end()
    assert b"Caches dropped" not in response
    assert response.count(b"HTTP/1.1 ") <= 1
    assert not response or response.split(b" ")[1] in (b"400", b"403", b"413", b"501")


FOREIGN = [
    ("Origin: http://evil.example",),
    ("Origin: null",),
    ("Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: no-cors"),
    ("Sec-Fetch-Site: same-site", "Origin: http://a.tsd"),
    ("Sec-Fetch-Site: Cross-Site ", "Sec-Fetch-Mode: navigate"),
]
CHANGING = [
    ("POST", "/api/put"), ("POST", "/api/rollup"), ("POST", "/api/annotation"), ("GET", "/api/dropcaches"),
    ("GET", "/api/uid/assign?metric=x"), ("GET", "/api/uid/rename?metric=a.b&name=c"), ("GET", "/logs?level=debug"),
    ("GET", "/api/tree?treeid=1&method_override=delete"), ("GET", "/diediedie"),
]  # fmt: skip


@pytest.mark.difference(
    "cross-site-requests",
    topic="security",
    theirs="A page of any site can make a user's browser write points, drop caches or end the daemon",
    ours="Such requests are answered with 403, unless `tsd.http.request.cors_domains` allows the site",
)
@pytest.mark.parametrize("headers", FOREIGN, ids=range(len(FOREIGN)))
async def test_cross_site_requests_change_nothing(tmp_path: Path, headers: tuple[str, ...]) -> None:
    """A form of another site that posts text/plain, or an image with the URL of a command: browsers send both with the
    user's credentials."""
    point = b'{"metric":"csrf.point","timestamp":1500000000,"value":1,"tags":{"host":"a"}}'
    async with running(tmp_path, {"tsd.no_diediedie": "false"}) as daemon:
        for method, target in CHANGING:
            if method == "POST":
                response = await http_post(daemon, target, point, "Content-Type: text/plain", *headers)
            else:
                response = await http_request(daemon, target, *headers)
            assert response.status == 403, (method, target)
            assert "cors_domains" in response.body.decode()
        assert daemon.daemon.ingest.ledger.received == 0
        assert not daemon.stop.is_set()
        own = ("Sec-Fetch-Site: same-origin", "Origin: http://localhost")
        assert (await http_post(daemon, "/api/put", point, *own)).status == 204
        assert (await http_post(daemon, "/api/put", point, "Origin: http://localhost")).status == 204


@pytest.mark.difference(
    "browser-headers",
    topic="security",
    theirs="Browsers may frame, cache and execute answers",
    ours="Headers forbid it",
)
async def test_every_answer_has_security_headers(daemon: Running) -> None:
    for path in ("/", "/api/version", "/version", "/nosuch", "/api/nosuch", "/api/query", "/q", "/metrics", "/health"):
        headers = (await http_request(daemon, path)).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert headers["referrer-policy"] == "no-referrer"
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert headers["cache-control"]
        assert "set-cookie" not in headers
        assert "server" not in headers
        assert "strict-transport-security" not in headers  # browsers ignore it without TLS


async def test_query_list_hides_credentials(daemon: Running) -> None:
    names = ("Authorization", "Cookie", "Proxy-Authorization", "X-Api-Key", "X-Auth-Token", "X-Forwarded-Access-Token")
    await http_request(
        daemon, f"/api/query?start={BASE}&m=sum:a.b", "User-Agent: us", *(f"{name}: {SECRET}" for name in names)
    )
    response = await http_request(daemon, "/api/stats/query")
    assert [one["requestHeaders"]["user-agent"] for one in response.json["completed"]] == ["us"]
    assert SECRET.encode() not in response.body


@pytest.mark.difference("stack-traces")
async def test_stack_trace_not_shown_to_anonymous_clients(tmp_path: Path) -> None:
    """Anonymous clients get no trace even if the setting is on."""
    async with running(tmp_path, {"tsd.http.show_stack_trace": "true"}, access={}) as daemon:
        for path in ("/api/query", "/q?start=x&m=y&json", "/api/annotation?start_time=x", "/api/search/x"):
            response = await http_request(daemon, path)
            assert response.status >= 400
            assert b"Traceback" not in response.body
            assert b".py" not in response.body
