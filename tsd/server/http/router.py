"""A request → the endpoint that its path names → a response; whatever goes wrong becomes an error in OpenTSDB's form.

Nothing here knows sockets, and no endpoint knows anything of this but `Refused`.
"""

import json
import re
import traceback
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from dataclasses import replace
from typing import NamedTuple

import structlog

from tsd.access.roles import Role
from tsd.doors import pages
from tsd.doors.cors import Cors
from tsd.doors.exchange import HTML, JSON, Endpoint, Request, Response
from tsd.doors.parts import MadeOf, ended
from tsd.doors.permits import Permits
from tsd.doors.target import Target
from tsd.doors.visitor import Visitor
from tsd.errors import Refused, StoreError, TsdError
from tsd.settings import Mode

log = structlog.get_logger(__name__)

LEGACY_JSON = "application/json"
LONGEST_CALL = 200
_CALL = re.compile(r"[A-Za-z_$][\w$]*(?:\.[A-Za-z_$][\w$]*|\[\d+\])*", re.ASCII)
NOT_FOUND, STORE_FAILED, UNAVAILABLE, INTERNAL = 404, 424, 503, 500
ACCESS = (401, 403, 429)

# wire.md §10: what is not there in which mode. Paths of ours, beyond OpenTSDB's, are there in all.
WRITES = frozenset(
    {"api/annotation", "api/annotations", "api/histogram", "api/put", "api/rollup", "api/tree", "api/uid"}
)
READS = frozenset({"", "api/query", "api/search", "api/suggest", "favicon.ico", "q", "s", "suggest"})
UI = frozenset({"", "aggregators", "diediedie", "favicon.ico", "logs", "q", "s", "stats", "suggest", "version"})


class Rules(NamedTuple):
    """How a daemon answers."""

    mode: Mode = Mode.READ_WRITE
    with_api: bool = True
    with_ui: bool = True
    shows_traces: bool = False


class Dispatcher:
    """All endpoints of a daemon."""

    def __init__(
        self, routes: Mapping[str, Endpoint], rules: Rules, cors: Cors, permits: Permits | None = None
    ) -> None:
        self._rules = rules
        self._cors = cors
        self._permits = permits  # None: everybody may do everything
        self._routes = {key: endpoint for key, endpoint in routes.items() if _is_there(key, rules)}
        self.failures = 0  # errors of ours

    def sender(self, headers: Mapping[str, str], visitor: Visitor) -> Visitor:
        """Who is behind a request that came from `visitor`; raises Refused."""
        return visitor if self._permits is None else self._permits.sender(headers, visitor)

    def serves_others(self, visitor: Visitor) -> bool:
        """Whether it is a trusted proxy's connection: each of its requests is somebody else's."""
        return self._permits is not None and self._permits.forwards(visitor)

    async def admit(self, method: str, target: Target, headers: Mapping[str, str], visitor: Visitor) -> Visitor:
        """Who sends a request of which only the head has come; raises Refused where it may not go on. Browsers ask by
        OPTIONS what they may ask, and show nothing then."""
        if self._permits is None or method == "OPTIONS":
            return visitor
        shown = await self._permits.identified(headers, visitor)
        self._check(method, target, headers, shown)
        return shown

    def _check(self, method: str, target: Target, headers: Mapping[str, str], visitor: Visitor) -> None:
        """Raise Refused where somebody may not ask for this."""
        key = self._key_of(target)
        if self._permits is not None and key in self._routes:
            self._permits.check(key, method, target, headers, visitor)

    async def answer(self, request: Request, target: Target) -> Response:
        """The response to a request, whatever becomes of it. Its first part is there: what fails later ends it."""
        extra: tuple[tuple[str, str], ...] = ()
        key = self._key_of(target)
        try:
            extra = tuple(self._cors.check(request.method, request.headers))
            if request.method == "OPTIONS":
                return Response(200, b"", None, extra)
            target.check_version()
            _check_serializer(request)
            _check_callback(request)
            endpoint = self._routes.get(key)
            if endpoint is None:
                response = _nowhere(request, target)
            else:
                response = await _begun(await endpoint(request))
        except Exception as error:  # noqa: BLE001 - the boundary: a request that fails is answered, and fails alone
            response = self._failed(error, request, target)
        except BaseException:  # cancelled: what it had begun may be done all the same
            self._tell(key, request, "cut off")
            raise
        self._tell(key, request, str(response.status))
        response = _in_legacy_form(response) if target.is_legacy else response
        if response.content_type in (JSON, LEGACY_JSON) and request.has("jsonp"):
            response = await _padded(response, request)
        return replace(response, headers=(*response.headers, *extra)) if extra else response

    def _tell(self, key: str, request: Request, outcome: str) -> None:
        if self._permits is not None and key in self._routes and request.method != "OPTIONS":
            self._permits.tell(key, request, outcome)

    def _key_of(self, target: Target) -> str:
        """Which endpoint a target names: that of its first two words, as of api/query/last, or of the first alone."""
        if target.is_api and len(target.segments) > 1:
            longer = f"{target.key}/{target.segments[1]}"
            if longer in self._routes:
                return longer
        return target.key

    def refuse(self, error: Refused, target: Target | None = None) -> Response:
        """The response to a request that was not read to its end, or has no target."""
        told = _error(error) if target is None else _told(error, target)
        return replace(told, headers=(*told.headers, *error.headers)) if error.headers else told

    def _shows_trace(self, request: Request) -> bool:
        """Traces name files and lines: not for strangers."""
        return self._rules.shows_traces and request.visitor.principal.may(Role.ADMIN)

    def _failed(self, error: Exception, request: Request, target: Target) -> Response:
        refused = _as_refused(error, target)
        if refused is None:
            self.failures += 1
            log.error("a request failed by an error of ours", path=request.path, method=request.method, exc_info=error)
            refused = Refused(INTERNAL, str(error) or "An unknown exception occurred")
        elif isinstance(error, StoreError):
            log.warning("a request failed as the store does", path=request.path, error=str(error))
        trace = "".join(traceback.format_exception(error)) if self._shows_trace(request) else ""
        told = _told(refused, target, trace)
        return replace(told, headers=(*told.headers, *refused.headers)) if refused.headers else told


