"""/api/v1/metadata/SERVICE/SERVICE_KEY[/KEY]: texts that KairosDB's clients keep in addition to their points."""

from collections.abc import Sequence
from urllib.parse import unquote

from tsd.api.kairosdb.messages import DONE
from tsd.api.messages import answer, check_method, parts_after
from tsd.errors import Refused
from tsd.server.http.messages import TEXT, Endpoint, Request, Response
from tsd.tables.catalog import ServiceMetadata

MOST_KEYS = 100_000  # in an answer
VALUE_BYTES = 1 << 20  # of a stored text: Cassandra refuses a write of several MiB
NAME_BYTES = 30_000  # of service and service key together, and of a key: Cassandra takes 65,535
MOST_NAMES = 3  # of a path: service, service key and key
METADATA = "metadata"  # the word before the service in a path


def metadata_routes(services: ServiceMetadata | None, *, read_only: bool) -> dict[str, Endpoint]:
    """Return the endpoint. `services` is None where the tables have no place for it."""

    async def endpoint(request: Request) -> Response:
        method = check_method(request, "GET", "HEAD", "POST", "DELETE")
        names = _names(request)
        if names and names[0].startswith("_"):
            return Response(401, b"", None)  # KairosDB's own, such as the list of its hosts
        if services is None:
            raise Refused(
                501, "Metadata of services has no place in these tables", "It requires tsd.storage.layout = kairosdb"
            )
        if read_only and method in ("POST", "DELETE"):
            raise Refused(403, "Metadata cannot be changed", "This daemon is read-only (tsd.mode = ro)")
        match method, names:
            case "POST", (service, service_key, key):
                await services.put(service, service_key, key, _value(request))
                return DONE
            case "DELETE", (service, service_key, key):
                await services.delete(service, service_key, key)
                return DONE
            case "POST" | "DELETE", _:
                raise Refused(404, "Endpoint not found", f"got {request.path}, wanted /SERVICE/SERVICE_KEY/KEY")
            case _, (service,):
                return answer({"results": await services.service_keys(service, MOST_KEYS)})
            case _, (service, service_key):
                return answer({"results": await services.keys(service, service_key, MOST_KEYS)})
            case _, (service, service_key, key):
                value = await services.get(service, service_key, key)
                if value is None:
                    raise Refused(404, "Key not found")
                return Response(200, value.encode(), TEXT)
            case _:
                raise Refused(404, "Endpoint not found")

    return {"api/metadata": endpoint}


def _names(request: Request) -> Sequence[str]:
    """Return the parts of the path after `metadata`, in the case in which they were sent. Raise Refused."""
    parts = parts_after(request, METADATA)
    if len(parts) > MOST_NAMES:
        raise Refused(404, "Endpoint not found", f"got {len(parts)} names, wanted /SERVICE/SERVICE_KEY/KEY")
    try:
        names = [unquote(part, errors="strict") for part in parts]
    except UnicodeDecodeError:
        raise Refused(400, "Bad path", f"got {request.path!r}, wanted names in UTF-8") from None
    if "" in names:
        raise Refused(404, "Endpoint not found", f"got {request.path}, wanted no empty names")
    place, key = names[:2], names[2:]
    if max(sum(len(name.encode()) for name in part) for part in (place, key)) > NAME_BYTES:
        raise Refused(400, "Names are too long", f"wanted at most {NAME_BYTES} bytes in service and key")
    return names


def _value(request: Request) -> str:
    """Return the text in a request's body. Raise Refused."""
    if len(request.body) > VALUE_BYTES:
        raise Refused(413, "Value is too large", f"got {len(request.body)} bytes, wanted at most {VALUE_BYTES}")
    try:
        return request.body.decode()
    except UnicodeDecodeError as exc:
        raise Refused(400, "Value is not UTF-8", f"at byte {exc.start}") from None
