"""`gexp` requests: their metric queries are run like any other, then functions are applied to what they found."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import tzinfo
from typing import NamedTuple, Protocol

from tsd.codec.annotation import Annotation
from tsd.errors import BadQuery
from tsd.query.answers import Answer, Group, SubAnswer
from tsd.query.engine import ANSWER_BYTES, GROUP_BYTES
from tsd.query.gexp.functions import FUNCTIONS, SHIFTS, Setting, shift_ms
from tsd.query.gexp.grammar import Call, MetricQuery, parse
from tsd.query.gexp.tops import Span
from tsd.query.model import Query
from tsd.query.ranges import output_range
from tsd.query.uri import Params, is_corrected, read_drafts, read_m, read_uri
from tsd.query.validate import Draft, as_mistake, what_counts, without_duplicates

RANKINGS = frozenset({"highestMax", "highestCurrent"})  # which look at all series together
GROUP_POINTS = 50  # that a function takes the time of for a group, beside its points
WORKING_BYTES = 128  # of a point that a function is at, meanwhile


class Job(Protocol):
    """What runs queries, and functions over their answers (the engine's)."""

    async def answer(self, query: Query) -> Answer:
        """The answer to a query, which is held."""
        ...

    async def in_thread(self, size: int, work: Callable[[], list[SubAnswer]]) -> list[SubAnswer]:
        """What `work` returns."""
        ...

    def check(self) -> None:
        """Raise what is to end the work."""
        ...

    def hold(self, size: int) -> None:
        """What is made takes so many bytes more, or fewer; raises BadQuery where that is too much."""
        ...


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
    try:
        calls, queries = parse(params.get("exp", ()), FUNCTIONS.__contains__)
        extra = [read_m(text, corrected=corrected) for text in queries]
    except BadQuery as exc:
        raise as_mistake(exc, corrected=corrected) from exc
    query = read_uri(params, now_ms, corrected=corrected, local=local, extra=extra)
    if not corrected:
        return Asked(calls, query, range(len(queries)))
    kept = without_duplicates([*read_drafts(params, corrected=True), *extra], corrected=True)
    places = {what_counts(one, corrected=True): at for at, one in enumerate(kept)}
    return Asked(calls, query, [places[what_counts(one, corrected=True)] for one in extra])


def read_extra(params: Params, *, corrected: bool) -> list[Draft]:
    """The metric queries in `exp`, which /api/query answers like those of `m`; `corrected` is the configured default.
    Raises BadQuery."""
    corrected = is_corrected(params, default=corrected)
    try:
        queries = parse(params.get("exp", ()), FUNCTIONS.__contains__).queries
        return [read_m(text, corrected=corrected) for text in queries]
    except BadQuery as exc:
        raise as_mistake(exc, corrected=corrected) from exc


async def run_gexp(asked: Asked, job: Job) -> Answer:
    """The answer: the series that the expressions make, expression by expression. Raises BadQuery."""
    query = asked.query
    wanted: dict[int, set[int]] = {}  # by how much they are shifted, in ms: places of sub queries
    for call in asked.calls:
        for one, shift in _queries(call, 0, corrected=query.corrected):
            wanted.setdefault(shift, set()).add(asked.subs[one.place])
    notes: Sequence[Annotation] = ()
    found: dict[int, Mapping[int, SubAnswer]] = {}
    for shift in sorted(wanted):
        places = sorted(wanted[shift]) if shift else range(len(query.queries))
        answer = await job.answer(_shifted(query, shift, places))
        found[shift] = dict(zip(places, answer.subs, strict=True))
        notes = notes if shift else answer.global_annotations
    work = _Work(found, asked.subs, Setting(_span(query), query.corrected, job.check), job.hold)
    every = [group for subs in found.values() for sub in subs.values() for group in sub.groups]
    size = sum(len(group.points.times) + GROUP_POINTS for group in every) * sum(map(_calls, asked.calls))
    made = await job.in_thread(size, lambda: [work.evaluated(call) for call in asked.calls])
    return Answer(query, made, notes)


def _span(query: Query) -> Span:
    """The times that functions look at: those that are answered of any sub query."""
    shown = [
        output_range(query.start_ms, query.end_ms, sub.downsample, corrected=query.corrected) for sub in query.queries
    ]
    return Span(min((each.start for each in shown), default=query.start_ms), query.end_ms)


def _calls(call: Call) -> int:
    """How many calls there are in one, itself among them."""
    return 1 + sum(_calls(operand) for operand in call.operands if isinstance(operand, Call))


def _queries(call: Call, shift: int, *, corrected: bool) -> Iterator[tuple[MetricQuery, int]]:
    """The metric queries of a call, and by how much their times are moved."""
    if call.function in SHIFTS:
        shift += shift_ms(call.words, corrected=corrected)
    for operand in call.operands:
        if isinstance(operand, MetricQuery):
            yield operand, shift
        else:
            yield from _queries(operand, shift, corrected=corrected)


def _shifted(query: Query, shift: int, places: Sequence[int]) -> Query:
    """Some sub queries of a query, of earlier times. TSUIDs tell which metric comes first. Raises BadQuery."""
    start_ms, end_ms = query.start_ms - shift, query.end_ms - shift
    if start_ms < 0:
        raise BadQuery(f"Invalid timestamp: {start_ms}")
    queries = tuple(query.queries[place] for place in places)
    return replace(query, start_ms=start_ms, end_ms=end_ms, queries=queries, show_tsuids=True)


class _Work:
    """The functions of a request, over what its queries found."""

    def __init__(
        self,
        found: Mapping[int, Mapping[int, SubAnswer]],
        subs: Sequence[int],
        setting: Setting,
        hold: Callable[[int], None],
    ) -> None:
        """What was found by how much it is shifted, in ms, and by the sub query's place."""
        self._found = found
        self._subs = subs
        self._setting = setting
        self._hold = hold

    def evaluated(self, call: Call) -> SubAnswer:
        """The groups of one expression, under the sub query of its first metric query. Raises BadQuery."""
        found: list[SubAnswer] = []
        groups, _ = self._made(call, 0, found)
        if not found:
            raise BadQuery("Missing sub queries")
        warnings = list(dict.fromkeys(text for sub in found for text in sub.warnings))
        return replace(found[0], groups=groups, warnings=warnings)

    def _made(self, call: Call, shift: int, found: list[SubAnswer]) -> tuple[list[Group], int]:
        """The groups that a call makes, and the bytes that are held for them."""
        if call.function in SHIFTS:
            shift += shift_ms(call.words, corrected=self._setting.corrected)
        given: list[list[Group]] = []
        held = 0
        for operand in call.operands:
            made = self._made(operand, shift, found) if isinstance(operand, Call) else self._read(operand, shift, found)
            given.append(made[0])
            held += made[1]
        every = [group for groups in given for group in groups]
        points = [len(group.points.times) for group in every]
        at_once = sum(points) if call.function in RANKINGS else max(points, default=0)
        meanwhile = _bytes(every) + at_once * WORKING_BYTES  # no function makes more than it was given
        self._hold(meanwhile)
        groups = FUNCTIONS[call.function](given, call.words, self._setting)
        size = _bytes(groups)
        self._hold(size - meanwhile - held)
        return groups, size

    def _read(self, query: MetricQuery, shift: int, found: list[SubAnswer]) -> tuple[list[Group], int]:
        place, subs = self._subs[query.place], self._found[shift]
        if place not in subs:
            raise BadQuery(f"Index {place} out of bounds for length {len(subs)}")
        found.append(subs[place])
        groups = subs[place].groups
        if not shift:
            return groups, 0
        size = _bytes(groups)
        self._hold(size)
        return [_moved(group, shift) for group in groups], size


def _bytes(groups: Sequence[Group]) -> int:
    return sum(len(group.points.times) * ANSWER_BYTES + GROUP_BYTES for group in groups)


def _moved(group: Group, shift: int) -> Group:
    points = group.points
    return replace(group, points=points._replace(times=points.times + shift))
