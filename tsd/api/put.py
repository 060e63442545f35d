"""POST /api/put, /api/rollup and /api/histogram: JSON bodies → the lines that the telnet port accepts.

A usual body of /api/put is converted to lines without checking each point, in a compiled loop if there is one, because
ingest validates the lines. Any other body is converted point by point. A point that cannot be written as a line is
refused here in OpenTSDB's words.
"""

import base64
import os
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, NamedTuple

import msgspec

from tsd.api.messages import check_method
from tsd.api.points import (
    BodySlice,
    HeaderTag,
    JsonPoint,
    PutHandler,
    RawPoint,
    check_members,
    check_metric,
    check_separators,
    integer_of,
    join_tags,
    parse_header_tag,
    parse_point,
    tags_of,
    text_of,
    to_lines,
    with_tag,
)
from tsd.codec.putline import (
    HISTOGRAMS_NOT_CONFIGURED,
    LAST_MS,
    ROLLUPS_NOT_CONFIGURED,
    NameRules,
    check_point,
    illegal,
)
from tsd.errors import Refused
from tsd.server.http.messages import Endpoint, Request, Response
from tsd.tables.writing import HistogramBodies, RollupBodies, RollupKind

try:
    from tsd.api import _put_json
except ImportError:  # no C compiler at installation
    HAS_LOOP = False
else:
    HAS_LOOP = not os.environ.get("TSD_PURE")  # to compare both


_ODD = (b'"', b"[", b"{", b" null ", b"\r", b"  ", b" =", b"= ", b"=\n")  # values that are no numbers, empty names
_BLANKS = bytes(range(33))  # what Java's float parser strips


class _UsualPoint(msgspec.Struct, gc=False):
    """A point as most clients send it."""

    metric: str
    timestamp: Annotated[int, msgspec.Meta(ge=1, le=LAST_MS)]
    value: msgspec.Raw
    tags: dict[str, str]


_usual = msgspec.json.Decoder(list[_UsualPoint])
_any = msgspec.json.Decoder(list[RawPoint | None])


def parse_put(text: bytes, tag: HeaderTag | None, rules: NameRules, *, compiled: bool = HAS_LOOP) -> BodySlice:
    """Parse an array of points. Raise ValueError or DecodeError."""
    found = parse_compiled(text, tag, rules) if compiled else None
    return found or parse_usual(text, tag) or parse_any(text, tag, rules)


def parse_compiled(text: bytes, tag: HeaderTag | None, rules: NameRules) -> BodySlice | None:
    """Parse an array of usual points, also with numbers as strings, in the compiled loop. None for any other array."""
    tagk, tagv = ("", "") if tag is None else tag
    found = _put_json.put_lines(text, tagk.encode(), tagv.encode(), rules.max_tags)
    return None if found is None else BodySlice(text, found[0], range(found[1]), {}, found[1])


def parse_usual(text: bytes, tag: HeaderTag | None) -> BodySlice | None:
    """Parse an array of usual points. None for any other array.

    Counting the separators in all lines detects names that contain separators.
    """
    try:
        points = _usual.decode(text)
        if tag is not None:
            for point in points:
                point.tags.setdefault(*tag)
        lines = "".join([
            f"put {p.metric} {p.timestamp} {str(p.value, 'latin-1')} {' '.join(map('='.join, p.tags.items()))}\n"
            for p in points
        ]).encode("latin-1")  # fmt: skip
    except (msgspec.DecodeError, UnicodeEncodeError):
        return None
    tags = sum([len(point.tags) for point in points])
    usual = (
        lines.count(b"\n") == len(points)
        and lines.count(b" ") == 3 * len(points) + tags
        and lines.count(b"=") == tags
        and not any(odd in lines for odd in _ODD)
    )
    return BodySlice(text, lines, range(len(points)), {}, len(points)) if usual else None


def parse_any(text: bytes, tag: HeaderTag | None, rules: NameRules) -> BodySlice:
    """Parse any array of points. Raise ValueError or DecodeError."""
    return to_lines(text, parse_points(text, tag), lambda point: put_line(point, rules))


def parse_points(text: bytes, tag: HeaderTag | None) -> list[JsonPoint | None]:
    """Return the points of an array. Raise ValueError or DecodeError."""
    points = [None if raw is None else parse_point(raw) for raw in _any.decode(text)]
    return [point and with_tag(point, tag) for point in points]


