"""Requests in the plain form that almost all clients send, and heads of responses to them, without h11.

`read_plain_request` accepts less than h11 does, and reads what it accepts as h11 does. All other input is left to h11:
incomplete heads, HTTP/1.0, chunked bodies, repeated headers, and whatever is unusual or wrong. So h11 alone decides
which input is refused (tests/property/test_plain_requests.py).
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from http import HTTPStatus
from typing import NamedTuple

MAX_PLAIN_HEAD_BYTES = 4096
MAX_PLAIN_BODY_BYTES = 64 << 10
CACHED_HEADS = 100

_NAME = "[!#$%&'*+.^_`|~0-9A-Za-z-]++"
_VALUE = "[!-~]++(?: ++[!-~]++)*+"  # no control characters, no blank at either end
_HEAD = re.compile(
    rf"(GET|POST|PUT|DELETE|HEAD) (/[!-~]*+) HTTP/1\.1\r\n((?:{_NAME}: {_VALUE}\r\n)++)\r\n".encode("ascii")
)
_FIELD_NAME, _FIELD_VALUE = re.compile(_NAME), re.compile(_VALUE)
_LENGTH = re.compile(r"0|[1-9][0-9]{0,8}")
_UNUSUAL = frozenset(("transfer-encoding", "expect", "upgrade", "te", "trailer"))
_REASONS = {status.value: status.phrase for status in HTTPStatus}


class PlainRequest(NamedTuple):
    """A request with a complete head."""

    method: str
    target: str
    headers: Mapping[str, str]  # names in lower case
    body: bytes  # as far as it is received
    start: int  # its bytes in the input; those from the end of the input to `stop` are missing
    stop: int
    fields: bytes  # all headers as sent


def read_plain_request(
    data: bytes, start: int = 0, known: tuple[bytes, Mapping[str, str]] = (b"", {})
) -> PlainRequest | None:
    """Return the request that starts at `start`; None unless it is plain and its head is complete. `known` are all
    headers of an earlier plain request, as sent and as read: clients repeat theirs.

    >>> read_plain_request(b"GET /a?b HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n")[:4]
    ('GET', '/a?b', {'host': 'x'}, b'')
    """
    match = _HEAD.match(data, start, start + MAX_PLAIN_HEAD_BYTES)
    if match is None:
        return None
    fields = match[3]
    headers = known[1] if fields == known[0] else _read_fields(fields)
    if headers is None:
        return None
    end = stop = match.end()
    if (length := headers.get("content-length")) is not None:
        if _LENGTH.fullmatch(length) is None or int(length) > MAX_PLAIN_BODY_BYTES:
            return None
        stop += int(length)
    return PlainRequest(
        match[1].decode("ascii"), match[2].decode("ascii"), headers, data[end:stop], start, stop, fields
    )


def _read_fields(fields: bytes) -> Mapping[str, str] | None:
    """Return the headers of a request; None unless they are plain."""
    headers: dict[str, str] = {}
    for line in fields[:-2].decode("ascii").split("\r\n"):
        name, _, value = line.partition(": ")
        name = name.lower()
        if name in headers:
            return None
        headers[name] = value
    if "host" not in headers or not headers.keys().isdisjoint(_UNUSUAL):
        return None
    return headers if headers.get("connection", "keep-alive").lower() == "keep-alive" else None


@lru_cache(CACHED_HEADS)
def response_fields(status: int, headers: tuple[tuple[str, str], ...]) -> bytes | None:
    """Return the status line and headers of a response, without the empty line at the end; None if a header is not
    plain. A value with a line break would be another header.

    >>> response_fields(200, (("Content-Type", "text/plain"),))
    b'HTTP/1.1 200 OK\\r\\nContent-Type: text/plain\\r\\n'
    >>> response_fields(200, (("Location", "/\\r\\nSet-Cookie: a=b"),)) is None
    True
    """
    lines = [f"HTTP/1.1 {status} {_REASONS.get(status, '')}\r\n"]
    for name, value in headers:
        if _FIELD_NAME.fullmatch(name) is None or _FIELD_VALUE.fullmatch(value) is None:
            return None
        lines.append(f"{name}: {value}\r\n")
    return "".join(lines).encode("ascii")
