"""Read the points and tags of KairosDB's queries with the query engine, and delete points.

The engine reads each series of a metric without aggregation. Its memory, its limits, its timeout and its threads count
for these queries too.
"""

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeVar

import numpy as np
import trio

from tsd.codec.putline import FIRST_MS, LAST_MS
from tsd.errors import UnknownName
from tsd.query.collect import SeriesPoints
from tsd.query.engine import QueryJob
from tsd.query.kairosdb.answer import MetricAnswer, Result, evaluate
from tsd.query.kairosdb.column import EMPTY, POINT_BYTES, Column, of_texts
from tsd.query.kairosdb.groups import TaggedColumn, all_tags
from tsd.query.kairosdb.model import PATTERN, BadRequest, KairosQuery, MetricQuery
from tsd.query.kairosdb.steps import Frame
from tsd.query.model import NONE, Query, SubQuery
from tsd.query.texts import SeriesTexts
from tsd.tables.filters import LITERAL_OR, REGEXP, Filter, make_filter
from tsd.tables.quirks import CORRECTED
from tsd.tables.reading import PointDeleter

T = TypeVar("T")
IN_THREAD = 1 << 62  # gaps make many points of few
STEP_SIZE = 10  # simple values that take as long as a point in the grouping, or in one aggregator, may take
GROUP_POINTS = 20  # that take as long in a step as a group may take, even without points
SMALL = 100  # metrics and values of tags: each takes some 10 us
_SPECIAL = re.compile(r"([^\w\s-])", re.ASCII)


def engine_query(wanted: Sequence[MetricQuery], *, delete: bool = False) -> Query:
    """Return the query that reads the series of some metrics, which share their times."""
    start_ms, end_ms = (wanted[0].start_ms, wanted[0].end_ms) if wanted else (0, 0)
    # The engine takes lower times for seconds.
    first = start_ms if start_ms >= FIRST_MS else 0
    last = min(max(end_ms, FIRST_MS), LAST_MS)
    subs = [
        SubQuery(NONE, one.name, filters=tuple(filter_of(*tag) for tag in one.tags.items()), index=at)
        for at, one in enumerate(wanted)
    ]
    return Query(
        first,
        max(first, last),
        tuple(subs),
        start_text=str(start_ms),
        end_text=str(end_ms),
        ms_resolution=True,
        no_annotations=True,
        delete=delete,
        quirks=CORRECTED,
    )


async def built_query(wanted: Sequence[MetricQuery], *, delete: bool = False) -> Query:
    """Return what `engine_query` returns, built in a thread for many alternatives. Raise BadQuery."""
    build = partial(engine_query, wanted, delete=delete)
    if len(wanted) + sum(len(values) for one in wanted for values in one.tags.values()) <= SMALL:
        return build()
    return await trio.to_thread.run_sync(build)


def filter_of(name: str, values: Sequence[str]) -> Filter:
    """Return the filter of a tag: one literal by its name, several alternatives and patterns by a pattern. Of several
    patterns the last one counts, as in KairosDB. Raise BadQuery."""
    literals = [one for one in values if not one.startswith(PATTERN)]
    patterns = [one.removeprefix(PATTERN) for one in values if one.startswith(PATTERN)]
    if len(literals) == 1 and not patterns and "|" not in literals[0]:
        return make_filter(name, LITERAL_OR, literals[0], quirks=CORRECTED)
    each = [*(_SPECIAL.sub(r"\\\1", one) for one in literals), *patterns[-1:]]
    return make_filter(name, REGEXP, f"^(?:{'|'.join(each)})$", quirks=CORRECTED)


async def answer_metrics(wanted: KairosQuery, job: QueryJob, now_ms: int) -> list[MetricAnswer]:
    """Return the answer to each metric. Raise BadQuery, StoreError."""
    answers = []
    together = await _together(wanted.metrics, job.stored.series_together)
    for at, metric in enumerate(wanted.metrics):
        await trio.lowlevel.checkpoint()
        found, texts = (together.pop(at), ()) if at in together else await _read(metric, job)
        points = sum(len(one.points.times) for one in found) + sum(len(one.times) for one in texts)
        job.add_memory(points * POINT_BYTES)
        end_ms = max(metric.start_ms, min(metric.end_ms, now_ms))
        frame = Frame(metric.start_ms, end_ms, wanted.zone, job.add_memory, job.check)
        # A step has work of its own for each group, even without points.
        size = (points + (len(found) + 1) * GROUP_POINTS) * STEP_SIZE * (1 + len(metric.steps))
        if any(step.name == "gaps" for step in metric.steps):
            size = IN_THREAD
        answers.append(await job.in_thread(size, partial(_evaluated, found, texts, metric, frame)))
    return answers


