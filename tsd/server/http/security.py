"""Authorization of HTTP requests, CORS, and the security headers of responses.

`Authorizer.decide` is the one place that decides whether a request is allowed: from its Host header, its sender, the
permission of its endpoint and its origin. A browser sends a user's credentials (a password, a certificate, an allowed
address) with the requests of any page. Requests that change something are therefore refused for pages of other origins,
unless CORS allows them (docs/compat/wire.md §9.3). `Authorizer.is_enabled` decides which endpoints exist.
"""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from hashlib import sha256
from types import MappingProxyType
from typing import NamedTuple

from tsd.auth.authenticator import Authenticator
from tsd.auth.hosts import ANY_HOST
from tsd.auth.roles import Permission, Role, describe_roles, is_audited, is_change, is_permitted, required_roles
from tsd.auth.throttle import MAX_WAIT_S, TooManyAttempts
from tsd.config.settings import Mode
from tsd.errors import Refused
from tsd.lazy import LazyLogger
from tsd.server.http.bodies import parse_json
from tsd.server.http.messages import WARNINGS, Request, Target
from tsd.server.http.pages import STYLE
from tsd.server.http.plain import response_fields
from tsd.server.peer import Peer

log = LazyLogger(__name__)


METHODS = "GET, POST, PUT, DELETE"
EXPOSED = f"Retry-After, {WARNINGS}"  # headers that browsers otherwise hide from pages of other origins


class Cors:
    """The allowed origins: `*` for all, empty for none."""

    def __init__(self, domains: str, headers: str) -> None:
        self._domains = frozenset(domain.strip().upper() for domain in domains.split(",") if domain.strip())
        self._headers = headers

    def decides(self, origin: str | None) -> bool:
        """Return whether `check` decides for pages of this origin, or for requests without one."""
        return "*" in self._domains if not origin else bool(self._domains)

    def check(self, method: str, headers: Mapping[str, str]) -> None:
        """Raise Refused for a request without `response_headers`: with status 405 for OPTIONS, and with status 200, as
        OpenTSDB does, if a page of a foreign origin sent it."""
        origin = headers.get("origin")
        if origin and self._domains and _is_cross_origin(headers):
            raise Refused(200, "CORS domain not allowed", f"The domain [{origin}] is not permitted access")
        if method == "OPTIONS":
            raise Refused(405, "Method not allowed", "The HTTP method [OPTIONS] is not permitted")

    def response_headers(self, headers: Mapping[str, str]) -> Sequence[tuple[str, str]]:
        """Return the headers by which a page of an allowed origin may read the response to its request."""
        origin = headers.get("origin")
        if not origin or not self._domains or ("*" not in self._domains and origin.upper() not in self._domains):
            return ()
        return (
            ("Access-Control-Allow-Origin", origin),
            ("Access-Control-Allow-Methods", METHODS),
            ("Access-Control-Allow-Headers", self._headers),
            ("Access-Control-Expose-Headers", EXPOSED),
            ("Vary", "Origin"),
        )

    def early_headers(self, headers: Mapping[str, str]) -> Sequence[tuple[str, str]]:
        """Return the headers of `response_headers` for a request whose headers may be unknown, and empty then."""
        if headers or "*" not in self._domains:
            return self.response_headers(headers)
        return (("Access-Control-Allow-Origin", "*"),)


NO_CORS = Cors("", "")
MAX_SHOWN_HOST = 300
USUAL_HEADS = 100  # of responses, that are kept
LOGGED_CHARS = 300  # of a target, a parameter or a body
LOGGED_BODY_BYTES = 64 << 10  # a larger body is not parsed for the audit log, unless only administrators may send it
LOGGED_PARAMETERS = (
    "metric", "tagk", "tagv", "name", "uid", "type", "tsuid", "treeid", "treeId", "ruleset", "definition", "branch",
    "id", "query", "m", "queries", "tsuids", "start", "end", "start_time", "end_time", "global", "method_override",
)  # fmt: skip
CHALLENGES = (("WWW-Authenticate", 'Basic realm="tsd", charset="UTF-8"'), ("WWW-Authenticate", 'Bearer realm="tsd"'))
SCRIPT_HEADER = "x-requested-with"  # of requests by scripts: a browser then asks for no password
CROSS_ORIGIN = ("cross-site", "same-site")  # of Sec-Fetch-Site: same-site includes other hosts of the domain
_OVERRIDES = ("GET", "POST", "PUT", "DELETE")

Headers = Mapping[str, str]


