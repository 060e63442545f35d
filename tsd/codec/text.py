"""Names and numbers of put lines as OpenTSDB parses them (FORMATS.md §1, §4), and its JSON in cells (FORMATS.md §10).

Words are bytes. Each byte is one ISO-8859-1 character, as OpenTSDB reads its telnet port and stores names.

JSON is written with the same bytes as by OpenTSDB. OpenTSDB changes some cells only if they have exactly the bytes that
it would write, so it could never change a cell with other bytes.
"""

import codecs
import json
import math
import re
import struct
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from typing import TypeAlias

from tsd.errors import ILLEGAL_ARGUMENT, INVALID_VALUE, BadLine, CorruptRow

# ASCII letters and digits, - _ . / and the characters below U+0100 that Java calls letters.
LEGAL = bytes(
    code
    for code in range(256)
    if (chr(code).isascii() and (chr(code).isalnum() or chr(code) in "-_./"))
    or code in (0xAA, 0xB5, 0xBA)
    or (code >= 0xC0 and code not in (0xD7, 0xF7))
)  # fmt: skip

FLOAT = 0x8  # flag of a floating-point value; the low three bits hold the value's length minus one
LENGTH = 0x7

_HEX_FLOAT = re.compile(rb"([-+]?)0[xX]([0-9a-fA-F]*\.?[0-9a-fA-F]*)[pP]([-+]?[0-9]+)[fFdD]?")
_DECIMAL = re.compile(rb"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?[fFdD]?")
_BLANKS = bytes(range(33))
_UTF_16 = codecs.lookup("utf-16-be")  # at import: loading it opens a file, which fails if all descriptors are in use
_TWO_POINTS = re.compile(rb"[-+]?[0-9]*\.[0-9]*\.")


def illegal_character(name: bytes, extra: bytes = b"") -> str | None:
    """Return the first illegal character of `name`, or None. `extra` are additional allowed characters.

    >>> illegal_character(b"sys.cpu:user"), illegal_character(b"sys.cpu.user"), illegal_character(b"a:b", b":")
    (':', None, None)
    """
    rest = name.translate(None, LEGAL + extra)
    return chr(rest[0]) if rest else None


def java_hash(text: str) -> int:
    """Return Java's String.hashCode of `text`, a signed 32-bit number.

    >>> java_hash("host"), java_hash("sys.cpu.user.αβ")
    (3208616, 2142679869)
    """
    units: Iterable[int]
    if text.isascii():
        units = text.encode()
    else:
        units = [int(unit, 16) for unit in _UTF_16.encode(text, "surrogatepass")[0].hex(" ", 2).split()]
    h = 0
    for unit in units:
        h = (31 * h + unit) & 0xFFFFFFFF
    return h - (1 << 32) if h & 0x80000000 else h


def java_map_order(keys: Iterable[str]) -> list[str]:
    """Return `keys` in the order of a Java HashMap, in which OpenTSDB shows tags and assigns their UIDs.

    >>> java_map_order(["t1", "t2", "t3", "t4", "t5"])
    ['t4', 't5', 't1', 't2', 't3']
    """
    unique = list(dict.fromkeys(keys))
    size = 16
    while len(unique) > size * 3 // 4:
        size *= 2

    def bucket(key: str) -> int:
        h = java_hash(key) & 0xFFFFFFFF
        return (h ^ h >> 16) & (size - 1)

    return sorted(unique, key=bucket)  # stable: order of arrival within a bucket


def parse_long(word: bytes) -> int:
    """Parse a signed 64-bit integer as OpenTSDB does. Raise BadLine with its text.

    >>> parse_long(b"+17"), parse_long(b"-9223372036854775808")
    (17, -9223372036854775808)
    """
    digits = word[1:] if word[:1] in (b"+", b"-") else word
    shown = word.decode("latin-1")
    if not word:
        raise BadLine(INVALID_VALUE, "invalid value: Empty string")
    if not digits:
        raise BadLine(INVALID_VALUE, f"invalid value: Just a sign, no value: {shown}")
    if len(digits) > 19:
        raise BadLine(INVALID_VALUE, f"invalid value: Value too long: {shown}")
    strange = digits.translate(None, b"0123456789")
    if strange:
        raise BadLine(INVALID_VALUE, f"invalid value: Invalid character '{chr(strange[0])}' in {shown}")
    number = int(word)
    if not -(1 << 63) <= number < 1 << 63:
        raise BadLine(INVALID_VALUE, f"invalid value: Overflow in {shown}")
    return number