def _evaluated(
    found: Sequence[SeriesPoints], texts: Sequence[SeriesTexts], metric: MetricQuery, frame: Frame
) -> MetricAnswer:
    return evaluate(_cut(found, texts, metric), metric, frame)


async def _together(metrics: Sequence[MetricQuery], read: Callable[[Query], Awaitable[dict[int, T]]]) -> dict[int, T]:
    """Return what `read` returns of those metrics whose rows are read together, by their numbers. Raise StoreError,
    BadQuery where a limit is exceeded."""
    groups: dict[tuple[int, int], list[int]] = {}
    for at, metric in enumerate(metrics):
        if metric.end_ms >= 0:
            groups.setdefault((metric.start_ms, metric.end_ms), []).append(at)
    found: dict[int, T] = {}
    for numbers in groups.values():
        if len(numbers) > 1:
            query = await built_query([metrics[at] for at in numbers])
            found |= {numbers[own]: one for own, one in (await read(query)).items()}
    return found


async def _read(metric: MetricQuery, job: QueryJob) -> tuple[Sequence[SeriesPoints], Sequence[SeriesTexts]]:
    """Return the points of each series within the hours of a query."""
    if metric.end_ms < 0:
        return (), ()
    try:
        return await job.stored.series_and_texts(await built_query([metric]))
    except UnknownName:
        return (), ()


def _cut(found: Sequence[SeriesPoints], texts: Sequence[SeriesTexts], metric: MetricQuery) -> list[TaggedColumn]:
    """Return the points of each series within the times of a query."""
    series = []
    for tags, times, values in texts:
        column = of_texts(times, np.array([*values, None], object)[:-1])
        series.append(TaggedColumn(tags, column.at((times >= metric.start_ms) & (times <= metric.end_ms))))
    for tags, points in found:
        times = points.times
        column = Column(points)
        if len(times) and (times[0] < metric.start_ms or times[-1] > metric.end_ms):
            column = column.at((times >= metric.start_ms) & (times <= metric.end_ms))
        series.append(TaggedColumn(tags, column))
    return [one for one in series if len(one.column)]


async def answer_tags(wanted: KairosQuery, job: QueryJob) -> list[MetricAnswer]:
    """Return the tags of each metric's series with rows in the hours of the query. Raise BadQuery, StoreError."""
    answers = []
    together = await _together(wanted.metrics, job.stored.tags_together)
    for at, metric in enumerate(wanted.metrics):
        if at in together:
            answers.append(_tags_of(metric, together.pop(at)))
            continue
        try:
            each = [] if metric.end_ms < 0 else await job.stored.tags(await built_query([metric]))
        except UnknownName:
            each = []
        answers.append(_tags_of(metric, each))
    return answers


def _tags_of(metric: MetricQuery, each: Sequence[Mapping[str, str]]) -> MetricAnswer:
    return MetricAnswer(None, [Result(metric.name, None, all_tags(each), EMPTY)])


async def delete_points(wanted: Sequence[MetricQuery], deleter: PointDeleter | None, job: QueryJob) -> None:
    """Delete the points of some metrics within the times of a query. Raise BadQuery, StoreError.

    Without a `deleter` tables delete whole hours. A deletion whose first or last hour has points outside of it is
    refused then.
    """
    for metric in wanted:
        if deleter is not None:
            await job.stored.delete(await built_query([metric], delete=True), deleter, (metric.start_ms, metric.end_ms))
            continue
        if metric.end_ms < 0:
            continue
        with suppress(UnknownName):
            await job.stored.series(await built_query([metric], delete=True), partial(_approve, metric))


def _approve(metric: MetricQuery, found: Sequence[SeriesPoints]) -> None:
    for _, points in found:
        times = points.times
        outside = times[(times < metric.start_ms) | (times > metric.end_ms)]
        if len(outside):
            raise BadRequest(
                f"These tables delete whole hours: {metric.name} has a point at {int(outside[0])} ms, outside of "
                f"{metric.start_ms} to {metric.end_ms} ms but in an hour of them. Nothing of it was deleted"
            )
