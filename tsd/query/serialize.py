"""Writes answers as JSON in parts, key for key like OpenTSDB (docs/compat/query.md §13, §14).

An infinite value is an error, found before the first part. Unlike OpenTSDB, a sub query's warnings are the last key,
`warnings`, of its first group, or of the summary if there are no groups. The timings include counts of interpolated
values and duplicates.

Java writes every double with a point, and from 10^7 up and below 10^-3 with an exponent: `42.0`, `1.0E12`, `2.5E-7`.
The digits are the fewest that identify the double, as in newer versions of Java; older ones print some with one more.
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec
import numpy as np

from tsd.codec.metadata import Annotation
from tsd.codec.names import show_uid
from tsd.codec.points import NO_POINTS, Float64, Int64, Points
from tsd.errors import BadQuery
from tsd.query.assemble import notes_within
from tsd.query.model import Downsample, Fill, Query
from tsd.query.plan import output_range
from tsd.query.result import Answer, Group, SubAnswer, echo, group_stats, summary
from tsd.query.row_buckets import HAS_LOOP
from tsd.tables.reading import ScanRange

if HAS_LOOP:
    from tsd.query import _loops

NAN = b'"NaN"'
NULL = b"null"
PLAIN_FROM = 1e-3
PLAIN_BELOW = 1e7
_POINTED_BELOW = 1e16  # msgspec writes exponents from here on
_POINTED_FROM = 1e-5
_encode = msgspec.json.Encoder().encode


def number_texts(points: Points, nan: bytes = NAN) -> list[bytes]:
    """Return the JSON text of each value; `nan` replaces NaN.

    >>> number_texts(Points(np.arange(3), np.array([5, 0, 4607182418800017408]), np.array([False, True, True])))
    [b'5', b'0.0', b'1.0']
    """
    count = np.count_nonzero(points.floats)  # a third of what `all` takes for few points
    if count == len(points.floats):
        return double_texts(points.bits.view(np.float64), nan)
    integers = _encode(points.bits.tolist())[1:-1].split(b",") if len(points.bits) else []
    if not count:
        return integers
    doubles = np.flatnonzero(points.floats)
    for at, text in zip(doubles.tolist(), double_texts(points.bits[doubles].view(np.float64), nan), strict=True):
        integers[at] = text
    return integers


def double_texts(values: Float64, nan: bytes = NAN) -> list[bytes]:
    """Return the JSON text of each double; none is infinite.

    >>> double_texts(np.array([42.0, 1e12, 12345678.5, 2.5e-7, 0.00012, -0.0, float("nan")]))
    [b'42.0', b'1.0E12', b'1.23456785E7', b'2.5E-7', b'1.2E-4', b'-0.0', b'"NaN"']
    """
    if not len(values):
        return []
    texts = _encode(values.tolist())[1:-1].split(b",")
    sizes = np.abs(values)
    plain = (sizes >= PLAIN_FROM) & (sizes < PLAIN_BELOW)
    if np.count_nonzero(plain) == len(plain):
        return texts
    odd = ~plain & (sizes > 0)
    if odd.all():
        return _with_exponents(texts, values)
    where = np.flatnonzero(odd).tolist()
    for at, text in zip(where, _with_exponents([texts[at] for at in where], values[odd]), strict=True):
        texts[at] = text
    for at in np.flatnonzero(np.isnan(values)).tolist():
        texts[at] = nan
    return texts


def _with_exponents(texts: list[bytes], values: Float64) -> list[bytes]:
    """Return texts of doubles outside of the plain range, with Java's exponents."""
    sizes = np.abs(values)
    pointed = (sizes >= _POINTED_FROM) & (sizes < _POINTED_BELOW)
    if pointed.all():
        return _moved(texts, values) if texts else []
    where = np.flatnonzero(pointed).tolist()
    moved = dict(zip(where, _with_exponents([texts[at] for at in where], values[pointed]), strict=True))
    return [moved[at] if at in moved else _java_exponent(text) for at, text in enumerate(texts)]


def _java_exponent(text: bytes) -> bytes:
    """Convert `1e16` to `1.0E16`."""
    digits, _, exponent = text.partition(b"e")
    return digits + (b"E" if b"." in digits else b".0E") + exponent


