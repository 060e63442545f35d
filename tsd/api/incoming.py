"""The frame of /api/put, /api/rollup and /api/histogram: a body of data points in, their refusals and counts out.

What a point says is kept as the text it was sent as, because that text decides how its number is stored. Nothing of a
body is taken in before all of it was read: JSON that is none refuses the whole request.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from itertools import chain, islice
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec
import trio

from tsd.api.messages import not_allowed
from tsd.codec.putline import Tags, illegal
from tsd.codec.words import encode_name, parse_long
from tsd.doors.exchange import Request, Response
from tsd.errors import BadLine, Refused, bare

T = TypeVar("T")
P = TypeVar("P")
Tag = tuple[str, str]
SLICE_BYTES = 128 << 10  # of a body, read in one go: some 2 ms
SLICE_BRACES = 6000  # of one that has more, the points say next to nothing, and each takes as long as any other
WHOLE_BYTES = 1 << 20  # the most that is read at once where no place for a cut is found: some 100 ms
MOST_REFUSED = 50_000  # points of a request, before it is refused as a whole
MOST_SHOWN = 10_000  # errors in an answer
HIGHEST_INT = (1 << 31) - 1
_CUT = re.compile(rb"\}\s*(,)\s*\{")
BAD_POINTS = "One or more data points had errors"
SEE_DETAILS = 'Please see the TSD logs or append "details" to the put request'
BAD_JSON = "Unable to parse the given JSON"
_NO_JSON = (ValueError, msgspec.DecodeError, RecursionError)
_ABSENT = msgspec.Raw(b"null")


class Flags(NamedTuple):
    """What the sender wants to know."""

    summary: bool
    details: bool
    sync: bool
    timeout_ms: int  # 0: none


class Reading(msgspec.Struct, gc=False):
    """One data point's members, unread."""

    metric: msgspec.Raw = _ABSENT
    timestamp: msgspec.Raw = _ABSENT
    value: msgspec.Raw = _ABSENT
    tags: dict[str, msgspec.Raw] | None = None


class Point(NamedTuple):
    """One data point, its members as texts. None: absent, or null."""

    metric: str | None
    timestamp: int  # 0: absent
    value: str | None
    tags: Mapping[str, str | None] | None

    def echo(self, error: str = "") -> dict[str, Any]:
        """As an answer shows it beside an error."""
        del error
        members = {"metric": self.metric, "timestamp": self.timestamp, "value": self.value, "tags": self.tags}
        return {name: member for name, member in members.items() if member is not None}


class Piece(NamedTuple):
    """A part of a body, read."""

    text: bytes  # the JSON, for the points of an answer
    lines: bytes  # as the telnet port takes them
    points: Sequence[int]  # which point each line says
    refused: Mapping[int, BadLine]  # points that no line says, and why
    size: int  # points


class Shown(Protocol):
    """What an answer can show: a point of any of the endpoints."""

    def echo(self, error: str) -> dict[str, Any]:
        """As an answer shows it beside an error."""


class Failure(NamedTuple):
    """A data point that is not stored, and why."""

    datapoint: dict[str, Any] | None
    error: str


UNSHOWN = Failure(None, "")  # of which only the count is told


class Outcome(NamedTuple):
    """What became of a request's points."""

    taken: int  # into the journal
    refused: Sequence[Failure]  # before the store was asked
    unstored: Sequence[Failure] = ()  # what the store did not take, `sync` only
    late: Sequence[Failure] = ()  # of which nothing was known when `sync_timeout` had passed


def flags_of(request: Request) -> Flags:
    """What a request's parameters ask for; raises Refused as OpenTSDB does, which heeds no `method_override` here."""
    if request.method != "POST":
        raise not_allowed(request.method)
    text = request.param("sync_timeout")
    try:
        timeout_ms = int(text) if text is not None else 0
        if abs(timeout_ms) > HIGHEST_INT:
            raise ValueError(text)
    except ValueError:
        raise Refused(500, f'For input string: "{text}"') from None
    return Flags(request.has("summary"), request.has("details"), request.has("sync"), timeout_ms)


