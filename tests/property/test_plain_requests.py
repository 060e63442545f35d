"""h11 judges the reader of plain requests: what it accepts, h11 reads as the same request, and nothing of what follows.

Also the writer: the head of a response is what h11 writes, or none.
"""

from http import HTTPStatus

import h11
from hypothesis import example, given
from hypothesis import strategies as st

from tsd.server.http.plain import read_plain_request, response_fields

TOKENS = st.text("aZ09-_!#$%&'*+.^`|~", min_size=1, max_size=8)
NAMES = TOKENS | st.sampled_from(
    [
        "Host",
        "host",
        "Content-Length",
        "content-length",
        "Transfer-Encoding",
        "Connection",
        "Expect",
        "Upgrade",
        "Accept",
    ]
)
VALUES = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=12) | st.sampled_from(
    ["0", "3", "03", "+3", "3, 3", "-1", "chunked", "keep-alive", "Keep-Alive", "close", "100-continue", "h2c", "a\tb"]
)
GAPS = st.sampled_from([": ", ": ", ": ", ":", ":  ", " : ", ":\t"])
ENDS = st.sampled_from(["\r\n", "\r\n", "\r\n", "\r\n", "\n", "\r", " \r\n", "\r\n ", "\r\r\n"])
FIELDS = st.tuples(NAMES, GAPS, VALUES, ENDS).map("".join)
FIRST = st.tuples(
    st.sampled_from(["GET", "POST", "HEAD", "PUT", "DELETE", "get", "CONNECT", "G T"]),
    st.sampled_from([" ", " ", " ", "  ", "\t"]),
    st.sampled_from(["/", "/a?b=c%20&d", "*", "http://x/", "/a b", "/\x7f", "/é"]),
    st.sampled_from([" ", " ", " ", "  "]),
    st.sampled_from(["HTTP/1.1", "HTTP/1.1", "HTTP/1.1", "HTTP/1.0", "HTTP/2.0", "http/1.1"]),
    ENDS,
).map("".join)
REQUESTS = st.tuples(
    FIRST, st.just("Host: x\r\n") | st.just(""), st.lists(FIELDS, max_size=4).map("".join), ENDS, VALUES
)
PLAIN = "GET /a HTTP/1.1\r\nHost: x\r\nAccept: */*\r\nContent-Length: 3\r\n\r\nabcGET /b HTTP/1.1\r\nHost: x\r\n\r\n"


def check(data: bytes) -> bool:
    """Return whether a request is plain, and fail if h11 reads it otherwise."""
    plain = read_plain_request(data)
    if plain is None:
        return False
    server = h11.Connection(h11.SERVER)
    server.receive_data(data)
    head = server.next_event()
    assert isinstance(head, h11.Request), head
    assert (head.method.decode(), head.target.decode(), head.http_version) == (plain.method, plain.target, b"1.1")
    assert {name.decode(): value.decode() for name, value in head.headers} == plain.headers
    assert len(head.headers) == len(plain.headers)
    body = b""
    while isinstance(event := server.next_event(), h11.Data):
        body += event.data
    assert body == plain.body
    assert not server.they_are_waiting_for_100_continue
    if plain.stop > len(data):  # a part of the body is missing
        assert event is h11.NEED_DATA
        server.receive_data(bytes(plain.stop - len(data)))
        while isinstance(event := server.next_event(), h11.Data):
            body += event.data
        assert len(body) == int(plain.headers["content-length"])
        data += bytes(plain.stop - len(data))
    assert isinstance(event, h11.EndOfMessage), event
    assert server.their_state is h11.DONE
    assert server.trailing_data[0] == data[plain.stop :]
    return True


@given(REQUESTS.map("".join))
@example("GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabcd")
@example("GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\nabc")
def test_h11_reads_a_plain_request_alike(text: str) -> None:
    check(text.encode("latin-1"))


@given(REQUESTS.map("".join), REQUESTS.map("".join), st.integers(0, 9))
def test_known_headers_change_nothing(first: str, second: str, kept: int) -> None:
    """They are those of a plain request; the next one may share some of them."""
    plain = read_plain_request(first.encode("latin-1"))
    known = (b"", {}) if plain is None else (plain.fields, plain.headers)
    same = second if plain is None or kept > 4 else first[:kept] + second[kept:]
    for text in (first, second, same, first.replace("GET", "POST"), first.replace("/", "/b/")):
        data = text.encode("latin-1")
        assert read_plain_request(data, 0, known) == read_plain_request(data)


@given(st.integers(0, len(PLAIN)), st.integers(0, 3), st.binary(max_size=3))
def test_h11_reads_a_plain_request_with_changed_bytes_alike(at: int, removed: int, added: bytes) -> None:
    data = PLAIN.encode()
    check(data[:at] + added + data[at + removed :])


def test_usual_requests_are_plain() -> None:
    assert check(PLAIN.encode())
    assert check(b"POST /api/put HTTP/1.1\r\nHost: x:1\r\nConnection: Keep-Alive\r\nContent-Length: 0\r\n\r\n")


def test_requests_with_incomplete_heads_are_not_plain() -> None:
    data = PLAIN.encode()
    head = data.index(b"abc")
    assert not any(check(data[:size]) for size in range(head))
    assert all(check(data[:size]) for size in range(head, len(data) + 1))


@given(
    st.sampled_from([status.value for status in HTTPStatus if status >= 200]),
    st.lists(st.tuples(NAMES.filter(lambda name: name not in ("Transfer-Encoding", "Connection")) | VALUES, VALUES)),
)
@example(200, [("Location", "/\r\nSet-Cookie: a=b")])
@example(200, [("X", "a\x00b"), ("Y", " a")])
def test_h11_writes_the_same_response_head(status: int, headers: list[tuple[str, str]]) -> None:
    fields = response_fields(status, tuple(headers))
    if fields is None or any(name.lower() in ("content-length", "host") for name, _ in headers):
        return
    server = h11.Connection(h11.SERVER)
    server.receive_data(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    server.next_event()
    encoded = [(name.encode(), value.encode()) for name, value in headers] + [(b"Content-Length", b"0")]
    reason = HTTPStatus(status).phrase.encode()
    written = server.send(h11.Response(status_code=status, headers=encoded, reason=reason))
    if status not in (204, 304):
        assert written == fields + b"Content-Length: 0\r\n\r\n"
