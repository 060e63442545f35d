"""Parser of put lines, with OpenTSDB's errors (FORMATS.md §1), and timestamps, base times and instants (§3).

This is the reference parser and the only one that reports errors. `tsd.ingest.open_window` is the fast path for valid
lines.

A timestamp is a number as sent: Unix seconds below 2^32, milliseconds from there up. Inside the daemon a time is an
*instant*: milliseconds shifted left by one, with the low bit set if the timestamp was in milliseconds. Instants sort by
time, and the low bit determines the qualifier's width.
"""

from functools import lru_cache
from typing import NamedTuple, NewType

from tsd.codec.text import (
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

BaseTime = NewType("BaseTime", int)  # Unix seconds, a multiple of 3600
Timestamp = NewType("Timestamp", int)  # as sent: seconds below 2**32, milliseconds from there up
Instant = NewType("Instant", int)  # milliseconds << 1 | sent in milliseconds

HOUR_S = 3600
HOUR_MS = HOUR_S * 1000
FIRST_MS = 1 << 32  # the smallest timestamp that means milliseconds
LAST_MS = 9999999999999  # the largest one that OpenTSDB accepts
LAST_BASE_MS = ((1 << 32) // HOUR_S * HOUR_S + HOUR_S) * 1000 - 1  # later base times do not fit in 32 bits
HOUR = HOUR_MS << 1  # an hour, as a difference of instants

ROLLUPS_NOT_CONFIGURED = "No rollup or aggregations were configured"
HISTOGRAMS_NOT_CONFIGURED = (
    "Histogram storage has not been enabled. Check the 'tsd.core.histograms.config' configuration."
)


def no_summaries(line: bytes) -> BadLine:
    """Return the error of a line of a rollup or a histogram where neither is configured."""
    return illegal(ROLLUPS_NOT_CONFIGURED if line.startswith(b"rollup ") else HISTOGRAMS_NOT_CONFIGURED)


def instant(timestamp: int) -> Instant:
    """Return the instant of a timestamp.

    >>> instant(1356998400), instant(1356998400000)
    (2713996800000, 2713996800001)
    """
    return Instant(timestamp << 1 | 1 if timestamp >= FIRST_MS else timestamp * 2000)


def timestamp(moment: int) -> Timestamp:
    """Return the timestamp of an instant.

    >>> timestamp(instant(1356998400)), timestamp(instant(1356998400500))
    (1356998400, 1356998400500)
    """
    return Timestamp(moment >> 1 if moment & 1 else moment // 2000)


def base_time(timestamp: int) -> BaseTime:
    """Return the start of the hour of a timestamp, in seconds.

    >>> base_time(1356998403), base_time(1357001999999)
    (1356998400, 1356998400)
    """
    seconds = timestamp // 1000 if timestamp >= FIRST_MS else timestamp
    return BaseTime(seconds - seconds % HOUR_S)


def parse_time(word: bytes) -> Timestamp:
    """Parse the timestamp of a telnet line. Raise BadLine. The upper limit is not checked here (see `check_point`).

    OpenTSDB removes every dot from the word first, so that 1500000000.5 becomes a millisecond of 1970. If the number
    without dots is in milliseconds and the word has one dot, it is parsed as decimal seconds here and truncated to
    milliseconds. All other words with dots are parsed as OpenTSDB does.

    >>> parse_time(b"1356998400.501"), parse_time(b"1356998400.5"), parse_time(b"1356998400.")
    (1356998400501, 1356998400500, 1356998400)
    """
    number = parse_long(word.replace(b".", b"") if b"." in word else word)
    if number <= 0:
        raise BadLine(ILLEGAL_ARGUMENT, f"illegal argument: invalid timestamp: {number}")
    if b"." in word and FIRST_MS <= number <= LAST_MS:
        seconds, _, decimals = word.partition(b".")
        if b"." in decimals:
            shown = word.decode("latin-1")
            raise BadLine(ILLEGAL_ARGUMENT, f"illegal argument: invalid timestamp: {shown}: one dot at most")
        number = parse_long(seconds or b"0") * 1000 + int(decimals[:3].ljust(3, b"0") or b"0")
        if number < FIRST_MS:  # as milliseconds this number would mean seconds
            shown = word.decode("latin-1")
            raise BadLine(ILLEGAL_ARGUMENT, f"illegal argument: invalid timestamp: {shown}: before {FIRST_MS} ms")
    return Timestamp(number)


def storable(timestamp: int) -> bool:
    """Return whether the base time of a timestamp fits in a row key. OpenTSDB accepts up to 9999999999999 ms and
    truncates the base time (that one to 2014). Here times from 2106 on are refused.

    >>> storable(1356998400), storable(LAST_BASE_MS), storable(9999999999999)
    (True, True, False)
    """
    return timestamp <= LAST_BASE_MS


Tags = tuple[tuple[bytes, bytes], ...]

ORDER_TAGS, ORDER_BYTES = 16, 1024  # limits of cached sets of tag names: invalid lines may have sets of any size
MOST_SPLIT = 10_000  # tags that are looked at, some 3 ms
MOST_SHOWN = 256  # tags in a message; OpenTSDB shows all


class NameRules(NamedTuple):
    """Rules for the names of a series."""

    extra: bytes = b""  # allowed characters in addition to the usual ones (tsd.core.tag.allow_specialchars)
    max_tags: int = 8


class PutLine(NamedTuple):
    """One data point with its names as sent and its value as stored."""

    metric: bytes
    tags: Tags  # (tagk, tagv) in the order sent, each once
    time: Timestamp
    flags: int
    value: bytes


def illegal(message: str) -> BadLine:
    """Return the error of a line with OpenTSDB's prefix for all errors except invalid numbers."""
    return BadLine(ILLEGAL_ARGUMENT, f"illegal argument: {message}")


def parse_put(line: bytes, rules: NameRules) -> PutLine:
    """Parse a put line. Raise BadLine for the first failed check. The first word is ignored.

    The checks run in OpenTSDB's order, because the reply reports only the first failure.

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
    return PutLine(metric, tags, time, *check_point(metric, tags, time, value_word, rules))


def check_point(metric: bytes, tags: Tags, time: int, word: bytes, rules: NameRules) -> tuple[int, bytes]:
    """Return flags and bytes of a point's value `word`. Raise BadLine for an invalid value, time, metric or tag."""
    flags, value = parse_value(word, metric, time)
    if time >= FIRST_MS and (time > LAST_MS or not storable(time)):
        raise illegal(
            f"bad timestamp={time} when trying to add value={show_signed(value)}/{flags} "
            f"to metric={metric.decode('latin-1')}, tags={show_tags(tags)}"
        )
    check_series(metric, tags, rules)
    return flags, value


def parse_value(word: bytes, metric: bytes, time: int) -> tuple[int, bytes]:
    """Return flags and bytes of a value as sent. Raise BadLine; its text has metric and time."""
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
    """Return the tags of a text, a repeated tag once. Raise BadLine.

    >>> split_tags(b"host=a  cpu=0 host=a ")
    ((b'host', b'a'), (b'cpu', b'0'))
    """
    tags: dict[bytes, bytes] = {}
    if (count := text.count(b"=")) > MOST_SPLIT:
        raise illegal(f"Too many tags: {count}, wanted at most {MOST_SPLIT} in a line")
    for word in words_of(text):
        tagk, equals, tagv = word.partition(b"=")
        if not tagk or not equals or not tagv or b"=" in tagv:
            raise illegal(f"invalid tag: {word.decode('latin-1')}")
        if tags.setdefault(tagk, tagv) != tagv:
            raise illegal(f"duplicate tag: {word.decode('latin-1')}, tags={show_tags(tuple(tags.items()))}")
    return tuple(tags.items())


def check_series(metric: bytes, tags: Tags, rules: NameRules) -> None:
    """Raise BadLine for an invalid metric or tag. Lines never have empty names, but HTTP requests may."""
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
    """Return tags in OpenTSDB's order of iteration, in which it checks and shows tags and assigns UIDs."""
    if len(tags) < 2:
        return tags
    tagks = tuple([tagk for tagk, _ in tags])
    kept = len(tagks) <= ORDER_TAGS and sum(map(len, tagks)) <= ORDER_BYTES
    order = (_order if kept else _order.__wrapped__)(tagks)
    return tuple([tags[at] for at in order])


@lru_cache(1000)
def _order(tagks: tuple[bytes, ...]) -> tuple[int, ...]:
    """Return the indexes of tag names in OpenTSDB's order. Cached, because most senders use few sets of names."""
    places = {tagk.decode("latin-1"): at for at, tagk in enumerate(tagks)}
    return tuple(places[key] for key in java_map_order(places))


def show_tags(tags: Tags) -> str:
    """Return tags as OpenTSDB shows them, of many tags the first ones.

    >>> show_tags(((b"c", b"d"), (b"a", b"b")))
    '{a=b, c=d}'
    """
    shown = [f"{k.decode('latin-1')}={v.decode('latin-1')}" for k, v in map_order(tags[:MOST_SHOWN])]
    if len(tags) > MOST_SHOWN:
        shown.append(f"and {len(tags) - MOST_SHOWN} more")
    return "{" + ", ".join(shown) + "}"
