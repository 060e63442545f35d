"""What the words of a line may look like: names and numbers, with OpenTSDB's verdicts (FORMATS.md §1, §4).

Words are bytes. Each byte is one ISO-8859-1 character, as OpenTSDB reads its telnet port and stores names.
"""

import codecs
import math
import re
import struct
from collections.abc import Iterable, Iterator

from tsd.errors import ILLEGAL_ARGUMENT, INVALID_VALUE, BadLine

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
_UTF_16 = codecs.lookup("utf-16-be")  # Python loads it from a file: not in the middle of a line, with none to be opened
_TWO_POINTS = re.compile(rb"[-+]?[0-9]*\.[0-9]*\.")


def illegal_character(name: bytes, extra: bytes = b"") -> str | None:
    """The first character that `name` may not hold, or None. `extra` are those allowed on top.

    >>> illegal_character(b"sys.cpu:user"), illegal_character(b"sys.cpu.user"), illegal_character(b"a:b", b":")
    (':', None, None)
    """
    rest = name.translate(None, LEGAL + extra)
    return chr(rest[0]) if rest else None


def java_hash(text: str) -> int:
    """Java's String.hashCode of `text`, as a signed 32-bit number.

    >>> java_hash("host"), java_hash("sys.cpu.user.αβ")
    (3208616, 2142679869)
    """
    h = 0
    for unit in _UTF_16.encode(text, "surrogatepass")[0].hex(" ", 2).split():
        h = (31 * h + int(unit, 16)) & 0xFFFFFFFF
    return h - (1 << 32) if h & 0x80000000 else h


def java_map_order(keys: Iterable[str]) -> list[str]:
    """`keys` in the order a Java HashMap lists them: OpenTSDB shows tags so, and gives UIDs so.

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
    """A signed 64-bit integer as OpenTSDB's own parser takes it; raises BadLine with its words.

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
    """A double as Java's Double.parseDouble reads it, infinite where it overflows; raises BadLine with Java's words.

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
    """Whether OpenTSDB takes `word` for an integer: it holds none of `.`, `e`, `E`.

    >>> looks_like_integer(b"NaN"), looks_like_integer(b"1e3")
    (True, False)
    """
    return b"." not in word and b"e" not in word and b"E" not in word


def encode_integer(number: int) -> tuple[int, bytes]:
    """Flags and bytes of a signed 64-bit integer, on the fewest of 1, 2, 4, 8 bytes.

    >>> encode_integer(-1)[1].hex(), encode_integer(128)[1].hex()
    ('ff', '0080')
    """
    for length in (1, 2, 4):
        if -(1 << 8 * length - 1) <= number < 1 << 8 * length - 1:
            return length - 1, number.to_bytes(length, "big", signed=True)
    return 7, number.to_bytes(8, "big", signed=True)


def encode_float(number: float) -> tuple[int, bytes]:
    """Flags and bytes of a double: 4 where a single holds it exactly, 8 otherwise (telnet's choice).

    >>> encode_float(42.5)[1].hex(), encode_float(0.1)[1].hex()
    ('422a0000', '3fb999999999999a')
    """
    try:
        single = struct.pack(">f", number)
    except OverflowError:  # finite, and too large for a single
        return FLOAT | 7, struct.pack(">d", number)
    if struct.unpack(">f", single)[0] == number:
        return FLOAT | 3, single
    return FLOAT | 7, struct.pack(">d", number)


def decode_number(flags: int, value: bytes) -> int | float:
    """The number behind a point's bytes; raises ValueError where flags and length fit no number.

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
    """Bytes as Java prints them.

    >>> show_signed(bytes.fromhex("3fc0"))
    '[63, -64]'
    """
    return "[" + ", ".join(str(b - 256 if b > 127 else b) for b in value) + "]"


def encode_name(name: str) -> bytes:
    """The bytes of a name, one for each character; raises BadLine beyond U+00FF.

    OpenTSDB stores `?` for such a character, so that different names become one; we refuse instead.

    >>> encode_name("café").hex()
    '636166e9'
    """
    try:
        return name.encode("latin-1")
    except UnicodeEncodeError as exc:
        odd = name[exc.start]
        raise BadLine(ILLEGAL_ARGUMENT, f"illegal character in {name!r}: {odd!r} is beyond ISO-8859-1") from exc


def words_of(tags: bytes) -> Iterator[bytes]:
    """The words of a tag text; blanks beside each other are skipped, as collectd needs.

    >>> list(words_of(b" host=web01  cpu=0 "))
    [b'host=web01', b'cpu=0']
    """
    return (word for word in tags.split(b" ") if word)
