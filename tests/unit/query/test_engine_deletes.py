"""Queries that delete: which hours they remove."""

import pytest

from tests.query_deletes import CASES, FIRST_S, HOUR_S, HOURS, DeleteCase
from tests.unit.query.engines import START_S, QueryEnvironment, make_query, values


async def deleted_hours(case: DeleteCase, *, corrected: bool) -> tuple[int, ...]:
    """Return the hours without points after the query."""
    times = {hour: FIRST_S + hour * HOUR_S + 60 for hour in HOURS}
    env = await QueryEnvironment.build([f"m {time} 1 host=a" for time in times.values()])
    start_ms, end_ms = ((FIRST_S + at_s) * 1000 for at_s in (case.start_s, case.end_s))
    query = make_query(case.m("m"), corrected=corrected, start_ms=start_ms, end_ms=end_ms, delete=True)
    await env.engine.run(query)
    whole = {"start_ms": (times[HOURS[0]] - HOUR_S) * 1000, "end_ms": (times[HOURS[-1]] + HOUR_S) * 1000}
    [sub] = (await env.engine.run(make_query("none:m", **whole))).subs
    left = values(sub.groups[0])
    return tuple(hour for hour, time in times.items() if time - START_S not in left)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.functions}{case.start_s}-{case.end_s}")
async def test_delete_removes_the_hours_that_opentsdb_reads(case: DeleteCase) -> None:
    assert await deleted_hours(case, corrected=False) == case.deleted


@pytest.mark.parametrize("functions", ["", "10m-avg:", "rate:"])
async def test_corrected_delete_with_explicit_tags_removes_no_more_than_without(functions: str) -> None:
    without, explicit = (DeleteCase(3600, 7199, f"{tags}{functions}", (1, 2)) for tags in ("", "explicit_tags:"))
    assert await deleted_hours(without, corrected=True) == without.deleted
    assert await deleted_hours(explicit, corrected=True) == explicit.deleted
