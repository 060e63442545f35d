"""POST /api/histogram: counts by range of values → histogram lines, for the way in that the telnet port's take."""

import base64
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from tsd.api.incoming import (
    Piece,
    Point,
    Reading,
    check_start,
    check_words,
    flags_of,
    lines_of,
    point_of,
    read_slices,
    tags_of,
    tags_text,
    text_of,
)
from tsd.api.taking import PointsDoor
from tsd.codec.histogram import Bucket, encode_histogram, make_histogram, parse_bounds
from tsd.codec.putline import illegal
from tsd.codec.words import parse_long
from tsd.doors.exchange import Endpoint, Request, Response
from tsd.errors import BadLine, Refused
from tsd.histograms import NOT_CONFIGURED, judge_histogram, read_payload
from tsd.ingest.intake import Intake
from tsd.ingest.summaries import SummaryRules

_NULL = msgspec.Raw(b"null")
HIGHEST_ID = 255


class _Reading(Reading):
    """A histogram's members, unread."""

    id: msgspec.Raw = _NULL
    buckets: dict[str, msgspec.Raw] | None = None
    underflow: msgspec.Raw = _NULL
    overflow: msgspec.Raw = _NULL


_readings = msgspec.json.Decoder(list[_Reading | None])


class HistogramPoint(NamedTuple):
    """One histogram: a payload in `point.value`, or buckets."""

    point: Point
    id: int
    buckets: Mapping[str, int] | None
    underflow: int
    overflow: int

    def echo(self, error: str) -> dict[str, Any]:
        """As an answer shows it."""
        buckets = {} if self.buckets is None else {"buckets": self.buckets}
        beyond = {"underflow": self.underflow, "overflow": self.overflow}
        return self.point.echo(error) | {"id": self.id} | buckets | beyond


class HistogramEndpoint:
    """The endpoint."""

    def __init__(self, door: PointsDoor, intake: Intake, rules: SummaryRules) -> None:
        self._door = door
        self._take_in = intake.take_summaries_in
        self._rules = rules

    async def answer(self, request: Request) -> Response:
        """Take the points of a request in; raises Refused."""
        simple_id = self._rules.histogram_id
        if simple_id is None:
            raise Refused(503, NOT_CONFIGURED)
        flags = flags_of(request)

        def line(histogram: HistogramPoint | None) -> bytes:
            return self._line(histogram, simple_id)

        await self._door.admit(request.visitor)
        pieces = await read_slices(request.body, lambda text: lines_of(text, points_of(text), line))
        return await self._door.take(pieces, flags, _echo, self._take_in, request)

    def _line(self, histogram: HistogramPoint | None, simple_id: int) -> bytes:
        """The line that says what a point says; raises BadLine."""
        if histogram is None:
            raise illegal("Unexpected null datapoint encountered in set.")
        point = histogram.point
        metric = check_start(point)
        if not point.tags:
            raise illegal("Missing tags")
        if not point.value and not histogram.buckets:
            raise illegal("Histogram buckets cannot be null or empty if 'value' is empty.")
        tags = tags_of(point.tags)
        payload = _payload(histogram, simple_id)
        judge_histogram(metric, tags, point.timestamp, simple_id, payload, self._rules.names, self._rules.table)
        check_words(metric, tags)
        word = base64.b64encode(payload)
        return b"histogram %s %d %d %s %s\n" % (metric, point.timestamp, simple_id, word, tags_text(tags))


def _payload(histogram: HistogramPoint, simple_id: int) -> bytes:
    """The cell's payload; raises BadLine."""
    if histogram.point.value:
        if not 0 <= histogram.id <= HIGHEST_ID:
            raise illegal(f"Invalid type. Must be from 0 to {HIGHEST_ID}.")
        return read_payload(histogram.id, histogram.point.value.encode("latin-1", "replace"), simple_id)
    buckets = []
    for bounds, count in (histogram.buckets or {}).items():
        try:
            buckets.append(Bucket(*parse_bounds(bounds.encode("latin-1", "replace")), count))
        except BadLine as exc:
            raise illegal(f"Unable to parse bucket bounds: {bounds}") from exc
    return encode_histogram(make_histogram(buckets, histogram.underflow, histogram.overflow))


def points_of(text: bytes) -> list[HistogramPoint | None]:
    """The points of an array; raises ValueError or DecodeError."""
    return [None if reading is None else _point(reading) for reading in _readings.decode(text)]


def _point(reading: _Reading) -> HistogramPoint:
    buckets = reading.buckets
    return HistogramPoint(
        point_of(reading),
        _integer(reading.id),
        None if buckets is None else {bounds: _integer(count) for bounds, count in buckets.items()},
        _integer(reading.underflow),
        _integer(reading.overflow),
    )


def _integer(raw: msgspec.Raw) -> int:
    """A count, 0 if absent; raises ValueError."""
    text = text_of(raw)
    try:
        return 0 if text is None else parse_long(text.encode())
    except BadLine as exc:
        raise ValueError(str(exc)) from exc


def _echo(piece: Piece) -> list[HistogramPoint | None]:
    return points_of(piece.text)


def routes(door: PointsDoor, intake: Intake) -> dict[str, Endpoint]:
    """/api/histogram."""
    return {"api/histogram": HistogramEndpoint(door, intake, intake.summary_rules).answer}
