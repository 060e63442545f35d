"""POST /api/v1/datapoints: KairosDB's points into any table layout."""

from functools import partial

from tsd.api.kairosdb.messages import DONE, errors_response, store_body
from tsd.api.kairosdb.points import parse_body
from tsd.api.messages import check_method
from tsd.api.points import PutHandler, parse_flags
from tsd.codec.kairosline import is_text_line
from tsd.errors import Refused
from tsd.ingest.intake import Taken
from tsd.server.http.messages import Request, Response
from tsd.server.peer import Peer

NO_INPUT = "Invalid json. No content due to end of input."


class DatapointsEndpoint:
    """/api/v1/datapoints."""

    def __init__(self, handler: PutHandler, *, has_ttl: bool, has_texts: bool) -> None:
        self._handler = handler
        self._parse = partial(parse_body, has_ttl=has_ttl, has_texts=has_texts)

    async def answer(self, request: Request) -> Response:
        """Ingest the points of a request. With the parameter `sync` they are in the store when it is answered. Raise
        Refused."""
        if len(request.segments) > 1:  # such as a query in a mode without queries: it is no point
            raise Refused(404, "Endpoint not found")
        check_method(request, "POST")
        flags = parse_flags(request)
        await self._handler.throttle(request.peer)
        if not request.body.strip():
            return errors_response(400, [NO_INPUT])
        errors = await store_body(self._handler, self._parse, self._ingest, request, flags)
        return errors or DONE

    async def _ingest(self, block: bytes, peer: Peer) -> Taken:
        """Ingest the lines of a slice, which are all of numbers or all of texts."""
        intake = self._handler.intake
        return await (intake.take_summaries if is_text_line(block) else intake.take)(block, peer)
