"""Rollups and pre-aggregates: points of longer intervals, each kind in its tables (FORMATS.md §9).

Parses their configuration, and lines of rollups to cells of series that still have names instead of UIDs
(`SummaryCell`, which histograms use too). A line is checked in OpenTSDB's order, because the reply names only the first
error.
"""

import json
import re
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import NamedTuple

from tsd.codec.opentsdb.cell import COLUMN, Qualifier
from tsd.codec.putline import (
    FIRST_MS,
    ROLLUPS_NOT_CONFIGURED,
    BaseTime,
    NameRules,
    Tags,
    base_time,
    check_series,
    illegal,
    parse_put,
    parse_time,
    parse_value,
    show_tags,
    split_tags,
)
from tsd.codec.text import FLOAT, LENGTH, decode_object, show_signed
from tsd.errors import ILLEGAL_ARGUMENT, BadConfig, BadLine, CorruptRow

DAY_S = 86400
UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": DAY_S, "w": 7 * DAY_S, "n": 30 * DAY_S, "y": 365 * DAY_S}
SPANS_S = {"h": 3600, "d": DAY_S, "n": 32 * DAY_S, "y": 366 * DAY_S}  # what OpenTSDB divides by the interval
FEWEST, MOST = 12, 7774  # intervals a row may have
# From here on an offset's first four bits are those that mark milliseconds, and from 4096 it leaves its 12 bits.
END_OFFSET = 3840
MAX_SHOWN = 80  # bytes of a setting in an error


class Interval(NamedTuple):
    """One length of interval and where its points go."""

    name: str  # as written: "1h"
    seconds: int
    span_count: int
    span_unit: str  # h, d, n (month) or y
    table: str
    pre_aggregate_table: str
    is_default: bool = False  # its table is the raw one

    @property
    def per_row(self) -> int:
        """The number of intervals in a row, as OpenTSDB counts: a day or two too many for months and years."""
        return self.span_count * SPANS_S[self.span_unit] // self.seconds

    @property
    def row_s(self) -> int:
        """Seconds that a row has room for."""
        return self.per_row * self.seconds

    def row_start(self, time_s: int) -> int:
        """Return the start of the row that holds a time."""
        return rollup_base(time_s, self)


class RollupConfig(NamedTuple):
    """The parsed setting `tsd.rollups.config`."""

    ids: dict[str, int]  # aggregator in lower case → 0 to 127
    intervals: tuple[Interval, ...]

    def interval(self, name: str) -> Interval:
        """Return the interval of that name. Raise BadLine with OpenTSDB's words."""
        for interval in self.intervals:
            if interval.name == name:
                return interval
        raise BadLine(ILLEGAL_ARGUMENT, f"No rollups configured for the interval: {name}")

    def id_of(self, aggregator: str) -> int:
        """Return the id of an aggregator, in any case. Raise BadLine with OpenTSDB's words."""
        try:
            return self.ids[aggregator.lower()]
        except KeyError:
            raise BadLine(ILLEGAL_ARGUMENT, f"No ID found mapping to aggregator: {aggregator}") from None

    def column_starts(self, aggregators: Iterable[str]) -> tuple[tuple[bytes, ...], ...]:
        """Return, for each of some aggregators, how its columns may start: today's form and the old one."""
        return tuple((COLUMN + bytes((self.id_of(name),)), COLUMN + name.encode() + b":") for name in aggregators)

    @property
    def default(self) -> Interval:
        """The interval of the raw table: points given without an interval go to its pre-aggregates."""
        return next(interval for interval in self.intervals if interval.is_default)


def default_config(data_table: str) -> RollupConfig:
    """Return the configuration of daemons that are given none: hours and days, in tables named after the raw one.

    >>> [(one.name, one.table) for one in default_config("tsdb").intervals]
    [('1m', 'tsdb'), ('1h', 'tsdb-1h'), ('1d', 'tsdb-1d')]
    """
    return RollupConfig(
        {"sum": 0, "count": 1, "min": 2, "max": 3},
        (
            Interval("1m", 60, 1, "h", data_table, f"{data_table}-agg", is_default=True),
            Interval("1h", 3600, 1, "d", f"{data_table}-1h", f"{data_table}-agg-1h"),
            Interval("1d", DAY_S, 1, "n", f"{data_table}-1d", f"{data_table}-agg-1d"),
        ),
    )


class RollupCell(NamedTuple):
    """The contents of a rollup cell's qualifier."""

    aggregator: str  # in lower case
    offset: int  # intervals after the row's base time
    flags: int


