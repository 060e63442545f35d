"""A parsed query of KairosDB, and the errors of malformed ones."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, tzinfo
from typing import NamedTuple

from tsd.errors import BadQuery

UNITS_MS = {
    "MILLISECONDS": 1,
    "SECONDS": 1000,
    "MINUTES": 60_000,
    "HOURS": 3_600_000,
    "DAYS": 86_400_000,
    "WEEKS": 7 * 86_400_000,
    "MONTHS": 30 * 86_400_000,
    "YEARS": 52 * 7 * 86_400_000,
}
"""Units, with their nominal lengths; those of days and up are calendar units."""
PATTERN = "regex:"  # begins the value of a tag that is a pattern
FOREVER_MS = (1 << 63) - 1


class BadRequest(BadQuery):
    """An invalid request, with a message for each mistake."""

    def __init__(self, *messages: str) -> None:
        super().__init__("; ".join(messages))
        self.messages = messages


class Sampling(NamedTuple):
    """A length of time in a unit."""

    value: int = 1
    unit: str = "MILLISECONDS"

    @property
    def nominal_ms(self) -> int:
        """Its length; of calendar units the nominal one."""
        return self.value * UNITS_MS[self.unit]

    @property
    def is_calendar(self) -> bool:
        """Whether its length depends on the calendar."""
        return self.unit in ("DAYS", "WEEKS", "MONTHS", "YEARS")


ONE_MS = Sampling()


class Threshold(NamedTuple):
    """A threshold of `score`."""

    value: float = 0.0
    inferior: bool = False  # whether the threshold itself counts as passed


@dataclass(frozen=True)
class Step:
    """An aggregator with its properties; those of other aggregators have their defaults."""

    name: str
    sampling: Sampling = ONE_MS
    align_sampling: bool = True
    align_start_time: bool = False
    align_end_time: bool = False
    trims_gaps: bool = False
    percentile: float = 0.0
    return_type: str = "value"
    dev_count: int = 1
    divisor: float = 0.0
    factor: float = 0.0
    size: int = 0
    trim: str = ""
    filter_op: str = ""
    threshold: float | str | None = 0.0  # None: a value that is neither number nor text
    thresholds: tuple[Threshold, ...] = ()
    descending: bool = False
    metric_name: str = ""
    tags: tuple[tuple[str, str], ...] = ()
    ttl_s: int = 0
    add_saved_from: bool = True


class Grouping(NamedTuple):
    """A `group_by` with its properties."""

    kind: str  # tag, time, value or bin
    tags: tuple[str, ...] = ()
    range_size: Sampling = ONE_MS
    group_count: int = 0
    size: int = 0  # of a range of values
    bins: tuple[float, ...] = ()


@dataclass(frozen=True)
class MetricQuery:
    """One metric of a request. Times are in ms, both included."""

    name: str
    start_ms: int
    end_ms: int
    tags: Mapping[str, Sequence[str]] = field(default_factory=dict)  # the alternatives of each tag's value
    steps: tuple[Step, ...] = ()
    groupings: tuple[Grouping, ...] = ()
    limit: int = 0  # 0: none
    descending: bool = False
    exclude_tags: bool = False

    def grouping_tags(self) -> tuple[str, ...]:
        """Return the tag names of the first grouping by tags."""
        return next((one.tags for one in self.groupings if one.kind == "tag"), ())


@dataclass(frozen=True)
class KairosQuery:
    """A checked request."""

    metrics: tuple[MetricQuery, ...]
    zone: tzinfo = UTC