# Endpoints that a mode or switch disables (docs/compat/wire.md §10). Endpoints beyond OpenTSDB's exist in every mode.
WRITES = frozenset(
    {"api/annotation", "api/annotations", "api/histogram", "api/put", "api/rollup", "api/tree", "api/uid"}
    | {"api/datapoints", "api/metric", "write"}
)
READS = frozenset(
    {"", "api/query", "api/search", "api/suggest", "favicon.ico", "q", "s", "suggest", "ui"}
    | {"api/datapoints/query", "api/metricnames", "api/tagnames", "api/tagvalues"}
)
READ_BY_GET = frozenset({"api/entity"})  # endpoints that read and write
UI = frozenset({"", "aggregators", "diediedie", "favicon.ico", "logs", "q", "s", "stats", "suggest", "ui", "version"})


class EndpointSwitches(NamedTuple):
    """Settings that disable endpoints."""

    mode: Mode = Mode.READ_WRITE
    with_api: bool = True
    with_ui: bool = True


ALL_ENDPOINTS = EndpointSwitches()


class Decision(NamedTuple):
    """Whether a request is allowed."""

    sender: Peer  # of a refused request as far as it is known
    headers: Sequence[tuple[str, str]] = ()  # for the response: those of CORS
    refused: Refused | None = None


class Authorizer:
    """Decides which requests are allowed."""

    def __init__(
        self,
        cors: Cors,
        authenticator: Authenticator | None = None,
        permissions: Mapping[str, Permission] = MappingProxyType({}),
        switches: EndpointSwitches = ALL_ENDPOINTS,
    ) -> None:
        """`permissions` are by endpoint; an endpoint without one needs the role admin. Without an `authenticator` every
        sender may do everything."""
        self._cors = cors
        self._authenticator = authenticator
        self._permissions = permissions
        self._switches = switches
        self.hosts = ANY_HOST

    def is_enabled(self, key: str) -> bool:
        """Return whether the endpoint `key` exists in this mode."""
        mode, with_api, with_ui = self._switches
        if key not in READS:
            key = "/".join(key.split("/")[:2])  # api/query/last is enabled and disabled with api/query
        if mode is Mode.READ_ONLY and key in WRITES:
            return False
        if mode is Mode.WRITE_ONLY and key in READS:
            return False
        if not with_api and key.startswith("api/"):
            return False
        return with_ui or key not in UI

    def is_http_proxy(self, peer: Peer) -> bool:
        """Return whether a connection belongs to a trusted HTTP proxy: its requests have different senders."""
        return self._authenticator is not None and self._authenticator.is_http_proxy(peer.address)

    def early_cors_headers(self, headers: Headers) -> Sequence[tuple[str, str]]:
        """Return the headers by which the sending page may read the response. `headers` are empty if unknown."""
        return self._cors.early_headers(headers)

    async def decide(self, key: str | None, method: str, target: Target, headers: Headers, peer: Peer) -> Decision:
        """Decide whether a request to the endpoint `key`, on the connection of `peer`, is allowed. None: there is no
        such endpoint. The body of the request need not be read."""
        sender, allowed = peer, self._cors.response_headers(headers)
        try:
            self._check_host(headers, peer)
            if (authenticator := self._authenticator) is not None:
                if authenticator.is_http_proxy(peer.address):
                    sender = self._behind_proxy(authenticator, headers, peer)
                if method != "OPTIONS":  # browsers send it without credentials
                    if authenticator.enabled:
                        sender = await self._authenticated(authenticator, headers, sender)
                    if key is not None:
                        self._check_permission(authenticator, key, method, target, headers, sender)
            if not allowed:
                self._cors.check(method, headers)
        except Refused as error:
            return Decision(sender, allowed, error)
        return Decision(sender, allowed)

    def _check_host(self, headers: Headers, peer: Peer) -> None:
        """Raise Refused for a foreign Host header."""
        if not self.hosts.allows(host := headers.get("host", "")):
            shown = host[:MAX_SHOWN_HOST]
            log.warning("request.foreign_host", host=shown, peer=peer.name)
            raise Refused(403, "Forbidden", f"The Host header [{shown}] is not in tsd.http.hosts")

    @staticmethod
    def _behind_proxy(authenticator: Authenticator, headers: Headers, peer: Peer) -> Peer:
        """Return the sender of a request on the connection of a trusted proxy.

        Raise Refused if the proxy's headers are invalid or the client's address is not allowed.
        """
        try:
            address = authenticator.client_address(peer.address, headers)
        except ValueError as error:
            raise Refused(400, "Bad request", f"The proxy's headers name no client: {error}") from error
        if not authenticator.is_allowed(address):
            raise Refused(403, "Forbidden", "Requests from this address are not allowed")
        if address == peer.address:
            return peer
        return peer.behind_proxy(address, authenticator.anonymous(address))

    def _check_permission(
        self, authenticator: Authenticator, key: str, method: str, target: Target, headers: Headers, sender: Peer
    ) -> None:
        """Raise Refused unless `sender` may send this request from this origin."""
        needed = self._permissions.get(key, Role.ADMIN)
        if not isinstance(needed, Role):  # it depends on the method
            _, _, needed = self._permission(key, method, target.segments, target.params)
        if not is_permitted(sender.principal.roles, needed):
            authenticator.count_refusal(sender.principal, sender.address, "http", is_write=needed is Role.WRITE)
            raise _denied(needed, sender, _challenges(headers) if authenticator.enabled else ())
        if is_change(needed) and _is_cross_origin(headers) and not self._cors.decides(headers.get("origin")):
            raise _refused_origin(headers)
        if "jsonp" in target.params and sender.principal.name:
            anonymous = authenticator.anonymous(sender.address)
            if not _may_use_jsonp(headers, is_public=is_permitted(anonymous.roles, needed)):
                raise _refused_origin(headers)

    @staticmethod
    async def _authenticated(authenticator: Authenticator, headers: Headers, peer: Peer) -> Peer:
        """Return the peer that a request's credentials name; without credentials the connection's peer. For accounts.

        Raise Refused for wrong credentials, and for too many attempts.
        """
        header = headers.get("authorization")
        if header is None:
            if peer.session is None or authenticator.is_valid(peer.session):
                return peer
            return peer.authenticated_as(None, authenticator.anonymous(peer.address))
        if peer.last_credentials is not None:
            last_header, known = peer.last_credentials
            if last_header == header and known.session is not None and authenticator.is_valid(known.session):
                return known
        try:
            session = await authenticator.authenticate_header(header, peer.address)
        except TooManyAttempts as error:
            wait = (("Retry-After", str(int(MAX_WAIT_S))),)
            raise Refused(429, "Too Many Requests", str(error), headers=wait) from error
        if session is None:
            raise Refused(401, "Unauthorized", "The credentials are not valid", headers=_challenges(headers))
        known = peer.authenticated_as(session, session.principal)
        peer.last_credentials = (header, known)
        return known

    def _permission(
        self, key: str, method: str, segments: Sequence[str], params: Mapping[str, Sequence[str]]
    ) -> tuple[str, str, Role]:
        """Return a request's effective method, the segment after its endpoint, and the roles of which it needs one."""
        method, word = _effective_method(method, params), segments[1].lower() if len(segments) > 1 else ""
        return method, word, required_roles(self._permissions.get(key, Role.ADMIN), method, word)

    def audit(self, key: str, request: Request, outcome: str) -> None:
        """Log an allowed request to the endpoint `key` if it is administrative."""
        if self._authenticator is None or request.method == "OPTIONS":
            return
        if request.method == "GET" and self._permissions.get(key) is Role.READ and not request.has("method_override"):
            return  # as most requests
        method, word, needed = self._permission(key, request.method, request.segments, request.params)
        if is_audited(key, needed, method, word):
            # Clients choose other segments freely: only this one may be part of a key of log limits.
            action = word if word == "assign" else method
            limit_key = None if needed == Role.ADMIN else f"{key} {action} {request.peer.account}"
            log_action(request, outcome, limit_key)


