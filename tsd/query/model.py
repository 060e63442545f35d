"""What a query asks for, once it has been read: the same for a URI, a POST body, an expression and a command line.

Texts are kept as they were sent where answers echo them. Nothing here knows HTTP, stores or UIDs.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

NO_COUNTER_MAX = (1 << 63) - 1


class RateOptions(NamedTuple):
    """How a rate treats a value that is lower than the one before (query.md §10)."""

    counter: bool = False
    counter_max: int = NO_COUNTER_MAX
    reset_value: int = 0
    drop_resets: bool = False


PLAIN_RATE = RateOptions()


class Fill(Enum):
    """What stands in an empty bucket."""

    NONE = "none"
    NAN = "nan"
    NULL = "null"
    ZERO = "zero"
    SCALAR = "scalar"  # without a number OpenTSDB reads it, and then fails at the first empty bucket


class Calendar(NamedTuple):
    """Buckets by wall clock: `number` of `unit` (ms s m h d w n y) in a time zone of the tz database."""

    number: int
    unit: str
    zone: str


class Downsample(NamedTuple):
    """A downsampler, read and checked."""

    text: str  # as sent
    interval_ms: int  # nominal length; 0 for one bucket over everything
    function: str  # an aggregator's name
    fill: Fill = Fill.NONE
    calendar: Calendar | None = None
    scalar: float | None = None  # what Fill.SCALAR fills with, where a request could say it

    @property
    def is_all(self) -> bool:
        """Whether everything falls into one bucket."""
        return self.interval_ms == 0


@dataclass(frozen=True)
class Filter:
    """One filter on the values of a tag name; its checking is in `tsd.query.filters`."""

    tagk: str
    type: str  # literal_or, wildcard, …
    expression: str
    group_by: bool = False
    ignore_case: bool = False  # a wildcard in braces does, and is called `wildcard` all the same


@dataclass(frozen=True)
class SubQuery:
    """One metric, or some series of one metric, and what is to be made of it."""

    aggregator: str
    metric: str | None = None
    tsuids: tuple[str, ...] = ()  # hex; where there are any, `metric` is not looked at
    downsample: Downsample | None = None
    rate: bool = False
    rate_options: RateOptions = PLAIN_RATE
    has_rate_options: bool = False  # whether there were any, for the echo
    filters: tuple[Filter, ...] = ()
    explicit_tags: bool = False
    percentiles: tuple[float, ...] = ()
    show_histogram_buckets: bool = False
    pre_aggregate: bool = False
    rollup_usage: str = "ROLLUP_NOFALLBACK"
    has_rollup_usage: bool = False  # whether it was asked for, for the echo
    use_fuzzy_filter: bool = True
    use_multi_gets: bool = True
    index: int = 0  # its place among the sub queries


@dataclass(frozen=True)
class Query:
    """A whole request, checked: times are ms since the epoch, both ends included."""

    start_ms: int
    end_ms: int
    queries: tuple[SubQuery, ...]
    start_text: str = ""
    end_text: str = ""
    zone: str = "UTC"
    use_calendar: bool = False
    ms_resolution: bool = False
    show_tsuids: bool = False
    show_query: bool = False
    show_stats: bool = False
    show_summary: bool = False
    no_annotations: bool = False
    global_annotations: bool = False
    delete: bool = False
    override_byte_limit: bool = False
    override_point_limit: bool = False
    corrected: bool = False  # `tsd.query.corrected`: without OpenTSDB's harmful accidents (query.md §21)
    options: Mapping[str, str] = field(default_factory=dict)
