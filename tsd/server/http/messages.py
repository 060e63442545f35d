"""Requests and responses as endpoints see them: no sockets and no HTTP framing.

`parse_target` turns a request target into path segments, an endpoint key and parameters (docs/compat/wire.md §9).
"""

import re
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import SplitResult, unquote, unquote_plus

from tsd.errors import Refused
from tsd.server.peer import Peer, local_peer

JSON = "application/json; charset=UTF-8"
TEXT = "text/plain; charset=UTF-8"
HTML = "text/html; charset=UTF-8"
WARNINGS = "X-Tsd-Warnings"  # a header: what an answer lacks


@dataclass(slots=True)  # not frozen: its creation would take four times as long
class Request:
    """One request. The body is complete, decompressed and within its limit. It does not change."""

    method: str  # as sent: GET, POST …
    path: str  # percent-decoded, case as sent
    # After /api[/vN]: ("query", "last"), the first two in lower case. Outside the API: all segments.
    segments: tuple[str, ...]
    params: Mapping[str, Sequence[str]]  # percent-decoded, in order of appearance
    headers: Mapping[str, str] = field(default_factory=dict)  # names in lower case
    body: bytes = b""  # UTF-8, also if it was sent in another charset
    is_api: bool = True
    split: SplitResult | None = None  # the target as sent
    peer: Peer = field(default_factory=local_peer)  # the sender

    def has(self, name: str) -> bool:
        """Return whether a parameter is present, with or without a value: one of OpenTSDB's flags."""
        return name in self.params

    def param(self, name: str) -> str | None:
        """Return the last value of a parameter, as OpenTSDB does."""
        values = self.params.get(name)
        return values[-1] if values else None


@dataclass(slots=True)
class Response:
    """A status, a body and headers. It does not change. A body in chunks is sent as it is produced: an error in it ends
    the connection."""

    status: int = 200
    body: bytes | AsyncIterator[bytes] = b""
    content_type: str | None = JSON
    headers: Sequence[tuple[str, str]] = ()


Endpoint = Callable[[Request], Awaitable[Response]]


MAX_API_VERSION = 1
KEPT_TARGETS, SHORT_TARGET = 1000, 300  # number and length of parsed targets, and of parameters, that are cached
DOUBLE_SLASH = "//"  # key of a path that begins with it: no endpoint has this key, and "" is that of the home page
MAX_PARAMS = 4000  # of a target: each takes about 2 us
_BAD_ESCAPE = re.compile("%(?![0-9A-Fa-f]{2})")
_MAX_VERSION_DIGITS = 9  # such a number always fits into Java's int
_PARAM_SEPARATOR = re.compile("[&;]")


class Target(NamedTuple):
    """A parsed request target."""

    path: str  # percent-decoded
    is_api: bool
    version: str  # digits of /api/vN; empty if absent
    key: str  # of the endpoint: "api/put", "q", "" for the home page
    segments: tuple[str, ...]  # see Request.segments
    params: Mapping[str, Sequence[str]]
    split: SplitResult

    @property
    def is_legacy(self) -> bool:
        """Return whether errors are HTML pages and content types are guessed: outside /api, and for /api/v0."""
        return not self.is_api or (self.version.isdecimal() and int(self.version[:_MAX_VERSION_DIGITS]) == 0)

    def check_version(self) -> None:
        """Raise Refused if the API version is not an integer or is too new."""
        if not self.version:
            return
        if not self.version.isascii() or not self.version.isdigit() or len(self.version) > _MAX_VERSION_DIGITS:
            details = f"API version [{self.version}] cannot be parsed to an integer"
            raise Refused(400, "Invalid API version format supplied", details)
        if int(self.version) > MAX_API_VERSION:
            details = f"API version [{self.version}] is greater than the max [{MAX_API_VERSION}]"
            raise Refused(501, "Requested API version is greater than the max implemented", details)


