"""KairosDB's form of errors, for all of its endpoints."""

from collections.abc import Iterable, Sequence
from itertools import islice

import msgspec
import trio

from tsd.api.kairosdb.body_lines import ParsedBody
from tsd.api.points import LARGE_FAILURES, PutFailure
from tsd.errors import Refused, StoreError
from tsd.query.kairosdb.model import BadRequest
from tsd.server.http.messages import Endpoint, Request, Response

UNAVAILABLE = 503


def errors_response(status: int, messages: Iterable[str], headers: Sequence[tuple[str, str]] = ()) -> Response:
    """Return an error with its messages."""
    return Response(status, msgspec.json.encode({"errors": list(messages)}), headers=headers)


async def failures_response(failures: list[PutFailure], most: int, parsed: ParsedBody) -> Response:
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
