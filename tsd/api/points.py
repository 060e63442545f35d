"""Common code of /api/put, /api/rollup and /api/histogram: JSON bodies → points → lines → ingest → the response.

The members of a point are kept as sent, because the text of a number decides how it is stored. No point is ingested
before the whole body is parsed: invalid JSON refuses the whole request.
"""

import math
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from itertools import chain, islice
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec
import trio

from tsd.api.messages import quote_not_finite
from tsd.codec.putline import Tags, illegal
from tsd.codec.text import encode_name, parse_long
from tsd.errors import INVALID_VALUE, UNKNOWN_NAME, BadLine, Refused, bare, json_mistake
from tsd.ingest.intake import Intake, Taken
from tsd.server.http.messages import Request, Response
from tsd.server.peer import Peer

P = TypeVar("P")
STEP_S = 0.002  # a slice that takes longer to parse is followed by a smaller one
SMALLEST_BYTES = 4 << 10  # of a slice
YIELD_POINTS = 100  # refused points between two checkpoints
LARGE_FAILURES = 500  # more are written in a thread
LARGE_BODY = 64 << 10  # bytes: so are those of a larger request, because they show its points
HeaderTag = tuple[str, str]
MAX_WAIT_S = 10.0  # how long a request waits while the journal is full or the disk does not respond
HIGHEST_INT = (1 << 31) - 1
BAD_POINTS = "One or more data points had errors"
SEE_DETAILS = 'Please see the TSD logs or append "details" to the put request'
BAD_JSON = "Unable to parse the given JSON"
_BETWEEN_OBJECTS = re.compile(rb"\}\s*(,)\s*\{")
_BAD_JSON_ERRORS = (ValueError, msgspec.DecodeError, RecursionError)
_ABSENT = msgspec.Raw(b"null")
_strings = msgspec.json.Decoder(list[str])
_threads = trio.CapacityLimiter(1)  # several would compete with the event loop for the GIL, and parse no more together


class BodyLimits(NamedTuple):
    """Limits of a request body with points."""

    first_bytes: int = 16 << 10  # of the first slice: the time that it takes decides the size of the next ones
    slice_bytes: int = 128 << 10  # most parsed at once: about 2 ms for usual points
    bytes_per_point: int = 20  # a slice with more points is shortened: each point has a fixed cost
    whole_bytes: int = 1 << 20  # parsed at once, in a thread, if the body cannot be cut: about 100 ms
    errors: int = 50_000  # most points without a line; with more the request is refused
    shown_errors: int = 10_000  # in a response


DEFAULT_LIMITS = BodyLimits()


class PutFlags(NamedTuple):
    """Flags of a request: which response it wants."""

    summary: bool
    details: bool
    sync: bool
    timeout_ms: int  # 0: none


class RawPoint(msgspec.Struct, gc=False):
    """The members of one point, not decoded."""

    metric: msgspec.Raw = _ABSENT
    timestamp: msgspec.Raw = _ABSENT
    value: msgspec.Raw = _ABSENT
    tags: dict[str, msgspec.Raw] | None = None


class JsonPoint(NamedTuple):
    """One point with its members as texts. None: absent, or null."""

    metric: str | None
    timestamp: int  # 0: absent
    value: str | None
    tags: Mapping[str, str | None] | None

    def echo(self, error: str = "") -> dict[str, Any]:
        """Return the point as a response with details shows it."""
        del error
        members = {"metric": self.metric, "timestamp": self.timestamp, "value": self.value, "tags": self.tags}
        return {name: member for name, member in members.items() if member is not None}


class BodySlice(NamedTuple):
    """A parsed part of a body."""

    text: bytes  # the JSON
    lines: bytes  # telnet lines of its points
    points: Sequence[int]  # index of the point of each line
    refused: Mapping[int, BadLine]  # errors of points without a line, by index
    size: int  # number of points


class EchoedPoint(Protocol):
    """A point of any of the endpoints, as responses show it."""

    def echo(self, error: str) -> dict[str, Any]:
        """Return the point as a response with details shows it next to its error."""


