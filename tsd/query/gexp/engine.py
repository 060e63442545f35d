"""`gexp` requests: their metric queries are run like any other, then functions are applied to what they found."""

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import tzinfo
from typing import NamedTuple

from tsd.errors import BadQuery
from tsd.query.answers import Answer, Group, SubAnswer
from tsd.query.gexp.functions import FUNCTIONS, SHIFTS, Setting, shift_ms
from tsd.query.gexp.grammar import Call, MetricQuery, parse
from tsd.query.gexp.tops import Span
from tsd.query.model import Query
from tsd.query.ranges import output_range
from tsd.query.uri import Params, is_corrected, read_m, read_uri

Run = Callable[[Query], Awaitable[Answer]]


class Asked(NamedTuple):
    """A request, read."""

    calls: Sequence[Call]
    query: Query
    subs: Sequence[int]  # for each metric query the sub query that it is taken for


def read_gexp(params: Params, now_ms: int, *, corrected: bool, local: tzinfo | None = None) -> Asked:
    """The request of a URI's parameters. Raises BadQuery.

    OpenTSDB takes the n-th metric query for the n-th sub query of the request, though those of `m` come before, and
    equal ones are one: corrected, each has its own.
    """
    corrected = is_corrected(params, default=corrected)
    calls, queries = parse(params.get("exp", ()), FUNCTIONS.__contains__)
    extra = [read_m(text, corrected=corrected) for text in queries]
    query = read_uri(params, now_ms, corrected=corrected, local=local, extra=extra)
    own = len(query.queries) - len(queries) if corrected else 0
    return Asked(calls, query, [own + index for index in range(len(queries))])


def metric_queries(params: Params) -> list[str]:
    """The metric queries in `exp`, as `m` would have them: what /api/query answers. Raises BadQuery."""
    return parse(params.get("exp", ()), FUNCTIONS.__contains__).queries


async def run_gexp(asked: Asked, run: Run) -> Answer:
    """The answer: the series that the expressions make, expression by expression. Raises BadQuery."""
    query = asked.query
    shifts = {shift for call in asked.calls for _, shift in _queries(call, 0, corrected=query.corrected)}
    answers = {shift: await run(_shifted(query, shift)) for shift in sorted(shifts)}
    setting = Setting(_span(query), query.corrected)
    subs = [_evaluated(call, answers, asked.subs, setting) for call in asked.calls]
    return Answer(query, subs, answers[0].global_annotations if 0 in answers else ())


def _span(query: Query) -> Span:
    """The times that functions look at: those that are answered of any sub query."""
    shown = [
        output_range(query.start_ms, query.end_ms, sub.downsample, corrected=query.corrected) for sub in query.queries
    ]
    return Span(min((each.start for each in shown), default=query.start_ms), query.end_ms)


def _queries(call: Call, shift: int, *, corrected: bool) -> Iterator[tuple[MetricQuery, int]]:
    """The metric queries of a call, and by how much their times are moved."""
    if call.function in SHIFTS:
        shift += shift_ms(call.words, corrected=corrected)
    for operand in call.operands:
        if isinstance(operand, MetricQuery):
            yield operand, shift
        else:
            yield from _queries(operand, shift, corrected=corrected)


def _shifted(query: Query, shift: int) -> Query:
    """The same query of earlier times. TSUIDs tell which metric comes first."""
    return replace(query, start_ms=query.start_ms - shift, end_ms=query.end_ms - shift, show_tsuids=True)


def _evaluated(call: Call, answers: Mapping[int, Answer], subs: Sequence[int], setting: Setting) -> SubAnswer:
    """The groups of one expression, under the sub query of its first metric query."""
    found: list[SubAnswer] = []

    def groups_of(operand: Call | MetricQuery, shift: int) -> list[Group]:
        if isinstance(operand, Call):
            if operand.function in SHIFTS:
                shift += shift_ms(operand.words, corrected=setting.corrected)
            inner = [groups_of(each, shift) for each in operand.operands]
            return FUNCTIONS[operand.function](inner, operand.words, setting)
        place = subs[operand.place]
        answer = answers[shift].subs
        if place >= len(answer):
            raise BadQuery(f"Index {place} out of bounds for length {len(answer)}")
        found.append(answer[place])
        return [_moved(group, shift) for group in answer[place].groups]

    groups = groups_of(call, 0)
    if not found:
        raise BadQuery("Missing sub queries")
    return replace(found[0], groups=groups, warnings=[text for sub in found for text in sub.warnings])


def _moved(group: Group, shift: int) -> Group:
    points = group.points
    return replace(group, points=points._replace(times=points.times + shift)) if shift else group
