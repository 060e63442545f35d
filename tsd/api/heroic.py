"""POST /write: Heroic's points into any table layout. The body is one series with its points:
`{"series": {"key": …, "tags": {…}, "resource": {…}}, "data": {"type": "points", "data": [[time in ms, value], …]}}`.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Generic, TypeAlias, TypeVar

import msgspec

from tsd.api.kairosdb.body_lines import Collector, ParsedBody, check_brackets
from tsd.api.kairosdb.messages import errors_response, store_body, with_errors
from tsd.api.kairosdb.refused_points import encode, keep_points
from tsd.api.messages import check_method
from tsd.api.points import PutHandler, parse_flags
from tsd.codec.kairosline import put_line
from tsd.codec.putline import illegal
from tsd.errors import BadLine, Refused, json_mistake
from tsd.server.http.messages import Endpoint, Request, Response

POINTS = "points"


class Series(msgspec.Struct):
    """A series of Heroic."""

    key: str
    tags: dict[str, str] = {}
    resource: dict[str, str] = {}


Point: TypeAlias = tuple[int, int | float]  # time in ms, value
P = TypeVar("P")


class Data(msgspec.Struct, Generic[P]):
    """Points of one type."""

    data: list[P]
    type: str = POINTS


class Body(msgspec.Struct, Generic[P]):
    """A request."""

    series: Series
    data: Data[P]


_decoder = msgspec.json.Decoder(Body[Point])
_undecided = msgspec.json.Decoder(Body[msgspec.Raw])  # its points may have wrong types
_point = msgspec.json.Decoder(Point)
_BEGIN, _END = b'"data":[', b"]}}"  # of kept points


def parse_write(body: bytes, *, resource_tags: frozenset[str] | None) -> ParsedBody:
    """Return the put lines of a body, and an error for each point without one. Raise BadLine for what is wrong with the
    whole, Refused for too many or too long points.

    `resource_tags` are stored as a resource; None: everything is a tag.
    """
    check_brackets(body)
    found = _decoded(body)
    if found.data.type != POINTS:
        raise illegal(f"data.type: got {found.data.type!r}, wanted {POINTS!r}")
    lines = Collector()
    points: Sequence[Point | msgspec.Raw] = found.data.data
    head = b'write {"series":%b,"data":{"type":"points",' % msgspec.json.encode(found.series)
    try:
        tags = _tags(found.series, resource_tags)
    except BadLine as error:
        lines.refuse(error, keep_points(head, _BEGIN, map(encode, points), _END))
        return lines.finish()
    for at, point in enumerate(points):
        place = f"data.data[{at}]"
        try:
            time_ms, number = _checked(point) if isinstance(point, msgspec.Raw) else point
            lines.add(put_line(found.series.key, tags.items(), time_ms, number), place)
        except BadLine as error:
            text = str(error).removeprefix("illegal argument: ")
            lines.refuse(BadLine(error.reason, f"{place}: {text}"), keep_points(head, _BEGIN, [encode(point)], _END))
    return lines.finish()


def _decoded(body: bytes) -> Body[Point] | Body[msgspec.Raw]:
    """Return a body; if one of its points has a wrong type, with the text of each. Raise BadLine."""
    try:
        try:
            return _decoder.decode(body)
        except msgspec.ValidationError:
            return _undecided.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise illegal(f"body: {json_mistake(exc)}") from None


def _checked(text: msgspec.Raw) -> Point:
    """Return a point. Raise BadLine."""
    try:
        point: Point = _point.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise illegal(json_mistake(exc)) from None
    return point


def _tags(series: Series, resource_tags: frozenset[str] | None) -> Mapping[str, str]:
    """Return tags and resource as tags. Raise BadLine."""
    if both := sorted(series.tags.keys() & series.resource.keys()):
        raise illegal(f"series: {', '.join(both)} is a tag and in the resource, wanted it once")
    if resource_tags is not None:
        if unknown := sorted(series.resource.keys() - resource_tags):
            raise illegal(f"series.resource: {', '.join(unknown)}: name it in tsd.heroic.resource_tags")
        if wrong := sorted(series.tags.keys() & resource_tags):
            raise illegal(
                f"series.tags: {', '.join(wrong)}: tsd.heroic.resource_tags has it, wanted it in the resource"
            )
    tags = {**series.tags, **series.resource}
    if not tags:
        raise illegal("series: got no tags and no resource, wanted one or more")
    return tags


class WriteEndpoint:
    """/write."""

    def __init__(self, handler: PutHandler, resource_tags: frozenset[str] | None) -> None:
        self._handler = handler
        self._parse = partial(parse_write, resource_tags=resource_tags)

    async def answer(self, request: Request) -> Response:
        """Ingest the points of a request. They are on disk when it is answered, with the parameter `sync` in the store.
        Raise Refused."""
        if len(request.segments) > 1:
            raise Refused(404, "Endpoint not found")
        check_method(request, "POST")
        flags = parse_flags(request)
        await self._handler.throttle(request.peer)
        try:
            errors = await store_body(self._handler, self._parse, self._handler.intake.take, request, flags)
        except BadLine as error:
            return errors_response(400, [str(error).removeprefix("illegal argument: ")])
        return errors or errors_response(200, [])


def routes(handler: PutHandler, resource_tags: frozenset[str] | None) -> dict[str, Endpoint]:
    """Return the endpoint. `resource_tags` are those of Heroic's table, None for other layouts."""
    return {"write": with_errors(WriteEndpoint(handler, resource_tags).answer)}