def _moved(texts: list[bytes], values: Float64) -> list[bytes]:
    """Convert plain decimals such as `12345678.5` and `0.00012` to one digit before the point; numbers with the first
    digit in the same place are converted together."""
    cells = np.array(texts)
    negative = values < 0
    if negative.any():
        cells = np.strings.lstrip(cells, b"-")
    width = cells.dtype.itemsize
    bytes_of = cells.view(np.uint8).reshape(len(cells), width)
    zeros = np.argmax((bytes_of != ord("0")) & (bytes_of != ord(".")), axis=1)  # before the first other digit
    exponents = np.where(np.abs(values) >= 1, np.strings.find(cells, b".") - 1, 1 - zeros)
    moved = np.empty(len(cells), f"S{width + 5}")
    for exponent in np.unique(exponents).tolist():
        mine = exponents == exponent
        rows = bytes_of[mine]
        digits = np.zeros((len(rows), width + 1), np.uint8)
        if exponent > 0:
            digits[:, 0] = rows[:, 0]
            digits[:, 2 : exponent + 2] = rows[:, 1 : exponent + 1]
            digits[:, exponent + 2 : width] = rows[:, exponent + 2 :]
        else:
            first = 1 - exponent
            digits[:, 0] = rows[:, first]
            digits[:, 2 : width + 1 - first] = rows[:, first + 1 :]
        digits[:, 1] = ord(".")
        short = np.strings.rstrip(digits.view(f"S{width + 1}")[:, 0], b"0")
        short = np.where(np.strings.endswith(short, b"."), np.strings.add(short, b"0"), short)
        moved[mine] = np.strings.add(short, f"E{exponent}".encode())
    if negative.any():
        moved = np.where(negative, np.strings.add(b"-", moved), moved)
    shown: list[bytes] = moved.tolist()
    return shown


PART = 128 << 10  # bytes, about
SLICE = 1024  # points encoded together: they fit the processor's cache
LOOP_POINTS = 4096  # likewise, in the compiled loop: 100 KiB of text


def write_answer(answer: Answer, *, arrays: bool = False) -> Iterator[bytes]:
    """Write an answer in parts of about 128 KiB. Raise BadQuery before the first if a value is infinite."""
    return joined_parts(_pieces(answer, arrays=arrays))


def written_answer(answer: Answer, *, arrays: bool) -> bytes:
    """Return a small answer as written. Raise BadQuery if a value is infinite."""
    return b"".join(_pieces(answer, arrays=arrays, checks_later=HAS_LOOP))


def _pieces(answer: Answer, *, arrays: bool, checks_later: bool = False) -> Iterator[bytes]:
    """Return the pieces of an answer, once all of its values are checked; those of few points when they are written if
    `checks_later`."""
    query = answer.query
    cut = [list(_in_range(sub, query)) for sub in answer.subs]
    for sub in cut:
        for points in sub:
            if not checks_later or len(points.times) > LOOP_POINTS:
                _check_finite(points)
    return _elements(answer, cut, PointFormat(query, arrays=arrays))


def in_range(points: Points, query: Query, downsample: Downsample | None) -> Points:
    """Return the points within the query's times, both ends included."""
    times = points.times
    shown = output_range(query.start_ms, query.end_ms, downsample, quirks=query.quirks)
    if not len(times) or (times[0] >= shown.start and times[-1] < shown.stop):
        return points
    return points.at(slice(*np.searchsorted(times, (shown.start, shown.stop)).tolist()))


def _in_range(answer: SubAnswer, query: Query) -> Iterator[Points]:
    """Yield the points of each group within the query's times. Groups that share times still do."""
    shown = output_range(query.start_ms, query.end_ms, answer.sub.downsample, quirks=query.quirks)
    times = cut = NO_POINTS.times
    part = slice(0)
    for group in answer.groups:
        points = group.points
        if points.times is not times:
            times = points.times
            part = slice(int(times.searchsorted(shown.start)), int(times.searchsorted(shown.stop)))
            cut = times[part]
        yield Points(cut, points.bits[part], points.floats[part])


