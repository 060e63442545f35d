"""Requests and responses as endpoints see them: no sockets, no bytes of HTTP, nothing of OpenTSDB's data."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import SplitResult

from tsd.doors.visitor import Visitor, here

JSON = "application/json; charset=UTF-8"
TEXT = "text/plain; charset=UTF-8"
HTML = "text/html; charset=UTF-8"


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
    visitor: Visitor = field(default_factory=here)  # who asks

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
