"""Answers `gexp` requests: runs their metric queries, then applies functions to the results."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

from tsd.codec.metadata import Annotation
from tsd.errors import BadQuery
from tsd.query.assemble import answer_bytes
from tsd.query.gexp.functions import FUNCTIONS, SHIFTS, FunctionContext, TimeSpan, shift_ms
from tsd.query.gexp.parser import Call, MetricQuery, parse
from tsd.query.model import Query
from tsd.query.parse.uri import Params, quirks_in, read_drafts, read_m, read_uri
from tsd.query.parse.validate import Draft, as_client_error, deduplicated, identity_of
from tsd.query.plan import output_range
from tsd.query.result import Answer, Group, SubAnswer
from tsd.tables.quirks import Quirks

RANKINGS = frozenset({"highestMax", "highestCurrent"})  # functions over all series together
GROUP_POINTS = 50  # points that take as long to process as a group without points
WORKING_BYTES = 128  # temporary memory of a function for each point


class AnswerSource(Protocol):
    """Runs queries and functions over their answers; the engine has one."""

    async def answer(self, query: Query) -> Answer:
        """Return the answer to a query, and account for its memory."""
        ...

    async def in_thread(self, size: int, work: Callable[[], list[SubAnswer]]) -> list[SubAnswer]:
        """Return what `work` returns."""
        ...

    def check(self) -> None:
        """Raise an exception if the work must stop."""
        ...

    def add_memory(self, size: int) -> None:
        """Account for additional bytes; negative numbers release. Raise BadQuery if that is too much."""
        ...


class GexpRequest(NamedTuple):
    """A parsed request."""

    calls: Sequence[Call]
    query: Query
    subs: Sequence[int]  # the number of each metric query's sub query


def read_gexp(params: Params, now_ms: int, *, quirks: Quirks) -> GexpRequest:
    """Parse the parameters of a URI. Raise BadQuery.

    OpenTSDB uses the n-th sub query of the request for the n-th metric query, although sub queries of `m` come first
    and equal ones are joined. Without the quirk `numbers_metric_queries` each metric query uses its own.
    """
    quirks = quirks_in(params, default=quirks)
    try:
        calls, queries = parse(params.get("exp", ()), FUNCTIONS.__contains__)
        extra = [read_m(text, quirks=quirks) for text in queries]
    except BadQuery as exc:
        raise as_client_error(exc, quirks=quirks) from exc.__cause__
    query = read_uri(params, now_ms, quirks=quirks, extra=extra)
    if quirks.numbers_metric_queries:
        return GexpRequest(calls, query, range(len(queries)))
    kept = deduplicated([*read_drafts(params, quirks=quirks), *extra], quirks=quirks)
    places = {identity_of(one, quirks=quirks): at for at, one in enumerate(kept)}
    return GexpRequest(calls, query, [places[identity_of(one, quirks=quirks)] for one in extra])


def read_extra(params: Params, *, quirks: Quirks) -> list[Draft]:
    """Return the metric queries in `exp`, which /api/query answers like those of `m`. Raise BadQuery."""
    quirks = quirks_in(params, default=quirks)
    try:
        queries = parse(params["exp"], FUNCTIONS.__contains__).queries
        return [read_m(text, quirks=quirks) for text in queries]
    except BadQuery as exc:
        raise as_client_error(exc, quirks=quirks) from exc.__cause__


async def run_gexp(request: GexpRequest, job: AnswerSource) -> Answer:
    """Return the series of all expressions, in their order. Raise BadQuery."""
    query = request.query
    wanted: dict[int, set[int]] = {}  # shift in ms → numbers of sub queries
    for call in request.calls:
        for one, shift in _queries(call, 0, quirks=query.quirks):
            wanted.setdefault(shift, set()).add(request.subs[one.place])
    notes: Sequence[Annotation] = ()
    found: dict[int, Mapping[int, SubAnswer]] = {}
    for shift in sorted(wanted):
        places = sorted(wanted[shift]) if shift else range(len(query.queries))
        answer = await job.answer(_shifted(query, shift, places))
        found[shift] = dict(zip(places, answer.subs, strict=True))
        notes = notes if shift else answer.global_annotations
    work = _Work(found, request.subs, FunctionContext(_span(query), query.quirks, job.check), job.add_memory)
    every = [group for subs in found.values() for sub in subs.values() for group in sub.groups]
    size = sum(len(group.points.times) + GROUP_POINTS for group in every) * sum(map(_calls, request.calls))
    made = await job.in_thread(size, lambda: [work.evaluated(call) for call in request.calls])
    return Answer(query, made, notes)


def _span(query: Query) -> TimeSpan:
    """Return the times that any sub query answers."""
    shown = [output_range(query.start_ms, query.end_ms, sub.downsample, quirks=query.quirks) for sub in query.queries]
    return TimeSpan(min((each.start for each in shown), default=query.start_ms), query.end_ms)


def _calls(call: Call) -> int:
    """Count the calls in a call, itself included."""
    return 1 + sum(_calls(operand) for operand in call.operands if isinstance(operand, Call))


def _queries(call: Call, shift: int, *, quirks: Quirks) -> Iterator[tuple[MetricQuery, int]]:
    """Return the metric queries of a call and their shifts."""
    if call.function in SHIFTS:
        shift += shift_ms(call.words, quirks=quirks)
    for operand in call.operands:
        if isinstance(operand, MetricQuery):
            yield operand, shift
        else:
            yield from _queries(operand, shift, quirks=quirks)


def _shifted(query: Query, shift: int, places: Sequence[int]) -> Query:
    """Return some sub queries for earlier times, with TSUIDs, which order metrics. Raise BadQuery."""
    start_ms, end_ms = max(0, query.start_ms - shift), query.end_ms - shift
    if end_ms <= start_ms:
        raise BadQuery(f"Invalid timestamp: {end_ms}")
    queries = tuple(query.queries[place] for place in places)
    return replace(query, start_ms=start_ms, end_ms=end_ms, queries=queries, show_tsuids=True)


class _Work:
    """Evaluates the functions of a request."""

    def __init__(
        self,
        found: Mapping[int, Mapping[int, SubAnswer]],
        subs: Sequence[int],
        context: FunctionContext,
        add_memory: Callable[[int], None],
    ) -> None:
        """`found`: answers by shift in ms and number of the sub query."""
        self._found = found
        self._subs = subs
        self._context = context
        self._add_memory = add_memory

    def evaluated(self, call: Call) -> SubAnswer:
        """Return the groups of one expression, with the sub query of its first metric query. Raise BadQuery."""
        found: list[SubAnswer] = []
        groups, _ = self._made(call, 0, found)
        if not found:
            raise BadQuery("Missing sub queries")
        warnings = list(dict.fromkeys(text for sub in found for text in sub.warnings))
        return replace(found[0], groups=groups, warnings=warnings)

    def _made(self, call: Call, shift: int, found: list[SubAnswer]) -> tuple[list[Group], int]:
        """Return the groups of a call, and the bytes held for them."""
        if call.function in SHIFTS:
            shift += shift_ms(call.words, quirks=self._context.quirks)
        given: list[list[Group]] = []
        held = 0
        for operand in call.operands:
            made = self._made(operand, shift, found) if isinstance(operand, Call) else self._read(operand, shift, found)
            given.append(made[0])
            held += made[1]
        every = [group for groups in given for group in groups]
        points = [len(group.points.times) for group in every]
        together = sum(points) if call.function in RANKINGS else max(points, default=0)
        meanwhile = answer_bytes(every) + together * WORKING_BYTES  # no function returns more than its operands
        self._add_memory(meanwhile)
        groups = FUNCTIONS[call.function](given, call.words, self._context)
        size = answer_bytes(groups)
        self._add_memory(size - meanwhile - held)
        return groups, size

    def _read(self, query: MetricQuery, shift: int, found: list[SubAnswer]) -> tuple[list[Group], int]:
        place, subs = self._subs[query.place], self._found[shift]
        if place not in subs:
            raise BadQuery(f"Index {place} out of bounds for length {len(subs)}")
        found.append(subs[place])
        groups = subs[place].groups
        if not shift:
            return groups, 0
        size = answer_bytes(groups)
        self._add_memory(size)
        return [_moved(group, shift) for group in groups], size


def _moved(group: Group, shift: int) -> Group:
    points = group.points
    return replace(group, points=points._replace(times=points.times + shift))
