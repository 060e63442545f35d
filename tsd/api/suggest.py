"""`/api/suggest` and `/suggest`: names that begin with a prefix, for completion in dashboards (docs/compat/wire.md
§12.2)."""

from collections.abc import Mapping
from typing import Any

from tsd.api.messages import answer, check_method, object_of, required, text_in
from tsd.codec.names import Kind
from tsd.errors import Refused
from tsd.server.http.messages import Endpoint, Request, Response
from tsd.tables.catalog import SeriesCatalog

DEFAULT_LIMIT = 25  # suggestions
MAX_LIMIT = 100_000


def routes(catalog: SeriesCatalog, max_limit: int = MAX_LIMIT) -> dict[str, Endpoint]:
    """`/api/suggest` and `/suggest`, which return at most `max_limit` names."""

    async def suggest(kind: Kind, prefix: str, limit: int) -> list[str]:
        return await catalog.suggest(kind, prefix, min(limit, max_limit))

    async def api(request: Request) -> Response:
        is_post = check_method(request, "GET", "POST") == "POST"
        return answer(await suggest(*(_suggestion_in_body(request) if is_post else _suggestion_in_url(request))))

    async def legacy(request: Request) -> Response:
        response = answer(await suggest(*_suggestion_in_url(request)))
        return Response(200, response.body, "application/json")

    return {"api/suggest": api, "suggest": legacy}


def _suggestion_in_url(request: Request) -> tuple[Kind, str, int]:
    kind = required(request, "type")
    return _suggestion({"type": kind, "q": request.param("q"), "max": request.param("max")})


def _suggestion_in_body(request: Request) -> tuple[Kind, str, int]:
    members = object_of(request)
    if not text_in(members, "type"):
        raise Refused(400, "Missing 'type' parameter")
    return _suggestion(members)


def _suggestion(members: Mapping[str, Any]) -> tuple[Kind, str, int]:
    """Return kind, prefix and limit of a request for suggestions. Raise Refused."""
    kind = text_in(members, "type")
    try:
        limit = int(text_in(members, "max") or "0")
    except ValueError as exc:
        raise Refused(400, "Unable to parse 'max' as a number") from exc
    if kind not in [kind.value for kind in Kind]:
        raise Refused(400, f"Invalid 'type' parameter:{kind}")
    return Kind(kind), text_in(members, "q"), limit if limit > 0 else DEFAULT_LIMIT