def parse_duration(text: str) -> int:
    """Return the seconds of a duration like 10m. Raise ValueError.

    >>> parse_duration("10m"), parse_duration("1n")
    (600, 2592000)
    """
    found = re.fullmatch(r"([0-9]{1,9})([smhdwny])", text, re.ASCII)
    if not found or not int(found[1]):
        raise ValueError(f"got {text!r}, wanted a count and one of s, m, h, d, w, n, y")
    return int(found[1]) * UNITS_S[found[2]]


def parse_config(text: bytes) -> RollupConfig:
    """Return the configuration in JSON. Raise BadConfig with a sentence for each error.

    >>> config = parse_config(b'{"aggregationIds": {"sum": 0}, "intervals": [{"table": "tsdb", "interval": "1m",'
    ...                       b'"preAggregationTable": "tsdb-agg", "rowSpan": "1h", "defaultInterval": true}]}')
    >>> config.default.per_row
    60
    """
    try:
        members = decode_object(text)
    except CorruptRow as exc:
        got = text[:MAX_SHOWN].decode("utf-8", "replace")
        raise BadConfig([f"tsd.rollups.config: got {got!r}, wanted a JSON object, or a file *.json with one"]) from exc
    problems: list[str] = []
    ids = _parse_ids(members.get("aggregationIds"), problems)
    intervals = _parse_intervals(members.get("intervals"), problems)
    if problems:
        raise BadConfig([f"tsd.rollups.config: {problem}" for problem in problems])
    return RollupConfig(ids, intervals)


def _parse_ids(found: object, problems: list[str]) -> dict[str, int]:
    if not isinstance(found, dict) or not found:
        problems.append("aggregationIds names no aggregator")
        return {}
    for name, number in found.items():
        if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number <= 127:
            problems.append(f"aggregationIds: {name}: got {number!r}, wanted 0 to 127")
    ids = {name.lower(): number for name, number in found.items()}
    if len(ids) < len(found) or len({json.dumps(number) for number in ids.values()}) < len(ids):
        problems.append("aggregationIds: an aggregator or an id is repeated")
    return ids


def _parse_intervals(found: object, problems: list[str]) -> tuple[Interval, ...]:
    intervals = []
    for entry in found if isinstance(found, list) else []:
        try:
            intervals.append(_parse_interval(entry))
        except ValueError as exc:
            problems.append(f"intervals: {exc}")
    if sum(interval.is_default for interval in intervals) != 1 and not problems:
        problems.append("intervals: exactly one must have defaultInterval true")
    if len({interval.name for interval in intervals}) < len(intervals):
        problems.append("intervals: an interval is repeated")
    return tuple(intervals)


def _parse_interval(entry: object) -> Interval:
    """Raise ValueError."""
    if not isinstance(entry, dict):
        raise ValueError(f"got {entry!r}, wanted an object")
    texts = [entry.get(name) for name in ("interval", "rowSpan", "table", "preAggregationTable")]
    name, span, table, pre_aggregate_table = (text if isinstance(text, str) else "" for text in texts)
    if not table or not pre_aggregate_table:
        raise ValueError(f"{name}: table and preAggregationTable must be named")
    cut = re.fullmatch(r"([0-9]{1,4})([hdny])", span, re.ASCII)
    if not cut or not int(cut[1]) or (int(cut[1]) > 1 and (cut[2] != "h" or int(cut[1]) % 2)):
        raise ValueError(f"{name}: rowSpan: got {span!r}, wanted 1 and one of h, d, n, y, or an even count of h")
    interval = Interval(
        name, parse_duration(name), int(cut[1]), cut[2], table, pre_aggregate_table,
        is_default=entry.get("defaultInterval") is True,
    )  # fmt: skip
    if not FEWEST <= interval.per_row <= MOST:
        raise ValueError(f"{name}: a row of {span} has {interval.per_row} intervals, wanted {FEWEST} to {MOST}")
    return interval


def rollup_base(time: int, interval: Interval) -> BaseTime:
    """Return the base time of the row that holds a rollup at `time` (seconds): the span's start, in UTC.

    >>> hours = Interval("10m", 600, 6, "h", "r", "p")
    >>> rollup_base(1357020000, hours), rollup_base(1359590400, hours._replace(span_count=1, span_unit="n"))
    (1357020000, 1356998400)
    """
    if interval.span_unit == "h":
        return BaseTime(time - time % (interval.span_count * UNITS_S["h"]))
    day = datetime.fromtimestamp(time - time % DAY_S, UTC)
    if interval.span_unit != "d":
        day = day.replace(day=1, month=1 if interval.span_unit == "y" else day.month)
    return BaseTime(int(day.timestamp()))


