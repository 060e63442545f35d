"""The aggregators: what each does with many values, and what a series without one counts with (query.md §12)."""

from collections.abc import Mapping
from enum import Enum
from functools import partial
from types import MappingProxyType
from typing import NamedTuple

from tsd.query.folds import Deviation, Difference, Edge, Extreme, Fold, Make, Product, Sum, Tally
from tsd.query.names import RANKS
from tsd.query.ranks import Kind, Rank, Ranked


class Missing(Enum):
    """What a series counts with at a time between two of its points."""

    LERP = "on the line between them"
    ZERO = "0"
    HIGHEST = "the highest number there is"
    LOWEST = "the lowest number there is"
    PREVIOUS = "the earlier one"


class Aggregator(NamedTuple):
    """How values of one time become one."""

    missing: Missing
    fold: Make
    doubles: Make  # OpenTSDB's estimated percentiles are others for doubles
    needs_all: bool = False  # holds every value until the end

    def make(self, *, integers: bool, corrected: bool = False) -> Fold:
        """A new fold; corrected: percentiles are what their names say for doubles too."""
        return (self.fold if integers or corrected else self.doubles)(integers)


def _plain(missing: Missing, fold: Make) -> Aggregator:
    return Aggregator(missing, fold, fold)


def _ranked(rank: Rank) -> Aggregator:
    doubles = rank if rank.kind is Kind.MEDIAN else Rank(Kind.LEGACY, rank.of)
    return Aggregator(Missing.LERP, partial(Ranked, rank=rank), partial(Ranked, rank=doubles), needs_all=True)


def _percent(digits: str) -> float:
    return 99.9 if digits == "999" else float(digits)


BY_NAME: Mapping[str, Aggregator] = MappingProxyType(
    {
        "sum": _plain(Missing.LERP, Sum),
        "zimsum": _plain(Missing.ZERO, Sum),
        "pfsum": _plain(Missing.PREVIOUS, Sum),
        "squareSum": _plain(Missing.ZERO, partial(Sum, squared=True)),
        "avg": _plain(Missing.LERP, partial(Sum, mean=True)),
        "count": _plain(Missing.ZERO, Tally),
        "min": _plain(Missing.LERP, partial(Extreme, highest=False)),
        "mimmin": _plain(Missing.HIGHEST, partial(Extreme, highest=False)),
        "max": _plain(Missing.LERP, partial(Extreme, highest=True)),
        "mimmax": _plain(Missing.LOWEST, partial(Extreme, highest=True)),
        "dev": _plain(Missing.LERP, Deviation),
        "diff": _plain(Missing.LERP, Difference),
        "mult": _plain(Missing.LERP, Product),
        "first": _plain(Missing.ZERO, partial(Edge, last=False)),
        "last": _plain(Missing.ZERO, partial(Edge, last=True)),
        "none": _plain(Missing.ZERO, partial(Edge, last=False)),
        "median": _ranked(Rank(Kind.MEDIAN)),
        **{f"p{digits}": _ranked(Rank(Kind.LEGACY, _percent(digits))) for digits in RANKS},
        **{f"ep{digits}r3": _ranked(Rank(Kind.R3, _percent(digits))) for digits in RANKS},
        **{f"ep{digits}r7": _ranked(Rank(Kind.R7, _percent(digits))) for digits in RANKS},
    }
)
