"""The endpoints that accept data points, on the ingest parts of tests; and the recorded requests to them."""

import json
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.unit.ingest.parts import Parts
from tsd.api import put
from tsd.api.points import DEFAULT_LIMITS, BodyLimits, PutHandler, StoreFlush
from tsd.api.put import routes
from tsd.codec.putline import NameRules
from tsd.errors import Refused
from tsd.server.http.messages import Endpoint, Request, Response
from tsd.tables.opentsdb.summaries import HistogramChecker, RollupChecker

Flush = Callable[[], Awaitable[bool]]
VECTORS = json.loads((Path(__file__).parents[2] / "vectors" / "http_vectors.json").read_text())


def handler_of(
    parts: Parts, flush: Flush | None = None, *, timeout_s: float = 10.0, limits: BodyLimits = DEFAULT_LIMITS
) -> PutHandler:
    """As the daemon makes it."""

    async def flush_now() -> bool:
        return await parts.writer.flush(patient=False)

    store = StoreFlush(flush or flush_now, lambda: parts.writer.trouble)
    return PutHandler(parts.intake, store, timeout_s=timeout_s, limits=limits)


def put_of(
    parts: Parts,
    header: str = "",
    flush: Flush | None = None,
    *,
    timeout_s: float = 10.0,
    limits: BodyLimits = DEFAULT_LIMITS,
    special: bytes = b"",
) -> Endpoint:
    """/api/put. `special`: characters allowed in names in addition."""
    handler = handler_of(parts, flush, timeout_s=timeout_s, limits=limits)
    return routes(handler, NameRules(special), header)["api/put"]


def make_request(
    body: object, query: str = "", method: str = "POST", headers: Mapping[str, str] | None = None
) -> Request:
    """A request as the router passes it on. A body that is text is sent as it is."""
    sent = body if isinstance(body, str) else json.dumps(body)
    params = parse_qs(query, keep_blank_values=True)
    return Request(method, "/api/put", ("put",), params, dict(headers or {}), sent.encode())


async def call_endpoint(endpoint: Endpoint, request: Request) -> tuple[int, Any]:
    """Status and JSON of the answer, like the router for errors."""
    try:
        response: Response = await endpoint(request)
    except Refused as error:
        details = {"details": error.details} if error.details else {}
        return error.status, {"error": {"code": error.status, "message": error.message, **details}}
    assert isinstance(response.body, bytes)
    return response.status, json.loads(response.body) if response.body else ""


def recorded_request(vector: Mapping[str, Any]) -> Request:
    """A recorded request."""
    body = "" if vector["body"] is None else vector["body"]
    return make_request(body, urlsplit(vector["path"]).query, vector["method"], vector.get("headers") or {})


def without(answer: Any, loose: list[str]) -> Any:
    """An answer without the members with texts of Java."""
    copy = json.loads(json.dumps(answer))
    for path in loose:
        at = copy
        *way, last = path.split(".")
        for step in way:
            at = at[step]
        at.pop(last, None)
    return copy


def summaries_of(parts: Parts) -> dict[str, Endpoint]:
    """/api/rollup and /api/histogram."""
    handler, rules = handler_of(parts), parts.summary_rules
    rollups = RollupChecker(rules.rollups, rules.names) if rules.rollups else None
    histograms = None if rules.histogram_id is None else HistogramChecker(rules.histogram_id, rules.names)
    return {
        **put.rollup_routes(handler, rollups),
        **put.histogram_routes(handler, histograms),
    }