def parse_double(word: bytes) -> float:
    """Parse a double as Java's Double.parseDouble does; too large numbers are infinite. Raise BadLine with Java's text.

    >>> parse_double(b"1.5f"), parse_double(b"0x1.8p1"), parse_double(b"-1e400")
    (1.5, 3.0, -inf)
    """
    text = word.strip(_BLANKS)
    if _DECIMAL.fullmatch(text):
        return float(text.rstrip(b"fFdD"))
    if (hexadecimal := _HEX_FLOAT.fullmatch(text)) and hexadecimal[2].strip(b"."):
        try:
            return float.fromhex(f"{hexadecimal[1].decode()}0x{hexadecimal[2].decode()}p{hexadecimal[3].decode()}")
        except OverflowError:
            return -math.inf if hexadecimal[1] == b"-" else math.inf
    if not text:
        raise BadLine(INVALID_VALUE, "invalid value: empty String")
    if _TWO_POINTS.match(text):
        raise BadLine(INVALID_VALUE, "invalid value: multiple points")
    raise BadLine(INVALID_VALUE, f'invalid value: For input string: "{text.decode("latin-1")}"')


def looks_like_integer(word: bytes) -> bool:
    """Return whether OpenTSDB parses `word` as an integer: it has none of `.`, `e`, `E`.

    >>> looks_like_integer(b"NaN"), looks_like_integer(b"1e3")
    (True, False)
    """
    return b"." not in word and b"e" not in word and b"E" not in word


def encode_integer(number: int) -> tuple[int, bytes]:
    """Return flags and bytes of a signed 64-bit integer, in the fewest of 1, 2, 4 or 8 bytes.

    >>> encode_integer(-1)[1].hex(), encode_integer(128)[1].hex()
    ('ff', '0080')
    """
    for length in (1, 2, 4):
        if -(1 << 8 * length - 1) <= number < 1 << 8 * length - 1:
            return length - 1, number.to_bytes(length, "big", signed=True)
    return 7, number.to_bytes(8, "big", signed=True)


def encode_float(number: float) -> tuple[int, bytes]:
    """Return flags and bytes of a double: 4 bytes if a single is exact, otherwise 8 (as on OpenTSDB's telnet port).

    >>> encode_float(42.5)[1].hex(), encode_float(0.1)[1].hex()
    ('422a0000', '3fb999999999999a')
    """
    try:
        single = struct.pack(">f", number)
    except OverflowError:  # finite, but too large for a single
        return FLOAT | 7, struct.pack(">d", number)
    if struct.unpack(">f", single)[0] == number:
        return FLOAT | 3, single
    return FLOAT | 7, struct.pack(">d", number)


def decode_number(flags: int, value: bytes) -> int | float:
    """Return the number of a point's bytes. Raise ValueError if flags and length do not match.

    >>> decode_number(0, b"\\xff"), decode_number(FLOAT | 3, bytes.fromhex("422a0000"))
    (-1, 42.5)
    """
    if flags & FLOAT:
        if len(value) == 4:
            return float(struct.unpack(">f", value)[0])
        if len(value) == 8:
            return float(struct.unpack(">d", value)[0])
        raise ValueError(f"a floating-point value has 4 or 8 bytes, got {len(value)}: {value.hex()}")
    if len(value) not in (1, 2, 4, 8):
        raise ValueError(f"an integer has 1, 2, 4 or 8 bytes, got {len(value)}: {value.hex()}")
    return int.from_bytes(value, "big", signed=True)


def show_signed(value: bytes) -> str:
    """Return bytes as Java prints them.

    >>> show_signed(bytes.fromhex("3fc0"))
    '[63, -64]'
    """
    return "[" + ", ".join(str(b - 256 if b > 127 else b) for b in value) + "]"


def encode_name(name: str) -> bytes:
    """Return the bytes of a name, one for each character. Raise BadLine for a character beyond U+00FF.

    OpenTSDB stores `?` for such a character, so that different names become the same.

    >>> encode_name("café").hex()
    '636166e9'
    """
    try:
        return name.encode("latin-1")
    except UnicodeEncodeError as exc:
        odd = name[exc.start]
        raise BadLine(ILLEGAL_ARGUMENT, f"illegal character in {name!r}: {odd!r} is beyond ISO-8859-1") from exc


