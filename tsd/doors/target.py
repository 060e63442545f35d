"""A request's target → its path's parts, the endpoint that they name, and its parameters (wire.md §9)."""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple
from urllib.parse import SplitResult, unquote, unquote_plus

from tsd.errors import Refused

MAX_VERSION = 1
_BAD_ESCAPE = re.compile("%(?![0-9A-Fa-f]{2})")
_DIGITS = 9  # of a version: more are no number of Java's
_PARAMS = re.compile("[&;]")


class Target(NamedTuple):
    """Where a request goes."""

    path: str  # decoded
    is_api: bool
    version: str  # what follows the v of /api/vN; empty where there is none
    key: str  # of the endpoint: "api/put", "q", "" for the home page
    segments: tuple[str, ...]  # behind /api[/vN], the first two in lower case; of other paths all, the first likewise
    params: Mapping[str, Sequence[str]]
    split: SplitResult

    @property
    def is_legacy(self) -> bool:
        """Whether errors are pages, and types of content guessed: everything outside /api, and /api/v0."""
        return not self.is_api or (self.version.isdigit() and int(self.version[:_DIGITS]) == 0)

    def check_version(self) -> None:
        """Raise Refused for a version that is none, or too new."""
        if not self.version:
            return
        if not self.version.isascii() or not self.version.isdigit() or len(self.version) > _DIGITS:
            details = f"API version [{self.version}] cannot be parsed to an integer"
            raise Refused(400, "Invalid API version format supplied", details)
        if int(self.version) > MAX_VERSION:
            details = f"API version [{self.version}] is greater than the max [{MAX_VERSION}]"
            raise Refused(501, "Requested API version is greater than the max implemented", details)


def read_target(text: str) -> Target:
    """The parts of what stands between a request's method and version.

    Raises Refused where it is no path, or an escape in it is none.

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
    params = read_params(query)
    first = parts[0].lower() if parts else ""
    if first != "api":
        return Target(path, False, "", first, (first, *parts[1:]) if parts else (), params, split)
    version = ""
    rest = parts[1:]
    if rest and rest[0][:1] in ("v", "V") and rest[0][1:2].isdigit():
        version, rest = rest[0][1:], rest[1:]
    segments = (*(part.lower() for part in rest[:2]), *rest[2:])
    return Target(path, True, version, f"api/{segments[0]}" if segments else "api", segments, params, split)


def read_params(query: str) -> Mapping[str, Sequence[str]]:
    """The parameters of a query string, each with its values in order; without `=` one is the empty text.

    >>> read_params("a=1%202&b;a=x+y")
    {'a': ['1 2', 'x y'], 'b': ['']}
    """
    found: dict[str, list[str]] = {}
    for part in _PARAMS.split(query) if query else ():
        if part:
            name, _, value = part.partition("=")
            found.setdefault(unquote_plus(name), []).append(unquote_plus(value))
    return found
