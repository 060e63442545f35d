"""POST /api/put: a body's data points → put lines, for the same way in that the telnet port's take.

The usual body is turned into lines without a look at any single point, in a compiled loop where that was built: the way
in judges them. A body in which anything is unusual is gone through point by point, and a point that no line can say is
refused here, in OpenTSDB's words.
"""

import os
from typing import Annotated

import msgspec

from tsd.api.incoming import (
    Piece,
    Point,
    Reading,
    Tag,
    check_words,
    flags_of,
    header_tag,
    lines_of,
    members_of,
    point_of,
    read_slices,
    tagged,
    tags_text,
)
from tsd.api.taking import PointsDoor
from tsd.codec.putline import NameRules, judge
from tsd.codec.times import LAST_MS
from tsd.doors.exchange import Endpoint, Request, Response
from tsd.ingest.intake import Intake

try:
    from tsd.api import _put_json
except ImportError:  # no C compiler when it was installed
    HAS_LOOP = False
else:
    HAS_LOOP = not os.environ.get("TSD_PURE")  # to compare the two

_ODD = (b'"', b"[", b"{", b"\r", b"  ", b" =", b"= ", b"=\n")  # texts and arrays for values, empty names
_BLANKS = bytes(range(33))  # what Java's parser of floats takes off a number


class _Usual(msgspec.Struct, gc=False):
    """A data point as most clients send it."""

    metric: str
    timestamp: Annotated[int, msgspec.Meta(ge=1, le=LAST_MS)]
    value: msgspec.Raw
    tags: dict[str, str]


_usual = msgspec.json.Decoder(list[_Usual])
_any = msgspec.json.Decoder(list[Reading | None])


def read_put(text: bytes, tag: Tag | None, rules: NameRules, *, by_loop: bool = HAS_LOOP) -> Piece:
    """An array of points; raises ValueError or DecodeError where it is none."""
    found = read_looped(text, tag, rules) if by_loop else None
    return found or read_usual(text, tag) or read_any(text, tag, rules)


def read_looped(text: bytes, tag: Tag | None, rules: NameRules) -> Piece | None:
    """What `read_usual` says of an array, or `read_any` where plain numbers are strings; None: they are to be asked."""
    tagk, tagv = ("", "") if tag is None else tag
    found = _put_json.put_lines(text, tagk.encode(), tagv.encode(), rules.max_tags)
    return None if found is None else Piece(text, found[0], range(found[1]), {}, found[1])


def read_usual(text: bytes, tag: Tag | None) -> Piece | None:
    """An array in which nothing is unusual; None where a closer look is wanted.

    What would make two lines, or other words, of a point is found by counting the characters that part lines and words.
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
    return Piece(text, lines, range(len(points)), {}, len(points)) if usual else None


def read_any(text: bytes, tag: Tag | None, rules: NameRules) -> Piece:
    """Any array of points; raises ValueError or DecodeError where it is none."""
    return lines_of(text, points_of(text, tag), lambda point: line_of(point, rules))


def points_of(text: bytes, tag: Tag | None) -> list[Point | None]:
    """The points of an array; raises ValueError or DecodeError."""
    points = [None if reading is None else point_of(reading) for reading in _any.decode(text)]
    return [point and tagged(point, tag) for point in points]


def line_of(point: Point | None, rules: NameRules) -> bytes:
    """The put line that says what a point says; raises BadLine."""
    metric, tags, time, word = members_of(point)
    judge(metric, tags, time, word, rules)
    check_words(metric, tags)
    # What Java's parser takes off a float would part words here.
    return b"put %s %d %s %s\n" % (metric, time, word.strip(_BLANKS), tags_text(tags))


class Put:
    """The endpoint."""

    def __init__(self, door: PointsDoor, intake: Intake, rules: NameRules, header: str) -> None:
        """`header` is `tsd.http.header_tag`."""
        self._door = door
        self._take_in = intake.take_in
        self._rules = rules
        self._header = header

    async def answer(self, request: Request) -> Response:
        """Take the points of a request in; raises Refused."""
        flags = flags_of(request)
        tag = header_tag(request, self._header)
        await self._door.admit(request.visitor)
        pieces = await read_slices(request.body, lambda text: read_put(text, tag, self._rules))
        return await self._door.take(pieces, flags, lambda piece: points_of(piece.text, tag), self._take_in, request)


def routes(door: PointsDoor, intake: Intake, rules: NameRules, header: str) -> dict[str, Endpoint]:
    """/api/put."""
    return {"api/put": Put(door, intake, rules, header).answer}
