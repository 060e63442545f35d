"""Lines of metadata of entities: `meta NAME KEY=VALUE…` as sent, `meta@TIME_MS NAME KEY=VALUE…` in the journal.

The time of its receipt makes a line's cells the same whenever it is written. Names and values are ISO-8859-1. In values
`%` and two hex digits are a byte of UTF-8, so that they may have blanks and all characters.
"""

from typing import NamedTuple
from urllib.parse import unquote

from tsd.codec.putline import MOST_SHOWN, Tags
from tsd.codec.text import illegal_character, parse_long, words_of
from tsd.errors import ILLEGAL_ARGUMENT, BadLine

VERB = b"meta"
STAMP = VERB + b"@"
MOST_KEYS = 1000  # of metadata in one line or request
LONGEST_NAME = 1024  # bytes of the name of an entity that gets metadata


class MetaLine(NamedTuple):
    """Metadata of one entity, received at `time_ms`."""

    entity: bytes
    time_ms: int
    values: tuple[tuple[bytes, str], ...]

    @property
    def metric(self) -> bytes:
        """No metric: metadata is of no series."""
        return b""

    @property
    def tags(self) -> Tags:
        """No tags."""
        return ()


def stamped(line: bytes, now_ms: int) -> bytes:
    """Return the line that the journal stores for a received `meta` line. Return other lines unchanged.

    >>> stamped(b"meta web01 rack=r1", 1356998400000), stamped(b"rollup x", 0)
    (b'meta@1356998400000 web01 rack=r1', b'rollup x')
    """
    if line != VERB and not line.startswith(VERB + b" "):
        return line
    return b"%b%d%b" % (STAMP, now_ms, line[len(VERB) :])


def check_entity(name: bytes, extra: bytes = b"") -> None:
    """Raise BadLine for a name that no entity with metadata may have. `extra`: see NameRules."""
    if not name:
        raise _bad("got an empty name of an entity, wanted the value of a tag")
    if len(name) > LONGEST_NAME:
        raise _bad(f"name of an entity: got {len(name)} bytes, wanted {LONGEST_NAME} at most")
    if odd := illegal_character(name, extra):
        raise _bad(f"name of an entity: got {name.decode('latin-1')!r} with {odd!r}, wanted the value of a tag")


def parse_meta(line: bytes, extra: bytes = b"") -> MetaLine:
    """Parse a line of the journal. Raise BadLine. The characters of keys and the size of values are not checked here.
    `extra`: see NameRules.

    >>> parse_meta(b"meta@1356998400000 web01 rack=r1 note=two%20words").values
    ((b'rack', 'r1'), (b'note', 'two words'))
    """
    verb, _, text = line.partition(b" ")
    if (count := text.count(b"=")) > MOST_KEYS:
        raise _bad(f"got {count} keys of metadata, wanted {MOST_KEYS} at most in a line")
    words = list(words_of(text))
    if len(words) < 2:
        raise _bad(f"not enough arguments (need least 2, got {len(words)})")
    check_entity(words[0], extra)
    values: dict[bytes, str] = {}
    for word in words[1:]:
        key, equals, value = word.partition(b"=")
        if not key or not equals:
            raise _bad(f"metadata: got {_shown(word)!r}, wanted KEY=VALUE")
        if key in values:
            raise _bad(f"metadata: got the key {_shown(key)!r} twice, wanted each once")
        values[key] = _decoded(value)
    return MetaLine(words[0], parse_long(verb.removeprefix(STAMP)), tuple(values.items()))


def _bad(message: str) -> BadLine:
    return BadLine(ILLEGAL_ARGUMENT, message)


def _decoded(value: bytes) -> str:
    """Return a value with its percent-encoded characters."""
    text = value.decode("latin-1")
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError:
        raise _bad(f"metadata: got the value {_shown(value)!r}, wanted UTF-8 where it has %") from None


def _shown(word: bytes) -> str:
    return word[:MOST_SHOWN].decode("latin-1")