class PutFailure(NamedTuple):
    """A point that is not stored, and why."""

    datapoint: dict[str, Any] | None
    error: str


UNSHOWN = PutFailure(None, "")  # counted, but not listed


class PutOutcome(NamedTuple):
    """The result of a request."""

    accepted: int  # points in the journal
    refused: list[PutFailure]
    unstored: Sequence[PutFailure] = ()  # not stored although `sync` was set
    late: Sequence[PutFailure] = ()  # not stored within `sync_timeout`


def parse_flags(request: Request, *, wrong_status: int = 400) -> PutFlags:
    """Return the flags in a request's parameters. Raise Refused, with `wrong_status` for a bad `sync_timeout`."""
    text = request.param("sync_timeout")
    try:
        timeout_ms = int(text) if text is not None else 0
        if abs(timeout_ms) > HIGHEST_INT:
            raise ValueError(text)
    except ValueError:
        raise Refused(wrong_status, f'For input string: "{text}"') from None
    return PutFlags(request.has("summary"), request.has("details"), request.has("sync"), timeout_ms)


def parse_header_tag(request: Request, header: str) -> HeaderTag | None:
    """Return the tag that a header adds to every point of the request (`tsd.http.header_tag`). Raise Refused."""
    text = request.headers.get(header.lower()) if header else None
    if text is None:
        return None
    tagk, _, tagv = text.partition("=")
    if not tagk or not tagv or "=" in tagv:
        raise Refused(500, f"invalid tag: {text}")
    return tagk, tagv


async def parse_slices(
    body: bytes, parse: Callable[[bytes], BodySlice], limits: BodyLimits = DEFAULT_LIMITS
) -> list[BodySlice]:
    """Parse the body's array of points (one object is an array of one). A large body is parsed in slices, with other
    tasks in between. `parse` raises ValueError or msgspec's DecodeError for invalid JSON. Raise Refused.

    A body is cut between two objects, found by a pattern. If the match is inside a string or another object, the slice
    is invalid JSON; then the body is parsed as a whole, unless it is too large.

    Numbers that JSON lacks, which Python's encoder writes, make a bad point and not a bad body, as in OpenTSDB.
    """
    parse = partial(_parse_not_finite, parse)
    text = body.strip()
    if not text:
        raise Refused(400, "Missing request content")
    if text[:1] == b"{":
        text = b"[" + text + b"]"
    elif text[:1] != b"[":
        raise Refused(400, "The JSON must start as an object or an array")
    try:
        if len(text) <= min(limits.first_bytes, limits.slice_bytes):
            return [_checked(parse(text), 0, limits)]
        with suppress(*_BAD_JSON_ERRORS) if len(text) <= limits.whole_bytes else nullcontext():
            return await _parse_cut(text, parse, limits)
        return [_checked(await trio.to_thread.run_sync(parse, text, limiter=_threads), 0, limits)]
    except _BAD_JSON_ERRORS as exc:
        raise Refused(400, BAD_JSON, json_mistake(exc)) from exc


def _parse_not_finite(parse: Callable[[bytes], BodySlice], text: bytes) -> BodySlice:
    """Parse JSON in which numbers may be NaN or infinite. They are parsed as strings."""
    try:
        return parse(text)
    except _BAD_JSON_ERRORS:
        quoted = quote_not_finite(text)
        if quoted == text:
            raise
        return parse(quoted)


