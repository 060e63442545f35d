"""The answer to a query, before it is written as JSON, text or an image; its timings, and the echo of sub queries.

Timings are in ms, as doubles (docs/compat/query.md §14).
"""

from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tsd.codec.metadata import Annotation
from tsd.codec.points import NO_POINTS, Int64, Points
from tsd.query.model import Query, SubQuery
from tsd.query.plan import output_range


@dataclass
class Group:
    """One series of an answer: the aggregated series of a group.

    `points` are merged over the scan range; they are cut to the query's start and end when written
    (docs/compat/query.md §1 step 8, §7). `gexp` and `exp` join groups by the UIDs of their tags.
    """

    metric: str
    tags: Mapping[str, str]
    aggregate_tags: Sequence[str]
    tsuids: Sequence[bytes] = ()
    points: Points = NO_POINTS
    annotations: Sequence[Annotation] | None = None  # None: no row of its series has one
    tag_uids: Mapping[bytes, bytes] = field(default_factory=dict)  # tagk UID → tagv UID of `tags`
    aggregate_tag_uids: Sequence[bytes] = ()  # ascending
    interpolated: int = 0  # values between two points


@dataclass
class SubAnswer:
    """The groups of one sub query, in order (docs/compat/query.md §8)."""

    sub: SubQuery
    groups: list[Group]
    filter_tagks: Sequence[bytes] | None = None  # UIDs, for the echo of the query
    rollup_table: str = "raw"
    warnings: list[str] = field(default_factory=list)  # rows that could not be read, ids without names …
    duplicates: int = 0  # older points of the same time, dropped
    stats: dict[str, Any] = field(default_factory=dict)
    members: Sequence[Int64] = ()  # of each group of points: the numbers of its series with points, in order


@dataclass
class Answer:
    """The answer to one request."""

    query: Query
    subs: list[SubAnswer]
    global_annotations: Sequence[Annotation] = ()

    @property
    def warnings(self) -> list[str]:
        """Warnings of all sub queries."""
        return [text for sub in self.subs for text in sub.warnings]


_GROUP_TIMES = ("aggregationTime", "groupByTime", "queryScanTime", "saltScannerMergeTime", "uidToStringTime")
_TIMES = (
    "aggregationTime",
    "HBaseTime",
    "queryScanTime",
    "scannerTime",
    "scannerUidToStringTime",
    "serializationTime",
    "uidToStringTime",
)
_AVERAGES = tuple((f"avg{name[0].upper()}{name[1:]}", name) for name in _TIMES[:-1])
_MOST = tuple((f"max{name[0].upper()}{name[1:]}", name) for name in _TIMES if name != "scannerTime")
_COUNTS = (
    "dpsPostFilter",
    "dpsPreFilter",
    "emittedDPs",
    "rowsPostFilter",
    "rowsPreFilter",
    "successfulScan",
    "uidPairsResolved",
)


def group_stats(sub: SubAnswer, group: Group, emitted: int, writing_ms: float) -> dict[str, Any]:
    """Return the `stats` of a group with `emitted` points that took `writing_ms` to write."""
    stats: dict[str, Any] = {name: float(sub.stats.get(name, 0)) for name in _GROUP_TIMES}
    stats |= {"emittedDPs": emitted, "queryIndex": sub.sub.index, "serializationTime": writing_ms}
    return dict(sorted(stats.items())) | {"interpolatedDPs": group.interpolated}


def summary(answer: Answer, emitted: Iterable[int], writing_ms: float) -> dict[str, Any]:
    """Return `statsSummary`: sums, averages and maxima over the sub queries, and the numbers of each, which wrote
    `emitted` points in `writing_ms`."""
    written = {"serializationTime": writing_ms / max(len(answer.subs), 1)}
    figures = [SubFigures(sub.stats, points) for sub, points in zip(answer.subs, emitted, strict=True)]
    return totals(figures, writing_ms) | {
        f"queryIdx_{sub.sub.index:02d}": _joined([_of_sub(own) | written])
        | {"scannerStats": {}, "warnings": sub.warnings, "duplicateDPs": sub.duplicates}
        for sub, own in zip(answer.subs, figures, strict=True)
    }


class SubFigures(NamedTuple):
    """What is known of the answer to a sub query, without its points."""

    stats: Mapping[str, Any]
    emitted: int  # points in the answer