def rollup_qualifier(aggregator_id: int, time: int, interval: Interval, flags: int) -> Qualifier:
    """Return the column of a rollup at `time` (seconds) in the row of `rollup_base`. Raise BadLine beyond the row's
    room.

    >>> rollup_qualifier(1, 1357013400, Interval("10m", 600, 6, "h", "r", "p"), 1).hex()
    '010191'
    """
    offset = (time - rollup_base(time, interval)) // interval.seconds
    if offset >= interval.per_row:
        raise BadLine(
            ILLEGAL_ARGUMENT, f"Offset of {offset} was greater than the configured intervals {interval.per_row}"
        )
    if offset >= END_OFFSET:  # OpenTSDB writes bytes here that mean another time
        raise BadLine(ILLEGAL_ARGUMENT, f"Offset of {offset} does not fit, the highest is {END_OFFSET - 1}")
    return Qualifier(bytes((aggregator_id,)) + (offset << 4 | flags).to_bytes(2, "big"))


def decode_rollup(config: RollupConfig, qualifier: bytes) -> RollupCell:
    """Return the contents of a rollup cell's qualifier, in the present form or the old one with the aggregator's name.
    Raise CorruptRow.

    >>> config = RollupConfig({"sum": 0, "count": 1}, ())
    >>> decode_rollup(config, bytes.fromhex("010191")), decode_rollup(config, b"sum:\\0\\x10")
    (RollupCell(aggregator='count', offset=25, flags=1), RollupCell(aggregator='sum', offset=1, flags=0))
    """
    names = {bytes((number,)): name for name, number in config.ids.items()}
    names |= {name.encode() + b":": name for name in config.ids}
    aggregator = names.get(qualifier[:-2])
    if aggregator is None:
        raise CorruptRow(f"rollup qualifier {qualifier.hex()}: got {qualifier[:-2].hex()}, wanted an aggregator")
    number = int.from_bytes(qualifier[-2:], "big")
    return RollupCell(aggregator, number >> 4, number & (FLOAT | LENGTH))


def rollup_time(base: int, interval: Interval, offset: int) -> int:
    """Return the time of a rollup cell, in seconds."""
    return base + offset * interval.seconds


class SummaryCell(NamedTuple):
    """A cell of a rollup or histogram that is not written yet."""

    table: str
    metric: bytes
    tags: Tags
    base: int  # of its row: Unix seconds
    column: bytes  # with the family
    value: bytes
    flag_bits: int = 0  # at the column's end: they tell the number's form, and no other place


FLAG_BITS = 4
DERIVED = ("avg", "dev")


class Rollups(NamedTuple):
    """The configured rollups and pre-aggregates."""

    config: RollupConfig
    tag_key: bytes = b"_aggregate"
    raw_value: bytes = b"RAW"
    tag_raw: bool = False
    block_derived: bool = True
    group_bys: frozenset[str] = frozenset()  # aggregators, in lower case

    def tables(self) -> list[str]:
        """Return all tables in use, the raw one too if an interval names it."""
        names = (name for one in self.config.intervals for name in (one.table, one.pre_aggregate_table))
        return list(dict.fromkeys(names))


class SummaryKind(NamedTuple):
    """How a point was made: `1h-sum:max` is sums of an hour of the series' maxima."""

    interval: str | None
    aggregator: str | None
    group_by: str | None


def split_kind(word: str) -> SummaryKind:
    """Return the interval and aggregators in the second word of a line. Raise BadLine.

    >>> split_kind("1h-sum:max")
    SummaryKind(interval='1h', aggregator='sum', group_by='max')
    >>> tuple(split_kind("1h-sum")), tuple(split_kind("max"))
    (('1h', 'sum', None), (None, 'max', 'max'))
    """
    temporal, _, group_by = word.partition(":")
    if not temporal and not group_by:
        raise illegal("Missing interval or aggregator")
    if "-" in temporal:
        interval, _, aggregator = temporal.partition("-")
        return SummaryKind(interval, aggregator, group_by or None)
    return SummaryKind(None, group_by or temporal, group_by or temporal)


