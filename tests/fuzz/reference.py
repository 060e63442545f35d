"""What OpenTSDB does with a put line, implemented slowly and literally from the description of its wire protocol.

It shares no table, expression or arithmetic with tsd.codec. It has tsd's intentional differences from OpenTSDB
(docs/differences.md).
"""

import struct
from fractions import Fraction
from typing import NamedTuple

DIGITS = "0123456789"
FIRST_MS = 2**32
LAST_MS = 9_999_999_999_999
LAST_STORABLE_MS = (2**32 - 2**32 % 3600 + 3600) * 1000 - 1  # difference: later base times have more than 32 bits
MOST_TAGS = 8


class Refused(Exception):
    """The error message of a line."""


class Stored(NamedTuple):
    """A stored point."""

    metric: str
    tags: tuple[tuple[str, str], ...]  # sorted
    ms: int
    in_ms: bool
    flags: int
    value: bytes


def judge(line: bytes) -> Stored:
    """Parse a put line. Raise Refused."""
    words = line.decode("latin-1").split(" ")
    if len(words) < 5:
        raise Refused(f"illegal argument: not enough arguments (need least 4, got {len(words) - 1})")
    metric = words[1]
    if metric == "":
        raise Refused("illegal argument: empty metric name")
    time = read_time(words[2])
    if words[3] == "":
        raise Refused("illegal argument: empty value")
    tags = read_tags(words[4:])
    flags, value = read_value(words[3], metric, time)
    if time >= FIRST_MS and (time > LAST_MS or time > LAST_STORABLE_MS):
        shown = ", ".join(str(struct.unpack("b", bytes([byte]))[0]) for byte in value)
        raise Refused(
            f"illegal argument: bad timestamp={time} when trying to add value=[{shown}]/{flags} to metric={metric}, "
            f"tags={show(tags)}"
        )
    check_names(metric, tags)
    in_ms = time >= FIRST_MS
    return Stored(metric, tuple(sorted(tags.items())), time if in_ms else time * 1000, in_ms, flags, value)


def read_time(word: str) -> int:
    """Parse seconds, or milliseconds from 2^32 on."""
    number = read_integer("".join(char for char in word if char != "."))
    if number <= 0:
        raise Refused(f"illegal argument: invalid timestamp: {number}")
    if "." not in word or not FIRST_MS <= number <= LAST_MS:
        return number
    # Difference: digits that OpenTSDB reads as milliseconds are seconds with a fraction.
    if word.count(".") > 1:
        raise Refused(f"illegal argument: invalid timestamp: {word}: one dot at most")
    before, after = word.split(".")
    whole = read_integer(before) if before else 0
    ms = whole * 1000 + int((after + "000")[:3])
    if ms < FIRST_MS:
        raise Refused(f"illegal argument: invalid timestamp: {word}: before {FIRST_MS} ms")
    return ms


def read_integer(word: str) -> int:
    """Parse a signed 64-bit integer."""
    if word == "":
        raise Refused("invalid value: Empty string")
    signed = word[0] in "+-"
    if signed and len(word) == 1:
        raise Refused(f"invalid value: Just a sign, no value: {word}")
    if len(word) > (20 if signed else 19):
        raise Refused(f"invalid value: Value too long: {word}")
    number = 0
    for char in word[signed:]:
        if char not in DIGITS:
            raise Refused(f"invalid value: Invalid character '{char}' in {word}")
        number = number * 10 + DIGITS.index(char)
    if word[0] == "-":
        number = -number
    if not -(2**63) <= number <= 2**63 - 1:
        raise Refused(f"invalid value: Overflow in {word}")
    return number


def read_tags(words: list[str]) -> dict[str, str]:
    """Parse tags in the order sent."""
    tags: dict[str, str] = {}
    for word in words:
        if word == "":
            continue
        parts = word.split("=")
        if len(parts) != 2 or "" in parts:
            raise Refused(f"illegal argument: invalid tag: {word}")
        if parts[0] in tags and tags[parts[0]] != parts[1]:
            raise Refused(f"illegal argument: duplicate tag: {word}, tags={show(tags)}")
        tags[parts[0]] = parts[1]
    return tags


def read_value(word: str, metric: str, time: int) -> tuple[int, bytes]:
    """Return the flags and bytes of a value."""
    if not any(char in ".eE" for char in word):
        number = read_integer(word)
        for code, form in ((0, ">b"), (1, ">h"), (3, ">i"), (7, ">q")):
            try:
                return code, struct.pack(form, number)
            except struct.error:
                pass
    text = word
    while text and text[0] <= " ":
        text = text[1:]
    while text and text[-1] <= " ":
        text = text[:-1]
    if text == "":
        raise Refused("invalid value: empty String")
    real = read_real(text)
    if real in (float("inf"), float("-inf")):
        sign = "-" if real < 0 else ""
        raise Refused(
            f"illegal argument: value is NaN or Infinite: {sign}Infinity for metric={metric} timestamp={time}"
        )
    try:
        single = struct.pack(">f", real)
    except OverflowError:
        return 15, struct.pack(">d", real)
    if struct.unpack(">f", single)[0] == real:
        return 11, single
    return 15, struct.pack(">d", real)