def parse_target(text: str) -> Target:
    """Return a parsed request target; clients often repeat short ones. Raise Refused as `read_target` does."""
    return _read_short_target(text) if len(text) <= SHORT_TARGET else read_target(text)


def read_target(text: str) -> Target:
    """Parse a request target. Raise Refused if it is not a path or has an invalid percent escape.

    >>> read_target("/API/v1/Query/last/?ms&m=sum:a;m=max:b")[1:6]
    (True, '1', 'api/query', ('query', 'last'), {'ms': [''], 'm': ['sum:a', 'max:b']})
    """
    if not text.startswith("/"):
        raise Refused(400, "Bad request", "The target of a request must be a path")
    raw, _, query = text.partition("?")
    if "%" in text and _BAD_ESCAPE.search(text):
        raise Refused(400, "Bad request", "A % in the target is not followed by two hexadecimal digits")
    split = SplitResult("", "", raw, query, "")
    path = unquote(raw) if "%" in raw else raw
    parts = path[1:].split("/")
    while parts and not parts[-1]:
        parts.pop()
    params = parse_params(query)
    first = (parts[0].lower() or DOUBLE_SLASH) if parts else ""
    if first != "api":
        return Target(path, False, "", first, (first, *parts[1:]) if parts else (), params, split)
    version = ""
    rest = parts[1:]
    if rest and rest[0][:1] in ("v", "V") and rest[0][1:2].isdigit():
        version, rest = rest[0][1:], rest[1:]
    segments = (*(part.lower() for part in rest[:2]), *rest[2:])
    return Target(path, True, version, f"api/{segments[0]}" if segments else "api", segments, params, split)


_read_short_target = lru_cache(KEPT_TARGETS)(read_target)


def parse_params(query: str) -> Mapping[str, Sequence[str]]:
    """Return the parameters of a query string, each with its values in order; "" for one without `=`.

    Raise Refused for too many.

    >>> parse_params("a=1%202&b;a=x+y")
    {'a': ['1 2', 'x y'], 'b': ['']}
    """
    found: dict[str, list[str]] = {}
    parts = _PARAM_SEPARATOR.split(query) if query else ()
    if len(parts) > MAX_PARAMS:
        raise Refused(413, "Too many parameters", f"got {len(parts)} in the target, wanted at most {MAX_PARAMS}")
    for part in parts:
        if part:
            if "%" in part or "+" in part:
                name, value = (_unquoted_short if len(part) <= SHORT_TARGET else _unquoted)(part)
            else:
                name, _, value = part.partition("=")
            found.setdefault(name, []).append(value)
    return found


def _unquoted(part: str) -> tuple[str, str]:
    """Return name and value of a parameter."""
    name, _, value = part.partition("=")
    return unquote_plus(name), unquote_plus(value)


_unquoted_short = lru_cache(KEPT_TARGETS)(_unquoted)


@asynccontextmanager
async def closing(chunks: AsyncIterator[bytes]) -> AsyncIterator[AsyncIterator[bytes]]:
    """Iterate body chunks and close the iterator deterministically."""
    try:
        yield chunks
    finally:
        if (close := getattr(chunks, "aclose", None)) is not None:
            await close()


class StreamedBody(AsyncIterator[bytes]):
    """Body chunks from an iterator, with a deterministic close."""

    def __init__(self, chunks: AsyncIterator[bytes], *, first: Iterable[bytes]) -> None:
        """`first` are chunks to send before the others."""
        self._chunks = chunks
        self._first = deque(first)
        self._last = b""

    def enclose(self, prefix: bytes, suffix: bytes) -> None:
        """Send `prefix` before the next chunk and `suffix` after the last one."""
        self._first.appendleft(prefix)
        self._last = suffix

    async def __anext__(self) -> bytes:
        if self._first:
            return self._first.popleft()
        try:
            return await anext(self._chunks)
        except StopAsyncIteration:
            if not self._last:
                raise
            last, self._last = self._last, b""
            return last

    async def aclose(self) -> None:
        """Close the chunks' iterator."""
        async with closing(self._chunks):
            pass
