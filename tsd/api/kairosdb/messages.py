"""KairosDB's form of errors, for all of its endpoints."""

from collections.abc import Iterable, Sequence

import msgspec

from tsd.errors import Refused, StoreError
from tsd.query.kairosdb.model import BadRequest
from tsd.server.http.messages import Endpoint, Request, Response

UNAVAILABLE = 503


def errors_response(status: int, messages: Iterable[str], headers: Sequence[tuple[str, str]] = ()) -> Response:
    """Return an error with its messages."""
    return Response(status, msgspec.json.encode({"errors": list(messages)}), headers=headers)


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
