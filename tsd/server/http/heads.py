"""Heads of requests that h11 reads, and of responses that it writes: checks that h11 leaves open, and its errors."""

import re
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import NamedTuple

import h11

from tsd.errors import Refused

MAX_HEAD_BYTES = 64 << 10  # of a request line with its headers
MAX_HEADERS = 256  # of a request: h11 takes about 5 us for each
SHORT_HEAD_BYTES = 4096  # headers of a shorter head are not counted
BAD_REQUEST, TARGET_TOO_LONG, HEAD_TOO_LARGE = 400, 414, 431
REQUEST_LINE = re.compile(rb"[A-Z]+ [^ \r\n]+ HTTP/1\.[01]\r?")
_REQUEST_LINE_OF_ANY_METHOD = re.compile(rb"[^ \r]+ [^ \r]+ HTTP/[0-9]\.[0-9]\r?")
_LINE_ENDS = re.compile(rb"(?:\r?\n)*+")
_NOT_HTTP = ("illegal request line", "no request line", "unsupported HTTP version")  # beginnings of h11's errors
_NOT_IN_TARGETS = re.compile(rb"[^ -~\r]")
_ABSOLUTE = re.compile(r"https?://([^/?#@]+)((?:[/?][^#]*)?)", re.IGNORECASE)
_LONG_TARGET = re.compile(rb"[A-Z]+ /")
_HEAD_END = re.compile(rb"\n\r?\n")
_ORIGIN = re.compile(rb"^origin:[ \t]*([!-~]+)[ \t]*\r?\n", re.IGNORECASE | re.MULTILINE)
_REASONS = {status.value: status.phrase.encode() for status in HTTPStatus}


class Head(NamedTuple):
    """The head of a request."""

    method: str
    target: str
    headers: Mapping[str, str]  # by name in lower case; values of one name are joined with commas


def after_line_ends(data: bytes, at: int) -> int:
    """Return where line ends stop that `data` has from `at` on. A client may send any number of them.

    >>> after_line_ends(b"\\r\\n\\n\\rGET", 0)
    3
    """
    found = _LINE_ENDS.match(data, at)
    return at if found is None else found.end()


def check_unread(unread: bytes) -> None:
    """Raise Refused for a target that is not percent-encoded: h11 does not take it for a request line. Raise Refused
    for too many headers, too, before h11 parses each of them. Raise RemoteProtocolError for a line that is no request
    line, for which h11 would wait for headers."""
    line = unread[: max(unread.find(b"\n"), 0)]
    if _NOT_IN_TARGETS.search(line) and REQUEST_LINE.fullmatch(line):
        details = "The target has characters beyond ASCII, or control characters: wanted %XX for each byte of them"
        raise Refused(BAD_REQUEST, "Bad request", details)
    if line and _REQUEST_LINE_OF_ANY_METHOD.fullmatch(line) is None:
        raise h11.RemoteProtocolError(_NOT_HTTP[0])
    if len(unread) > SHORT_HEAD_BYTES:
        end = unread.find(b"\r\n\r\n")
        if (lines := unread.count(b"\n", 0, end if end >= 0 else len(unread))) > MAX_HEADERS:
            raise _too_large(f"got {lines} headers, wanted at most {MAX_HEADERS}")


def read_origin(unread: bytes) -> Mapping[str, str]:
    """Return the header Origin of a head that is refused unread, for the answer's headers of CORS; nothing if it has
    none, or several.

    >>> read_origin(b"GET / HTTP/1.1\\r\\nOrigin: http://a\\r\\nBad Name: b\\r\\n")
    {'origin': 'http://a'}
    """
    end = _HEAD_END.search(unread)
    found = _ORIGIN.findall(unread, 0, len(unread) if end is None else end.start() + 1)
    return {"origin": found[0].decode("ascii")} if len(found) == 1 else {}


def check_line(line: bytes) -> None:
    """Raise Refused for the beginning of a request line that is too long."""
    if len(line) >= MAX_HEAD_BYTES and _LONG_TARGET.match(line):
        details = f"The target is longer than {MAX_HEAD_BYTES} bytes: send the request as a POST with a body"
        raise Refused(TARGET_TOO_LONG, "URI Too Long", details)


def read_head(head: h11.Request) -> Head:
    """Return the head of a request. Raise RemoteProtocolError for two lengths: a proxy that relies on the other one
    would allow request smuggling.

    The host of an absolute target replaces the Host header (RFC 9112, 3.2.2).
    """
    found: dict[str, list[str]] = {}
    for name, value in head.headers:
        found.setdefault(name.decode("ascii"), []).append(value.decode("latin-1"))
    headers = {name: ", ".join(values) for name, values in found.items()}
    if "content-length" in headers and "transfer-encoding" in headers:
        raise h11.RemoteProtocolError("A request has both Content-Length and Transfer-Encoding")
    method, target = head.method.decode("ascii"), head.target.decode("ascii")
    if (absolute := _ABSOLUTE.fullmatch(target)) is not None:
        headers["host"], target = absolute[1], absolute[2]
        target = target if target.startswith("/") else f"/{target}"
    return Head(method, target, headers)


def refusal_of(error: h11.RemoteProtocolError) -> Refused | None:
    """Return the answer to a request that h11 does not read; None for input that is no HTTP."""
    if str(error).startswith(_NOT_HTTP):
        return None
    if error.error_status_hint == HEAD_TOO_LARGE:
        return _too_large(f"The headers, or the line before a chunk, are longer than {MAX_HEAD_BYTES} bytes")
    status = HTTPStatus(error.error_status_hint)
    return Refused(status, "Bad request" if status == BAD_REQUEST else status.phrase, str(error))


def _too_large(details: str) -> Refused:
    return Refused(HEAD_TOO_LARGE, "Request Header Fields Too Large", details)


def response_head(status: int, headers: Sequence[tuple[str, str]]) -> h11.Response:
    """Return the head of a response."""
    encoded = [(name.encode("ascii"), value.encode("latin-1", "replace")) for name, value in headers]
    return h11.Response(status_code=status, headers=encoded, reason=_REASONS.get(status, b""))
