"""The endpoints that take data points, on the way in of the tests of ingest; and the recorded requests to them."""

import json
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.unit.ingest.parts import Parts
from tsd.api import histogram, rollup
from tsd.api.put import routes
from tsd.api.taking import PointsDoor, Storing
from tsd.codec.putline import NameRules
from tsd.doors.exchange import Endpoint, Request, Response
from tsd.errors import Refused

Flush = Callable[[], Awaitable[bool]]
VECTORS = json.loads((Path(__file__).parents[2] / "vectors" / "http_vectors.json").read_text())


def door_of(parts: Parts, flush: Flush | None = None, *, patience_s: float = 10.0) -> PointsDoor:
    """What the daemon makes."""

    async def flush_now() -> bool:
        return await parts.writer.flush(patient=False)

    return PointsDoor(parts.intake, Storing(flush or flush_now, lambda: parts.writer.trouble), patience_s=patience_s)


def put_of(parts: Parts, header: str = "", flush: Flush | None = None, *, patience_s: float = 10.0) -> Endpoint:
    """/api/put."""
    door = door_of(parts, flush, patience_s=patience_s)
    return routes(door, parts.intake, NameRules(), header)["api/put"]


def asked(body: object, query: str = "", method: str = "POST", headers: Mapping[str, str] | None = None) -> Request:
    """A request as the dispatcher hands it on; a body that is text is sent as it is."""
    sent = body if isinstance(body, str) else json.dumps(body)
    params = parse_qs(query, keep_blank_values=True)
    return Request(method, "/api/put", ("put",), params, dict(headers or {}), sent.encode())


async def told_by(endpoint: Endpoint, request: Request) -> tuple[int, Any]:
    """Status and JSON of the answer, the dispatcher's error body included."""
    try:
        response: Response = await endpoint(request)
    except Refused as error:
        details = {"details": error.details} if error.details else {}
        return error.status, {"error": {"code": error.status, "message": error.message, **details}}
    assert isinstance(response.body, bytes)
    return response.status, json.loads(response.body) if response.body else ""


def request_of(vector: Mapping[str, Any]) -> Request:
    """A recorded request."""
    body = "" if vector["body"] is None else vector["body"]
    return asked(body, urlsplit(vector["path"]).query, vector["method"], vector.get("headers") or {})


def without(answer: Any, loose: list[str]) -> Any:
    """An answer less the members whose text is Java's."""
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
    door = door_of(parts)
    return {**rollup.routes(door, parts.intake), **histogram.routes(door, parts.intake)}