class _Reader:
    """Reads a text from left to right."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def take(self, chars: str) -> str:
        """Return the next character if it is one of these."""
        if self.at < len(self.text) and self.text[self.at] in chars:
            self.at += 1
            return self.text[self.at - 1]
        return ""

    def take_all(self, chars: str) -> str:
        taken = ""
        while char := self.take(chars):
            taken += char
        return taken

    @property
    def done(self) -> bool:
        return self.at == len(self.text)


def read_real(text: str) -> float:
    """Parse a double as Java does; infinite on overflow."""
    wrong = Refused(f'invalid value: For input string: "{text}"')
    reader = _Reader(text)
    minus = reader.take("+-") == "-"
    if text[reader.at : reader.at + 2] in ("0x", "0X"):
        reader.at += 2
        number = _read_hexadecimal(reader, wrong)
    else:
        number = _read_decimal(reader, wrong)
    return -number if minus else number


def _read_decimal(reader: _Reader, wrong: Refused) -> float:
    whole = reader.take_all(DIGITS)
    decimals = ""
    if reader.take("."):
        decimals = reader.take_all(DIGITS)
        if reader.take("."):
            raise Refused("invalid value: multiple points")
    if not whole + decimals:
        raise wrong
    exponent = 0
    if reader.take("eE"):
        exponent = _read_exponent(reader, wrong)
    reader.take("fFdD")
    if not reader.done:
        raise wrong
    return scaled(int(whole + decimals), 10, exponent - len(decimals))


def _read_hexadecimal(reader: _Reader, wrong: Refused) -> float:
    digits = DIGITS + "abcdefABCDEF"
    whole = reader.take_all(digits)
    decimals = reader.take_all(digits) if reader.take(".") else ""
    if not whole + decimals or not reader.take("pP"):
        raise wrong
    exponent = _read_exponent(reader, wrong)
    reader.take("fFdD")
    if not reader.done:
        raise wrong
    return scaled(int(whole + decimals, 16), 2, exponent - 4 * len(decimals))


def _read_exponent(reader: _Reader, wrong: Refused) -> int:
    minus = reader.take("+-") == "-"
    digits = reader.take_all(DIGITS)
    if not digits:
        raise wrong
    size = min(int(digits), 10**6)  # larger exponents give zero or infinity for any line
    return -size if minus else size


def scaled(digits: int, base: int, exponent: int) -> float:
    """Return the double nearest to digits · base^exponent."""
    if digits == 0:
        return 0.0
    size = digits.bit_length() + exponent * (3.3219280948873626 if base == 10 else 1)
    if size > 1100:
        return float("inf")
    if size < -1200:
        return 0.0
    exact = Fraction(digits) * Fraction(base) ** exponent
    try:
        return exact.numerator / exact.denominator
    except OverflowError:
        return float("inf")


def check_names(metric: str, tags: dict[str, str]) -> None:
    """Check the names of a series. Raise Refused."""
    if not tags:
        raise Refused(f"illegal argument: Need at least one tag (metric={metric}, tags={{}})")
    if len(tags) > MOST_TAGS:
        raise Refused(f"illegal argument: Too many tags: {len(tags)} maximum allowed: {MOST_TAGS}, tags: {show(tags)}")
    if odd := odd_one(metric):
        raise Refused(f'illegal argument: Invalid metric name ("{metric}"): illegal character: {odd}')
    for name in hash_order(tags):
        value = tags[name]
        if odd := odd_one(name):
            raise Refused(
                f'illegal argument: Invalid tag name with value [{value}] ("{name}"): illegal character: {odd}'
            )
        if odd := odd_one(value):
            raise Refused(
                f'illegal argument: Invalid tag value with key [{name}] ("{value}"): illegal character: {odd}'
            )


def odd_one(name: str) -> str:
    """Return the first invalid character of a name."""
    for char in name:
        letter = char.isascii() and char.isalpha()
        latin = char in "ªµº" or ("À" <= char <= "ÿ" and char not in "×÷")
        if not (letter or latin or char in DIGITS or char in "-_./"):
            return char
    return ""


def show(tags: dict[str, str]) -> str:
    """Format tags as Java prints a map."""
    return "{" + ", ".join(f"{name}={tags[name]}" for name in hash_order(tags)) + "}"


def hash_order(tags: dict[str, str]) -> list[str]:
    """Return names in the order of Java's HashMap: by bucket, and within one in order of insertion."""
    size = 16
    while len(tags) > size * 0.75:
        size *= 2
    buckets: list[list[str]] = [[] for _ in range(size)]
    for name in tags:
        code = 0
        for char in name:
            code = (code * 31 + ord(char)) % 2**32
        buckets[(code ^ (code >> 16)) % size].append(name)
    return [name for bucket in buckets for name in bucket]
