"""/api/stats/clients: who sends how much, who is refused what, and who makes up names. OpenTSDB has nothing like it."""

from collections.abc import Iterable
from typing import Any

from tsd.api.messages import answer, check_method
from tsd.doors.clients import OTHERS, Client
from tsd.doors.exchange import Endpoint, Request, Response
from tsd.errors import Refused
from tsd.query.durations import MOST_DIGITS

SORTS = (
    "lines", "bytes", "accepted", "refused", "new_names", "new_series", "connections", "connections_total",
    "connections_refused", "paused_ms", "last_seen",
)  # fmt: skip


def ranked(clients: Iterable[Client], by: str, most: int) -> list[dict[str, Any]]:
    """What there is to tell of clients, the greatest first; `most` 0: of all. The sum of others is always last."""
    told = [client.told() for client in clients]
    others = [one for one in told if one["client"] == OTHERS]
    named = sorted((one for one in told if one["client"] != OTHERS), key=lambda one: (-one[by], one["client"]))
    return (named[:most] if most else named) + others


def routes(clients: Iterable[Client]) -> dict[str, Endpoint]:
    """/api/stats/clients?sort=lines&limit=100."""

    async def endpoint(request: Request) -> Response:
        check_method(request, "GET")
        by = request.param("sort") or "lines"
        limit = request.param("limit") or "100"
        if by not in SORTS:
            raise Refused(400, f"Cannot sort by {by!r}", f"Sort by one of {', '.join(SORTS)}")
        if not limit.isascii() or not limit.isdigit() or len(limit) > MOST_DIGITS:
            raise Refused(400, "Unable to parse 'limit' to a whole number")
        return answer(ranked(clients, by, int(limit)))

    return {"api/stats/clients": endpoint}
