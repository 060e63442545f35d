"""The `query` of an answer of `/api/query/exp`: the request with every field there is, whatever was sent."""

import math

from tsd.query.exp.request import ExpRequest, FilterSet, Formula, NumericFill


def echo(request: ExpRequest) -> dict[str, object]:
    """The `query` of an answer: all fields, whatever was sent."""
    time, formulas, outputs = request.time, request.formulas, request.outputs
    downsampler = time.downsampler
    return {
        "name": request.name,
        "time": {
            "start": time.start,
            "end": time.end,
            "timezone": time.zone,
            "downsampler": downsampler
            and {
                "interval": downsampler.interval,
                "aggregator": downsampler.aggregator,
                "fillPolicy": _echo_fill(downsampler.fill),
            },
            "aggregator": time.aggregator,
            "rate": time.rate,
        },
        "filters": None if request.filters is None else [_echo_filters(each) for each in request.filters],
        "metrics": [
            {
                "metric": each.name,
                "id": each.id,
                "filter": each.filter,
                "aggregator": each.aggregator,
                "timeOffset": each.offset,
                "fillPolicy": _echo_fill(each.fill),
            }
            for each in request.metrics
        ],
        "expressions": None if formulas is None else [_echo_formula(each) for each in formulas],
        "outputs": None if outputs is None else [each._asdict() for each in outputs],
    }


def _echo_filters(found: FilterSet) -> dict[str, object]:
    tags = [
        {"tagk": each.tagk, "filter": each.expression, "group_by": each.group_by, "type": each.type}
        for each in found.filters
    ]
    return {"id": found.id, "tags": tags, "explicitTags": found.explicit_tags}


def _echo_formula(found: Formula) -> dict[str, object]:
    operator, use_query_tags, include_agg_tags = found.join
    join = {"operator": operator, "useQueryTags": use_query_tags, "includeAggTags": include_agg_tags}
    return {"id": found.id, "expr": found.text, "join": join, "fillPolicy": _echo_fill(found.fill)}


def _echo_fill(found: NumericFill | None) -> dict[str, object] | None:
    if found is None:
        return None
    return {"policy": found.policy, "value": "NaN" if math.isnan(found.value) else found.value}
