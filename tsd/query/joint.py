"""Sub queries of one query whose rows are read together, where a row holds points of several metrics.

All of them keep their points until the last row is read, and count against the memory of the query together.
"""

from collections.abc import Callable, Hashable, Mapping
from typing import NamedTuple

import trio

from tsd.query.collect import Collected, PointCollector
from tsd.query.limits import QueryBudget
from tsd.query.model import Query
from tsd.query.plan import Plan
from tsd.query.result import is_histogram
from tsd.tables.reading import JointSource, ScanRange


class JointGroup(NamedTuple):
    """Plans whose rows are read together."""

    source: JointSource
    numbers: list[int]


class JointRead(NamedTuple):
    """What was read of a sub query together with others."""

    collected: Collected
    spent_s: float  # its share of the time


def joint_groups(plans: Mapping[int, Plan]) -> list[JointGroup]:
    """Return the plans whose rows are read together, by their numbers: two or more in each group."""
    groups: dict[tuple[Hashable, ScanRange], JointGroup] = {}
    for number, plan in plans.items():
        source = plan.selection.joint
        if source is not None and not plan.open_hours and not is_histogram(plan.sub):
            groups.setdefault((source.key(), plan.scan), JointGroup(source, [])).numbers.append(number)
    return [group for group in groups.values() if len(group.numbers) > 1]


async def read_together(
    query: Query,
    source: JointSource,
    plans: Mapping[int, Plan],
    budget_of: Callable[[Plan, Callable[[int], None]], QueryBudget],
    set_memory: Callable[[int], None],
) -> dict[int, JointRead]:
    """Return what was read of the plans of one group from its source. `set_memory` is called with the bytes that all of
    them keep. Raise BadQuery where a limit is exceeded, StoreError."""
    started = trio.current_time()
    held = dict.fromkeys(plans, 0)
    total = 0

    def budget(number: int) -> QueryBudget:
        def set_one(size: int) -> None:
            nonlocal total
            total += size - held[number]
            held[number] = size
            set_memory(total)

        return budget_of(plans[number], set_one)

    collectors = {number: PointCollector(query, plan, budget(number)) for number, plan in plans.items()}
    [span] = {plan.scan for plan in plans.values()}
    await source.read(span, [(plan.selection, collectors[number].take) for number, plan in plans.items()])
    found: dict[int, Collected] = {}
    for number in plans:
        collector = collectors.pop(number)
        collector.check()
        found[number] = await collector.finished()
        await trio.lowlevel.checkpoint()  # there may be thousands of small ones
    spent_s = (trio.current_time() - started) / len(found)
    return {number: JointRead(collected, spent_s) for number, collected in found.items()}
