"""One put line → what it says, or the words OpenTSDB refuses it with (FORMATS.md §1).

This is the reference for every line and the only judge of bad ones; `tsd.ingest.rows` is the fast way for good ones.
"""

from functools import lru_cache
from typing import NamedTuple

from tsd.codec.times import FIRST_MS, LAST_MS, Timestamp, parse_time, storable
from tsd.codec.words import (
    encode_float,
    encode_integer,
    illegal_character,
    java_map_order,
    looks_like_integer,
    parse_double,
    parse_long,
    show_signed,
    words_of,
)
from tsd.errors import ILLEGAL_ARGUMENT, BadLine

Tags = tuple[tuple[bytes, bytes], ...]

ORDER_TAGS, ORDER_BYTES = 16, 1024  # of sets whose order is kept: refused lines have sets, too, of any size


class NameRules(NamedTuple):
    """What a series may be called."""

    extra: bytes = b""  # characters allowed beside the usual ones (tsd.core.tag.allow_specialchars)
    max_tags: int = 8


class PutLine(NamedTuple):
    """One data point in the sender's names, its number in its stored form."""

    metric: bytes
    tags: Tags  # (tagk, tagv) in the order sent, each once
    time: Timestamp
    flags: int
    value: bytes


def illegal(message: str) -> BadLine:
    """The error of a line that breaks a rule other than a number's."""
    return BadLine(ILLEGAL_ARGUMENT, f"illegal argument: {message}")


def parse_put(line: bytes, rules: NameRules) -> PutLine:
    """What a put line says, its first word left unread; raises BadLine for the first check it fails.

    The checks run in OpenTSDB's order, because the reply names only the first failure.

    >>> parse_put(b"put sys.cpu.user 1356998400 42 host=web01", NameRules())
    PutLine(metric=b'sys.cpu.user', tags=((b'host', b'web01'),), time=1356998400, flags=0, value=b'*')
    """
    words = line.split(b" ", 4)
    if len(words) < 5:
        raise illegal(f"not enough arguments (need least 4, got {len(words) - 1})")
    _, metric, time_word, value_word, tag_text = words
    if not metric:
        raise illegal("empty metric name")
    time = parse_time(time_word)
    if not value_word:
        raise illegal("empty value")
    tags = split_tags(tag_text)
    return PutLine(metric, tags, time, *judge(metric, tags, time, value_word, rules))


def judge(
    metric: bytes, tags: Tags, time: int, word: bytes, rules: NameRules, *, only_s: bool = False
) -> tuple[int, bytes]:
    """Flags and bytes of a point's value, once all else of the point was found good; raises BadLine. `only_s` where a
    time in ms may not be."""
    flags, value = parse_value(word, metric, time)
    if time >= FIRST_MS and (only_s or time > LAST_MS or not storable(time)):
        raise illegal(
            f"bad timestamp={time} when trying to add value={show_signed(value)}/{flags} "
            f"to metric={metric.decode('latin-1')}, tags={show_tags(tags)}"
        )
    check_series(metric, tags, rules)
    return flags, value


def parse_value(word: bytes, metric: bytes, time: int) -> tuple[int, bytes]:
    """Flags and bytes of a telnet value; raises BadLine."""
    if looks_like_integer(word):
        return encode_integer(parse_long(word))
    number = parse_double(word)
    if number in (float("inf"), float("-inf")):
        sign = "-" if number < 0 else ""
        raise illegal(
            f"value is NaN or Infinite: {sign}Infinity for metric={metric.decode('latin-1')} timestamp={time}"
        )
    return encode_float(number)


def split_tags(text: bytes) -> Tags:
    """The tags of a tag text, a repeated one once; raises BadLine.

    >>> split_tags(b"host=a  cpu=0 host=a ")
    ((b'host', b'a'), (b'cpu', b'0'))
    """
    tags: dict[bytes, bytes] = {}
    for word in words_of(text):
        tagk, equals, tagv = word.partition(b"=")
        if not tagk or not equals or not tagv or b"=" in tagv:
            raise illegal(f"invalid tag: {word.decode('latin-1')}")
        if tags.setdefault(tagk, tagv) != tagv:
            raise illegal(f"duplicate tag: {word.decode('latin-1')}, tags={show_tags(tuple(tags.items()))}")
    return tuple(tags.items())


def check_series(metric: bytes, tags: Tags, rules: NameRules) -> None:
    """Raises BadLine unless a series may be called so. A line has no empty names; HTTP may."""
    name = metric.decode("latin-1")
    if not tags:
        raise illegal(f"Need at least one tag (metric={name}, tags={{}})")
    if len(tags) > rules.max_tags:
        raise illegal(f"Too many tags: {len(tags)} maximum allowed: {rules.max_tags}, tags: {show_tags(tags)}")
    if odd := illegal_character(metric, rules.extra):
        raise illegal(f'Invalid metric name ("{name}"): illegal character: {odd}')
    for tagk, tagv in map_order(tags):
        key, value = tagk.decode("latin-1"), tagv.decode("latin-1")
        if not tagk:
            raise illegal(f"Invalid tag name with value [{value}]: empty string")
        if not tagv and not illegal_character(tagk, rules.extra):
            raise illegal(f"Invalid tag value with key [{key}]: empty string")
        if odd := illegal_character(tagk, rules.extra):
            raise illegal(f'Invalid tag name with value [{value}] ("{key}"): illegal character: {odd}')
        if odd := illegal_character(tagv, rules.extra):
            raise illegal(f'Invalid tag value with key [{key}] ("{value}"): illegal character: {odd}')


def map_order(tags: Tags) -> Tags:
    """Tags in the order OpenTSDB visits them: it checks, shows and gives UIDs in this order."""
    if len(tags) < 2:
        return tags
    tagks = tuple([tagk for tagk, _ in tags])
    kept = len(tagks) <= ORDER_TAGS and sum(map(len, tagks)) <= ORDER_BYTES
    order = (_order if kept else _order.__wrapped__)(tagks)
    return tuple([tags[at] for at in order])


@lru_cache(1000)
def _order(tagks: tuple[bytes, ...]) -> tuple[int, ...]:
    """In which order OpenTSDB visits tags of these names. Agents have few such sets."""
    places = {tagk.decode("latin-1"): at for at, tagk in enumerate(tagks)}
    return tuple(places[key] for key in java_map_order(places))


def show_tags(tags: Tags) -> str:
    """Tags as OpenTSDB shows them.

    >>> show_tags(((b"c", b"d"), (b"a", b"b")))
    '{a=b, c=d}'
    """
    return "{" + ", ".join(f"{k.decode('latin-1')}={v.decode('latin-1')}" for k, v in map_order(tags)) + "}"
