"""/api/v1/metricnames, /tagnames and /tagvalues; /health, /features and /version."""

from collections.abc import Mapping, Sequence

import msgspec
import trio

from tsd import build_data
from tsd.api.health import Health
from tsd.api.kairosdb.features import FEATURES
from tsd.api.kairosdb.messages import DONE
from tsd.api.messages import answer, check_method
from tsd.codec.names import Kind
from tsd.config.health import OK
from tsd.errors import Refused
from tsd.server.http.messages import Endpoint, Request, Response
from tsd.tables.catalog import SeriesCatalog

MOST_NAMES = 1_000_000  # in an answer
SMALL_LIST = 1_000  # names that are written without a thread
KINDS: Mapping[str, Kind] = {
    "api/metricnames": Kind.METRIC,
    "api/tagnames": Kind.TAGK,
    "api/tagvalues": Kind.TAGV,
}


def name_routes(catalog: SeriesCatalog) -> dict[str, Endpoint]:
    """/api/v1/metricnames, /tagnames and /tagvalues: all names of a kind, or those with the prefix `prefix`, in order
    of their bytes. KairosDB 1.3 lacks the latter two."""

    def endpoint(kind: Kind) -> Endpoint:
        async def names(request: Request) -> Response:
            check_method(request, "GET", "HEAD")
            found = await catalog.suggest(kind, request.param("prefix") or "", MOST_NAMES)
            return await _listed(found)

        return names

    return {path: endpoint(kind) for path, kind in KINDS.items()}


async def _listed(names: Sequence[str]) -> Response:
    value = {"results": names}
    if len(names) <= SMALL_LIST:
        return answer(value)
    return Response(200, await trio.to_thread.run_sync(msgspec.json.encode, value))


def health_routes(health: Health) -> dict[str, Endpoint]:
    """/api/v1/health/check and /health/status."""

    async def endpoint(request: Request) -> Response:
        check_method(request, "GET", "HEAD")
        which = request.segments[1] if len(request.segments) > 1 else ""
        if which not in ("check", "status"):
            raise Refused(404, "Endpoint not found")
        found = await health.check("ready")
        if which == "check":
            return DONE if found["status"] == OK else Response(500, b"", None)
        checks = {"Datastore-Write": found["write"], "Datastore-Query": found["read"]}
        return answer([f"{name}: {'OK' if state == OK else f'FAIL ({state})'}" for name, state in checks.items()])

    return {"api/health": endpoint}


async def _features(request: Request) -> Response:
    check_method(request, "GET", "HEAD")
    if len(request.segments) < 2:
        return answer(FEATURES)
    for feature in FEATURES:
        if feature["name"] == request.segments[1]:
            return answer(feature["properties"])
    raise Refused(404, f"Unknown feature '{request.segments[1]}'")


async def _version(request: Request) -> Response:
    check_method(request, "GET", "HEAD")
    return Response(200, b'{"version": "%s"}\n' % telnet_version().strip())


def telnet_version() -> bytes:
    """Return the reply to telnet's command `version`."""
    return f"KairosDB 1.3.0 (tsd {build_data()['version']})\n".encode()


def plain_routes(*, dialect: bool) -> dict[str, Endpoint]:
    """Return the other endpoints; with `dialect` /api/v1/version is KairosDB's too."""
    version = {"api/version": _version} if dialect else {}
    return {"api/features": _features, **version}
