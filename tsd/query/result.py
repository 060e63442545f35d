"""The figures that answers show when they are asked for timings (query.md §14): times in ms, as doubles."""

from collections.abc import Iterable, Mapping
from typing import Any

from tsd.query.answers import Answer, Group, SubAnswer

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
_AVERAGES = _TIMES[:-1]
_MOST = tuple(name for name in _TIMES if name != "scannerTime")
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
    """The `stats` of a group of which `emitted` points are shown, and that took `writing_ms` to write."""
    known = sub.stats | dict(group.stats)
    stats: dict[str, Any] = {name: float(known.get(name, 0)) for name in _GROUP_TIMES}
    stats |= {"emittedDPs": emitted, "queryIndex": sub.sub.index, "serializationTime": writing_ms}
    return dict(sorted(stats.items())) | {"interpolatedDPs": group.interpolated}


def summary(answer: Answer, writing_ms: float) -> dict[str, Any]:
    """The `statsSummary`: sums, averages and maxima over the sub queries, and the figures of each."""
    written = {"serializationTime": writing_ms / max(len(answer.subs), 1)}
    return totals(answer, writing_ms) | {
        f"queryIdx_{sub.sub.index:02d}": _joined([_of_sub(sub) | written])
        | {"scannerStats": sub.stats.get("scannerStats", {}), "warnings": sub.warnings, "duplicateDPs": sub.duplicates}
        for sub in answer.subs
    }


def totals(answer: Answer, writing_ms: float = 0.0) -> dict[str, float]:
    """Sums, averages and maxima over the sub queries."""
    written = {"serializationTime": writing_ms / max(len(answer.subs), 1)}
    figures = _joined([_of_sub(sub) | written for sub in answer.subs])
    return dict(sorted({**figures, "processingPreWriteTime": _total(answer.subs)}.items()))


def _of_sub(sub: SubAnswer) -> dict[str, float]:
    figures = {name: sub.stats.get(name, 0) for name in (*_TIMES, *_COUNTS)}
    emitted = sum(len(group.points.times) for group in sub.groups)
    return figures | {"emittedDPs": figures["emittedDPs"] or emitted, "successfulScan": figures["successfulScan"] or 1}


def _joined(figures: Iterable[Mapping[str, float]]) -> dict[str, Any]:
    """The figures of some sub queries as one."""
    all_of = list(figures)
    joined: dict[str, Any] = {name: sum(each[name] for each in all_of) for name in _COUNTS}
    joined |= {f"avg{_upper(name)}": _average([each[name] for each in all_of]) for name in _AVERAGES}
    return joined | {f"max{_upper(name)}": float(max((each[name] for each in all_of), default=0)) for name in _MOST}


def _average(values: list[float]) -> float:
    return float(sum(values)) / max(len(values), 1)


def _upper(name: str) -> str:
    return name[0].upper() + name[1:]


def _total(subs: Iterable[SubAnswer]) -> float:
    return float(sum(sub.stats.get("queryScanTime", 0) + sub.stats.get("aggregationTime", 0) for sub in subs))
