"""`/api/suggest` and `/suggest`: names that begin like a text (wire.md §12.2). Dashboards ask them as a user types."""

from collections.abc import Mapping
from typing import Any

from tsd.api.messages import answer, check_method, object_of, required, text_in
from tsd.codec.rowkey import after
from tsd.codec.uid import Kind
from tsd.codec.words import encode_name
from tsd.doors.exchange import Endpoint, Request, Response
from tsd.errors import BadLine, Refused
from tsd.store import Store

FEW = 25  # names, unless more are asked for
MOST = 100_000  # names at once
FIRST, LAST = b"!", b"~"  # what names begin with, for OpenTSDB; it looks no further without a text


def routes(store: Store, uid_table: str) -> dict[str, Endpoint]:
    """The endpoints."""

    async def api(request: Request) -> Response:
        method = check_method(request, "GET", "POST")
        found = await suggest(store, uid_table, **(_in_body(request) if method == "POST" else _in_url(request)))
        return answer(found)

    async def legacy(request: Request) -> Response:
        response = answer(await suggest(store, uid_table, **_in_url(request)))
        return Response(200, response.body, "application/json")

    return {"api/suggest": api, "suggest": legacy}


def _in_url(request: Request) -> dict[str, Any]:
    kind = required(request, "type")
    return _checked({"type": kind, "q": request.param("q"), "max": request.param("max")})


def _in_body(request: Request) -> dict[str, Any]:
    members = object_of(request)
    if not text_in(members, "type"):
        raise Refused(400, "Missing 'type' parameter")
    return _checked(members)


def _checked(members: Mapping[str, Any]) -> dict[str, Any]:
    """What `suggest` takes; raises Refused."""
    kind = text_in(members, "type")
    try:
        limit = int(text_in(members, "max") or "0")
    except ValueError as exc:
        raise Refused(400, "Unable to parse 'max' as a number") from exc
    if kind not in [kind.value for kind in Kind]:
        raise Refused(400, f"Invalid 'type' parameter:{kind}")
    return {"kind": Kind(kind), "prefix": text_in(members, "q"), "limit": limit if limit > 0 else FEW}


async def suggest(store: Store, uid_table: str, kind: Kind, prefix: str, limit: int) -> list[str]:
    """The first names of a kind, in order of their bytes, that begin with `prefix`."""
    limit = min(limit, MOST)
    try:
        text = encode_name(prefix)
    except BadLine:
        return []  # no name has such a letter
    at: bytes | None = text or FIRST
    stop = after(text) if text else LAST
    names: list[str] = []
    while at is not None and len(names) < limit:
        page = await store.page(uid_table, at, stop, limit=min(limit - len(names), 1000), columns=[kind.id_column])
        names += [row.key.decode("latin-1") for row in page.rows]
        at = page.next_start
    return names
