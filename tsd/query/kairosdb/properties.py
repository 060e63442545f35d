"""The properties of KairosDB's aggregators: which each has, and how they are read."""

from collections.abc import Callable, Mapping
from typing import Any

from tsd.codec.lenient_json import Lenient, Members, Number
from tsd.query.kairosdb.model import BadRequest, Sampling, Step, Threshold
from tsd.query.kairosdb.values import double, flag, integer, items, sampling, shown, text

Read = Callable[[Lenient, str], Any]  # of a value and its place in the request; raises BadRequest

FILTER_OPS = ("lte", "lt", "gte", "gt", "equal", "ne")
RETURN_TYPES = ("value", "pos_sd", "neg_sd")
TRIMS = ("first", "last", "both")
LONGEST_MS = 1 << 62  # of a bucket, and from a query's start to 1970: sums of two fit in 64 bits


def _flag(value: Lenient, _place: str) -> bool:
    return flag(value)


def _trim(value: Lenient, place: str) -> str:
    found = text(value, f"{place}.trim").lower()
    if found not in TRIMS:
        raise BadRequest(f"{place}.{shown(value)} is not a valid trim type, must be 'first', 'last' or 'both'.")
    return found


def _filter_op(value: Lenient, place: str) -> str:
    found = text(value, f"{place}.filter_op").lower()
    if found not in FILTER_OPS:
        wanted = "'lte', 'lt', 'gte', 'gt', 'equal' or 'ne'"  # in KairosDB's words
        raise BadRequest(f"{place}.{shown(value)} is not a valid trim type, must be {wanted}.")
    return found


def _return_type(value: Lenient, place: str) -> str:
    found = text(value, f"{place}.return_type").lower()
    if found not in RETURN_TYPES:
        raise BadRequest(f"{place}.return_type must be one of {', '.join(RETURN_TYPES)}, got {shown(value)}")
    return found


def _threshold(value: Lenient, place: str) -> float | str | None:
    if isinstance(value, Number):
        return double(value, f"{place}.threshold")
    return value if isinstance(value, str) else None


def _thresholds(value: Lenient, place: str) -> tuple[Threshold, ...]:
    found = []
    for one in items(value, f"{place}.thresholds"):
        if not isinstance(one, Members):
            raise BadRequest(f"{place}.thresholds: Not a JSON Object: {shown(one)}")
        boundary = one.get("boundary", "superior")
        if not isinstance(boundary, str) or boundary.lower() not in ("superior", "inferior"):
            raise BadRequest(f"{place}.thresholds.boundary must be superior or inferior, got {shown(boundary)}")
        found.append(
            Threshold(
                double(one.get("value", Number("0")), f"{place}.thresholds.value"), boundary.lower() == "inferior"
            )
        )
    return tuple(found)


def _order(value: Lenient, place: str) -> bool:
    found = text(value, f"{place}.order").lower()
    if found not in ("ascending", "descending"):
        raise BadRequest(f"{place}.order must be ascending or descending, got {shown(value)}")
    return found == "descending"


def _unit(value: Lenient, place: str) -> Sampling:
    return sampling(Members(value=Number("1"), unit=value), place)


def _percentile(value: Lenient, place: str) -> float:
    found = double(value, f"{place}.percentile")
    if found == 0:
        raise BadRequest(f"{place}.percentile may not be zero")
    if not 0 < found <= 1:
        raise BadRequest(f"{place}.percentile must be greater than 0 and at most 1, got {shown(value)}")
    return found


def _divisor(value: Lenient, place: str) -> float:
    found = double(value, f"{place}.divisor")
    if found == 0:
        raise BadRequest(f"{place}.m_divisor may not be zero")
    return found


def _size(value: Lenient, place: str) -> int:
    found = integer(value, f"{place}.size")
    if found < 1:
        raise BadRequest(f"{place}.size must be greater than or equal to 1")
    return found