def header_tag(request: Request, header: str) -> Tag | None:
    """The tag that a header gives to every point of the request (`tsd.http.header_tag`); raises Refused."""
    text = request.headers.get(header.lower()) if header else None
    if text is None:
        return None
    tagk, _, tagv = text.partition("=")
    if not tagk or not tagv or "=" in tagv:
        raise Refused(500, f"invalid tag: {text}")
    return tagk, tagv


async def read_slices(body: bytes, read: Callable[[bytes], Piece]) -> list[Piece]:
    """What `read` makes of the body's array of points (one object is an array of one), in parts where it is large, so
    that others run in between. `read` gets JSON, and raises ValueError or msgspec's DecodeError where it is none.
    Raises Refused.

    A cut is tried where one object seems to end and the next to begin. Were it within a string or another object, the
    piece before it would be no JSON: then the body is read whole, if it is not too large for that.
    """
    text = body.strip()
    if not text:
        raise Refused(400, "Missing request content")
    if text[:1] == b"{":
        text = b"[" + text + b"]"
    elif text[:1] != b"[":
        raise Refused(400, "The JSON must start as an object or an array")
    try:
        if len(text) > 2 * SLICE_BYTES:
            with suppress(*_NO_JSON) if len(text) <= WHOLE_BYTES else nullcontext():
                return await _read_pieces(text, read)
        return [_checked(read(text), 0)]
    except _NO_JSON as exc:
        raise Refused(400, BAD_JSON, str(exc)) from exc


async def _read_pieces(text: bytes, read: Callable[[bytes], Piece]) -> list[Piece]:
    found: list[Piece] = []
    start, refused = 1, 0
    while start < len(text):
        most = SLICE_BYTES if text.count(b"}", start, start + SLICE_BYTES) <= SLICE_BRACES else SLICE_BYTES // 8
        cut = _next_cut(text, start + most)
        if cut - start > WHOLE_BYTES:
            raise ValueError(f"no end of a data point within {WHOLE_BYTES} bytes")
        piece = read(b"[" + text[start:cut] + (b"]" if cut < len(text) else b""))
        found.append(_checked(piece, refused))
        refused += len(piece.refused)
        start = cut + 1
        await trio.lowlevel.checkpoint()
    return found


def _checked(piece: Piece, refused: int) -> Piece:
    """A piece, unless with it and what was `refused` before it there are too many points to keep an error for each."""
    if refused + len(piece.refused) > MOST_REFUSED:
        raise Refused(400, BAD_POINTS, f"More than {MOST_REFUSED} data points say nothing that could be stored")
    return piece


def _next_cut(text: bytes, at: int) -> int:
    """Where a comma between two objects seems to be, from `at` on; the end of `text` if nowhere."""
    found = _CUT.search(text, at)
    return found.start(1) if found else len(text)


def text_of(raw: msgspec.Raw) -> str | None:
    """A scalar as text: a string's content, anything else as it was written. Raises ValueError for others."""
    written = bytes(raw)
    if written[:1] == b'"':
        return str(msgspec.json.decode(raw, type=str))
    if written[:1] in b"[{":
        raise ValueError(f"wanted a scalar, got {written[:40].decode(errors='replace')}")
    return None if written == b"null" else written.decode()


def time_of(raw: msgspec.Raw) -> int:
    """A timestamp: an integer, a number cut to one, or a string of digits; 0 if absent. Raises ValueError."""
    text = text_of(raw)
    if text is None:
        return 0
    try:
        number = parse_long(text.strip().encode()) if set(text).isdisjoint(".eE") else _cut(raw)
    except BadLine as exc:
        raise ValueError(f"timestamp: {exc}") from exc
    return number


def _cut(raw: msgspec.Raw) -> int:
    number = msgspec.json.decode(raw, type=float)
    if not -(2.0**63) <= number < 2.0**63:
        raise ValueError(f"timestamp: {number} is out of range")
    return int(number)


