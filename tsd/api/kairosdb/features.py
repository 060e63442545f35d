"""What /api/v1/features answers: the aggregators and groupings with their properties, for KairosDB's clients."""

from collections.abc import Sequence
from typing import Any

from tsd.query.kairosdb.model import UNITS_MS
from tsd.query.kairosdb.properties import FILTER_OPS, PROPERTIES, RETURN_TYPES, TRIMS

_DESCRIPTIONS = {
    "avg": "Averages the values of each bucket.",
    "count": "Counts the points of each bucket.",
    "dev": "Computes the standard deviation of each bucket.",
    "diff": "Computes the difference of successive points.",
    "div": "Divides each value by a divisor.",
    "filter": "Removes the points for which a comparison holds.",
    "first": "Returns the first point of each bucket.",
    "gaps": "Marks the buckets without points with null.",
    "last": "Returns the last point of each bucket.",
    "least_squares": "Returns two points of the regression line of each bucket.",
    "max": "Returns the largest value of each bucket.",
    "min": "Returns the smallest value of each bucket.",
    "percentile": "Returns a percentile of the values of each bucket.",
    "rate": "Computes the rate of change of successive points.",
    "sampler": "Divides each value by the time since the point before.",
    "scale": "Multiplies each value by a factor.",
    "score": "Counts how many thresholds each value has passed.",
    "sma": "Computes a simple moving average.",
    "sum": "Sums the values of each bucket.",
    "trim": "Removes the first point, the last point, or both.",
}
_TYPES = {
    "align_sampling": ("boolean", "true"),
    "align_start_time": ("boolean", "false"),
    "align_end_time": ("boolean", "false"),
    "dev_count": ("int", "1"),
    "percentile": ("double", "0.1"),
    "divisor": ("double", "1"),
    "factor": ("double", "0"),
    "size": ("int", "10"),
    "threshold": ("double", "0.0"),
    "thresholds": ("array", "[]"),
}
_ENUMS = {
    "unit": tuple(UNITS_MS),
    "return_type": RETURN_TYPES,
    "filter_op": FILTER_OPS,
    "order": ("ascending", "descending"),
}


def _label(name: str) -> str:
    return name.replace("_", " ").title()


def _property(name: str, kind: str, default: str, options: Sequence[str] = ()) -> dict[str, Any]:
    return {
        "name": name,
        "label": _label(name),
        "description": "",
        "optional": False,
        "type": kind,
        "options": list(options),
        "defaultValue": default,
        "autocomplete": "tags" if name == "tags" else "",
        "multiline": False,
        "validations": [],
    }


def _enum(name: str, options: Sequence[str]) -> dict[str, Any]:
    return _property(name, "enum", options[0], options)


def _length(name: str) -> dict[str, Any]:
    """Return a property that is a length of time."""
    members = [_property("value", "long", "1"), _enum("unit", tuple(UNITS_MS))]
    return {
        "name": name,
        "label": _label(name),
        "optional": False,
        "type": "Object",
        "multiline": False,
        "properties": members,
    }


def _aggregator_property(aggregator: str, name: str) -> dict[str, Any]:
    if name == "sampling":
        return _length(name)
    if name == "trim":
        return _property(name, "boolean", "false") if aggregator == "gaps" else _enum(name, TRIMS)
    return _enum(name, _ENUMS[name]) if name in _ENUMS else _property(name, *_TYPES[name])


def _feature(name: str, description: str, properties: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {"name": name, "label": _label(name), "description": description, "properties": list(properties)}


_AGGREGATORS = [
    _feature(name, _DESCRIPTIONS[name], [_aggregator_property(name, one) for one in sorted(PROPERTIES[name])])
    for name in sorted(_DESCRIPTIONS)
]
_GROUPINGS = [
    _feature("bin", "Groups points by ranges of values with given bounds.", [_property("bins", "array", "[]")]),
    _feature("tag", "Groups points by the values of tags.", [_property("tags", "array", "[]")]),
    _feature("time", "Groups points by ranges of time.", [_property("group_count", "int", "0"), _length("range_size")]),
    _feature("value", "Groups points by ranges of values of one size.", [_property("range_size", "int", "0")]),
]
FEATURES: Sequence[dict[str, Any]] = (
    {"name": "aggregators", "label": "Aggregators", "properties": _AGGREGATORS},
    {"name": "group_by", "label": "Group By", "properties": _GROUPINGS},
)
