"""The lines of a body's points, and the errors of points without one, in slices. For KairosDB's and Heroic's bodies."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from tsd.api.kairosdb.refused_points import Kept
from tsd.api.points import BodySlice
from tsd.errors import BadLine, Refused, bare

SLICE_POINTS = 2000  # of the lines that are ingested at once
MOST_BRACKETS = 500_000  # arrays and objects of a body: a point takes some 500 bytes of memory until it is stored
TEXT_BYTES = 128 << 20  # of a body's put lines and errors: each repeats the names of its metric


class PointPlace(NamedTuple):
    """The place of a point in its request."""

    place: str

    def echo(self, error: str) -> dict[str, Any]:
        """Return what the log of refused lines shows."""
        del error
        return {"point": self.place}


class SlicePoints(NamedTuple):
    """The points of a slice."""

    places: list[PointPlace | None]  # None where the error names the place already
    kept: dict[int, Kept]  # of refused points, by index


class ParsedBody:
    """A body in slices, and the points of each."""

    def __init__(self, slices: list[BodySlice], points: Sequence[SlicePoints]) -> None:
        self.slices = slices
        self._points = {id(one): found for one, found in zip(slices, points, strict=True)}

    def points(self, one: BodySlice) -> Sequence[PointPlace | None]:
        """Return the points of a slice."""
        return self._points[id(one)].places

    def kept(self, one: BodySlice, number: int) -> Sequence[bytes]:
        """Return what the log of refused lines keeps of a point without a line."""
        return [b"".join(pieces) for pieces in self._points[id(one)].kept[number]]

    def clear(self) -> None:
        """Free the slices."""
        self.slices.clear()
        self._points.clear()


class _Part:
    """A slice that is being collected."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self.numbers: list[int] = []
        self.refused: dict[int, BadLine] = {}
        self.kept: dict[int, Kept] = {}
        self.points: list[PointPlace | None] = []

    def add(self, line: bytes, place: str) -> None:
        """Add the line of a point."""
        self.numbers.append(len(self.points))
        self.lines.append(line)
        self.points.append(PointPlace(place))

    def refuse(self, error: BadLine, kept: Kept) -> None:
        """Add an error."""
        self.refused[len(self.points)] = error
        self.kept[len(self.points)] = kept
        self.points.append(None)

    def slice(self) -> BodySlice:
        """Return what was collected."""
        return BodySlice(b"", b"".join(self.lines), self.numbers, self.refused, len(self.points))


class Collector:
    """Collects lines and errors into slices. Each has lines of numbers only, or of texts only."""

    def __init__(self) -> None:
        self._slices: list[BodySlice] = []
        self._points: list[SlicePoints] = []
        self._text_bytes = 0
        self._numbers, self._texts = _Part(), _Part()

    def _count_text(self, size: int) -> None:
        """Raise Refused if the lines and errors take too much memory."""
        self._text_bytes += size
        if self._text_bytes > TEXT_BYTES:
            details = f"The put lines of its points have more than {TEXT_BYTES} bytes: send several requests"
            raise Refused(413, "Request body is too large", details)

    def add(self, line: bytes, place: str) -> None:
        """Add the put line of a point. Raise Refused."""
        self._count_text(len(line) + len(place))
        self._numbers.add(line, place)
        if len(self._numbers.points) >= SLICE_POINTS:
            self._end_numbers()

    def add_text(self, line: bytes, place: str) -> None:
        """Add the line of a text. Raise Refused."""
        self._count_text(len(line) + len(place))
        self._texts.add(line, place)
        if len(self._texts.points) >= SLICE_POINTS:
            self._end_texts()

    def refuse(self, error: BadLine, kept: Kept) -> None:
        """Add an error, and what the log of refused lines keeps of its point. Raise Refused."""
        self._count_text(len(str(error)))
        self._numbers.refuse(bare(error), kept)
        if len(self._numbers.points) >= SLICE_POINTS:
            self._end_numbers()

    def _end_numbers(self) -> None:
        self._end(self._numbers)
        self._numbers = _Part()

    def _end_texts(self) -> None:
        self._end(self._texts)
        self._texts = _Part()

    def _end(self, part: _Part) -> None:
        self._slices.append(part.slice())
        self._points.append(SlicePoints(part.points, part.kept))

    def finish(self) -> ParsedBody:
        """Return what was collected."""
        for part in (self._numbers, self._texts):
            if part.points:
                self._end(part)
        return ParsedBody(self._slices, self._points)


def check_brackets(body: bytes) -> None:
    """Raise Refused for a body whose points would take too much memory."""
    if (count := body.count(b"[") + body.count(b"{")) > MOST_BRACKETS:
        details = f"got {count} arrays and objects, wanted at most {MOST_BRACKETS}: send several requests"
        raise Refused(413, "Request body is too large", details)
