"""Rollups as configured, and the lines that carry them → the cell each one says, but for UIDs (FORMATS.md §9).

A line's checks run in OpenTSDB's order, because the reply names only the first failure.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from tsd.codec.cell import COLUMN
from tsd.codec.putline import NameRules, Tags, check_series, illegal, parse_put, parse_value, show_tags, split_tags
from tsd.codec.rollup import Interval, RollupConfig, parse_config, rollup_base, rollup_qualifier
from tsd.codec.summary import Summary
from tsd.codec.times import FIRST_MS, base_time, parse_time
from tsd.codec.words import show_signed
from tsd.config import Config
from tsd.errors import ILLEGAL_ARGUMENT, BadConfig, BadLine

FLAG_BITS = 4
DERIVED = ("avg", "dev")
NOT_CONFIGURED = "No rollup or aggregations were configured"


class Rollups(NamedTuple):
    """What is written and read of rollups and pre-aggregates."""

    config: RollupConfig
    tag_key: bytes = b"_aggregate"
    raw_value: bytes = b"RAW"
    tag_raw: bool = False
    block_derived: bool = True
    group_bys: frozenset[str] = frozenset()  # aggregators, in lower case

    def tables(self) -> list[str]:
        """Every table that they use, the raw one among them where an interval names it."""
        names = (name for one in self.config.intervals for name in (one.table, one.pre_aggregate_table))
        return list(dict.fromkeys(names))


class Kind(NamedTuple):
    """What a point was made of: `1h-sum:max` is sums of an hour of the series' maxima."""

    interval: str | None
    aggregator: str | None
    group_by: str | None


def configured(config: Config, aggregators: Iterable[str] = ()) -> Rollups | None:
    """The rollups of a configuration, None where they are off; `aggregators` are those there are. Raises BadConfig."""
    if not config.rollups_enable:
        return None
    text = config.rollups_config.strip()
    if text.endswith(".json"):
        try:
            text = Path(text).read_text("utf-8")
        except (OSError, UnicodeDecodeError) as exc:
            raise BadConfig([f"tsd.rollups.config: {text}: cannot be read: {exc}"]) from exc
    if not text:
        raise BadConfig(["tsd.rollups.config: wanted with tsd.rollups.enable: JSON, or the path of a .json file"])
    return Rollups(
        parse_config(text.encode()),
        config.rollups_tag_key.encode("latin-1"),
        config.rollups_raw_value.encode("latin-1"),
        config.rollups_tag_raw,
        config.rollups_block_derived,
        frozenset(name.lower() for name in aggregators),
    )


def split_kind(word: str) -> Kind:
    """What the second word of a line says; raises BadLine.

    >>> split_kind("1h-sum"), split_kind("1h-sum:max"), split_kind("max")
    (Kind(interval='1h', aggregator='sum', group_by=None), Kind(interval='1h', aggregator='sum', group_by='max'), \
Kind(interval=None, aggregator='max', group_by='max'))
    """
    temporal, _, group_by = word.partition(":")
    if not temporal and not group_by:
        raise illegal("Missing interval or aggregator")
    if "-" in temporal:
        interval, _, aggregator = temporal.partition("-")
        return Kind(interval, aggregator, group_by or None)
    return Kind(None, group_by or temporal, group_by or temporal)


def read_rollup(line: bytes, rollups: Rollups | None, rules: NameRules) -> Summary:
    """The cell that a rollup line says; raises BadLine."""
    words = line.split(b" ", 5)
    if len(words) < 6:
        raise illegal(f"not enough arguments (need least 7, got {len(words) - 1})")
    _, kind, metric, time_word, value_word, tag_text = words
    if not kind:
        raise illegal("Missing interval or aggregator")
    if rollups is None:
        parse_put(b" ".join((b"put", *words[2:])), rules)
        raise illegal(NOT_CONFIGURED)
    if not metric:
        raise illegal("empty metric name")
    time = parse_time(time_word)
    if not value_word:
        raise illegal("empty value")
    tags = split_tags(tag_text)
    return judge_rollup(split_kind(kind.decode("latin-1")), metric, tags, time, value_word, rollups, rules)


def judge_rollup(
    kind: Kind, metric: bytes, tags: Tags, time: int, word: bytes, rollups: Rollups, rules: NameRules
) -> Summary:
    """The cell of a point whose words are told apart; raises BadLine."""
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
        return Summary(rollups.config.default.pre_aggregate_table, metric, tags, base, column, value, FLAG_BITS)
    interval, number = _configured_kind(kind, name, tags, rollups)
    try:
        column = COLUMN + rollup_qualifier(number, time, interval, flags)
    except BadLine as exc:
        raise illegal(str(exc)) from exc
    table = interval.table if kind.group_by is None else interval.pre_aggregate_table
    return Summary(table, metric, tags, rollup_base(time, interval), column, value, FLAG_BITS)


def _configured_kind(kind: Kind, name: str, tags: Tags, rollups: Rollups) -> tuple[Interval, int]:
    """The interval and the aggregator's id of a kind; raises BadLine."""
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
    """The tags with the one that says how series were grouped, where it belongs to them; raises BadLine where there is
    one that says something else."""
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