async def _parse_cut(text: bytes, parse: Callable[[bytes], BodySlice], limits: BodyLimits) -> list[BodySlice]:
    found: list[BodySlice] = []
    start, refused, size = 1, 0, min(limits.first_bytes, limits.slice_bytes)
    while start < len(text):
        is_dense = text.count(b"}", start, start + size) > size // limits.bytes_per_point
        cut = _next_cut(text, start + (size // 8 if is_dense else size), limits.whole_bytes)
        if cut - start > limits.whole_bytes:
            raise ValueError(f"no end of a data point within {limits.whole_bytes} bytes")
        part = b"[" + text[start:cut] + (b"]" if cut < len(text) else b"")
        begun = trio.current_time()
        one = parse(part) if len(part) <= 2 * size else await trio.to_thread.run_sync(parse, part, limiter=_threads)
        took_s = trio.current_time() - begun
        size = min(2 * size if took_s < STEP_S else max(size // 2, SMALLEST_BYTES), limits.slice_bytes)
        found.append(_checked(one, refused, limits))
        refused += len(one.refused)
        start = cut + 1
        await trio.lowlevel.checkpoint()
    return found


def _checked(one: BodySlice, refused: int, limits: BodyLimits) -> BodySlice:
    """Return a slice; raise Refused if there are too many points without a line."""
    if refused + len(one.refused) > limits.errors:
        raise Refused(400, BAD_POINTS, f"More than {limits.errors} data points cannot be stored")
    return one


def _next_cut(text: bytes, at: int, most_bytes: int) -> int:
    """Return the first comma between two objects from `at` on; the end of `text` if there is none in `most_bytes`."""
    found = _BETWEEN_OBJECTS.search(text, at, at + most_bytes)  # a search of megabytes would hold the event loop
    return found.start(1) if found else len(text)


def text_of(raw: msgspec.Raw) -> str | None:
    """Return a scalar as text: the content of a string, anything else as written. Raise ValueError for arrays and
    objects."""
    written = bytes(raw)
    if written[:1] == b'"':
        return str(msgspec.json.decode(raw, type=str))
    if written[:1] in b"[{":
        raise ValueError(f"wanted a scalar, got {written[:40].decode(errors='replace')}")
    return None if written == b"null" else written.decode()


def integer_of(raw: msgspec.Raw) -> int:
    """Return an integer, a truncated number, or a string of digits; 0 if absent or blank. Raise ValueError.

    >>> integer_of(msgspec.Raw(b"5.9")), integer_of(msgspec.Raw(b'"5"')), integer_of(msgspec.Raw(b'""'))
    (5, 5, 0)
    """
    text = text_of(raw)
    if text is None or not text.strip():
        return 0
    try:
        number = parse_long(text.strip().encode()) if set(text).isdisjoint(".eE") else _truncated(raw)
    except BadLine as exc:
        raise ValueError(str(exc)) from exc
    return number


def _truncated(raw: msgspec.Raw) -> int:
    number = msgspec.json.decode(raw, type=float)
    if not -(2.0**63) <= number < 2.0**63:
        raise ValueError(f"{number} is out of range")
    return int(number)


def parse_point(raw: RawPoint) -> JsonPoint:
    """Return the members of a point as texts. Raise ValueError for a member of a wrong type."""
    tags = None if raw.tags is None else tag_texts(raw.tags)
    try:
        timestamp = integer_of(raw.timestamp)
    except ValueError as exc:
        raise ValueError(f"timestamp: {exc}") from exc
    return JsonPoint(text_of(raw.metric), timestamp, text_of(raw.value), tags)


def tag_texts(tags: Mapping[str, msgspec.Raw]) -> dict[str, str | None]:
    """Return tags with their values as texts, see `text_of`. All are decoded at once if they are strings.

    >>> tag_texts({"host": msgspec.Raw(b'"a"'), "cpu": msgspec.Raw(b"0")})
    {'host': 'a', 'cpu': '0'}
    """
    try:
        return dict(zip(tags, _strings.decode(b"[" + b",".join(tags.values()) + b"]"), strict=True))
    except msgspec.ValidationError:
        return {tagk: text_of(tagv) for tagk, tagv in tags.items()}


def check_members(point: JsonPoint | None) -> tuple[bytes, Tags, int, bytes]:
    """Return metric, tags, timestamp and value of a point. Raise BadLine for the first member that is missing or not
    possible in a line."""
    if point is None:
        raise illegal("Unexpected null datapoint encountered in set.")
    metric = check_metric(point)
    if not point.value:
        raise illegal("Empty value")
    if not point.tags:
        raise illegal("Missing tags")
    word = point.value.encode("latin-1", "replace")
    return metric, tags_of(point.tags), point.timestamp, word


def check_metric(point: JsonPoint) -> bytes:
    """Return the metric of a point. Raise BadLine unless it has a metric and a timestamp."""
    if not point.metric:
        raise illegal("Metric name was empty")
    if point.timestamp <= 0:
        raise illegal("Invalid timestamp")
    return encode_name(point.metric)


def tags_of(tags: Mapping[str, str | None]) -> Tags:
    """Return tags as bytes. Raise BadLine for illegal characters and null."""
    pairs = []
    for tagk, tagv in tags.items():
        if tagv is None:
            raise illegal(f"Invalid tag value with key [{tagk}]: null")
        pairs.append((encode_name(tagk), encode_name(tagv)))
    return tuple(pairs)


def with_tag(point: JsonPoint, tag: HeaderTag | None) -> JsonPoint:
    """Return the point with a tag added, unless it has a tag of that name."""
    if tag is None or point.tags is None or tag[0] in point.tags:
        return point
    return point._replace(tags={**point.tags, tag[0]: tag[1]})


def check_separators(metric: bytes, tags: Tags) -> None:
    """Raise BadLine for legal names that contain a separator of lines."""
    for name in (metric, *(name for pair in tags for name in pair)):
        if name.translate(None, b" =\n") != name:
            raise illegal(
                f"Invalid name: {name.decode('latin-1')!r}: a line cannot have blanks, line ends and = in names"
            )


def join_tags(tags: Tags) -> bytes:
    """Return tags as words of a line."""
    return b" ".join(map(b"=".join, tags))


def to_lines(text: bytes, points: Sequence[P], to_line: Callable[[P], bytes]) -> BodySlice:
    """Return the lines of points, one by one; `to_line` raises BadLine."""
    lines: list[bytes] = []
    at: list[int] = []
    refused: dict[int, BadLine] = {}
    for number, point in enumerate(points):
        try:
            lines.append(to_line(point))
            at.append(number)
        except BadLine as error:
            refused[number] = bare(error)
    return BodySlice(text, b"".join(lines), at, refused, len(points))


def own_message(error: BadLine) -> str:
    """Return the error of a point that has no line."""
    return str(error).removeprefix("HBase error: ").removeprefix("illegal argument: ")


def http_message(error: BadLine) -> str:
    """Return the error of a telnet line in the words of the HTTP API."""
    if error.reason == INVALID_VALUE:
        return "Unable to parse value to a number"
    if error.reason == UNKNOWN_NAME:
        return "Unknown metric"
    return own_message(error)


def respond(outcome: PutOutcome, flags: PutFlags, shown_errors: int) -> Response:
    """Return the response to a request. Raise Refused."""
    late = len(outcome.late)
    failed = len(outcome.refused) + len(outcome.unstored)
    good = outcome.accepted - len(outcome.unstored) - late
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
        body["errors"] = [failure._asdict() for failure in islice(errors, shown_errors)]
    return Response(400 if outcome.refused or late else 200, msgspec.json.encode(body))


Echo = Callable[[BodySlice], Sequence[EchoedPoint | None]]  # returns the points of a slice, for responses
Ingest = Callable[[bytes, Peer], Awaitable[Taken]]
KeptTexts = Callable[[BodySlice, int], Sequence[bytes]]  # what the log of refused lines keeps of a point without a line


class StoreFlush(NamedTuple):
    """Writes journaled points to the store immediately."""

    flush: Callable[[], Awaitable[bool]]  # returns whether all earlier points are stored
    trouble: Callable[[], str | None]  # returns why they are not


def _respond_and_free(outcome: PutOutcome, slices: list[BodySlice], flags: PutFlags, shown_errors: int) -> Response:
    """Return the response to a request, and free its points and failures here: freeing thousands takes long."""
    try:
        return respond(outcome, flags, shown_errors)
    finally:
        outcome.refused.clear()
        slices.clear()


class PutHandler:
    """Ingests the lines of /api/put, /api/rollup and /api/histogram."""

    def __init__(
        self,
        intake: Intake,
        store: StoreFlush,
        *,
        timeout_s: float = MAX_WAIT_S,
        limits: BodyLimits = DEFAULT_LIMITS,
    ) -> None:
        self.limits = limits
        self.intake = intake
        self._store = store
        self._timeout_s = timeout_s

    async def throttle(self, peer: Peer) -> None:
        """Wait until the client's quota allows more lines. Call before any work is done for the request. Raise
        Refused if the wait would be too long."""
        debt_s = peer.client.quota_debt_s
        if debt_s > self._timeout_s:
            details = f"Rate limit {peer.client.limiting_key} exceeded; retry in {math.ceil(debt_s)} s"
            raise Refused(429, "Please throttle writes", details, (("Retry-After", str(math.ceil(debt_s))),))
        if peer.client.debt_s:
            await peer.throttle()

    async def _parse(self, request: Request, parse: Callable[[bytes], BodySlice]) -> list[BodySlice]:
        """Parse a request's body, see `parse_slices`. A body that is refused whole counts as one refused line, and the
        log of refused lines keeps its error. Raise Refused."""
        try:
            return await parse_slices(request.body, parse, self.limits)
        except Refused as error:
            if request.body and not request.body.isspace():
                message = f"{error.message}: {error.details}" if error.details else error.message
                self.intake.refuse_points([illegal(message)], [(_path(request),)], request.peer)
            raise

    async def put(self, request: Request, parse: Callable[[bytes], BodySlice], echo: Echo, ingest: Ingest) -> Response:
        """Ingest the points of a request, and respond when they are on disk, or with `sync` in the store. Raise
        Refused; after status 503 a client may repeat the request."""
        await self.throttle(request.peer)
        slices = await self._parse(request, parse)
        if not any(one.size for one in slices):
            raise Refused(400, "No datapoints found in content")
        flags = parse_flags(request, wrong_status=500)  # as late as in OpenTSDB, and with its status
        outcome = await self.store(slices, flags, echo, ingest, request)
        if len(outcome.refused) <= LARGE_FAILURES and (not outcome.refused or len(request.body) <= LARGE_BODY):
            return respond(outcome, flags, self.limits.shown_errors)
        respond_and_free = partial(_respond_and_free, outcome, slices, flags, self.limits.shown_errors)
        return await trio.to_thread.run_sync(respond_and_free, limiter=_threads)

    async def store(
        self,
        slices: Sequence[BodySlice],
        flags: PutFlags,
        echo: Echo,
        ingest: Ingest,
        request: Request,
        kept: KeptTexts | None = None,
    ) -> PutOutcome:
        """Ingest the lines of a request, and return when they are on disk, or with `sync` in the store. `kept`: None
        for points that are kept as responses show them. Raise Refused."""
        if not self.intake.backpressure.is_open:
            await self._wait(self.intake.backpressure.wait_open, "Please throttle writes")
        failures: list[PutFailure] = []
        accepted: list[tuple[BodySlice, Sequence[int]]] = []
        position = 0
        for one in slices:
            if one is not slices[0]:
                await trio.lowlevel.checkpoint()
            if request.peer.client.pace_debt_s:
                await request.peer.throttle()
            refused, reached, points = await self._ingest(one, ingest, echo, request, kept)
            position = max(position, reached)  # 0 for a slice without lines
            is_shown = len(failures) < self.limits.shown_errors
            failures += await _failures(one, refused, points, flags, echo) if is_shown else [UNSHOWN] * len(refused)
            numbers = [number for number in one.points if number not in refused] if refused else one.points
            accepted.append((one, numbers))
        on_disk = partial(self.intake.wait_synced, position, hurry=True)
        await self._wait(on_disk, "The journal cannot be written, please try again")
        outcome = PutOutcome(sum(len(numbers) for _, numbers in accepted), failures)
        if flags.sync and outcome.accepted:
            outcome = await self._flush(outcome, flags, lambda error: self._fail_all(accepted, error, flags, echo))
        return outcome

    async def _wait(self, until: Callable[[], Awaitable[None]], message: str) -> None:
        """Wait for a limited time, because clients have a timeout. Raise Refused."""
        with trio.move_on_after(self._timeout_s) as scope:
            await until()
        if scope.cancelled_caught:
            raise Refused(503, message, "; ".join(sorted(self.intake.backpressure.reasons)))

    async def _ingest(
        self, one: BodySlice, ingest: Ingest, echo: Echo, request: Request, kept: KeptTexts | None
    ) -> tuple[dict[int, BadLine], int, Sequence[EchoedPoint | None]]:
        """Ingest the lines of a slice. Return the refused points, the journal's position (0 without lines), and all
        points if some of them have no line."""
        refused = dict(one.refused)
        points = await _points_of(one, echo) if refused else ()
        left = iter(one.refused.items())
        while some := list(islice(left, YIELD_POINTS)):
            texts = [(_text(request, points[at]),) if kept is None else kept(one, at) for at, _ in some]
            self.intake.refuse_points([error for _, error in some], texts, request.peer)
            await trio.lowlevel.checkpoint()
        block, done, position = one.lines, 0, 0
        while block:
            taken = await ingest(block, request.peer)
            refused.update((one.points[done + reject.line], reject.error) for reject in taken.rejects)
            done += taken.accepted + len(taken.rejects)
            block, position = taken.rest, taken.position
            if block:
                await trio.lowlevel.checkpoint()
        return refused, position, points

    async def _flush(
        self, outcome: PutOutcome, flags: PutFlags, fail_all: Callable[[str], Sequence[PutFailure]]
    ) -> PutOutcome:
        """Wait until the accepted points are stored, and return the outcome with those that are not."""
        is_stored = None
        with trio.move_on_after(flags.timeout_ms / 1000 if flags.timeout_ms > 0 else math.inf):
            is_stored = await self._store.flush()
        if is_stored:
            return outcome
        if is_stored is None:
            return outcome._replace(late=fail_all("Write timedout"))
        return outcome._replace(unstored=fail_all(f"Storage exception: {self._store.trouble()}"))

    def _fail_all(
        self, accepted: Sequence[tuple[BodySlice, Sequence[int]]], error: str, flags: PutFlags, echo: Echo
    ) -> list[PutFailure]:
        """Return the accepted points, each with the same error."""
        found: list[PutFailure] = []
        for one, numbers in accepted:
            if not flags.details or len(found) >= self.limits.shown_errors:
                found += [UNSHOWN] * len(numbers)
                continue
            points = echo(one)
            found += [_failure(points[number], error) for number in numbers]
        return found


def _text(request: Request, point: EchoedPoint | None) -> bytes:
    """Return a point without a line, for the log of refused lines: the endpoint's path and JSON, `api/put
    {"metric":…}`."""
    shown = None if point is None else point.echo("")
    return b"%s %s" % (_path(request), msgspec.json.encode(shown))


def _path(request: Request) -> bytes:
    return b"api/" + request.segments[0].encode()


async def _points_of(one: BodySlice, echo: Echo) -> Sequence[EchoedPoint | None]:
    """Return the points of a slice; those of a long one are parsed in a thread."""
    return echo(one) if len(one.text) <= SMALLEST_BYTES else await trio.to_thread.run_sync(echo, one, limiter=_threads)


async def _failures(
    one: BodySlice,
    refused: dict[int, BadLine],
    points: Sequence[EchoedPoint | None],
    flags: PutFlags,
    echo: Echo,
) -> list[PutFailure]:
    """Return the refused points of a slice, in order, shown only with `details`. `points` are all of the slice, or
    none."""
    if not flags.details:
        return [UNSHOWN] * len(refused)
    points = points or (await _points_of(one, echo) if refused else ())
    found = []
    for place, number in enumerate(sorted(refused)):
        if place % YIELD_POINTS == YIELD_POINTS - 1:
            await trio.lowlevel.checkpoint()
        point, error = points[number], refused[number]
        found.append(_failure(point, own_message(error) if point is None else http_message(error)))
    return found


def _failure(point: EchoedPoint | None, error: str) -> PutFailure:
    return PutFailure(None if point is None else point.echo(error), error)
