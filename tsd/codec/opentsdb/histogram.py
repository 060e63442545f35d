"""Histograms: counts by range of values, one cell for each time (FORMATS.md §8).

Also parses lines of histograms to cells of series that still have names instead of UIDs (`SummaryCell`).
"""

import base64
import binascii
import struct
from collections.abc import Iterable

from tsd.codec.opentsdb.cell import COLUMN, Qualifier
from tsd.codec.opentsdb.rollup import SummaryCell
from tsd.codec.points import Bucket, Histogram, in_order
from tsd.codec.putline import (
    FIRST_MS,
    HISTOGRAMS_NOT_CONFIGURED,
    LAST_MS,
    NameRules,
    Tags,
    base_time,
    check_series,
    illegal,
    parse_time,
    show_tags,
    split_tags,
    storable,
)
from tsd.codec.text import parse_double, parse_long
from tsd.errors import ILLEGAL_ARGUMENT, BadLine, CorruptRow

HISTOGRAM = b"\x06"  # first byte of the qualifier
SHORTEST = 6  # bytes: OpenTSDB refuses to store shorter payloads, and to read shorter cells
MOST_BUCKETS = (1 << 15) - 1  # their number is a signed 2-byte integer
LAST_ID = 127  # OpenTSDB reads the id as a signed byte, so it never finds a cell's codec above


def histogram_qualifier(time: int) -> Qualifier:
    """Return the column of a histogram at a timestamp.

    >>> histogram_qualifier(1356998403).hex(), histogram_qualifier(1356998400500).hex()
    ('060003', '06000001f4')
    """
    if time >= FIRST_MS:
        return Qualifier(HISTOGRAM + (time - base_time(time) * 1000).to_bytes(4, "big"))
    return Qualifier(HISTOGRAM + (time - base_time(time)).to_bytes(2, "big"))


def histogram_offset_ms(qualifier: bytes) -> int:
    """Return the milliseconds after the row's base time of a histogram's column. Raise CorruptRow.

    >>> histogram_offset_ms(bytes.fromhex("060003")), histogram_offset_ms(bytes.fromhex("06000001f4"))
    (3000, 500)
    """
    if qualifier[:1] != HISTOGRAM or len(qualifier) not in (3, 5):
        raise CorruptRow(f"got {qualifier.hex()}, wanted 06 and 2 or 4 bytes")
    offset = int.from_bytes(qualifier[1:], "big")
    return offset if len(qualifier) == 5 else offset * 1000


def join_value(codec_id: int, payload: bytes) -> bytes:
    """Return the cell's value: which codec, then what that codec made. Raise BadLine for a payload that is too
    short."""
    assert 0 <= codec_id <= LAST_ID, codec_id
    if len(payload) < SHORTEST:
        shown = ", ".join(str(byte - 256 if byte > 127 else byte) for byte in payload)
        raise BadLine(ILLEGAL_ARGUMENT, f"Byte array shorter than {SHORTEST} bytes detected: [{shown}]")
    return bytes((codec_id,)) + payload


def split_value(value: bytes) -> tuple[int, bytes]:
    """Return codec id and payload of a cell's value. Raise CorruptRow if it is too short for both."""
    if len(value) < SHORTEST:
        raise CorruptRow(f"histogram {value.hex()}: got {len(value)} bytes, wanted at least {SHORTEST}")
    return value[0], value[1:]


def encode_histogram(histogram: Histogram) -> bytes:
    """Return the payload of a simple histogram.

    >>> encode_histogram(Histogram((Bucket(-5.0, 5.0, 128),), underflow=129)).hex()
    '0001c0a0000040a000008001810100'
    """
    return b"".join(
        (
            len(histogram.buckets).to_bytes(2, "big"),
            *(struct.pack(">ff", lower, upper) + encode_varint(values) for lower, upper, values in histogram.buckets),
            encode_varint(histogram.underflow),
            encode_varint(histogram.overflow),
        )
    )


def decode_histogram(payload: bytes) -> Histogram:
    """Return the simple histogram in a payload. Raise CorruptRow.

    >>> decode_histogram(bytes.fromhex("0001c0a0000040a000008001810100"))
    Histogram(buckets=(Bucket(lower=-5.0, upper=5.0, values=128),), underflow=129, overflow=0)
    """
    buckets = []
    try:
        (number,) = struct.unpack_from(">h", payload)
        at = 2
        for _ in range(number):
            lower, upper = struct.unpack_from(">ff", payload, at)
            values, at = decode_varint(payload, at + 8)
            buckets.append(Bucket(lower, upper, values))
        underflow, at = decode_varint(payload, at)
        overflow, at = decode_varint(payload, at)
    except struct.error as exc:
        raise CorruptRow(f"histogram {payload.hex()}: cut short: {exc}") from exc
    if number < 1 or at != len(payload):
        raise CorruptRow(f"histogram {payload.hex()}: {number} buckets end at byte {at} of {len(payload)}")
    return Histogram(tuple(buckets), underflow, overflow)


def encode_varint(number: int) -> bytes:
    """Return a signed 64-bit integer, seven bits a byte from the lowest up, the top bit set where more follow; the
    ninth byte holds eight.

    >>> encode_varint(300).hex(), encode_varint(-1).hex()
    ('ac02', 'ffffffffffffffffff')
    """
    rest = number & (1 << 64) - 1
    parts = bytearray()
    while rest > 0x7F and len(parts) < 8:
        parts.append(rest & 0x7F | 0x80)
        rest >>= 7
    parts.append(rest)
    return bytes(parts)


