"""Refused points as the log of refused lines keeps them: a path and JSON that its endpoint takes again, in one line.

An error of a metric concerns all of its points, which may take several such texts: the log truncates long ones. Texts
are in pieces, because the points of a metric share its name and tags.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from tsd.codec.lenient_json import Lenient, Members, Number
from tsd.ingest.rejected.files import LINE_BYTES

Kept: TypeAlias = Sequence[Sequence[bytes]]
PATH = b"api/datapoints"
UNREADABLE: Kept = ((PATH,),)  # of text that is no JSON
POINTS = "datapoints"
SINGLE = ("time", "timestamp", "value")  # members of a metric that are a point
_BEGIN, _END = b'"datapoints":[', b"]}"
_SPACES = bytes.maketrans(b"\n\r", b"  ")  # in place of ends of lines, which JSON has between its parts only
_items = msgspec.json.Decoder(list[msgspec.Raw])


def keep_metric(members: Mapping[str, Any]) -> Kept:
    """Return a metric with all of its points. Each point is in one text."""
    points = members.get(POINTS)
    if points is not None and not members.keys().isdisjoint(SINGLE):
        rest = {name: value for name, value in members.items() if name not in SINGLE}
        return [*keep_single(metric_head(members, POINTS, *SINGLE), members), *keep_metric(rest)]
    try:
        items = split_items(points) if isinstance(points, msgspec.Raw | list) else None
    except msgspec.DecodeError:  # no array
        items = None
    if items is None:
        return ((PATH, b" {", _joined(members), b"}"),)
    return keep_points(metric_head(members, POINTS), _BEGIN, items, _END)


def metric_head(members: Mapping[str, Any], *left_out: str) -> bytes:
    """Return what precedes the kept points of a metric: its path and its other members."""
    shown = _joined({name: value for name, value in members.items() if name not in left_out})
    return b"%b {%b%b" % (PATH, shown, b"," if shown else b"")


def keep_point(head: bytes, point: Lenient) -> Kept:
    """Return one point in `datapoints` of a metric. It is left out if the names alone are too long for the log."""
    return ((head,),) if len(head) > LINE_BYTES else ((head, _BEGIN, encode(point), _END),)


def keep_single(head: bytes, members: Mapping[str, Any]) -> Kept:
    """Return the point that is not in `datapoints`."""
    single = {name: members[name] for name in SINGLE if name in members}
    return ((head,),) if len(head) > LINE_BYTES else ((head, _joined(single), b"}"),)


def keep_points(head: bytes, begin: bytes, points: Iterable[bytes], end: bytes) -> Kept:
    """Return points in texts that the log can hold. Without the points if their names alone are too long for it."""
    if len(head) > LINE_BYTES:
        return ((head,),)
    room = max(LINE_BYTES - len(head) - len(begin) - len(end), LINE_BYTES // 2)
    return [(head, begin, some, end) for some in _lists(points, room)]


def _lists(points: Iterable[bytes], room: int) -> Iterator[bytes]:
    """Yield points joined by commas: one, or up to `room` bytes."""
    some: list[bytes] = []
    size = 0
    for point in points:
        if some and size + len(point) > room:
            yield b",".join(some)
            some, size = [], 0
        some.append(point)
        size += len(point) + 1
    yield b",".join(some)


def split_items(points: Any) -> list[bytes]:
    """Return the JSON of each item of an array. Raise DecodeError."""
    if isinstance(points, list):
        return [encode(one) for one in points]
    return [encode(one) for one in _items.decode(bytes(points))]


def _joined(members: Mapping[str, Any]) -> bytes:
    return b",".join([b"%b:%b" % (msgspec.json.encode(name), encode(value)) for name, value in members.items()])


def encode(value: Any) -> bytes:
    """Return a value in one line of JSON, numbers as written.

    >>> encode([Number("1.50"), None, "x"]), encode(msgspec.Raw(b"[1.50, 2]"))
    (b'[1.50,null,"x"]', b'[1.50, 2]')
    """
    if isinstance(value, msgspec.Raw):
        return bytes(value).translate(_SPACES)
    return msgspec.json.encode(_with_numbers(value))


def _with_numbers(value: Lenient) -> Any:
    """Return a value whose numbers are encoded as written."""
    if isinstance(value, Number):
        return msgspec.Raw(value.encode())
    if isinstance(value, list):
        return [_with_numbers(one) for one in value]
    if isinstance(value, Members):
        return {name: _with_numbers(one) for name, one in value.items()}
    return value
