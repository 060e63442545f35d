"""KairosDB's form of errors, for all of its endpoints, and the answer to a body of points."""

from collections.abc import Callable, Iterable, Sequence
from itertools import islice

import msgspec
import trio

from tsd.api.kairosdb.body_lines import ParsedBody
from tsd.api.points import LARGE_FAILURES, Ingest, PutFailure, PutFlags, PutHandler
from tsd.errors import Refused, StoreError
from tsd.query.kairosdb.model import BadRequest
from tsd.server.http.messages import Endpoint, Request, Response

UNAVAILABLE = 503
SMALL_BODY = 2_000  # bytes that are parsed without a thread
DONE = Response(204)  # with a Content-Type, as KairosDB's Java client fails without it


def errors_response(status: int, messages: Iterable[str], headers: Sequence[tuple[str, str]] = ()) -> Response:
    """Return an error with its messages."""
    return Response(status, msgspec.json.encode({"errors": list(messages)}), headers=headers)


async def store_body(
    handler: PutHandler, parse: Callable[[bytes], ParsedBody], ingest: Ingest, request: Request, flags: PutFlags
) -> Response | None:
    """Ingest the points of a body, and return their errors; None if there are none. Raise Refused, and what `parse`
    raises."""
    body = request.body
    parsed = parse(body) if len(body) <= SMALL_BODY else await trio.to_thread.run_sync(parse, body)
    wanted = PutFlags(summary=False, details=True, sync=flags.sync, timeout_ms=flags.timeout_ms)
    outcome = await handler.store(parsed.slices, wanted, parsed.points, ingest, request, parsed.kept)
    if outcome.refused:
        return await _failures_response(outcome.refused, handler.limits.shown_errors, parsed)
    if late := [*outcome.unstored, *outcome.late]:
        raise Refused(503, f"{len(late)} points are accepted, but not in the store yet: {late[0].error}")
    return None


async def _failures_response(failures: list[PutFailure], most: int, parsed: ParsedBody) -> Response:
    """Return the errors of up to `most` points of a body, and free both.

    This is done in a thread for many points: to write and to free thousands of errors takes long.
    """

    def respond() -> Response:
        try:
            return errors_response(400, map(_message, islice(failures, most)))
        finally:
            failures.clear()
            parsed.clear()

    return respond() if len(failures) <= LARGE_FAILURES else await trio.to_thread.run_sync(respond)


def _message(failure: PutFailure) -> str:
    """Return the error of a point, which names the point."""
    place = (failure.datapoint or {}).get("point")
    return failure.error if place is None or failure.error.startswith(place) else f"{place}: {failure.error}"


def with_errors(endpoint: Endpoint) -> Endpoint:
    """Return an endpoint whose errors have KairosDB's form."""

    async def answer(request: Request) -> Response:
        try:
            return await endpoint(request)
        except BadRequest as error:
            return errors_response(error.status, error.messages)
        except Refused as error:
            if error.status == 405:
                return Response(405, b"", None, error.headers)
            return errors_response(error.status, filter(None, (error.message, error.details)), error.headers)
        except StoreError as error:
            return errors_response(UNAVAILABLE, [str(error)])

    return answer