def put_line(point: JsonPoint | None, rules: NameRules) -> bytes:
    """Return the put line of a point. Raise BadLine."""
    metric, tags, time, word = check_members(point)
    check_point(metric, tags, time, word, rules)
    check_separators(metric, tags)
    # Java's float parser strips these characters, which would be separators in a line.
    return b"put %s %d %s %s\n" % (metric, time, word.strip(_BLANKS), join_tags(tags))


class PutEndpoint:
    """/api/put."""

    def __init__(self, handler: PutHandler, rules: NameRules, header: str) -> None:
        """`header` is `tsd.http.header_tag`."""
        self._handler = handler
        self._rules = rules
        self._header = header

    async def answer(self, request: Request) -> Response:
        """Ingest the points of a request. Raise Refused."""
        check_method(request, "POST")
        tag = parse_header_tag(request, self._header)
        parse = partial(parse_put, tag=tag, rules=self._rules)
        take = self._handler.intake.take
        return await self._handler.put(request, parse, lambda one: parse_points(one.text, tag), take)


def routes(handler: PutHandler, rules: NameRules, header: str) -> dict[str, Endpoint]:
    """/api/put."""
    return {"api/put": PutEndpoint(handler, rules, header).answer}


_NULL = msgspec.Raw(b"null")


class _RawRollup(RawPoint):
    """The members of a rollup, not decoded."""

    interval: msgspec.Raw = _NULL
    aggregator: msgspec.Raw = _NULL
    groupByAggregator: msgspec.Raw = _NULL  # noqa: N815 - OpenTSDB's


_rollups = msgspec.json.Decoder(list[_RawRollup | None])


class PutRollup(NamedTuple):
    """One rollup with its members as texts."""

    point: JsonPoint
    interval: str | None
    aggregator: str | None
    group_by: str | None
    tag_key: str  # name of a pre-aggregate's tag

    def echo(self, error: str) -> dict[str, Any]:
        """Return the rollup as a response shows it, with the pre-aggregate's tag if the error shows that it was
        added."""
        shown = self.point.echo(error)
        if self.group_by and f"{self.tag_key}={self.group_by.upper()}" in error:
            shown["tags"] = {**shown["tags"], self.tag_key: self.group_by.upper()}
        own = {"interval": self.interval, "aggregator": self.aggregator, "groupByAggregator": self.group_by}
        return shown | {name: member for name, member in own.items() if member is not None}


class RollupEndpoint:
    """/api/rollup."""

    def __init__(self, handler: PutHandler, rollups: RollupBodies | None) -> None:
        self._handler = handler
        self._rollups = rollups

    async def answer(self, request: Request) -> Response:
        """Ingest the rollups of a request. Raise Refused."""
        check_method(request, "POST")
        return await self._handler.put(request, self._parse, self._echo, self._handler.intake.take_summaries)

    def _parse(self, text: bytes) -> BodySlice:
        return to_lines(text, self._points(text), self._line)

    def _echo(self, one: BodySlice) -> list[PutRollup | None]:
        return self._points(one.text)

    def _points(self, text: bytes) -> list[PutRollup | None]:
        return [None if raw is None else self._point(raw) for raw in _rollups.decode(text)]

    def _point(self, raw: _RawRollup) -> PutRollup:
        return PutRollup(
            parse_point(raw),
            text_of(raw.interval),
            text_of(raw.aggregator),
            text_of(raw.groupByAggregator),
            self._rollups.tag_key if self._rollups else "",
        )

    def _line(self, rollup: PutRollup | None) -> bytes:
        """Return the line of a rollup. Raise BadLine."""
        metric, tags, time, word = check_members(rollup and rollup.point)
        assert rollup is not None
        kind = _kind(rollup)
        if self._rollups is None:
            raise illegal(ROLLUPS_NOT_CONFIGURED)
        self._rollups.check(kind, metric, tags, time, word)
        check_separators(metric, tags)
        parts = (kind.interval and f"{kind.interval}-{kind.aggregator}", kind.group_by)
        shown = ":".join(filter(None, parts)).encode("latin-1")
        return b"rollup %s %s %d %s %s\n" % (shown, metric, time, word.strip(), join_tags(tags))


def _kind(rollup: PutRollup) -> RollupKind:
    """Return the interval and aggregators of a rollup. Raise BadLine."""
    if not rollup.group_by:
        if not rollup.interval:
            raise illegal("Missing interval")
        if not rollup.aggregator:
            raise illegal("Missing aggregator")
    interval, group_by = rollup.interval or None, rollup.group_by or None
    return RollupKind(interval, rollup.aggregator or (None if interval else group_by), group_by)


