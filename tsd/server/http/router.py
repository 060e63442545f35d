"""Route a request to its endpoint and turn every error into a response in OpenTSDB's form.

The router knows no sockets. Endpoints report errors as `Refused` and do not depend on the router otherwise.
"""

import json
import re
import traceback
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import replace

from tsd.auth.roles import Role
from tsd.errors import Refused, StoreError, TsdError
from tsd.lazy import LazyLogger
from tsd.server.http import pages
from tsd.server.http.messages import HTML, JSON, Endpoint, Request, Response, StreamedBody, Target, closing
from tsd.server.http.security import READ_BY_GET, READS, Authorizer, Decision
from tsd.server.peer import Peer

log = LazyLogger(__name__)

LEGACY_JSON = "application/json"
MAX_CALLBACK_CHARS = 200
_CALLBACK = re.compile(r"[A-Za-z_$][\w$]*(?:\.[A-Za-z_$][\w$]*|\[\d+\])*", re.ASCII)
NOT_FOUND, STORE_FAILED, UNAVAILABLE, INTERNAL = 404, 424, 503, 500
ACCESS_ERRORS = (401, 403, 429)
_CHECKED = frozenset(("serializer", "jsonp"))  # parameters
WITHOUT_BODY = frozenset(  # endpoints that accept POST and read no body
    {"", "aggregators", "api/aggregators", "api/config", "api/serializers", "api/stats", "api/stats/query"}
    | {"api/version", "diediedie", "favicon.ico", "health", "logs", "metrics", "q", "s", "stats", "suggest", "ui"}
    | {"version"}
)
_EMPTY = re.compile(rb"\s*+(?:\{\s*+\}|\[\s*+\]|null)?+\s*+")  # body, as some serializers write it


class Router:
    """All endpoints of a daemon."""

    def __init__(self, routes: Mapping[str, Endpoint], authorizer: Authorizer, *, shows_traces: bool = False) -> None:
        """`shows_traces`: errors carry a stack trace."""
        self._authorizer = authorizer
        self._shows_traces = shows_traces
        self._routes = {key: endpoint for key, endpoint in routes.items() if authorizer.is_enabled(key)}
        self.failures = 0  # internal errors

    def is_http_proxy(self, peer: Peer) -> bool:
        """Return whether a connection belongs to a trusted proxy: its requests have different senders."""
        return self._authorizer.is_http_proxy(peer)

    def decide(self, method: str, target: Target, headers: Mapping[str, str], peer: Peer) -> Awaitable[Decision]:
        """Decide whether a request is allowed, before its body is read: see `Authorizer.decide`."""
        key = self._endpoint_key(target)
        return self._authorizer.decide(key if key in self._routes else None, method, target, headers, peer)

    async def answer(self, request: Request, target: Target, headers: Sequence[tuple[str, str]] = ()) -> Response:
        """Return the response to an allowed request, also if its endpoint fails. Add `headers` to it.

        The first two chunks of a streamed body are ready. A later error ends the connection.
        """
        key = self._endpoint_key(target)
        try:
            if request.method == "OPTIONS":
                return Response(200, b"", None, tuple(headers))
            if target.version:
                target.check_version()
            if not request.params.keys().isdisjoint(_CHECKED):
                _check_serializer(request)
                _check_callback(request)
            endpoint = self._routes.get(key)
            if endpoint is None:
                response = _unknown_endpoint(request, target)
            else:
                if request.body and key in WITHOUT_BODY:
                    _check_no_body(request)
                response = await endpoint(request)
                if not isinstance(response.body, bytes):
                    response = await _start_body(response)
        except Exception as error:  # noqa: BLE001 - the boundary: a failing request gets an error response
            response = self._error_response(error, request, target)
        except BaseException:  # cancelled: the endpoint may have changed something already
            self._audit(key, request, "cancelled")
            raise
        self._audit(key, request, str(response.status))
        if (target.version or not target.is_api) and target.is_legacy:
            response = _in_legacy_form(response)
        if response.content_type in (JSON, LEGACY_JSON) and request.has("jsonp"):
            response = await _as_callback(response, request)
        return replace(response, headers=(*response.headers, *headers)) if headers else response

    def _audit(self, key: str, request: Request, outcome: str) -> None:
        if key in self._routes:
            self._authorizer.audit(key, request, outcome)

    def _endpoint_key(self, target: Target) -> str:
        """Return the key of a target's endpoint: the most specific one that exists, such as api/query/last."""
        if target.is_api and len(target.segments) > 1:
            longer = f"{target.key}/{target.segments[1]}"
            if longer in self._routes:
                return longer
        return target.key

    def is_query(self, method: str, target: Target) -> bool:
        """Return whether a request only reads: its work ends if the client disconnects."""
        key = self._endpoint_key(target)
        if key in READ_BY_GET:
            return method == "GET" and "method_override" not in target.params
        return target.key in READS or key in READS

    def refuse(self, error: Refused, target: Target, headers: Sequence[tuple[str, str]] = ()) -> Response:
        """Return the response to a request that is not allowed or whose body was not read. Add `headers` to it."""
        return replace(_error(error, target), headers=(*error.headers, *headers))

    def refuse_early(self, error: Refused, headers: Mapping[str, str]) -> Response:
        """Return the response to a request that was not read completely or has no valid target. `headers` are the
        request's, as far as they are known."""
        return replace(_api_error(error), headers=(*error.headers, *self._authorizer.early_cors_headers(headers)))

    def _shows_trace(self, request: Request) -> bool:
        """Return whether a response may carry a stack trace: it names files, so only administrators get it."""
        return self._shows_traces and request.peer.principal.may(Role.ADMIN)

    def _error_response(self, error: Exception, request: Request, target: Target) -> Response:
        refused = _as_refused(error, target)
        if refused is None:
            self.failures += 1
            log.error("request.failed", path=request.path, method=request.method, exc_info=error)
            refused = Refused(INTERNAL, str(error) or "An unknown exception occurred")
        elif isinstance(error, StoreError):
            log.warning("request.store_failed", path=request.path, error=str(error))
        trace = "".join(traceback.format_exception(error)) if self._shows_trace(request) else ""
        response = _error(refused, target, trace)
        return replace(response, headers=(*response.headers, *refused.headers)) if refused.headers else response


