"""The JSON that OpenTSDB keeps in cells, byte for byte (FORMATS.md §10).

OpenTSDB changes some of these cells only if they still hold exactly what it would write for what it read, so a cell
that says the same in other bytes can never be changed by it again.
"""

import json
import math
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import TypeAlias

from tsd.codec.words import java_hash
from tsd.errors import CorruptRow

Json: TypeAlias = "bool | int | float | str | Mapping[str, Json] | None"
Custom: TypeAlias = "Mapping[str, str | None] | None"  # a user's own fields

_SHORT = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}
_ESCAPED = re.compile('["\\\\\x00-\x1f\ud800-\udfff\U00010000-\U0010ffff]')


def encode_object(members: Mapping[str, Json]) -> bytes:
    """A JSON object in UTF-8, members in the order given, without white space.

    >>> encode_object({"a": 1, "b": None, "c": {"d": "é"}})
    b'{"a":1,"b":null,"c":{"d":"\\xc3\\xa9"}}'
    """
    return show(members).encode()


def show(value: Json) -> str:
    """JSON text as Jackson writes it.

    >>> print(show('a"b/c\\u0001\\t😀'))
    "a\\"b/c\\u0001\\t\\uD83D\\uDE00"
    """
    if isinstance(value, str):
        return '"' + _ESCAPED.sub(lambda found: _escape(found[0]), value) + '"'
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{show(name)}:{show(member)}" for name, member in value.items()) + "}"
    if isinstance(value, float):
        return show_double(value)
    return "null" if value is None else str(value).lower()


def _escape(character: str) -> str:
    """Jackson leaves characters as they are but for JSON's own; those beyond U+FFFF it writes as two UTF-16 units."""
    units = character.encode("utf-16-be", "surrogatepass").hex(" ", 2).upper().split()
    return _SHORT.get(character) or "".join(f"\\u{unit}" for unit in units)


def show_double(number: float) -> str:
    """A double as Java prints it from version 19 on; what is no number is quoted. (Before, Java gave some doubles one
    digit more than tells them apart, most of them above 1E16.)

    >>> [show_double(x) for x in (0.0, 42.0, 0.001, 1e7, 1.5e-4, -12345678.9, math.nan)]
    ['0.0', '42.0', '0.001', '1.0E7', '1.5E-4', '-1.23456789E7', '"NaN"']
    """
    if not math.isfinite(number):
        return '"NaN"' if math.isnan(number) else '"Infinity"' if number > 0 else '"-Infinity"'
    if number == 0 or 1e-3 <= abs(number) < 1e7:
        return format(Decimal(repr(number)), "f") if "e" in repr(number) else repr(number)
    sign, digits, _ = Decimal(repr(number)).as_tuple()
    text = "".join(map(str, digits)).rstrip("0") or "0"
    return f"{'-' * sign}{text[0]}.{text[1:] or '0'}E{Decimal(repr(number)).adjusted()}"


def sorted_custom(custom: Custom) -> Mapping[str, str | None] | None:
    """A user's fields in the order of their names' UTF-16 units, as a note's are written."""
    if custom is None:
        return None
    return {name: custom[name] for name in sorted(custom, key=lambda name: name.encode("utf-16-be", "surrogatepass"))}


def hashed_custom(custom: Custom) -> Mapping[str, str | None] | None:
    """A user's fields as metadata lists them: OpenTSDB copies what it read into a new Java HashMap, whose table has as
    many slots as the next power of two above 4/3 of its size.

    >>> list(hashed_custom({"Y": "", "中b": "", "a": ""}) or ())
    ['Y', 'a', '中b']
    """
    if custom is None:
        return None
    slots = 1 << (len(custom) * 4 // 3).bit_length()

    def slot(name: str) -> int:
        h = java_hash(name) & 0xFFFFFFFF
        return (h ^ h >> 16) & (slots - 1)

    return {name: custom[name] for name in sorted(custom, key=slot)}  # within a slot as they came


def decode_object(value: bytes) -> Mapping[str, object]:
    """The members of a JSON object in UTF-8; raises CorruptRow for anything else.

    >>> decode_object(b'{"a":"\\\\uD83D\\\\uDE00"}')
    {'a': '😀'}
    """
    try:
        found = json.loads(value.decode(), parse_constant=_refuse)
    except (ValueError, RecursionError) as exc:
        raise CorruptRow(f"got {value.hex()}, wanted JSON: {exc}") from exc
    if not isinstance(found, dict):
        raise CorruptRow(f"got {value.hex()}, wanted a JSON object")
    return found


def _refuse(word: str) -> object:
    raise ValueError(f"{word} is no JSON")


def text_of(members: Mapping[str, object], name: str) -> str:
    """A member that is a string; empty where it is absent or null. Raises CorruptRow."""
    value = members.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise CorruptRow(f"{name}: got {value!r}, wanted a string")
    return value


def long_of(members: Mapping[str, object], name: str) -> int:
    """A member that is a signed 64-bit integer; 0 where it is absent. Raises CorruptRow."""
    value = members.get(name, 0)
    if not isinstance(value, int) or isinstance(value, bool) or not -(1 << 63) <= value < 1 << 63:
        raise CorruptRow(f"{name}: got {value!r}, wanted an integer of 64 bits")
    return value


def double_of(members: Mapping[str, object], name: str) -> float:
    """A member that is a number, or one of Java's three words for what is none; NaN where it is absent. Raises
    CorruptRow."""
    value = members.get(name, "NaN")
    if value in ("NaN", "Infinity", "-Infinity"):
        return float(str(value))
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise CorruptRow(f"{name}: got {value!r}, wanted a number")
    try:
        return float(value)
    except OverflowError as exc:
        raise CorruptRow(f"{name}: {value} is too large for a double") from exc


def flag_of(members: Mapping[str, object], name: str) -> bool:
    """A member that is true or false; false where it is absent. Raises CorruptRow."""
    value = members.get(name, False)
    if not isinstance(value, bool):
        raise CorruptRow(f"{name}: got {value!r}, wanted true or false")
    return value


def custom_of(members: Mapping[str, object]) -> Custom:
    """The user's own fields: an object of strings, or None. Raises CorruptRow."""
    value = members.get("custom")
    if value is None:
        return None
    if not isinstance(value, dict) or not all(text is None or isinstance(text, str) for text in value.values()):
        raise CorruptRow(f"custom: got {value!r}, wanted an object of strings")
    return value
