"""Requests and responses as endpoints see them: no sockets, no bytes of HTTP, nothing of OpenTSDB's data."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import SplitResult

from tsd.errors import Refused

JSON = "application/json; charset=UTF-8"
TEXT = "text/plain; charset=UTF-8"
HTML = "text/html; charset=UTF-8"

_OVERRIDES = ("GET", "POST", "PUT", "DELETE")


@dataclass(frozen=True)
class Request:
    """One request, its body whole, uncompressed and within its limit."""

    method: str  # as sent: GET, POST …
    path: str  # decoded, as sent
    segments: tuple[str, ...]  # behind /api[/vN]: ("query", "last"), the first two in lower case; of others all
    params: Mapping[str, Sequence[str]]  # decoded; in order of appearance
    headers: Mapping[str, str] = field(default_factory=dict)  # names in lower case
    body: bytes = b""  # UTF-8, whatever it was sent in
    peer: str = ""  # address and port of the client
    is_api: bool = True
    split: SplitResult | None = None  # the target as sent

    def has(self, name: str) -> bool:
        """Whether a parameter is there, whatever its value: OpenTSDB's flags."""
        return name in self.params

    def param(self, name: str) -> str | None:
        """The last value of a parameter, which is the one that counts."""
        values = self.params.get(name)
        return values[-1] if values else None


@dataclass(frozen=True)
class Response:
    """What is answered. A body in parts is sent as it comes, and cannot become an error any more."""

    status: int = 200
    body: bytes | AsyncIterator[bytes] = b""
    content_type: str | None = JSON
    headers: Sequence[tuple[str, str]] = ()


Endpoint = Callable[[Request], Awaitable[Response]]


def json_response(value: Any, status: int = 200) -> Response:
    """A small answer in JSON, its keys in the order that they have."""
    return Response(status, json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace"))


def effective_method(request: Request) -> str:
    """The method that is meant: `method_override` counts on GET only (wire.md §9). Raises Refused."""
    if request.method != "GET" or not request.has("method_override"):
        return request.method
    wanted = (request.param("method_override") or "").upper()
    if not wanted:
        raise Refused(405, "Missing method override value")
    if wanted not in _OVERRIDES:
        raise Refused(405, "Unknown or unsupported method override value")
    return wanted


def allow(method: str, *methods: str) -> None:
    """Raise Refused where `method` is none of an endpoint's."""
    if method not in methods:
        raise Refused(405, "Method not allowed", f"The HTTP method [{method}] is not permitted for this endpoint")


def required(request: Request, name: str) -> str:
    """A parameter that must be there and not be empty; raises Refused."""
    value = request.param(name)
    if not value:
        raise Refused(400, f"Missing parameter <code>{name}</code>")
    return value