def _tags(value: Lenient, place: str) -> tuple[tuple[str, str], ...]:
    if not isinstance(value, Members):
        raise BadRequest(f"{place}.tags: Not a JSON Object: {shown(value)}")
    return tuple((name, text(one, f"{place}.tags.{name}")) for name, one in value.items())


def _of(read: Callable[[Lenient, str], Any], name: str) -> Read:
    return lambda value, place: read(value, f"{place}.{name}")


Property = tuple[str, Read]  # field of Step, and how it is read
_SAMPLING: Mapping[str, Property] = {"sampling": ("sampling", sampling)}
_RANGE: Mapping[str, Property] = {
    **_SAMPLING,
    "align_sampling": ("align_sampling", _flag),
    "align_start_time": ("align_start_time", _flag),
    "align_end_time": ("align_end_time", _flag),
}
_UNIT: Mapping[str, Property] = {"unit": ("sampling", _unit)}

PROPERTIES: Mapping[str, Mapping[str, Property]] = {
    **dict.fromkeys(("avg", "count", "first", "last", "least_squares", "max", "min", "sum"), _RANGE),
    "dev": {
        **_RANGE,
        "return_type": ("return_type", _return_type),
        "dev_count": ("dev_count", _of(integer, "dev_count")),
    },
    "diff": {},
    "div": {"divisor": ("divisor", _divisor)},
    "filter": {"filter_op": ("filter_op", _filter_op), "threshold": ("threshold", _threshold)},
    "gaps": {**_RANGE, "trim": ("trims_gaps", _flag)},
    "percentile": {**_RANGE, "percentile": ("percentile", _percentile)},
    "rate": {**_SAMPLING, **_UNIT},
    "sampler": _UNIT,
    "save_as": {
        "metric_name": ("metric_name", _of(text, "metric_name")),
        "tags": ("tags", _tags),
        "ttl": ("ttl_s", _of(integer, "ttl")),
        "add_saved_from": ("add_saved_from", _flag),
    },
    "scale": {"factor": ("factor", _of(double, "factor"))},
    "score": {"thresholds": ("thresholds", _thresholds), "order": ("descending", _order)},
    "sma": {"size": ("size", _size)},
    "trim": {"trim": ("trim", _trim)},
}
REQUIRED: Mapping[str, Mapping[str, str]] = {
    "div": {"divisor": "m_divisor may not be zero"},
    "filter": {"filter_op": "filter_op may not be null"},
    "percentile": {"percentile": "percentile may not be zero"},
    "save_as": {"metric_name": "metric_name may not be null"},
    "score": {"thresholds": "thresholds may not be null"},
    "sma": {"size": "size must be greater than or equal to 1"},
}
RANGES = frozenset(name for name, found in PROPERTIES.items() if "align_sampling" in found)


def read_step(value: Lenient, place: str) -> Step:
    """Return an aggregator. Raise BadRequest."""
    if not isinstance(value, Members):
        raise BadRequest(f"{place}: Not a JSON Object: {shown(value)}")
    name = value.get("name")
    if not name:
        raise BadRequest(f"{place} must have a name")
    if not isinstance(name, str) or name not in PROPERTIES:
        raise BadRequest(f"{place}.{shown(name)} invalid aggregators name")
    known = PROPERTIES[name]
    found: dict[str, Any] = {}
    for key, one in value.items():
        if key == "name":
            continue
        if key not in known:
            raise BadRequest(f"Property '{key}' was specified for object '{name}' but no matching setter was found")
        if one is None:
            raise BadRequest(f"{place}.{key} may not be null")
        attribute, read = known[key]
        found[attribute] = read(one, place)
    for key, message in REQUIRED.get(name, {}).items():
        if key not in value:
            raise BadRequest(f"{place}.{message}")
    step = Step(name=name, **found)
    if name in RANGES and step.sampling.value < 1:
        raise BadRequest(f"{place}.sampling.value must be greater than or equal to 1")
    if step.sampling.nominal_ms > LONGEST_MS:
        raise BadRequest(f"{place}.sampling: got {step.sampling.nominal_ms} ms, wanted at most {LONGEST_MS}")
    return step