def read_rollup(line: bytes, rollups: Rollups | None, rules: NameRules) -> SummaryCell:
    """Return the cell of a rollup line. Raise BadLine."""
    words = line.split(b" ", 5)
    if len(words) < 6:
        raise illegal(f"not enough arguments (need least 7, got {len(words) - 1})")
    _, kind, metric, time_word, value_word, tag_text = words
    if not kind:
        raise illegal("Missing interval or aggregator")
    if rollups is None:
        parse_put(b" ".join((b"put", *words[2:])), rules)
        raise illegal(ROLLUPS_NOT_CONFIGURED)
    if not metric:
        raise illegal("empty metric name")
    time = parse_time(time_word)
    if not value_word:
        raise illegal("empty value")
    tags = split_tags(tag_text)
    return rollup_summary(split_kind(kind.decode("latin-1")), metric, tags, time, value_word, rollups, rules)


def rollup_summary(
    kind: SummaryKind, metric: bytes, tags: Tags, time: int, word: bytes, rollups: Rollups, rules: NameRules
) -> SummaryCell:
    """Return the cell of a rollup point from its fields. Raise BadLine."""
    flags, value = parse_value(word, metric, time)
    name = metric.decode("latin-1")
    if time >= FIRST_MS:
        raise illegal(
            f"bad timestamp={time} when trying to add value={show_signed(value)}/{flags} "
            f"to metric={name}, tags={show_tags(tags)}"
        )
    tags = _with_aggregate(kind.group_by, name, tags, rollups)
    if kind.group_by is not None:
        _check_group_by(kind.group_by, name, tags, rollups)
    check_series(metric, tags, rules)
    if kind.interval is None:
        base = base_time(time)
        column = COLUMN + ((time - base) << 4 | flags).to_bytes(2, "big")
        return SummaryCell(rollups.config.default.pre_aggregate_table, metric, tags, base, column, value, FLAG_BITS)
    interval, number = _configured_kind(kind, name, tags, rollups)
    try:
        column = COLUMN + rollup_qualifier(number, time, interval, flags)
    except BadLine as exc:
        raise illegal(str(exc)) from exc
    table = interval.table if kind.group_by is None else interval.pre_aggregate_table
    return SummaryCell(table, metric, tags, rollup_base(time, interval), column, value, FLAG_BITS)


def _configured_kind(kind: SummaryKind, name: str, tags: Tags, rollups: Rollups) -> tuple[Interval, int]:
    """Return the interval and the aggregator's id of a kind. Raise BadLine."""
    if not kind.interval:
        raise BadLine(ILLEGAL_ARGUMENT, "HBase error: Interval cannot be null for a non-group by point")
    try:
        interval = rollups.config.interval(kind.interval)
    except BadLine as exc:
        raise BadLine(ILLEGAL_ARGUMENT, f"No such rollup: {exc}") from exc
    if not kind.aggregator:
        raise illegal("Aggregator cannot be null or empty.")
    try:
        number = rollups.config.id_of(kind.aggregator)
    except BadLine as exc:
        raise illegal(str(exc)) from exc
    if rollups.block_derived and kind.aggregator.lower() in DERIVED:
        shown = f"{kind.aggregator.upper()} with metric {name} {show_tags(tags)}"
        raise illegal(f"Derived rollup aggregations are not allowed {shown}")
    return interval, number


def _with_aggregate(group_by: str | None, name: str, tags: Tags, rollups: Rollups) -> Tags:
    """Return the tags, with the aggregator's tag if it belongs to them. Raise BadLine if that tag has another value."""
    given = dict(tags).get(rollups.tag_key)
    if group_by is None and rollups.tag_raw:
        wanted = rollups.raw_value
    elif group_by is None:
        wanted = b""
    else:
        wanted = group_by.upper().encode("latin-1")
    if given is not None:
        if given.upper() != wanted.upper():
            raise illegal(
                f"Given tag value for {rollups.tag_key.decode('latin-1')} of {given.decode('latin-1')} did not match "
                f"the group by aggregator of {group_by or 'null'} for {name} {show_tags(tags)}"
            )
        return tags
    return (*tags, (rollups.tag_key, wanted)) if wanted else tags


def _check_group_by(group_by: str, name: str, tags: Tags, rollups: Rollups) -> None:
    if group_by.lower() not in rollups.group_bys:
        raise illegal(f"Invalid group by aggregator {group_by} with metric {name} {show_tags(tags)}")
    if rollups.block_derived and group_by.lower() in DERIVED:
        raise illegal(f"Derived group by aggregations are not allowed {group_by} with metric {name} {show_tags(tags)}")