def rollup_routes(handler: PutHandler, rollups: RollupBodies | None) -> dict[str, Endpoint]:
    """/api/rollup; `rollups` is None if they are not configured."""
    return {"api/rollup": RollupEndpoint(handler, rollups).answer}


MAX_ID = 255


class _RawHistogram(RawPoint):
    """The members of a histogram, not decoded."""

    id: msgspec.Raw = _NULL
    buckets: dict[str, msgspec.Raw] | None = None
    underflow: msgspec.Raw = _NULL
    overflow: msgspec.Raw = _NULL


_histograms = msgspec.json.Decoder(list[_RawHistogram | None])


class PutHistogram(NamedTuple):
    """One histogram: a payload in `point.value`, or buckets."""

    point: JsonPoint
    id: int
    buckets: Mapping[str, int] | None
    underflow: int
    overflow: int

    def echo(self, error: str) -> dict[str, Any]:
        """Return the histogram as a response shows it."""
        buckets = {} if self.buckets is None else {"buckets": self.buckets}
        beyond = {"underflow": self.underflow, "overflow": self.overflow}
        return self.point.echo(error) | {"id": self.id} | buckets | beyond


class HistogramEndpoint:
    """/api/histogram."""

    def __init__(self, handler: PutHandler, histograms: HistogramBodies) -> None:
        self._handler = handler
        self._histograms = histograms

    async def answer(self, request: Request) -> Response:
        """Ingest the histograms of a request. Raise Refused."""
        check_method(request, "POST")
        return await self._handler.put(request, self._parse, _echo, self._handler.intake.take_summaries)

    def _parse(self, text: bytes) -> BodySlice:
        return to_lines(text, parse_histograms(text), self._line)

    def _line(self, histogram: PutHistogram | None) -> bytes:
        """Return the line of a histogram. Raise BadLine."""
        if histogram is None:
            raise illegal("Unexpected null datapoint encountered in set.")
        point = histogram.point
        metric = check_metric(point)
        if not point.tags:
            raise illegal("Missing tags")
        if not point.value and not histogram.buckets:
            raise illegal("Histogram buckets cannot be null or empty if 'value' is empty.")
        tags = tags_of(point.tags)
        payload = self._payload(histogram)
        self._histograms.check(metric, tags, point.timestamp, payload)
        check_separators(metric, tags)
        word = base64.b64encode(payload)
        return b"histogram %s %d %d %s %s\n" % (
            metric,
            point.timestamp,
            self._histograms.codec_id,
            word,
            join_tags(tags),
        )

    def _payload(self, histogram: PutHistogram) -> bytes:
        """Return the payload of a histogram's cell. Raise BadLine."""
        if not histogram.point.value:
            return self._histograms.encode(histogram.buckets or {}, histogram.underflow, histogram.overflow)
        if not 0 <= histogram.id <= MAX_ID:
            raise illegal(f"Invalid type. Must be from 0 to {MAX_ID}.")
        return self._histograms.decode_text(histogram.id, histogram.point.value.encode("latin-1", "replace"))


def parse_histograms(text: bytes) -> list[PutHistogram | None]:
    """Return the histograms of an array. Raise ValueError or DecodeError."""
    return [None if raw is None else _histogram(raw) for raw in _histograms.decode(text)]


def _histogram(raw: _RawHistogram) -> PutHistogram:
    buckets = raw.buckets
    return PutHistogram(
        parse_point(raw),
        integer_of(raw.id),
        None if buckets is None else {bounds: integer_of(count) for bounds, count in buckets.items()},
        integer_of(raw.underflow),
        integer_of(raw.overflow),
    )


def _echo(one: BodySlice) -> list[PutHistogram | None]:
    return parse_histograms(one.text)


def histogram_routes(handler: PutHandler, histograms: HistogramBodies | None) -> dict[str, Endpoint]:
    """/api/histogram; `histograms` is None if they are not configured."""
    if histograms is None:
        return {"api/histogram": _no_histograms}
    return {"api/histogram": HistogramEndpoint(handler, histograms).answer}


async def _no_histograms(_request: Request) -> Response:
    raise Refused(503, HISTOGRAMS_NOT_CONFIGURED)