def _may_use_jsonp(headers: Headers, *, is_public: bool) -> bool:
    """Return whether an authenticated sender may get its response as a script (JSONP).

    A page of any origin can load a script with the credentials that the browser has saved, and read it. Without TLS
    the page's origin may be unknown: then JSONP returns only what unauthenticated clients may read (`is_public`).
    """
    if headers.get("sec-fetch-site", "").strip().lower() == "same-origin":
        return True
    return not _is_cross_origin(headers) and is_public


def _challenges(headers: Headers) -> tuple[tuple[str, str], ...]:
    """Return the challenges for a request. Scripts get none that makes a browser ask for a password."""
    return CHALLENGES[1:] if SCRIPT_HEADER in headers else CHALLENGES


def _denied(needed: Role, peer: Peer, challenges: tuple[tuple[str, str], ...]) -> Refused:
    """Return the refusal of a request without a needed role. `challenges`: none if senders cannot sign in."""
    text = f"This needs the role {describe_roles(needed)}"
    if peer.principal.name:
        return Refused(403, "Forbidden", text)
    if challenges:
        return Refused(401, "Unauthorized", text, headers=challenges)
    return Refused(403, "Forbidden", f"{text}, which tsd.access.anonymous does not grant")


def check_deletion(request: Request, cors: Cors) -> None:
    """Raise Refused unless the sender of a query with `delete` in its body may delete, from a page of its origin. Logs
    an allowed deletion.

    `Authorizer.decide` cannot decide this, because the body was not read yet.
    """
    if not request.peer.principal.may(Role.ADMIN):
        raise Refused(403, "Forbidden", "Deleting data needs the role admin")
    if _is_cross_origin(request.headers) and not cors.decides(request.headers.get("origin")):
        raise _refused_origin(request.headers)
    log_action(request, "started")


