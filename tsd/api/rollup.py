"""POST /api/rollup: points of longer intervals → rollup lines, for the way in that the telnet port's take."""

from typing import Any, NamedTuple

import msgspec

from tsd.api.incoming import (
    Piece,
    Point,
    Reading,
    check_words,
    flags_of,
    lines_of,
    members_of,
    point_of,
    read_slices,
    tags_text,
    text_of,
)
from tsd.api.taking import PointsDoor
from tsd.codec.putline import illegal
from tsd.doors.exchange import Endpoint, Request, Response
from tsd.errors import BadLine
from tsd.ingest.intake import Intake
from tsd.ingest.summaries import SummaryRules
from tsd.rollups import NOT_CONFIGURED, Kind, judge_rollup

_NULL = msgspec.Raw(b"null")


class _Reading(Reading):
    """A rollup's members, unread."""

    interval: msgspec.Raw = _NULL
    aggregator: msgspec.Raw = _NULL
    groupByAggregator: msgspec.Raw = _NULL  # noqa: N815 - OpenTSDB's


_readings = msgspec.json.Decoder(list[_Reading | None])


class RollupPoint(NamedTuple):
    """One point, its members as texts."""

    point: Point
    interval: str | None
    aggregator: str | None
    group_by: str | None
    tag_key: str  # that a grouped point gets

    def echo(self, error: str) -> dict[str, Any]:
        """As an answer shows it; with the tag that says how it was grouped, once it has it."""
        shown = self.point.echo(error)
        if self.group_by and f"{self.tag_key}={self.group_by.upper()}" in error:
            shown["tags"] = {**shown["tags"], self.tag_key: self.group_by.upper()}
        own = {"interval": self.interval, "aggregator": self.aggregator, "groupByAggregator": self.group_by}
        return shown | {name: member for name, member in own.items() if member is not None}


class Rollup:
    """The endpoint."""

    def __init__(self, door: PointsDoor, intake: Intake, rules: SummaryRules) -> None:
        self._door = door
        self._take_in = intake.take_summaries_in
        self._rules = rules
        self._tag_key = rules.rollups.tag_key.decode("latin-1") if rules.rollups else ""

    async def answer(self, request: Request) -> Response:
        """Take the points of a request in; raises Refused."""
        flags = flags_of(request)
        await self._door.admit(request.visitor)
        pieces = await read_slices(request.body, lambda text: lines_of(text, self._points(text), self._line))
        return await self._door.take(pieces, flags, self._echo, self._take_in, request)

    def _echo(self, piece: Piece) -> list[RollupPoint | None]:
        return self._points(piece.text)

    def _points(self, text: bytes) -> list[RollupPoint | None]:
        return [None if reading is None else self._point(reading) for reading in _readings.decode(text)]

    def _point(self, reading: _Reading) -> RollupPoint:
        return RollupPoint(
            point_of(reading),
            text_of(reading.interval),
            text_of(reading.aggregator),
            text_of(reading.groupByAggregator),
            self._tag_key,
        )

    def _line(self, rolled: RollupPoint | None) -> bytes:
        """The line that says what a point says; raises BadLine."""
        metric, tags, time, word = members_of(rolled and rolled.point)
        assert rolled is not None
        kind = _kind(rolled)
        if self._rules.rollups is None:
            raise illegal(NOT_CONFIGURED)
        try:
            judge_rollup(kind, metric, tags, time, word, self._rules.rollups, self._rules.names)
        except BadLine as error:
            if str(error).startswith("No such rollup"):
                raise illegal("Unexpected exception") from error  # its words there
            raise
        check_words(metric, tags)
        said = (kind.interval and f"{kind.interval}-{kind.aggregator}", kind.group_by)
        shown = ":".join(filter(None, said)).encode("latin-1")
        return b"rollup %s %s %d %s %s\n" % (shown, metric, time, word.strip(), tags_text(tags))


def _kind(rolled: RollupPoint) -> Kind:
    """What a point was made of; raises BadLine."""
    if not rolled.group_by:
        if not rolled.interval:
            raise illegal("Missing interval")
        if not rolled.aggregator:
            raise illegal("Missing aggregator")
    group_by = rolled.group_by or None
    return Kind(rolled.interval or None, rolled.aggregator or group_by, group_by)


def routes(door: PointsDoor, intake: Intake) -> dict[str, Endpoint]:
    """/api/rollup."""
    return {"api/rollup": Rollup(door, intake, intake.summary_rules).answer}
