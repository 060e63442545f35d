"""Answers → JSON in parts, key for key as OpenTSDB writes it (query.md §14).

What is wrong with an answer as a whole, an infinite value, is found before the first part. Beyond OpenTSDB, and never
where a client would take it for data: a sub query's warnings are the last key, `warnings`, of its first group, or where
it has none those of the summary that was asked for; what was interpolated and which duplicates there were is told with
the timings, when those are asked for.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from tsd.codec.annotation import Annotation
from tsd.errors import BadQuery
from tsd.query.answers import Answer, Group, SubAnswer
from tsd.query.echo import echo
from tsd.query.model import Downsample, Fill, Query
from tsd.query.notes import within
from tsd.query.numbers import NAN, NULL, number_texts
from tsd.query.points import Int64, Points
from tsd.query.ranges import output_range
from tsd.query.summary import group_stats, summary

PART = 128 << 10  # bytes, about
SLICE = 1024  # points that are written at once: what they need stays in the processor's cache
_encode = msgspec.json.Encoder().encode


def write_answer(
    answer: Answer, *, arrays: bool = False, clock: Callable[[], float] = time.perf_counter
) -> Iterator[bytes]:
    """The answer's JSON in parts of about 128 KiB; raises BadQuery before the first where a value is infinite. `clock`
    gives seconds, for the timings of those who ask for them."""
    query = answer.query
    cut = [[in_range(group.points, query, sub.sub.downsample) for group in sub.groups] for sub in answer.subs]
    for points in (points for sub in cut for points in sub):
        _check_finite(points)
    return gathered(_elements(answer, cut, _Layout(query, arrays=arrays), clock))


def in_range(points: Points, query: Query, downsample: Downsample | None) -> Points:
    """The points that are answered: those whose times are within the query's, both ends included."""
    times = points.times
    shown = output_range(query.start_ms, query.end_ms, downsample, corrected=query.corrected)
    if not len(times) or (times[0] >= shown.start and times[-1] < shown.stop):
        return points
    return points.at(slice(*np.searchsorted(times, (shown.start, shown.stop)).tolist()))


def _check_finite(points: Points) -> None:
    doubles = points.bits.view(np.float64)
    infinite = np.isinf(doubles)
    if infinite.any():
        infinite &= points.floats
        if infinite.any():
            at = int(np.argmax(infinite))
            raise BadQuery(f"Got Infinity: {'-' if doubles[at] < 0 else ''}Infinity at {points.times[at]}")


class _Layout:
    """How points are written: their times as keys of an object, or pairs in arrays; the texts of times that many groups
    share are made once."""

    def __init__(self, query: Query, *, arrays: bool) -> None:
        self._divisor = 1 if query.ms_resolution else 1000
        self._last_only = query.corrected and not arrays and self._divisor > 1
        self._open, self._close, self._end = (b"],[", b",", b"]]") if arrays else (b',"', b'":', b"}")
        self._begin = b"[" if arrays else b"{"
        self._empty = b"[]" if arrays else b"{}"
        self._times: Int64 | None = None
        self._keys: list[bytes] = []

    def write(self, points: Points, nan: bytes) -> Iterator[bytes]:
        """The value of `dps`."""
        if self._last_only:
            points = _last_of_each(points, self._divisor)
        if not len(points.times):
            yield self._empty
            return
        keys = self._keys_of(points.times)
        separator = 1 if self._begin == b"{" else 2
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

    def _keys_of(self, times: Int64) -> list[bytes]:
        """For each time what stands between the value before it and its own."""
        if self._times is not times:
            if self._times is None or not np.array_equal(self._times, times):
                self._keys = self._made(times)
            self._times = times
        return self._keys

    def _made(self, times: Int64) -> list[bytes]:
        shown = _encode((times // self._divisor).tolist())[1:-1]
        between = self._close + b"\0" + self._open
        return (self._open + shown.replace(b",", between) + self._close).split(b"\0")


def _last_of_each(points: Points, divisor: int) -> Points:
    """The last of the points of one second: a key that comes twice says nothing."""
    seconds = points.times // divisor
    last = np.append(seconds[1:] != seconds[:-1], True)
    return points if last.all() else points.at(last)


def gathered(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The same bytes in larger parts."""
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


def _elements(
    answer: Answer, cut: Sequence[Sequence[Points]], layout: _Layout, clock: Callable[[], float]
) -> Iterator[bytes]:
    """The array's text: groups, then the summary."""
    begun = clock()
    separator = b"["
    for sub, points in zip(answer.subs, cut, strict=True):
        for number, (group, shown) in enumerate(zip(sub.groups, points, strict=True)):
            yield separator
            separator = b","
            started = clock()
            head = _head(answer, sub, group)
            yield _encode(head)[:-1]
            yield b',"dps":'
            yield from layout.write(shown, NULL if _fills_with_null(sub) else NAN)
            tail: dict[str, Any] = {}
            if answer.query.show_stats:
                tail["stats"] = group_stats(sub, group, len(shown.times), (clock() - started) * 1000)
            if sub.warnings and not number:
                tail["warnings"] = sub.warnings
            yield b"," + _encode(tail)[1:] if tail else b"}"
    if answer.query.show_summary:
        yield separator
        separator = b","
        yield _encode({"statsSummary": summary(answer, (clock() - begun) * 1000)})
    yield b"[]" if separator == b"[" else b"]"


def _fills_with_null(sub: SubAnswer) -> bool:
    downsample = sub.sub.downsample
    return downsample is not None and downsample.fill is Fill.NULL


def _head(answer: Answer, sub: SubAnswer, group: Group) -> Mapping[str, Any]:
    """The keys before `dps`."""
    query = answer.query
    head: dict[str, Any] = {
        "metric": group.metric,
        "tags": dict(group.tags),
        "aggregateTags": list(group.aggregate_tags),
    }
    if query.show_query:
        head["query"] = echo(sub)
    if query.show_tsuids:
        head["tsuids"] = sorted(tsuid.hex().upper() for tsuid in group.tsuids)
    if not query.no_annotations:
        if group.annotations is not None:
            head["annotations"] = _notes(group.annotations, query)
        if query.global_annotations and answer.global_annotations:
            head["globalAnnotations"] = _notes(answer.global_annotations, query)
    return head


def _notes(notes: Sequence[Annotation], query: Query) -> list[dict[str, Any]]:
    """Of some notes those that start between the query's times."""
    return [_note(note) for note in within(notes, query.start_ms, query.end_ms)]


def _note(note: Annotation) -> dict[str, Any]:
    shown: dict[str, Any] = {"tsuid": note.tsuid, "description": note.description, "notes": note.notes}
    if note.custom is not None:
        shown["custom"] = dict(note.custom)
    return shown | {"startTime": note.start_time, "endTime": note.end_time}