def words_of(tags: bytes) -> Iterator[bytes]:
    """Return the words of a tag text. Repeated spaces are skipped, as collectd needs.

    >>> list(words_of(b" host=web01  cpu=0 "))
    [b'host=web01', b'cpu=0']
    """
    return (word for word in tags.split(b" ") if word)


Json: TypeAlias = "bool | int | float | str | Mapping[str, Json] | None"
Custom: TypeAlias = "Mapping[str, str | None] | None"  # a user's own fields

_SHORT = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}
_ESCAPED = re.compile('["\\\\\x00-\x1f\ud800-\udfff\U00010000-\U0010ffff]')


def encode_object(members: Mapping[str, Json]) -> bytes:
    """Return a JSON object in UTF-8, with members in the given order and without white space.

    >>> encode_object({"a": 1, "b": None, "c": {"d": "é"}})
    b'{"a":1,"b":null,"c":{"d":"\\xc3\\xa9"}}'
    """
    return show(members).encode()


def show(value: Json) -> str:
    """Return a value as JSON, as Jackson writes it.

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
    """Return a character as Jackson escapes it: beyond U+FFFF as two UTF-16 units."""
    units = character.encode("utf-16-be", "surrogatepass").hex(" ", 2).upper().split()
    return _SHORT.get(character) or "".join(f"\\u{unit}" for unit in units)


def show_double(number: float) -> str:
    """Return a double as Java 19 and later prints it, NaN and infinities quoted. (Earlier versions print some doubles
    with a superfluous digit, most of them above 1E16.)

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
    """Return a user's fields sorted by the UTF-16 units of their names: the order in annotations."""
    if custom is None:
        return None
    return {name: custom[name] for name in sorted(custom, key=lambda name: name.encode("utf-16-be", "surrogatepass"))}


def hashed_custom(custom: Custom) -> Mapping[str, str | None] | None:
    """Return a user's fields in the order of metadata: OpenTSDB copies them to a new Java HashMap, which has as many
    slots as the next power of two above 4/3 of its size.

    >>> list(hashed_custom({"Y": "", "中b": "", "a": ""}) or ())
    ['Y', 'a', '中b']
    """
    if custom is None:
        return None
    slots = 1 << (len(custom) * 4 // 3).bit_length()

    def slot(name: str) -> int:
        h = java_hash(name) & 0xFFFFFFFF
        return (h ^ h >> 16) & (slots - 1)

    return {name: custom[name] for name in sorted(custom, key=slot)}  # within a slot in the given order


def decode_object(value: bytes) -> Mapping[str, object]:
    """Return the members of a JSON object in UTF-8. Raise CorruptRow for anything else.

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
    """Return a member that is a string, empty if it is absent or null. Raise CorruptRow."""
    value = members.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise CorruptRow(f"{name}: got {value!r}, wanted a string")
    return value


def long_of(members: Mapping[str, object], name: str) -> int:
    """Return a member that is a signed 64-bit integer, 0 if it is absent. Raise CorruptRow."""
    value = members.get(name, 0)
    if not isinstance(value, int) or isinstance(value, bool) or not -(1 << 63) <= value < 1 << 63:
        raise CorruptRow(f"{name}: got {value!r}, wanted an integer of 64 bits")
    return value


def double_of(members: Mapping[str, object], name: str) -> float:
    """Return a member that is a number or Java's text for NaN or an infinity; NaN if it is absent. Raise CorruptRow."""
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
    """Return a member that is true or false, false if it is absent. Raise CorruptRow."""
    value = members.get(name, False)
    if not isinstance(value, bool):
        raise CorruptRow(f"{name}: got {value!r}, wanted true or false")
    return value


def custom_of(members: Mapping[str, object]) -> Custom:
    """Return the user's own fields: an object of strings, or None. Raise CorruptRow."""
    value = members.get("custom")
    if value is None:
        return None
    if not isinstance(value, dict) or not all(text is None or isinstance(text, str) for text in value.values()):
        raise CorruptRow(f"custom: got {value!r}, wanted an object of strings")
    return value


def visible(text: str) -> str:
    """Escape control characters, which a client could use to control the terminal.

    >>> print(visible(chr(27) + "[2J"))
    \\x1b[2J
    """
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def counted(number: int, one: str, many: str = "") -> str:
    """Return a number with a noun in singular or plural; `many` is the plural of an irregular noun.

    >>> counted(1, "point"), counted(2000, "point"), counted(2, "series", "series")
    ('1 point', '2,000 points', '2 series')
    """
    return f"{number:,} {one if number == 1 else many or one + 's'}"