def log_action(request: Request, outcome: str, limit_key: str | None = None) -> None:
    """Log one administrative request.

    Requests with the same `limit_key` share a rate limit in the log. None: only administrators may send the request,
    and it is always logged.
    """
    target = request.path if request.split is None else request.split.geturl()
    log.info(
        "admin.action",
        _limit_key=limit_key and f"admin.action {limit_key}",
        account=request.peer.account or None,
        peer=request.peer.name,
        action=_shortened(f"{request.method} {target}"),
        body=_shortened(request.body.decode("utf-8", "replace")) or None,
        parameters=_logged_parameters(request, target, any_size=limit_key is None) or None,
        outcome=outcome,
    )


def _logged_parameters(request: Request, target: str, *, any_size: bool) -> str:
    """Return the effective parameters of a long target or body: padding could hide them in the shortened text.

    `any_size`: parse every body that an endpoint may have parsed.
    """
    found: dict[str, object] = {}
    if len(target) > LOGGED_CHARS:
        found = {name: values[-1] for name, values in request.params.items() if values}
    if len(request.body) > LOGGED_CHARS and (any_size or len(request.body) <= LOGGED_BODY_BYTES):
        with suppress(ValueError, Refused):
            read = parse_json(request.body)
            found |= read if isinstance(read, dict) else {}
    return " ".join(f"{name}={_shortened(str(found[name]))}" for name in LOGGED_PARAMETERS if name in found)


def _shortened(text: str) -> str:
    """Return the beginning and the end of a long text.

    >>> len(_shortened("a" * 300)), _shortened("a" * 400 + "b").endswith("ab")
    (300, True)
    """
    half = LOGGED_CHARS // 2
    return text if len(text) <= LOGGED_CHARS else f"{text[:half]} … {text[-half:]}"


def _is_cross_origin(headers: Headers) -> bool:
    """Return whether a page of another origin sent a request.

    Browsers send Sec-Fetch-Site over TLS and to localhost; otherwise Origin and Host are compared.
    """
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site.strip().lower() in CROSS_ORIGIN
    origin = headers.get("origin")
    return origin is not None and origin.partition("://")[2].lower() != headers.get("host", "").lower()


def _refused_origin(headers: Headers) -> Refused:
    origin = headers.get("origin", "")
    details = f"A page of another origin [{origin}] may not send this request (tsd.http.request.cors_domains)"
    return Refused(403, "Forbidden", details)


def _effective_method(method: str, params: Mapping[str, Sequence[str]]) -> str:
    """Return the method that endpoints see: `method_override` may replace GET."""
    override = params.get("method_override")
    if method != "GET" or not override or override[-1].upper() not in _OVERRIDES:
        return method
    return override[-1].upper()


Header = tuple[str, str]

NOSNIFF = ("X-Content-Type-Options", "nosniff")
_STYLE = f"'sha256-{b64encode(sha256(STYLE.encode()).digest()).decode()}'"  # the only style sheet, that of `pages`
CONTENT_POLICY = (
    "Content-Security-Policy",
    f"default-src 'none'; style-src {_STYLE}; img-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
)
STATIC_CONTENT_POLICY = (
    "Content-Security-Policy",
    "frame-ancestors 'self'",
)  # the operator's static pages may run scripts
NO_STORE = ("Cache-Control", "no-store")
NO_FRAMES = (("X-Frame-Options", "DENY"), ("Referrer-Policy", "no-referrer"))
_ALL_ADDED = (NOSNIFF, CONTENT_POLICY, *NO_FRAMES, NO_STORE)


def security_headers(own: Sequence[Header], *, script: bool, hsts_s: int) -> list[Header]:
    """Return the headers to add to a response's `own`: a browser must not run, frame, cache or leak its content.

    `script`: the response is a script, which nosniff would block. `hsts_s`: the max-age of HSTS; 0: none.
    """
    if not own and not script and not hsts_s:  # as of most responses
        return list(_ALL_ADDED)
    names = {name.lower() for name, _ in own}
    found = [] if script else [NOSNIFF]
    if CONTENT_POLICY[0].lower() not in names:
        found += [CONTENT_POLICY, *NO_FRAMES]
    if NO_STORE[0].lower() not in names:
        found.append(NO_STORE)
    if hsts_s:
        found.append(("Strict-Transport-Security", f"max-age={hsts_s}"))
    return found


@lru_cache(USUAL_HEADS)
def usual_fields(status: int, content_type: str | None, hsts_s: int) -> bytes | None:
    """Return status line and headers of a response without own headers, see `response_fields`."""
    if content_type is None:
        return response_fields(status, ())
    return response_fields(status, (("Content-Type", content_type), *security_headers((), script=False, hsts_s=hsts_s)))
