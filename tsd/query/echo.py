"""A sub query as answers show it when they are asked to (query.md §14)."""

from base64 import b64encode
from typing import Any

from tsd.query.answers import SubAnswer
from tsd.query.model import SubQuery


def echo(answer: SubAnswer) -> dict[str, Any]:
    """The `query` object, its keys in OpenTSDB's order."""
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
    """The filters that group, as the old form `tags` writes them."""
    return {f.tagk: f"{f.type}({f.expression})" for f in sub.filters if f.group_by}


def is_histogram(sub: SubQuery) -> bool:
    """Whether a sub query reads histograms rather than points.

    >>> is_histogram(SubQuery("sum", "m", percentiles=(99.0,)))
    True
    """
    return bool(sub.percentiles) or sub.show_histogram_buckets
