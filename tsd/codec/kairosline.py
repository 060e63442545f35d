"""KairosDB's points as lines: its telnet dialect, and the parts that its JSON shares with it.

A number becomes a put line, which every table layout can store. A text becomes a line of `tsd.codec.textline`, for
layouts that store texts. A point that has no line is refused with the reason.
"""

import re
from collections.abc import Iterable, Sequence

from tsd.codec.putline import FIRST_MS, illegal
from tsd.codec.text import encode_name, parse_double
from tsd.codec.textline import VERB, encode_text_line
from tsd.errors import ILLEGAL_ARGUMENT, INVALID_VALUE, BadLine

MS_FROM = 3_000_000_000  # times of `put` from here on are milliseconds
LAST_TEXT_MS = 9_999_999_999_999  # as of put lines
COMMANDS = (b"put", b"putm", b"puts")
NO_TEXT = "the value is a string: these tables store numbers only"
NO_TTL = "these tables cannot store a time to live: points stay until they are deleted"
_WORDS = re.compile(rb'"(.*?)(?:"(?=[\x00-\x20]|$)|$)|([^\x00-\x20]+)', re.DOTALL)
_LONG = re.compile(rb"-?[0-9]+")
TTL = "kairos_opt.ttl"
LONGEST_NAME = 65_535  # bytes; no table stores a longer one, and a long line holds up the event loop


def put_line(metric: str, tags: Iterable[tuple[str, str]], time_ms: int, number: int | float) -> bytes:
    """Return the put line of a point. Raise BadLine for what no put line can express; names are not checked further."""
    name, tag_words = _names(metric, tags)
    return b"put %s %s %s %s\n" % (name, time_word(time_ms), number_word(number), tag_words)


def text_line(metric: str, tags: Iterable[tuple[str, str]], time_ms: int, text: str) -> bytes:
    """Return the line of a text point. Raise BadLine as `put_line` does."""
    name, tag_words = _names(metric, tags)
    if not 0 <= time_ms <= LAST_TEXT_MS:
        raise illegal(f"got the time {time_ms} ms, wanted one from 0 to {LAST_TEXT_MS} ms")
    return encode_text_line(name, time_ms, text, tag_words) + b"\n"


def is_text_line(line: bytes) -> bool:
    """Return whether a line, or the first line of a block, is that of a text point."""
    return line.startswith(VERB + b" ")


def _names(metric: str, tags: Iterable[tuple[str, str]]) -> tuple[bytes, bytes]:
    """Return metric and tags as lines have them. Raise BadLine for a name that is too long or not one word."""
    names = [(encode_name(tagk), encode_name(tagv)) for tagk, tagv in tags]
    name = encode_name(metric)
    for word in (name, *(word for pair in names for word in pair)):
        if len(word) > LONGEST_NAME:
            start = word[:60].decode("latin-1")
            raise illegal(f"got a name of {len(word)} bytes, wanted up to {LONGEST_NAME}: {start!r}…")
        if not word or word.translate(None, b" =\n\r\t") != word:
            raise illegal(f"got the name {word.decode('latin-1')!r}, wanted one without blanks, line ends and =")
    return name, b" ".join(tagk + b"=" + tagv for tagk, tagv in names)


def time_word(time_ms: int) -> bytes:
    """Return a time as a put line has it. Raise BadLine for one that it would take for another.

    >>> time_word(1356998400500), time_word(86400000)
    (b'1356998400500', b'86400')
    """
    if time_ms >= FIRST_MS:
        return b"%d" % time_ms
    if time_ms > 0 and time_ms % 1000 == 0:
        return b"%d" % (time_ms // 1000)
    raise illegal(f"got the time {time_ms} ms, wanted one from {FIRST_MS} ms on, or a whole second after 1970")


def number_word(number: int | float) -> bytes:
    """Return a number as a put line has it. Raise BadLine for a number that cannot be stored.

    >>> number_word(7), number_word(7.0), number_word(1e300)
    (b'7', b'7.0', b'1e+300')
    """
    if isinstance(number, int):
        if not -(1 << 63) <= number < 1 << 63:
            raise BadLine(INVALID_VALUE, f"invalid value: {number} does not fit in 64 bits")
        return b"%d" % number
    if number != number or number in (float("inf"), float("-inf")):
        raise illegal(f"value is NaN or Infinite: {number}")
    return repr(number).encode()


def split_words(line: bytes) -> list[bytes]:
    """Return the words of a line. One in double quotes may contain blanks.

    >>> split_words(b'put m 1 2\\t"a=b c" d="e"')
    [b'put', b'm', b'1', b'2', b'a=b c', b'd="e"']
    """
    return [quoted or plain for quoted, plain in _WORDS.findall(line)]


def convert_line(words: Sequence[bytes], *, has_ttl: bool = False, has_texts: bool = False) -> bytes:
    """Return the line of the words of a line of KairosDB's dialect: put, putm or puts. Raise BadLine.

    `has_ttl`: a time to live stays in the line, as the tag kairos_opt.ttl. `has_texts`: the tables store texts.

    >>> convert_line([b"putm", b"a.b", b"1356998400500", b"+1.50", b"host=x"])
    b'put a.b 1356998400500 1.5 host=x\\n'
    >>> convert_line([b"puts", b"a.b", b"1356998400500", b"is up", b"host=x"], has_texts=True)
    b'puts a.b 1356998400500 is%20up host=x\\n'
    """
    if len(words) < 4:
        raise illegal(f"not enough arguments (need at least 3, got {max(len(words) - 1, 0)})")
    command, metric, time, value, *tag_words = words
    time_ms = _time_ms(command, time)
    tags = _tags(tag_words)
    ttl = int(tags.pop(TTL, "0"))
    if ttl and not has_ttl:
        raise illegal(NO_TTL)
    if command == b"puts" and not has_texts:
        raise illegal(NO_TEXT)
    tags = tags or {"add": "tag"}
    if ttl:
        tags[TTL] = str(ttl)
    if command == b"puts":
        return text_line(_text(metric), tags.items(), time_ms, _text(value))
    return put_line(_text(metric), tags.items(), time_ms, _number(value))


def _time_ms(command: bytes, word: bytes) -> int:
    if not _LONG.fullmatch(word) or len(word) > 20:
        raise BadLine(INVALID_VALUE, f"invalid value: got the time {_text(word)!r}, wanted digits")
    time = int(word)
    return time * 1000 if command == b"put" and time < MS_FROM else time


def _number(word: bytes) -> int | float:
    if b"." in word:
        return parse_double(word)
    if not _LONG.fullmatch(word) or len(word) > 40:
        raise BadLine(INVALID_VALUE, f"invalid value: got {_text(word)!r}, wanted an integer, or a number with a point")
    return int(word)


def _tags(words: Iterable[bytes]) -> dict[str, str]:
    tags: dict[str, str] = {}
    for word in words:
        name, equals, value = _text(word).partition("=")
        if not name or not equals or not value or "=" in value:
            raise BadLine(ILLEGAL_ARGUMENT, f"illegal argument: invalid tag: {_text(word)}")
        if name == TTL:
            if not _LONG.fullmatch(value.encode()) or len(value) > 10:
                raise illegal(f"got {word.decode('latin-1')}, wanted seconds")
        elif name in tags:
            raise illegal(f"duplicate tag: {_text(word)}")
        tags[name] = value
    return tags


def _text(word: bytes) -> str:
    """Return a word as text: UTF-8, or ISO-8859-1 where it is not valid UTF-8."""
    try:
        return word.decode()
    except UnicodeDecodeError:
        return word.decode("latin-1")
