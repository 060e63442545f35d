"""What a request may do: who sends it, what its endpoint needs, and whether a foreign page is behind it.

A browser sends what it knows of somebody (a password, a certificate, its place in the network) with requests of any
page that it shows. So what changes something is not done for pages of other origins, unless CORS lets them in.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress

import structlog

from tsd.access.doorkeeper import Doorkeeper
from tsd.access.guesses import MOST_AHEAD_S, TooManyTries
from tsd.access.needs import Need, is_told, needed, suffices, written
from tsd.access.roles import Role
from tsd.doors.cors import Cors
from tsd.doors.exchange import Request
from tsd.doors.target import Target
from tsd.doors.visitor import Visitor
from tsd.errors import Refused

log = structlog.get_logger(__name__)

TOLD_CHARS = 300  # of a target, of one of its parameters and of a body, in the log
READ_BYTES = 64 << 10  # of a body, for those of its parts that matter
MATTERS = (
    "metric", "tagk", "tagv", "name", "uid", "type", "tsuid", "treeid", "treeId", "ruleset", "definition", "branch",
    "id", "query", "m", "queries", "tsuids", "start", "end", "start_time", "end_time", "global", "method_override",
)  # fmt: skip
CHALLENGES = (("WWW-Authenticate", 'Basic realm="tsd", charset="UTF-8"'), ("WWW-Authenticate", 'Bearer realm="tsd"'))
FOREIGN = ("cross-site", "same-site")  # of Sec-Fetch-Site: another origin, be it a neighbour's
_OVERRIDES = ("GET", "POST", "PUT", "DELETE")

Headers = Mapping[str, str]


class Permits:
    """Decides what requests may do."""

    def __init__(self, doorkeeper: Doorkeeper, needs: Mapping[str, Need], cors: Cors) -> None:
        self._doorkeeper = doorkeeper
        self._needs = needs
        self._cors = cors

    def forwards(self, visitor: Visitor) -> bool:
        """Whether it is a proxy's connection."""
        return self._doorkeeper.forwards(visitor.address)

    def sender(self, headers: Headers, visitor: Visitor) -> Visitor:
        """Who is behind a request: who its connection is from, or by what a trusted proxy says. Raises Refused."""
        if not self._doorkeeper.forwards(visitor.address):
            return visitor
        try:
            address = self._doorkeeper.behind(visitor.address, headers)
        except ValueError as error:
            raise Refused(400, "Bad request", f"Whose request it is cannot be told: {error}") from error
        if not self._doorkeeper.admits(address):
            raise Refused(403, "Forbidden", "Nobody is let in from this address")
        if address == visitor.address:
            return visitor
        return visitor.from_behind(address, self._doorkeeper.stranger(address))

    async def identified(self, headers: Headers, visitor: Visitor) -> Visitor:
        """Who sends a request, by what it carries; its connection's visitor where it carries nothing. Raises
        Refused."""
        header = headers.get("authorization")
        if not self._doorkeeper.enabled:
            return visitor
        if header is None:
            if visitor.badge is None or self._doorkeeper.holds(visitor.badge):
                return visitor
            return visitor.known_by(None, self._doorkeeper.stranger(visitor.address))
        if visitor.shown is not None:
            before, known = visitor.shown
            if before == header and known.badge is not None and self._doorkeeper.holds(known.badge):
                return known
        try:
            badge = await self._doorkeeper.by_header(header, visitor.address)
        except TooManyTries as error:
            wait = (("Retry-After", str(int(MOST_AHEAD_S))),)
            raise Refused(429, "Too Many Requests", str(error), headers=wait) from error
        if badge is None:
            raise Refused(401, "Unauthorized", "These credentials let nobody in", headers=CHALLENGES)
        known = visitor.known_by(badge, badge.principal)
        visitor.shown = (header, known)
        return known

    def check(self, key: str, method: str, target: Target, headers: Headers, visitor: Visitor) -> None:
        """Raise Refused where the sender of a request may not ask for the endpoint `key`."""
        _, _, need = self._asked(key, method, target.segments, target.params)
        if not suffices(visitor.principal.roles, need):
            self._doorkeeper.note_refusal(visitor.principal, "http")
            raise self._denied(need, visitor)
        if need and not need & Role.READ:
            self._check_origin(headers)
        if "jsonp" in target.params and visitor.principal.name and not self._may_pad(need, headers, visitor):
            raise _foreign(headers)

    def _asked(
        self, key: str, method: str, segments: Sequence[str], params: Mapping[str, Sequence[str]]
    ) -> tuple[str, str, Role]:
        """The method that is meant, the word behind the endpoint's, and what both need."""
        method, word = _meant(method, params), segments[1].lower() if len(segments) > 1 else ""
        return method, word, needed(self._needs.get(key, Role.ADMIN), method, word)

    def tell(self, key: str, request: Request, outcome: str) -> None:
        """Log a request to the endpoint `key` that was let through, and its outcome, if it is one to be told."""
        method, word, need = self._asked(key, request.method, request.segments, request.params)
        if is_told(key, need, method, word):
            doing = word if word == "assign" else method  # and no other word: they are as many as somebody thinks of
            limited = None if need == Role.ADMIN else f"{key} {doing} {request.visitor.account}"
            _tell(request, outcome, limited)

    def _may_pad(self, need: Role, headers: Headers, visitor: Visitor) -> bool:
        """Whether an answer to somebody who is known may be a script, which any page may load, and read, with what a
        browser keeps of that somebody. Without TLS browsers do not say which page it is: only what strangers may ask
        for as well is then told so."""
        if headers.get("sec-fetch-site", "").strip().lower() == "same-origin":
            return True
        return not _is_foreign(headers) and suffices(self._doorkeeper.stranger(visitor.address).roles, need)

    def _denied(self, need: Role, visitor: Visitor) -> Refused:
        if visitor.principal.name:
            return Refused(403, "Forbidden", f"This needs the role {written(need)}")
        if self._doorkeeper.enabled:
            return Refused(401, "Unauthorized", f"This needs the role {written(need)}", headers=CHALLENGES)
        nobody = f"This needs the role {written(need)}, which nobody has here (tsd.access.anonymous)"
        return Refused(403, "Forbidden", nobody)

    def _check_origin(self, headers: Headers) -> None:
        """Raise Refused for what a foreign page asks. Where CORS has a list, it answers those that say their origin."""
        if _is_foreign(headers) and not self._cors.answers(headers.get("origin")):
            raise _foreign(headers)