def _as_refused(error: Exception, target: Target) -> Refused | None:
    """Return the response status and text of an error; None for an internal error."""
    if isinstance(error, ExceptionGroup):  # from an endpoint with tasks: the first known error counts
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
    """Raise Refused for an unknown serializer."""
    name = request.param("serializer")
    if name is not None and request.is_api and name != "json":
        details = f"Could not find a serializer with the name: {name}"
        raise Refused(400, "Requested serializer was not found", details)


def _check_no_body(request: Request) -> None:
    """Raise Refused for a body that would not be read: most likely points, and their sender takes 200 for their
    acknowledgement. Some clients send an empty value, or a body with a GET."""
    if request.method not in ("GET", "HEAD") and not _EMPTY.fullmatch(request.body):
        raise Refused(400, f"got a body of {len(request.body)} bytes, wanted none: points are sent to /api/put")


def _check_callback(request: Request) -> None:
    """Raise Refused if `jsonp` is not a function name: other text could inject a script into this origin."""
    name = request.param("jsonp")
    if name and not _is_function_name(name):
        raise Refused(400, "Invalid callback name", "The parameter jsonp must name a function")


def _is_function_name(text: str) -> bool:
    return len(text) <= MAX_CALLBACK_CHARS and _CALLBACK.fullmatch(text) is not None


async def _start_body(response: Response) -> Response:
    """Return a response with its first chunks ready: an error in them still gets an error response.

    A body of at most one chunk becomes bytes.
    """
    assert not isinstance(response.body, bytes)
    chunks = response.body
    try:
        first = await anext(chunks, b"")
        second = await anext(chunks, None)
    except BaseException:
        async with closing(chunks):  # no response will close it
            raise
    if second is None:
        async with closing(chunks):
            return replace(response, body=first)
    return replace(response, body=StreamedBody(chunks, first=(first, second)))


def _unknown_endpoint(request: Request, target: Target) -> Response:
    if target.key == "plugin":
        return Response(NOT_FOUND, b"", None)
    if not target.is_legacy:
        return _api_error(Refused(NOT_FOUND, "Endpoint not found"))
    if request.has("json"):
        return Response(NOT_FOUND, _json({"err": "Page Not Found"}), LEGACY_JSON)
    return Response(NOT_FOUND, pages.not_found(), HTML)


def _error(error: Refused, target: Target, trace: str = "") -> Response:
    """Return an error in the format of its path: API, legacy JSON or HTML page."""
    if not target.is_legacy:
        return _api_error(error, trace)
    if "json" in target.params:
        return _legacy_json_error(error, trace)
    return _error_page(error, target, trace)


def _api_error(error: Refused, trace: str = "") -> Response:
    body: dict[str, object] = {"code": error.status, "message": error.message}
    if error.details:
        body["details"] = error.details
    if trace:
        body["trace"] = trace
    return Response(error.status, _json({"error": body}))


def _legacy_json_error(error: Refused, trace: str) -> Response:
    if error.status >= INTERNAL:
        return Response(INTERNAL, _json({"err": trace or error.message}), LEGACY_JSON)
    status = error.status if error.status in (NOT_FOUND, 415, *ACCESS_ERRORS) else 400
    return Response(status, _json({"err": error.message}), LEGACY_JSON)


def _error_page(error: Refused, target: Target, trace: str) -> Response:
    if error.status == NOT_FOUND and target.key == "s":
        return replace(_api_error(error), content_type=LEGACY_JSON)
    if error.status == NOT_FOUND:
        return Response(NOT_FOUND, pages.not_found(), HTML)
    if error.status >= INTERNAL:
        return Response(INTERNAL, pages.server_error(error.message, trace), HTML)
    if error.status in ACCESS_ERRORS:
        return Response(error.status, pages.denied(error.message, error.details), HTML)
    return Response(error.status if error.status in (413, 415) else 400, pages.bad_request(error.message), HTML)


def _in_legacy_form(response: Response) -> Response:
    """Return a response as OpenTSDB sends it outside the API: JSON's content type has no charset."""
    return replace(response, content_type=LEGACY_JSON) if response.content_type == JSON else response


async def _as_callback(response: Response, request: Request) -> Response:
    """Return JSON as a call of the function that `jsonp` names."""
    name = request.param("jsonp") or ""
    if not name and response.status < 400:
        if not isinstance(response.body, bytes):
            async with closing(response.body):
                pass  # it will not be sent
        return _api_error(Refused(INTERNAL, "Missing callback name"))
    if not _is_function_name(name):
        return response
    call = name.encode()
    if isinstance(response.body, bytes):
        return replace(response, body=call + b"(" + response.body + b")") if response.body else response
    assert isinstance(response.body, StreamedBody)  # from _start_body
    response.body.enclose(call + b"(", b")")
    return response


def _json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
