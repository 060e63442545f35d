"""Rollups and pre-aggregates: points of longer intervals, each kind in its tables (FORMATS.md §9)."""

import json
import re
from datetime import UTC, datetime
from typing import NamedTuple

from tsd.codec.cell import Qualifier
from tsd.codec.jsontext import decode_object
from tsd.codec.times import BaseTime
from tsd.codec.words import FLOAT, LENGTH
from tsd.errors import ILLEGAL_ARGUMENT, BadConfig, BadLine, CorruptRow

DAY_S = 86400
UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": DAY_S, "w": 7 * DAY_S, "n": 30 * DAY_S, "y": 365 * DAY_S}
SPANS_S = {"h": 3600, "d": DAY_S, "n": 32 * DAY_S, "y": 366 * DAY_S}  # what OpenTSDB divides by the interval
FEWEST, MOST = 12, 7774  # intervals a row may have
# From here on an offset's first four bits are those that mark milliseconds, and from 4096 it leaves its 12 bits.
END_OFFSET = 3840


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
        """How many intervals a row has room for; OpenTSDB's count, which is a day or two long for months and years."""
        return self.span_count * SPANS_S[self.span_unit] // self.seconds


class RollupConfig(NamedTuple):
    """What `tsd.rollups.config` says."""

    ids: dict[str, int]  # aggregator in lower case → 0 to 127
    intervals: tuple[Interval, ...]

    def interval(self, name: str) -> Interval:
        """The interval of that name; raises BadLine with OpenTSDB's words."""
        for interval in self.intervals:
            if interval.name == name:
                return interval
        raise BadLine(ILLEGAL_ARGUMENT, f"No rollups configured for the interval: {name}")

    def id_of(self, aggregator: str) -> int:
        """The id of an aggregator, in any case; raises BadLine with OpenTSDB's words."""
        try:
            return self.ids[aggregator.lower()]
        except KeyError:
            raise BadLine(ILLEGAL_ARGUMENT, f"No ID found mapping to aggregator: {aggregator}") from None

    @property
    def default(self) -> Interval:
        """The interval of the raw table: points given without an interval go to its pre-aggregates."""
        return next(interval for interval in self.intervals if interval.is_default)


class RollupCell(NamedTuple):
    """What a rollup cell's qualifier says."""

    aggregator: str  # in lower case
    offset: int  # intervals after the row's base time
    flags: int


def parse_duration(text: str) -> int:
    """Seconds of a duration like 10m; raises ValueError.

    >>> parse_duration("10m"), parse_duration("1n")
    (600, 2592000)
    """
    found = re.fullmatch(r"([0-9]{1,9})([smhdwny])", text, re.ASCII)
    if not found or not int(found[1]):
        raise ValueError(f"got {text!r}, wanted a count and one of s, m, h, d, w, n, y")
    return int(found[1]) * UNITS_S[found[2]]


def parse_config(text: bytes) -> RollupConfig:
    """The configuration in JSON; raises BadConfig with a sentence for each thing wrong.

    >>> config = parse_config(b'{"aggregationIds": {"sum": 0}, "intervals": [{"table": "tsdb", "interval": "1m",'
    ...                       b'"preAggregationTable": "tsdb-agg", "rowSpan": "1h", "defaultInterval": true}]}')
    >>> config.default.per_row
    60
    """
    try:
        members = decode_object(text)
    except CorruptRow as exc:
        raise BadConfig([f"tsd.rollups.config: {exc}"]) from exc
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
        problems.append("aggregationIds: an aggregator or an id stands there twice")
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
        problems.append("intervals: one stands there twice")
    return tuple(intervals)


def _parse_interval(entry: object) -> Interval:
    """Raises ValueError."""
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
    """The base time of the row that holds a rollup at `time` (seconds): the span's start, in UTC.

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
    """The column of a rollup at `time` (seconds) in the row of `rollup_base`; raises BadLine beyond the row's room.

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
    """What a rollup cell's qualifier says, in today's form or the old one with the aggregator's name; raises
    CorruptRow.

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
    """The time of a rollup cell, in seconds."""
    return base + offset * interval.seconds