def decode_varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the integer that starts at `at`, and where it ends. Raise CorruptRow where `data` ends first.

    >>> decode_varint(bytes.fromhex("ac02"), 0)
    (300, 2)
    """
    number = 0
    for place in range(9):
        if at + place >= len(data):
            raise CorruptRow(f"histogram {data.hex()}: the integer at byte {at} is cut short")
        byte = data[at + place]
        number |= (byte if place == 8 else byte & 0x7F) << 7 * place
        if byte < 0x80:
            break
    return (number - (1 << 64) if number >> 63 else number), at + place + 1


def make_histogram(buckets: Iterable[Bucket], underflow: int = 0, overflow: int = 0) -> Histogram:
    """Return a histogram of buckets in any order; of equal buckets the last counts. Raise BadLine if there is none, or
    too many."""
    unique = in_order(buckets)
    if not 0 < len(unique) <= MOST_BUCKETS:
        raise BadLine(ILLEGAL_ARGUMENT, f"a histogram has 1 to {MOST_BUCKETS} buckets, got {len(unique)}")
    return Histogram(tuple(unique), underflow, overflow)


def parse_histogram(text: bytes) -> Histogram:
    """Return the histogram in a word of a telnet line: `lower,upper=count` and `u=count`, `o=count`, with colons
    between. Raise BadLine; OpenTSDB drops a malformed one without a reply.

    >>> parse_histogram(b"1.75,3.5=16:0,1.75=12:u=0:o=2")
    Histogram(buckets=(Bucket(lower=0.0, upper=1.75, values=12), Bucket(lower=1.75, upper=3.5, values=16)), \
underflow=0, overflow=2)
    """
    buckets = []
    beyond = {b"u": 0, b"o": 0}
    for part in text.split(b":"):
        name, _, values = part.partition(b"=")
        if name.lower() in beyond:
            beyond[name.lower()] = parse_long(values)
        else:
            buckets.append(Bucket(*parse_bounds(name), parse_long(values)))
    return make_histogram(buckets, beyond[b"u"], beyond[b"o"])


def parse_bounds(text: bytes) -> tuple[float, float]:
    """Return the two bounds of `lower,upper` as singles. Raise BadLine.

    >>> parse_bounds(b"0,1.75")
    (0.0, 1.75)
    """
    bounds = [single(parse_double(word)) for word in text.split(b",")]
    if len(bounds) != 2:
        raise BadLine(ILLEGAL_ARGUMENT, f"Unable to parse bucket bounds: {text.decode('latin-1')}")
    return bounds[0], bounds[1]


def parse_payload(word: bytes) -> bytes:
    """Return the bytes behind a word of base64. Raise BadLine.

    >>> parse_payload(b"AAEAAAAAP4AAAAUAAA==").hex()
    '0001000000003f800000050000'
    """
    try:
        return base64.b64decode(word, validate=True)
    except binascii.Error as exc:
        raise BadLine(ILLEGAL_ARGUMENT, f"got {word.decode('latin-1')}, wanted base64: {exc}") from exc


def single(number: float) -> float:
    """Return the nearest number that a single holds, infinite beyond its range."""
    try:
        return float(struct.unpack(">f", struct.pack(">f", number))[0])
    except OverflowError:
        return float("inf") if number > 0 else float("-inf")


SIMPLE = "net.opentsdb.core.SimpleHistogramDecoder"


def read_histogram(line: bytes, simple_id: int | None, rules: NameRules, table: str) -> SummaryCell:
    """Return the cell of a histogram line. Raise BadLine."""
    if simple_id is None:
        raise illegal(HISTOGRAMS_NOT_CONFIGURED)
    words = line.split(b" ", 4)
    if len(words) < 5:
        raise illegal(f"not enough arguments (need least 5, got {len(words) - 1})")
    _, metric, time_word, word, rest = words
    if not metric:
        raise illegal("empty metric name")
    time = parse_time(time_word)
    if not word:
        raise illegal("empty histogram value")
    if word.isdigit():
        payload_word, _, rest = rest.partition(b" ")
        tags = split_tags(rest)
        payload = read_payload(parse_long(word), payload_word, simple_id)
    else:
        tags = split_tags(rest)
        payload = encode_histogram(_parsed(word))
    return histogram_summary(metric, tags, time, simple_id, payload, rules, table)


def histogram_summary(
    metric: bytes, tags: Tags, time: int, simple_id: int, payload: bytes, rules: NameRules, table: str
) -> SummaryCell:
    """Return the cell of a histogram with a checked payload. Raise BadLine."""
    if time >= FIRST_MS and (time > LAST_MS or not storable(time)):
        raise illegal(
            f"bad timestamp={time} of a histogram of metric={metric.decode('latin-1')}, tags={show_tags(tags)}"
        )
    check_series(metric, tags, rules)
    value = join_value(simple_id, payload)
    return SummaryCell(table, metric, tags, base_time(time), COLUMN + histogram_qualifier(time), value)


def _parsed(word: bytes) -> Histogram:
    try:
        return parse_histogram(word)
    except BadLine as exc:
        text = str(exc).removeprefix("invalid value: ").removeprefix("illegal argument: ")
        raise illegal(f"not a histogram: {word.decode('latin-1')}: {text}") from exc


def read_payload(codec_id: int, word: bytes, simple_id: int) -> bytes:
    """Return the bytes of a payload in base64, which the codec of that id can read. Raise BadLine."""
    if codec_id != simple_id:
        raise BadLine(ILLEGAL_ARGUMENT, f"HBase error: No codec found mapped to ID {codec_id}")
    try:
        payload = parse_payload(word)
        join_value(codec_id, payload)
        decode_histogram(payload)
    except (BadLine, CorruptRow) as exc:
        raise BadLine(ILLEGAL_ARGUMENT, f"HBase error: {exc}") from exc
    return payload
