"""What a query found, before anybody writes it down as JSON, text or a picture."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tsd.codec.annotation import Annotation
from tsd.query.model import Query, SubQuery
from tsd.query.points import NO_POINTS, Points


@dataclass
class Group:
    """One answer: the series of a group, aggregated.

    `points` are all that were merged over the scan range: who answers cuts them to the query's start and end
    (query.md §1 step 8, §7). `first_metric_uid` and `pairs` serve `gexp` and `exp`, which join by UIDs.
    """

    metric: str
    tags: Mapping[str, str]
    aggregate_tags: Sequence[str]
    tsuids: Sequence[bytes] = ()
    points: Points = NO_POINTS
    annotations: Sequence[Annotation] | None = None  # None: no row of its series carries one
    tag_uids: Mapping[bytes, bytes] = field(default_factory=dict)  # tagk UID → tagv UID of `tags`
    aggregate_tag_uids: Sequence[bytes] = ()  # ascending
    interpolated: int = 0  # values that were made up between two points
    stats: Mapping[str, float] = field(default_factory=dict)


@dataclass
class SubAnswer:
    """The groups of one sub query, in order (query.md §8)."""

    sub: SubQuery
    groups: list[Group]
    filter_tagks: Sequence[bytes] | None = None  # UIDs, for the echo of the query
    rollup_table: str = "raw"
    warnings: list[str] = field(default_factory=list)  # rows that could not be read, names without UID …
    duplicates: int = 0  # points of one time of which the newest was taken
    stats: dict[str, Any] = field(default_factory=dict)


@dataclass
class Answer:
    """Everything that one request found."""

    query: Query
    subs: list[SubAnswer]
    global_annotations: Sequence[Annotation] = ()

    @property
    def warnings(self) -> list[str]:
        """Those of all sub queries."""
        return [text for sub in self.subs for text in sub.warnings]
