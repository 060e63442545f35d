"""The JSON of KairosDB's points → lines of numbers and of texts, with its messages for what is wrong.

A body is read in one thread, piece by piece, so that other tasks run in between. Metrics before a syntax error count.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec

from tsd.api.kairosdb.body_lines import Collector, ParsedBody, check_brackets
from tsd.api.kairosdb.refused_points import (
    POINTS,
    SINGLE,
    UNREADABLE,
    keep_metric,
    keep_point,
    keep_single,
    metric_head,
)
from tsd.codec.kairosline import NO_TEXT, NO_TTL, TTL, put_line, text_line
from tsd.codec.lenient_json import BadJson, Lenient, Members, Number, Reader, read_value
from tsd.codec.putline import illegal
from tsd.errors import INVALID_VALUE, BadLine

NAME_CHARS = 1_000  # of a metric's name in an error
_DECIMAL = r"-?[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?"
_TIME = r"-?[0-9]{1,19}"
_PAIR = re.compile(rf"\[\s*({_TIME})\s*,\s*({_DECIMAL})\s*\]")
_RUN = re.compile(rf"(?:\[\s*{_TIME}\s*,\s*{_DECIMAL}\s*\]\s*,\s*){{1,500}}")
_LIKE_NUMBER = re.compile(r"[-+]?(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)")
_TYPES = ("long", "double", "string")
_body = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])
_ABSENT = object()


def parse_body(body: bytes, *, has_ttl: bool = False, has_texts: bool = False) -> ParsedBody:
    """Return the lines of a body, and an error for each point and metric without one. `has_ttl`: a time to live
    stays in the line, as the tag kairos_opt.ttl. `has_texts`: the tables store texts. Raise Refused for a body with
    too many or too long points."""
    check_brackets(body)
    found = Collector()
    try:
        for at, metric in enumerate(_metrics(body)):
            _Metric(metric, at, found, has_ttl=has_ttl, has_texts=has_texts).read()
    except BadJson as error:
        found.refuse(illegal(str(error)), UNREADABLE)
    return found.finish()


def _metrics(body: bytes) -> Iterator[Mapping[str, Any]]:
    """Yield the objects of a body, one or an array: first strictly, and leniently where that fails. Raise BadJson."""
    try:
        yield from _body.decode(b"[" + body + b"]" if body.lstrip()[:1] == b"{" else body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        yield from _lenient(body.decode("utf-8", "replace"))


def _lenient(text: str) -> Iterator[Members]:
    reader = Reader(text.removeprefix("\ufeff"))
    is_array = reader.peek() == "["
    if reader.text[reader.at : reader.at + 1] not in ("[", "{"):
        raise reader.error("an object or an array")
    if not is_array:
        yield _object(reader)
        return  # what follows is not read
    reader.at += 1
    if reader.skip("]"):
        return
    while True:
        yield _object(reader)
        if reader.skip("]"):
            return
        if not reader.skip(","):
            raise reader.error("a comma or ]")


def _object(reader: Reader) -> Members:
    if reader.peek() != "{":
        raise reader.error("an object")
    found = reader.value()
    assert isinstance(found, Members)
    return found


@lru_cache(10_000)
def _read_raw(raw: bytes) -> Lenient:
    """Return a member of a strict object. Most clients send the same tags again and again."""
    return read_value(raw.decode("utf-8", "replace"))


class _Metric:
    """Reads one metric of a body."""

    def __init__(
        self, members: Mapping[str, Any], at: int, found: Collector, *, has_ttl: bool, has_texts: bool
    ) -> None:
        self._members = members
        self._found = found
        self._has_ttl = has_ttl
        self._has_texts = has_texts
        self._label = f"metric[{at}]"
        self._taken = 0  # points, which number the points in messages
        self._name = ""
        self._tags: Sequence[tuple[str, str]] = ()
        self._head = b""  # of what is kept of its points

    def read(self) -> None:
        """Add the lines of all points. Raise BadJson for values of wrong types."""
        try:
            mistakes = self._check_names()
            type_name = self._type_of(self._member("type"))
            ttl = _integer(self._member("ttl", "0") or "0", f"{self._label}.ttl")
            if ttl and not self._has_ttl:
                mistakes.append(f"{self._label}.ttl: {NO_TTL}")
            elif ttl:
                self._tags = (*self._tags, (TTL, str(ttl)))
        except BadLine as error:
            self._found.refuse(error, keep_metric(self._members))
            return
        for number, mistake in enumerate(mistakes):
            self._found.refuse(illegal(mistake), () if number else keep_metric(self._members))
        if not mistakes:
            self._read_points(type_name)

    def _member(self, name: str, default: Any = None) -> Any:
        value = self._members.get(name, _ABSENT)
        if value is _ABSENT:
            return default
        return _read_raw(bytes(value)) if isinstance(value, msgspec.Raw) else value

    def _refuse_point(self, error: BadLine, point: Lenient) -> None:
        """Add the error of a point in `datapoints`."""
        self._found.refuse(error, keep_point(self._kept_head(), point))

    def _refuse_single(self, error: BadLine) -> None:
        """Add the error of the point that is not in `datapoints`."""
        self._found.refuse(error, keep_single(self._kept_head(), self._members))

    def _kept_head(self) -> bytes:
        self._head = self._head or metric_head(self._members, POINTS, *SINGLE)
        return self._head

    def _check_names(self) -> list[str]:
        """Read name and tags. Return what is wrong with them. Raise BadLine for wrong types."""
        mistakes = []
        name = self._member("name")
        if name is None:
            mistakes.append(f"{self._label}.name may not be null.")
        elif name == "":
            mistakes.append(f"{self._label}.name may not be empty.")
        else:
            self._name = _word(name, f"{self._label}.name")
            shown = self._name if len(self._name) <= NAME_CHARS else f"{self._name[:NAME_CHARS]}…"
            self._label += f"(name={shown})"
        tags = self._member("tags")
        if tags is None or tags == []:
            tags = Members()
        if not isinstance(tags, Members):
            raise illegal(f"{self._label}.tags must be an object")
        if tags.repeated is not None:
            raise illegal(f"duplicate key: {tags.repeated}")
        if not tags:
            mistakes.append(f"{self._label}.tags count must be greater than or equal to 1.")
        for at, (tagk, tagv) in enumerate(tags.items()):
            if not tagk:
                mistakes.append(f"{self._label}.tag[{at}].name may not be empty.")
            elif tagv is None or tagv == "":
                mistakes.append(f"{self._label}.tag[{tagk}].value may not be {'empty' if tagv == '' else 'null'}.")
        if not mistakes:
            self._tags = tuple((tagk, _word(tagv, f"{self._label}.tag[{tagk}]")) for tagk, tagv in tags.items())
        return mistakes

    def _type_of(self, value: Lenient) -> str | None:
        if value is None or value in _TYPES:
            return None if value is None else str(value)
        raise illegal(f"Unregistered data point type '{value}'")

    def _read_points(self, type_name: str | None) -> None:
        time = self._member("time", self._member("timestamp", _ABSENT))
        value = self._member("value", _ABSENT)
        if time is not _ABSENT or value is not _ABSENT:
            self._read_single(time, value, type_name)
        points = self._members.get("datapoints")
        if isinstance(points, msgspec.Raw):
            self._read_raw_points(bytes(points).decode("utf-8", "replace"), type_name)
        elif points is not None:
            self._read_listed(points, type_name)

    def _read_single(self, time: Any, value: Any, type_name: str | None) -> None:
        if time is _ABSENT or time is None:
            self._refuse_single(illegal(f"{self._label}.timestamp may not be null."))
        elif value is _ABSENT:
            self._refuse_single(illegal(f"{self._label}.value may not be null."))
        elif value is None or value == "":
            self._refuse_single(illegal(f"{self._label}.value may not be empty."))
        else:
            try:
                if isinstance(time, str) and "." in time and "e" not in time.lower():
                    raise illegal(f"{self._label}.timestamp: got {time}, wanted whole milliseconds")
                self._add(_integer(time, f"{self._label}.timestamp"), value, type_name, self._label)
            except BadLine as error:
                self._refuse_single(error)

    def _read_raw_points(self, text: str, type_name: str | None) -> None:
        """Read the points of an array as text: the usual pairs of numbers in runs, the others one by one."""
        reader = Reader(text)
        if reader.peek() == "n":  # null
            return
        if not reader.skip("["):
            self._read_listed(reader.value(), type_name)
            return
        if reader.skip("]"):
            return
        plain = type_name is None
        while True:
            run = _RUN.match(text, reader.at) if plain else None
            if run is not None:
                for time, value in _PAIR.findall(run[0]):
                    self._add_plain(time, value)
                reader.at = run.end()
            reader.peek()
            self._read_point(reader.value(), type_name)
            if reader.skip("]"):
                return
            if not reader.skip(","):
                raise reader.error("a comma or ]")
            reader.peek()

    def _add_plain(self, time: str, value: str) -> None:
        label = f"{self._label}.datapoints[{self._taken}]"
        try:
            number = float(value) if "." in value else _whole(value, label)
            self._found.add(put_line(self._name, self._tags, int(time), number), label)
            self._taken += 1
        except BadLine as error:
            self._refuse_point(_placed(label, error), [Number(time), Number(value)])

    def _read_listed(self, points: Lenient, type_name: str | None) -> None:
        if not isinstance(points, list):
            rest = {name: value for name, value in self._members.items() if name not in SINGLE}
            self._found.refuse(illegal(f"{self._label}.datapoints must be an array"), keep_metric(rest))
            return
        for point in points:
            self._read_point(point, type_name)

    def _read_point(self, point: Lenient, type_name: str | None) -> None:
        label = f"{self._label}.datapoints[{self._taken}]"
        try:
            if not isinstance(point, list):
                raise illegal(f"{label} must be an array")
            if not point:
                raise illegal(f"{label}.timestamp cannot be null or empty.")
            if point[0] is None:
                raise illegal(f"{label}.timestamp may not be null.")
            if len(point) < 2:
                raise illegal(f"{label}.value cannot be null or empty.")
            value = point[1]
            if value is None or value == "":
                raise illegal(f"{label}.value may not be empty.")
            if value == []:
                raise illegal(f"{label}.value may not be an empty array.")
            own = self._type_of(point[2]) if len(point) > 2 else None
            self._add(_integer(point[0], f"{label}.timestamp"), value, own or type_name, label)
            self._taken += 1
        except BadLine as error:
            self._refuse_point(error, point)

    def _add(self, time_ms: int, value: Lenient, type_name: str | None, label: str) -> None:
        """Add the line of a point. Raise BadLine."""
        if isinstance(value, list | Members):
            raise illegal(f"{self._label} value is an invalid type")
        try:
            if _is_text(value, type_name):
                if not self._has_texts:
                    raise illegal(f"{label}.{NO_TEXT}")
                self._found.add_text(text_line(self._name, self._tags, time_ms, _shown(value)), label)
                return
            line = put_line(self._name, self._tags, time_ms, _number(value, type_name, label))
        except BadLine as error:
            raise _placed(label, error) from None
        self._found.add(line, label)


def _placed(label: str, error: BadLine) -> BadLine:
    """Return an error that names the point."""
    text = str(error).removeprefix("illegal argument: ")
    return BadLine(error.reason, text if text.startswith(label) else f"{label}: {text}")


def _is_text(value: Lenient, type_name: str | None) -> bool:
    """Return whether KairosDB takes a value for a text."""
    if type_name is not None:
        return type_name == "string"
    return isinstance(value, bool) or not (isinstance(value, Number) or bool(_LIKE_NUMBER.fullmatch(str(value))))


def _number(value: Lenient, type_name: str | None, label: str) -> int | float:
    """Return the number of a value as KairosDB takes it. Raise BadLine."""
    text = _shown(value)
    is_real = "." in text if type_name is None else type_name == "double"
    return _real(text, label) if is_real else _whole(text, label)


def _shown(value: Lenient) -> str:
    """Return a value as text."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _real(text: str, label: str) -> float:
    try:
        if "_" in text:
            raise ValueError
        return float(text)
    except ValueError:
        raise BadLine(INVALID_VALUE, f'{label}.value For input string: "{text[:40]}"') from None


def _whole(text: str, label: str) -> int:
    """Return a 64-bit integer; decimals are cut off. Raise BadLine."""
    digits = text.removeprefix("-").removeprefix("+")
    if digits.isascii() and digits.isdigit() and len(digits) <= 40:
        return int(text)
    number = _real(text, label)
    if not abs(number) < 1 << 63:
        raise BadLine(INVALID_VALUE, f"{label}.value {text[:40]} does not fit in 64 bits")
    return int(number)


def _integer(value: Lenient, label: str) -> int:
    """Return a time or a length: whole, or cut off. Raise BadLine."""
    if isinstance(value, bool) or not isinstance(value, str):
        raise illegal(f"{label} must be an integer")
    digits = value.removeprefix("-")
    if digits.isascii() and digits.isdigit() and len(digits) <= 19:
        return int(value)
    number = _real(value, label)
    if not abs(number) < 1 << 63:
        raise illegal(f"{label} {value[:40]} does not fit in 64 bits")
    return int(number)


def _word(value: Lenient, label: str) -> str:
    """Return a name; numbers and booleans are taken as texts. Raise BadLine."""
    if not isinstance(value, str | bool):
        raise illegal(f"{label} must be a string")
    return _shown(value)
