"""Lines of text points: `puts METRIC TIME_MS TEXT TAG=VALUE…`, as they stand in the journal.

The text is percent-encoded UTF-8, so that it is one word of ASCII. An empty one is `%`. Names are ISO-8859-1.
"""

from typing import NamedTuple
from urllib.parse import quote_from_bytes, unquote_to_bytes

from tsd.codec.putline import NameRules, Tags, check_series, illegal, split_tags
from tsd.codec.text import parse_long

VERB = b"puts"
EMPTY = b"%"


class TextLine(NamedTuple):
    """One text point, with its names as sent."""

    metric: bytes
    tags: Tags
    time_ms: int
    text: str


def encode_text_line(metric: bytes, time_ms: int, text: str, tags: bytes) -> bytes:
    """Return a line without its end.

    >>> encode_text_line(b"m", 1356998400000, "all is well", b"host=a")
    b'puts m 1356998400000 all%20is%20well host=a'
    """
    word = quote_from_bytes(text.encode("utf-8", "surrogatepass"), safe="").encode() or EMPTY
    return b"%b %b %d %b %b" % (VERB, metric, time_ms, word, tags)


def parse_text_line(line: bytes, rules: NameRules) -> TextLine:
    """Parse a line. Raise BadLine.

    >>> parse_text_line(b"puts m 1356998400000 all%20is%20well host=a", NameRules()).text
    'all is well'
    """
    words = line.split(b" ", 4)
    if len(words) < 5 or words[0] != VERB:
        raise illegal(f"not enough arguments (need least 4, got {len(words) - 1})")
    _, metric, time_word, word, tag_text = words
    time_ms = parse_long(time_word)
    tags = split_tags(tag_text)
    check_series(metric, tags, rules)
    try:
        text = "" if word == EMPTY else unquote_to_bytes(word).decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        raise illegal(f"text: got {word.decode('latin-1')}, wanted percent-encoded UTF-8") from None
    return TextLine(metric, tags, time_ms, text)