def _check_finite(points: Points) -> None:
    doubles = points.bits.view(np.float64)
    infinite = np.isinf(doubles)
    if np.count_nonzero(infinite):
        infinite &= points.floats
        if infinite.any():
            at = int(np.argmax(infinite))
            raise BadQuery(f"Got Infinity: {'-' if doubles[at] < 0 else ''}Infinity at {points.times[at]}")


class Frame(NamedTuple):
    """The text around the points of an answer with one group, which has no other keys than the usual ones."""

    head: bytes  # with what begins the points
    tail: bytes  # with what ends them
    empty: bytes  # the answer without points


class PointFormat:
    """Writes points: times as keys of an object, or pairs in arrays. Texts of times that groups share are made once."""

    def __init__(self, query: Query, *, arrays: bool, compiled: bool = HAS_LOOP) -> None:
        """`compiled`: use the compiled loop."""
        self._compiled = compiled
        self._divisor = 1 if query.ms_resolution else 1000
        self._last_only = self._divisor > 1 and not arrays and not query.quirks.repeats_seconds
        self._open, self._close, self._end = (b"],[", b",", b"]]") if arrays else (b',"', b'":', b"}")
        self._begin, self._separator = (b"[", 2) if arrays else (b"{", 1)
        self._empty = b"[]" if arrays else b"{}"
        self._times: Int64 | None = None
        self._keys: list[bytes] = []

    def write(self, points: Points, nan: bytes) -> Iterator[bytes]:
        """Write the value of `dps`."""
        if not len(points.times):
            yield self._empty
            return
        separator = self._separator
        if self._compiled and len(points.times) <= LOOP_POINTS:
            yield self._begin + self._written_compiled(points, nan, last_only=self._last_only)[separator:] + self._end
            return
        if self._last_only:
            points = _last_of_each(points, self._divisor)
        if self._compiled:
            for first in range(0, len(points.times), LOOP_POINTS):
                text = self._written_compiled(points.at(slice(first, first + LOOP_POINTS)), nan)
                yield text if first else self._begin + text[separator:]
            yield self._end
            return
        keys = self._keys_of(points.times)
        for first in range(0, len(keys), SLICE):
            part = slice(first, first + SLICE)
            shared = keys[part]
            texts = shared * 2
            texts[0::2] = shared
            texts[1::2] = number_texts(points.at(part), nan)
            if not first:
                texts[0] = self._begin + texts[0][separator:]
            yield b"".join(texts)
        yield self._end

    def frame(self, answer: Answer) -> Frame:
        """Return the text around the points of an answer's only group."""
        [sub] = answer.subs
        [group] = sub.groups
        head = b"[" + _encode(_head(answer, sub, group))[:-1] + b',"dps":'
        return Frame(head + self._begin, self._end + b"}]", head + self._empty + b"}]")

    def write_only(self, points: Points, query: Query, scan: ScanRange, frame: Frame, *, is_sum: bool) -> bytes | None:
        """Return an answer's text with the points of its only series. None without the compiled loop, for many points,
        and if values may change when they are aggregated, or cannot be written."""
        if not self._compiled or len(points.times) > LOOP_POINTS:
            return None
        scanned_ms = scan.start_s * 1000, scan.stop_s * 1000
        return _loops.write_only(
            *points, query.start_ms, query.end_ms, *scanned_ms, is_sum, self._divisor, self._last_only, frame.head,
            self._open, self._separator, self._close, frame.tail, frame.empty, partial(_texts_at, points, NAN),
        )  # fmt: skip

    def _written_compiled(self, points: Points, nan: bytes, *, last_only: bool = False) -> bytes:
        """Return the text of points, each after a separator. Raise BadQuery for an infinite value."""
        times, bits, floats = points
        others_of = partial(_texts_at, points, nan)
        return _loops.write_points(
            times, bits, floats.view(np.uint8), self._divisor, last_only, self._open, self._close, others_of
        )

    def _keys_of(self, times: Int64) -> list[bytes]:
        """Return for each time the text between the previous value and its own."""
        if self._times is not times:
            if self._times is None or not np.array_equal(self._times, times):
                self._keys = self._made(times)
            self._times = times
        return self._keys

    def _made(self, times: Int64) -> list[bytes]:
        shown = _encode((times // self._divisor).tolist())[1:-1]
        between = self._close + b"\0" + self._open
        return (self._open + shown.replace(b",", between) + self._close).split(b"\0")


def _texts_at(points: Points, nan: bytes, places: Sequence[int]) -> list[bytes]:
    """Return the texts of the doubles at some places. Raise BadQuery for an infinite one."""
    some = points.at(np.array(places, np.intp))
    _check_finite(some)
    return double_texts(some.bits.view(np.float64), nan)


def _last_of_each(points: Points, divisor: int) -> Points:
    """Keep the last point of each second, so that no key is repeated."""
    seconds = points.times // divisor
    if not np.count_nonzero(seconds[1:] == seconds[:-1]):
        return points
    return points.at(np.append(seconds[1:] != seconds[:-1], True))


def joined_parts(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Join pieces to parts of about 128 KiB."""
    waiting: list[bytes] = []
    size = 0
    for piece in pieces:
        waiting.append(piece)
        size += len(piece)
        if size >= PART:
            yield b"".join(waiting)
            waiting.clear()
            size = 0
    yield b"".join(waiting)


def _elements(answer: Answer, cut: Sequence[Sequence[Points]], layout: PointFormat) -> Iterator[bytes]:
    """Write the array: groups, then the summary."""
    begun = time.perf_counter()
    separator = b"["
    for sub, points in zip(answer.subs, cut, strict=True):
        for number, (group, shown) in enumerate(zip(sub.groups, points, strict=True)):
            yield separator
            separator = b","
            started = time.perf_counter()
            head = _head(answer, sub, group)
            yield _encode(head)[:-1]
            yield b',"dps":'
            yield from layout.write(shown, NULL if _fills_with_null(sub) else NAN)
            tail: dict[str, Any] = {}
            if answer.query.show_stats:
                tail["stats"] = group_stats(sub, group, len(shown.times), (time.perf_counter() - started) * 1000)
            if sub.warnings and not number:
                tail["warnings"] = sub.warnings
            yield b"," + _encode(tail)[1:] if tail else b"}"
    if answer.query.show_summary:
        yield separator
        separator = b","
        emitted = [sum(len(one.times) for one in points) for points in cut]
        yield _encode({"statsSummary": summary(answer, emitted, (time.perf_counter() - begun) * 1000)})
    yield b"[]" if separator == b"[" else b"]"


def _fills_with_null(sub: SubAnswer) -> bool:
    downsample = sub.sub.downsample
    return downsample is not None and downsample.fill is Fill.NULL


def _head(answer: Answer, sub: SubAnswer, group: Group) -> Mapping[str, Any]:
    """Return the keys before `dps`."""
    query = answer.query
    head: dict[str, Any] = {
        "metric": group.metric,
        "tags": dict(group.tags),
        "aggregateTags": list(group.aggregate_tags),
    }
    if query.show_query:
        head["query"] = echo(sub)
    if query.show_tsuids:
        head["tsuids"] = sorted(map(show_uid, group.tsuids))
    if not query.no_annotations:
        if group.annotations is not None:
            head["annotations"] = _notes(group.annotations, query)
        if query.global_annotations and answer.global_annotations:
            head["globalAnnotations"] = _notes(answer.global_annotations, query)
    return head


def _notes(notes: Sequence[Annotation], query: Query) -> list[dict[str, Any]]:
    """Return the annotations that start within the query's times."""
    return [show_annotation(note) for note in notes_within(notes, query.start_ms, query.end_ms)]


def show_annotation(note: Annotation) -> dict[str, Any]:
    """Return the JSON of an annotation, with `custom` only if it has one.

    >>> list(show_annotation(Annotation(1356998400)))
    ['tsuid', 'description', 'notes', 'startTime', 'endTime']
    """
    shown: dict[str, Any] = {"tsuid": note.tsuid, "description": note.description, "notes": note.notes}
    if note.custom is not None:
        shown["custom"] = dict(note.custom)
    return shown | {"startTime": note.start_time, "endTime": note.end_time}