def figures_of(answer: Answer) -> list[SubFigures]:
    """Return the figures of the sub queries."""
    return [SubFigures(sub.stats, _points_in_range(sub, answer.query)) for sub in answer.subs]


def _points_in_range(answer: SubAnswer, query: Query) -> int:
    """Return the number of points within the query's times."""
    shown = output_range(query.start_ms, query.end_ms, answer.sub.downsample, quirks=query.quirks)
    total, times, count = 0, NO_POINTS.times, 0
    for group in answer.groups:
        if group.points.times is not times:  # groups often share them
            times = group.points.times
            count = count_between(times, shown)
        total += count
    return total


def count_between(times: Int64, shown: range) -> int:
    """Return how many of ascending times are in a range."""
    return int(times.searchsorted(shown.stop) - times.searchsorted(shown.start))


def totals(subs: Sequence[SubFigures], writing_ms: float = 0.0) -> dict[str, float]:
    """Return sums, averages and maxima over the sub queries."""
    written = {"serializationTime": writing_ms / max(len(subs), 1)}
    figures = _joined([_of_sub(sub) | written for sub in subs])
    return dict(sorted({**figures, "processingPreWriteTime": _total(subs)}.items()))


def _of_sub(sub: SubFigures) -> dict[str, float]:
    figures = {name: sub.stats.get(name, 0) for name in (*_TIMES, *_COUNTS)}
    emitted = figures["emittedDPs"] or sub.emitted
    return figures | {"emittedDPs": emitted, "successfulScan": figures["successfulScan"] or 1}


def _joined(figures: Iterable[Mapping[str, float]]) -> dict[str, Any]:
    """Combine the numbers of some sub queries."""
    all_of = list(figures)
    joined: dict[str, Any] = {name: sum([each[name] for each in all_of]) for name in _COUNTS}
    joined |= {shown: float(sum([each[name] for each in all_of])) / max(len(all_of), 1) for shown, name in _AVERAGES}
    return joined | {shown: float(max([each[name] for each in all_of], default=0)) for shown, name in _MOST}


def _total(subs: Iterable[SubFigures]) -> float:
    return float(sum(sub.stats.get("queryScanTime", 0) + sub.stats.get("aggregationTime", 0) for sub in subs))


def echo(answer: SubAnswer) -> dict[str, Any]:
    """Return the `query` object, with keys in OpenTSDB's order."""
    sub = answer.sub
    options = sub.rate_options
    return {
        "aggregator": sub.aggregator,
        "metric": sub.metric,
        "tsuids": list(sub.tsuids) or None,
        "downsample": sub.downsample.text if sub.downsample else None,
        "rate": sub.rate,
        "filters": [
            {"tagk": f.tagk, "filter": f.expression, "group_by": f.group_by, "type": f.type} for f in sub.filters
        ],
        "percentiles": list(sub.percentiles) or None,
        "index": sub.index,
        "rateOptions": {
            "counter": options.counter,
            "counterMax": options.counter_max,
            "resetValue": options.reset_value,
            "dropResets": options.drop_resets,
        }
        if sub.has_rate_options
        else None,
        "filterTagKs": None
        if answer.filter_tagks is None
        else [b64encode(tagk).decode() for tagk in answer.filter_tagks],
        "explicitTags": sub.explicit_tags,
        "useFuzzyFilter": sub.use_fuzzy_filter,
        "preAggregate": sub.pre_aggregate,
        "rollupUsage": sub.rollup_usage if sub.has_rollup_usage else None,
        "rollupTable": answer.rollup_table,
        "showHistogramBuckets": sub.show_histogram_buckets,
        "useMultiGets": sub.use_multi_gets,
        "tags": grouping(sub),
        "histogramQuery": is_histogram(sub),
    }


def grouping(sub: SubQuery) -> dict[str, str]:
    """Return the filters that group, in the old form `tags`."""
    return {f.tagk: f"{f.type}({f.expression})" for f in sub.filters if f.group_by}


def is_histogram(sub: SubQuery) -> bool:
    """Return whether a sub query reads histograms instead of points.

    >>> is_histogram(SubQuery("sum", "m", percentiles=(99.0,)))
    True
    """
    return bool(sub.percentiles) or sub.show_histogram_buckets