def check_deletion(request: Request) -> None:
    """Raise Refused where the body of a question wants rows deleted, and its sender may not have that."""
    if not request.visitor.principal.may(Role.ADMIN):
        raise Refused(403, "Forbidden", "Deleting data needs the role admin")
    if _is_foreign(request.headers):
        raise _foreign(request.headers)
    _tell(request, "begun")


def _tell(request: Request, outcome: str, limited: str | None = None) -> None:
    """One line. Those of one kind and account, which `limited` says, are limited among themselves; None: it is one that
    takes an administrator, and each is told."""
    target = request.path if request.split is None else request.split.geturl()
    log.info(
        "somebody administers",
        _wording=limited and f"somebody administers {limited}",
        account=request.visitor.account or None,
        peer=request.visitor.peer,
        asked=_shortened(f"{request.method} {target}"),
        body=_shortened(request.body.decode("utf-8", "replace")) or None,
        **({"of_it": of_it} if (of_it := _what_matters(request, target, whole=limited is None)) else {}),
        outcome=outcome,
    )


def _what_matters(request: Request, target: str, *, whole: bool) -> str:
    """Of a long target, or body: among others, parameters that nobody reads would hide those that do something.
    `whole`: however long the body is."""
    found: dict[str, object] = {}
    if len(target) > TOLD_CHARS:
        found = {name: values[-1] for name, values in request.params.items() if values}
    if len(request.body) > TOLD_CHARS and (whole or len(request.body) <= READ_BYTES):
        with suppress(ValueError, RecursionError):
            read = json.loads(request.body)
            found |= read if isinstance(read, dict) else {}
    return " ".join(f"{name}={_shortened(str(found[name]))}" for name in MATTERS if name in found)


def _shortened(text: str) -> str:
    """Its beginning and its end, where it is long.

    >>> len(_shortened("a" * 300)), _shortened("a" * 400 + "b").endswith("ab")
    (300, True)
    """
    half = TOLD_CHARS // 2
    return text if len(text) <= TOLD_CHARS else f"{text[:half]} … {text[-half:]}"


def _is_foreign(headers: Headers) -> bool:
    """Whether a page of another origin is behind a request. Browsers say so themselves, over TLS and to this machine;
    else what they say of the page tells."""
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site.strip().lower() in FOREIGN
    origin = headers.get("origin")
    return origin is not None and origin.partition("://")[2].lower() != headers.get("host", "").lower()


def _foreign(headers: Headers) -> Refused:
    told = (
        f"The page of another origin [{headers.get('origin', '')}] may not ask for this (tsd.http.request.cors_domains)"
    )
    return Refused(403, "Forbidden", told)


def _meant(method: str, params: Mapping[str, Sequence[str]]) -> str:
    """The method that endpoints go by."""
    override = params.get("method_override")
    if method != "GET" or not override or override[-1].upper() not in _OVERRIDES:
        return method
    return override[-1].upper()
