"""A parsed query: the same for a URI, a POST body, an expression and a command line.

Texts that answers echo are kept as sent. Also the names of aggregators (docs/compat/query.md §12).
"""

from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import NamedTuple

from tsd.tables.filters import Filter
from tsd.tables.quirks import OPENTSDB, Quirks

NO_COUNTER_MAX = (1 << 63) - 1


class RateOptions(NamedTuple):
    """How a rate handles a value lower than the one before (docs/compat/query.md §10)."""

    counter: bool = False
    counter_max: int = NO_COUNTER_MAX
    reset_value: int = 0
    drop_resets: bool = False


PLAIN_RATE = RateOptions()


class Fill(Enum):
    """What fills an empty bucket."""

    NONE = "none"
    NAN = "nan"
    NULL = "null"
    ZERO = "zero"
    SCALAR = "scalar"  # without a number OpenTSDB accepts it and fails at the first empty bucket


class Calendar(NamedTuple):
    """Buckets by wall clock: `number` of `unit` (ms s m h d w n y) in a time zone of the tz database."""

    number: int
    unit: str
    zone: str


class Downsample(NamedTuple):
    """A checked downsampler."""

    text: str  # as sent
    interval_ms: int  # nominal length; 0: one bucket for the whole range
    function: str  # an aggregator's name
    fill: Fill = Fill.NONE
    calendar: Calendar | None = None
    scalar: float | None = None  # the value of Fill.SCALAR, if the request has one

    @property
    def is_all(self) -> bool:
        """Whether there is one bucket for the whole range."""
        return self.interval_ms == 0


@dataclass(frozen=True)
class SubQuery:
    """One metric, or some of its series, with the steps of processing."""

    aggregator: str
    metric: str | None = None
    tsuids: tuple[str, ...] = ()  # hex; if there are any, `metric` is ignored
    downsample: Downsample | None = None
    rate: bool = False
    rate_options: RateOptions = PLAIN_RATE
    has_rate_options: bool = False  # for the echo
    filters: tuple[Filter, ...] = ()
    explicit_tags: bool = False
    percentiles: tuple[float, ...] = ()
    show_histogram_buckets: bool = False
    pre_aggregate: bool = False
    rollup_usage: str = "ROLLUP_NOFALLBACK"
    has_rollup_usage: bool = False  # for the echo
    use_fuzzy_filter: bool = True
    use_multi_gets: bool = True
    index: int = 0  # among the sub queries

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        """The hash of the members that differ most: repeated queries are looked up with the same object."""
        return hash((self.aggregator, self.metric, self.tsuids, self.downsample, self.rate, self.filters, self.index))


@dataclass(frozen=True)
class Query:
    """A checked request. Times are ms since the epoch, both ends included."""

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
    quirks: Quirks = OPENTSDB  # none of them if the request is corrected (docs/compat/query.md §21)

    def at_times(self, start_ms: int, end_ms: int, start_text: str, end_text: str) -> "Query":
        """Return the query with other times. `replace` takes ten times as long."""
        other = object.__new__(Query)
        vars(other).update(vars(self), start_ms=start_ms, end_ms=end_ms, start_text=start_text, end_text=end_text)
        return other


NONE = "none"  # no aggregation; not a downsampling function
RANKS = ("50", "75", "90", "95", "99", "999")  # 999: 99.9 %

AGGREGATORS = (
    *("sum", "min", "max", "avg", "none", "median", "mult", "dev", "diff", "count"),
    *("zimsum", "mimmin", "mimmax", "first", "last", "pfsum", "squareSum"),
    *(f"p{rank}" for rank in RANKS),
    *(f"ep{rank}r{kind}" for kind in "37" for rank in RANKS),
)
