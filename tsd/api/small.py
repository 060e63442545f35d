"""The endpoints that need little: what runs here, what it can do, its home page, and its end."""

from collections.abc import Callable

from tsd.api.messages import answer, check_method
from tsd.build import build_data, version_reply
from tsd.doors import pages
from tsd.doors.exchange import HTML, TEXT, Endpoint, Request, Response
from tsd.ingest import compiled
from tsd.query.names import AGGREGATORS

SERIALIZERS = [
    {
        "serializer": "json",
        "formatters": [],
        "class": "tsd.query.answer",
        "response_content_type": "application/json; charset=UTF-8",
        "request_content_type": "application/json",
        "parsers": [],
    }
]


def routes(drop_caches: Callable[[], None], stop: Callable[[], None], *, may_stop: bool) -> dict[str, Endpoint]:
    """`drop_caches` forgets names; `stop` lets the daemon end once connections have been served."""

    async def drop(request: Request) -> Response:
        check_method(request, "GET", "DELETE")
        drop_caches()
        return answer({"message": "Caches dropped", "status": "200"})

    async def die(_request: Request) -> Response:
        stop()
        return Response(200, pages.exiting(), HTML)

    return {
        "": _home,
        "aggregators": _aggregators,
        "api/aggregators": _aggregators,
        "api/dropcaches": drop,
        "api/serializers": _serializers,
        "api/version": _version,
        "version": _version,
        **({"diediedie": die} if may_stop else {}),
    }


async def _home(_request: Request) -> Response:
    return Response(200, pages.home(build_data()["version"]), HTML)


async def _aggregators(request: Request) -> Response:
    check_method(request, "GET", "POST")
    return answer(AGGREGATORS)


async def _serializers(request: Request) -> Response:
    """What OpenTSDB documents; 2.4.1 answers 404."""
    check_method(request, "GET", "POST")
    return answer(SERIALIZERS)


async def _version(request: Request) -> Response:
    """The fields as an object; at `/version` two lines, unless the URI ends in `json`."""
    check_method(request, "GET", "POST")
    as_json = request.split is not None and request.split.geturl().endswith("json")
    if request.is_api or as_json:
        return answer(build_data())
    return Response(200, version_reply(by_loop=compiled.HAS), TEXT)
