"""Histograms as configured, and the lines that carry them → the cell each one says, but for UIDs (FORMATS.md §8)."""

import json
from pathlib import Path

from tsd.codec.cell import COLUMN
from tsd.codec.histogram import (
    LAST_ID,
    Histogram,
    decode_histogram,
    encode_histogram,
    histogram_qualifier,
    join_value,
    parse_histogram,
    parse_payload,
)
from tsd.codec.putline import NameRules, Tags, check_series, illegal, show_tags, split_tags
from tsd.codec.summary import Summary
from tsd.codec.times import FIRST_MS, LAST_MS, base_time, parse_time, storable
from tsd.config import Config
from tsd.errors import ILLEGAL_ARGUMENT, BadConfig, BadLine, CorruptRow

SIMPLE = "net.opentsdb.core.SimpleHistogramDecoder"
NOT_CONFIGURED = "Histogram storage has not been enabled. Check the 'tsd.core.histograms.config' configuration."


def configured(config: Config) -> int | None:
    """The id of the simple histograms' codec, None where histograms are off; raises BadConfig."""
    text = config.histograms_config.strip()
    if not text:
        return None
    try:
        found = json.loads(Path(text).read_text("utf-8") if text.endswith(".json") else text)
    except (OSError, ValueError) as exc:
        raise BadConfig([f"tsd.core.histograms.config: {exc}"]) from exc
    if not isinstance(found, dict) or set(found) != {SIMPLE}:
        raise BadConfig(
            [f'tsd.core.histograms.config: got {text}, wanted {{"{SIMPLE}": id}}: there are no others here']
        )
    number = found[SIMPLE]
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number <= LAST_ID:
        raise BadConfig([f"tsd.core.histograms.config: {SIMPLE}: got {number!r}, wanted 0 to {LAST_ID}"])
    return number


def read_histogram(line: bytes, simple_id: int | None, rules: NameRules, table: str) -> Summary:
    """The cell that a histogram line says; raises BadLine."""
    if simple_id is None:
        raise illegal(NOT_CONFIGURED)
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
        payload = read_payload(int(word), payload_word, simple_id)
    else:
        tags = split_tags(rest)
        payload = encode_histogram(_parsed(word))
    return judge_histogram(metric, tags, time, simple_id, payload, rules, table)


def judge_histogram(
    metric: bytes, tags: Tags, time: int, simple_id: int, payload: bytes, rules: NameRules, table: str
) -> Summary:
    """The cell of a histogram whose payload was found good; raises BadLine."""
    if time >= FIRST_MS and (time > LAST_MS or not storable(time)):
        raise illegal(
            f"bad timestamp={time} of a histogram of metric={metric.decode('latin-1')}, tags={show_tags(tags)}"
        )
    check_series(metric, tags, rules)
    value = join_value(simple_id, payload)
    return Summary(table, metric, tags, base_time(time), COLUMN + histogram_qualifier(time), value)


def _parsed(word: bytes) -> Histogram:
    try:
        return parse_histogram(word)
    except BadLine as exc:
        text = str(exc).removeprefix("invalid value: ").removeprefix("illegal argument: ")
        raise illegal(f"not a histogram: {word.decode('latin-1')}: {text}") from exc


def read_payload(codec_id: int, word: bytes, simple_id: int) -> bytes:
    """The bytes of a payload in base64, which the codec of that id can read; raises BadLine."""
    if codec_id != simple_id:
        raise BadLine(ILLEGAL_ARGUMENT, f"HBase error: No codec found mapped to ID {codec_id}")
    try:
        payload = parse_payload(word)
        join_value(codec_id, payload)
        decode_histogram(payload)
    except (BadLine, CorruptRow) as exc:
        raise BadLine(ILLEGAL_ARGUMENT, f"HBase error: {exc}") from exc
    return payload
