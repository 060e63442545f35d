"""Whether the rows of a few series, by their keys, answer a plan sooner than a scan of the metric's hours."""

from collections.abc import Sequence

from tsd.query.plan import Condition, Plan
from tsd.query.reading import hours
from tsd.query.selecting import UNWANTED, Selection
from tsd.series_index import SeriesIndex

SCANNED = 6  # rows that a scan passes while one is found by its key
FEW = 64  # rows of so few series are fetched whatever else the metric has
WORTH_H = 2  # hours from which on all series are looked at in the index, where only names can tell which are wanted


async def few_series(index: SeriesIndex, plan: Plan, selection: Selection, most: int) -> Sequence[bytes] | None:
    """The series of a plan, by their tag pairs, if a scan would read many others beside them and they have no more
    than `most` rows; else None. They are judged then. Raises StoreError."""
    if plan.metric is None or plan.impossible or not plan.conditions or not await index.complete():
        return None
    most = most // max(hours(plan), 1)
    candidates = await _by_literals(index, plan.metric, plan.conditions, most)
    if candidates is None:
        if hours(plan) < WORTH_H or not selection.is_choosy:
            return None
        candidates = await index.with_tag(plan.metric, b"", most * SCANNED)
        if candidates is None:
            return None
        every = len(candidates)
    else:
        every = len(candidates) * SCANNED + 1
        if len(candidates) > FEW:  # only as many are counted as matter
            others = await index.with_tag(plan.metric, b"", len(candidates) * SCANNED)
            every = every if others is None else len(others)
    await selection.meet(candidates)
    wanted = [pairs for pairs in candidates if selection.numbers[pairs] != UNWANTED]
    return wanted if len(wanted) * SCANNED < every and len(wanted) <= most else None


async def _by_literals(
    index: SeriesIndex, metric: bytes, conditions: Sequence[Condition], most: int
) -> list[bytes] | None:
    """The series with one of the values of the condition that leaves the fewest; None where all leave more than
    `most`."""
    best: list[bytes] | None = None
    for condition in conditions:
        if condition.literals is None or (best is not None and len(best) <= FEW):
            continue
        limit = most if best is None else len(best) - 1
        found: list[bytes] = []
        for value in condition.literals if len(condition.literals) <= limit else ():
            some = await index.with_tag(metric, condition.tagk + value, limit - len(found))
            if some is None:
                break
            found += some
        else:
            if len(condition.literals) <= limit:
                best = found
    return best