def _is_there(path: str, rules: Rules) -> bool:
    key = "/".join(path.split("/")[:2])  # what is there of api/query is there of api/query/last
    if rules.mode is Mode.READ_ONLY and key in WRITES:
        return False
    if rules.mode is Mode.WRITE_ONLY and key in READS:
        return False
    if not rules.with_api and key.startswith("api/"):
        return False
    return rules.with_ui or key not in UI


def _as_refused(error: Exception, target: Target) -> Refused | None:
    """What a client is told of an error; None where it is a bug."""
    if isinstance(error, ExceptionGroup):  # of an endpoint with tasks: what one of them ended with
        for inner in error.exceptions:
            if (found := _as_refused(inner, target)) is not None:
                return found
        return None
    if isinstance(error, Refused):
        return error
    if isinstance(error, StoreError):
        return Refused(STORE_FAILED if target.key in READS else UNAVAILABLE, str(error))
    if isinstance(error, TsdError):
        return Refused(400, str(error))
    return None


def _check_serializer(request: Request) -> None:
    """Raise Refused for a form of answers that there is not."""
    name = request.param("serializer")
    if name is not None and request.is_api and name != "json":
        told = f"Could not find a serializer with the name: {name}"
        raise Refused(400, "Requested serializer was not found", told)


def _check_callback(request: Request) -> None:
    """Raise Refused where `jsonp` names no function: any other text would be a script of whoever wrote the link, told
    in our name."""
    name = request.param("jsonp")
    if name and not _names_function(name):
        raise Refused(400, "Invalid callback name", "The parameter jsonp must name a function")


def _names_function(text: str) -> bool:
    return len(text) <= LONGEST_CALL and _CALL.fullmatch(text) is not None


async def _begun(response: Response) -> Response:
    """A response whose first part is there: an error in it can still be told; and what has but one is sent whole."""
    if isinstance(response.body, bytes):
        return response
    parts = response.body
    try:
        first = await anext(parts, b"")
        second = await anext(parts, None)
    except BaseException:
        async with ended(parts):  # nobody else will: there is no response to send
            raise
    if second is None:
        return replace(response, body=first)
    return replace(response, body=MadeOf(_joined(first, second, parts), parts))


async def _joined(first: bytes, second: bytes, parts: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    yield first
    yield second
    async for part in parts:
        yield part


def _nowhere(request: Request, target: Target) -> Response:
    if target.key == "plugin":
        return Response(NOT_FOUND, b"", None)
    if not target.is_legacy:
        return _error(Refused(NOT_FOUND, "Endpoint not found"))
    if request.has("json"):
        return Response(NOT_FOUND, _json({"err": "Page Not Found"}), LEGACY_JSON)
    return Response(NOT_FOUND, pages.not_found(), HTML)


def _told(error: Refused, target: Target, trace: str = "") -> Response:
    """An error in the form that the path has for it."""
    if not target.is_legacy:
        return _error(error, trace)
    if "json" in target.params:
        return _legacy_json(error, trace)
    return _error_page(error, target, trace)


def _error(error: Refused, trace: str = "") -> Response:
    told: dict[str, object] = {"code": error.status, "message": error.message}
    if error.details:
        told["details"] = error.details
    if trace:
        told["trace"] = trace
    return Response(error.status, _json({"error": told}))


def _legacy_json(error: Refused, trace: str) -> Response:
    if error.status >= INTERNAL:
        return Response(INTERNAL, _json({"err": trace or error.message}), LEGACY_JSON)
    status = error.status if error.status in (NOT_FOUND, *ACCESS) else 400
    return Response(status, _json({"err": error.message}), LEGACY_JSON)


def _error_page(error: Refused, target: Target, trace: str) -> Response:
    if error.status == NOT_FOUND and target.key == "s":
        return replace(_error(error), content_type=LEGACY_JSON)
    if error.status == NOT_FOUND:
        return Response(NOT_FOUND, pages.not_found(), HTML)
    if error.status >= INTERNAL:
        return Response(INTERNAL, pages.server_error(error.message, trace), HTML)
    if error.status in ACCESS:
        return Response(error.status, pages.denied(error.message, error.details), HTML)
    return Response(error.status if error.status == 413 else 400, pages.bad_request(error.message), HTML)


def _in_legacy_form(response: Response) -> Response:
    """Outside the API a type of content is guessed from its first bytes, and JSON's has no charset."""
    return replace(response, content_type=LEGACY_JSON) if response.content_type == JSON else response


async def _padded(response: Response, request: Request) -> Response:
    """JSON as a call of the function that `jsonp` names."""
    name = request.param("jsonp") or ""
    if not name and response.status < 400:
        if not isinstance(response.body, bytes):
            async with ended(response.body):
                pass  # nobody will ask for it
        return _error(Refused(INTERNAL, "Missing callback name"))
    if not _names_function(name):
        return response
    call = name.encode()
    if isinstance(response.body, bytes):
        return replace(response, body=call + b"(" + response.body + b")") if response.body else response
    return replace(response, body=MadeOf(_padded_parts(call, response.body), response.body))


async def _padded_parts(call: bytes, parts: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    yield call + b"("
    async for part in parts:
        yield part
    yield b")"


def _json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