def point_of(reading: Reading) -> Point:
    """The members of a point as texts; raises ValueError where one has a shape it cannot have."""
    tags = reading.tags
    return Point(
        text_of(reading.metric),
        time_of(reading.timestamp),
        text_of(reading.value),
        None if tags is None else {tagk: text_of(tagv) for tagk, tagv in tags.items()},
    )


def members_of(point: Point | None) -> tuple[bytes, Tags, int, bytes]:
    """Metric, tags, timestamp and value word of a point that has them all; raises BadLine for the first that is missing
    or that no line could say."""
    if point is None:
        raise illegal("Unexpected null datapoint encountered in set.")
    metric = check_start(point)
    if not point.value:
        raise illegal("Empty value")
    if not point.tags:
        raise illegal("Missing tags")
    word = point.value.encode("latin-1", "replace")
    return metric, tags_of(point.tags), point.timestamp, word


def check_start(point: Point) -> bytes:
    """The metric of a point that has one, and a time; raises BadLine."""
    if not point.metric:
        raise illegal("Metric name was empty")
    if point.timestamp <= 0:
        raise illegal("Invalid timestamp")
    return encode_name(point.metric)


def tags_of(tags: Mapping[str, str | None]) -> Tags:
    """Tags as bytes. Raises BadLine for characters that no name can have, and for null."""
    pairs = []
    for tagk, tagv in tags.items():
        if tagv is None:
            raise illegal(f"Invalid tag value with key [{tagk}]: null")
        pairs.append((encode_name(tagk), encode_name(tagv)))
    return tuple(pairs)


def tagged(point: Point, tag: Tag | None) -> Point:
    """The point with a tag more, unless it has one of that name."""
    if tag is None or point.tags is None or tag[0] in point.tags:
        return point
    return point._replace(tags={**point.tags, tag[0]: tag[1]})


def check_words(metric: bytes, tags: Tags) -> None:
    """Raises BadLine for names that are allowed and would part the words of a line."""
    for name in (metric, *(name for pair in tags for name in pair)):
        if name.translate(None, b" =\n") != name:
            raise illegal(f"Invalid name: {name.decode('latin-1')!r}: blanks, line ends and = part the words of a line")


def tags_text(tags: Tags) -> bytes:
    """Tags as a line says them."""
    return b" ".join(map(b"=".join, tags))


def lines_of(text: bytes, points: Sequence[P], line: Callable[[P], bytes]) -> Piece:
    """The lines of points one by one; `line` raises BadLine where none says what the point does."""
    lines: list[bytes] = []
    at: list[int] = []
    refused: dict[int, BadLine] = {}
    for number, point in enumerate(points):
        try:
            lines.append(line(point))
            at.append(number)
        except BadLine as error:
            refused[number] = bare(error)
    return Piece(text, b"".join(lines), at, refused, len(points))


def told(error: BadLine) -> str:
    """A refusal of the telnet port's in the words of the HTTP API."""
    text = str(error).removeprefix("HBase error: ")
    if error.reason == "invalid_values":
        return "Unable to parse value to a number"
    if error.reason == "unknown_metrics":
        return "Unknown metric"
    return text.removeprefix("illegal argument: ")


def answer(outcome: Outcome, flags: Flags) -> Response:
    """The response to a request, or raises the Refused it is answered with."""
    late = len(outcome.late)
    failed = len(outcome.refused) + len(outcome.unstored)
    good = outcome.taken - len(outcome.unstored) - late
    if not flags.summary and not flags.details:
        if late:
            raise Refused(
                400, f"The put call has timedout with {good} successful writes, {len(outcome.unstored)} failed writes "
                f"and {late} timed out writes.", SEE_DETAILS,
            )  # fmt: skip
        if failed:
            raise Refused(400, BAD_POINTS, SEE_DETAILS)
        return Response(204)
    body: dict[str, Any] = {"success": good}
    if flags.timeout_ms > 0:
        body["timeouts"] = late
    body["failed"] = failed
    if flags.details:
        errors = chain(outcome.refused, outcome.unstored, outcome.late)
        body["errors"] = [failure._asdict() for failure in islice(errors, MOST_SHOWN)]
    return Response(400 if outcome.refused or late else 200, msgspec.json.encode(body))
