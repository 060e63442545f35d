"""The functions of `gexp` over the groups that queries found (query.md §19)."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from tsd.errors import BadQuery
from tsd.query.answers import Group
from tsd.query.durations import read_duration
from tsd.query.gexp.pairs import Fold, combined
from tsd.query.gexp.tops import Span, by_current, by_maximum
from tsd.query.gexp.windows import NO_INTEGER, moving_average, read_integer, read_window
from tsd.query.javamath import truncated
from tsd.query.points import Points, doubles_as_points

_FACTOR = re.compile(r"[-0-9.]+")
_SHIFT = re.compile(r"'([0-9]+)(.*)")
_SHIFT_UNITS = {"min": "m", "sec": "s", "hr": "h", "hour": "h", "day": "d", "week": "w", "month": "n", "year": "y"}


class Setting(NamedTuple):
    """What functions know of the request."""

    span: Span
    corrected: bool
    check: Callable[[], None] = lambda: None  # called often: raises what is to end them


Groups = Sequence[Group]
Function = Callable[[Sequence[Groups], Sequence[str], Setting], list[Group]]


def absolute(operands: Sequence[Groups], _: Sequence[str], setting: Setting) -> list[Group]:
    """|v|, of the type it has."""
    return [_with_points(group, _absolute(group.points)) for group in _flat(operands, setting)]


def scale(operands: Sequence[Groups], words: Sequence[str], setting: Setting) -> list[Group]:
    """v · factor: an integer's stays one where the factor is whole."""
    if not words:
        raise BadQuery("Missing scaling factor")
    if not _FACTOR.fullmatch(words[0]):
        raise BadQuery("Unparseable scale factor value: 0.0")
    try:
        factor = float(words[0])
    except ValueError as exc:
        raise BadQuery("Invalid parameter, must be an integer or floating point") from exc
    return [_with_points(group, _scaled(group.points, factor)) for group in _flat(operands, setting)]


def alias(operands: Sequence[Groups], words: Sequence[str], setting: Setting) -> list[Group]:
    """Another name, in which @tagk stands for a tag's value, and no tags. OpenTSDB takes absolute values meanwhile."""
    if not words:
        raise BadQuery("Missing the alias")
    name = ",".join(words)
    found = []
    for group in _flat(operands, setting):
        points = group.points if setting.corrected else _absolute(group.points)
        found.append(replace(group, metric=_named(name, group), tags={}, aggregate_tags=[], points=points))
    return found


def average(operands: Sequence[Groups], words: Sequence[str], setting: Setting) -> list[Group]:
    """The mean of a window of points, over those between start and end only."""
    if not words:
        raise BadQuery("Missing moving average window size")
    window = read_window(words[0])
    return [
        _with_points(group, moving_average(setting.span.cut(group.points), window, setting.check))
        for group in _flat(operands, setting)
    ]


def highest_max(operands: Sequence[Groups], words: Sequence[str], setting: Setting) -> list[Group]:
    """The series with the highest maxima, in this order."""
    count = _top(words)
    groups = _with_some(operands, setting)
    series = [group.points for group in groups]
    order = by_maximum(series, setting.span, corrected=setting.corrected, check=setting.check)
    return [groups[place] for place in order[:count]]


def highest_current(operands: Sequence[Groups], words: Sequence[str], setting: Setting) -> list[Group]:
    """The series with the highest last values, in this order."""
    count = _top(words)
    groups = _with_some(operands, setting)
    series = [group.points for group in groups]
    order = by_current(series, setting.span, corrected=setting.corrected, check=setting.check)
    return [groups[place] for place in order[:count]]


def time_shift(operands: Sequence[Groups], words: Sequence[str], setting: Setting) -> list[Group]:
    """What `shift_ms` made the queries read, at the times asked for; in OpenTSDB it always fails."""
    shift_ms(words, corrected=setting.corrected)
    return list(_flat(operands, setting))


def shift_ms(words: Sequence[str], *, corrected: bool) -> int:
    """By how much a timeShift moves what is earlier; raises BadQuery, and uncorrected always."""
    if not words:
        raise BadQuery("Need amount of timeshift to perform timeshift")
    if words[0][:1] != "'" or words[0][-1:] != "'":
        raise BadQuery("Invalid timeshift parameter: eg '10min'")
    found = _SHIFT.fullmatch(words[0])
    if found is None:
        raise BadQuery(f"Invalid Parameter: {words[0]}")
    if read_integer(found[1]) is None:
        raise BadQuery(f'For input string: "{found[1]}"')
    if not corrected:
        raise BadQuery(f"unknown time unit={found[2]}")
    unit = found[2].removesuffix("'")
    return read_duration(found[1] + _SHIFT_UNITS.get(unit, unit), corrected=True)


def _folding(fold: Fold) -> Function:
    def function(operands: Sequence[Groups], _: Sequence[str], setting: Setting) -> list[Group]:
        if not 2 <= len(operands) <= 26:
            raise BadQuery(f"Must have 2 to 26 series, got {len(operands)} instead")
        return combined(operands, fold, corrected=setting.corrected, check=setting.check)

    return function


def _top(words: Sequence[str]) -> int:
    if not words:
        raise BadQuery("Need aggregation window for moving average")  # in these words
    if not words[0].isascii() or not words[0].isdigit():
        raise BadQuery(f"Unparseable top n value: {words[0]}")
    count = read_integer(words[0])
    if count is None:
        raise BadQuery(NO_INTEGER)
    if count < 1:
        raise BadQuery(f"Top n value must be greater than zero: {count}")
    return count


def _flat(operands: Sequence[Groups], setting: Setting) -> Iterator[Group]:
    for groups in operands:
        for group in groups:
            setting.check()
            yield group


def _with_some(operands: Sequence[Groups], setting: Setting) -> list[Group]:
    """Those that have points."""
    return [group for group in _flat(operands, setting) if len(group.points.times)]


def _with_points(group: Group, points: Points) -> Group:
    return replace(group, points=points)


def _absolute(points: Points) -> Points:
    with np.errstate(all="ignore"):
        doubles = np.abs(points.bits.view(np.float64)).view(np.int64)
        return points._replace(bits=np.where(points.floats, doubles, np.abs(points.bits)))


def _scaled(points: Points, factor: float) -> Points:
    with np.errstate(all="ignore"):
        if not factor.is_integer():
            return doubles_as_points(points.times, points.doubles() * factor)
        doubles = (points.doubles() * factor).view(np.int64)
        return points._replace(bits=np.where(points.floats, doubles, points.bits * truncated(np.array(factor))))


def _named(name: str, group: Group) -> str:
    for tagk in sorted(group.tags, key=len, reverse=True):
        name = name.replace(f"@{tagk}", group.tags[tagk])
    return name


FUNCTIONS: dict[str, Function] = {
    "absolute": absolute,
    "alias": alias,
    "scale": scale,
    "movingAverage": average,
    "highestMax": highest_max,
    "highestCurrent": highest_current,
    "timeShift": time_shift,
    "shift": time_shift,
    **{name: _folding(Fold.SUM) for name in ("sum", "sumSeries")},
    **{name: _folding(Fold.DIFFERENCE) for name in ("difference", "diffSeries")},
    **{name: _folding(Fold.PRODUCT) for name in ("multiply", "multiplySeries")},
    **{name: _folding(Fold.QUOTIENT) for name in ("divide", "divideSeries")},
}
SHIFTS = frozenset({"timeShift", "shift"})
