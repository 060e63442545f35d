"""`/api/query/last`: the newest point of each series (query.md §17, wire.md §12.4)."""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, NamedTuple

import msgspec

from tsd.api.lookup import SeriesNames
from tsd.api.messages import (
    as_object,
    check_method,
    is_true,
    number_in,
    object_of,
    text_in,
    texts_in,
    unparsable,
    warned,
    words_of_all,
)
from tsd.codec.jsontext import show_double
from tsd.codec.tsuid import parse_uid, split_tsuid
from tsd.codec.uid import Kind, Widths
from tsd.doors.exchange import Endpoint, Request, Response
from tsd.doors.parts import MadeOf
from tsd.errors import BadLine, BadQuery, NoSuchName, Refused
from tsd.metadata.known import KnownSeries
from tsd.metadata.latest import LastPoint
from tsd.metadata.selection import BadSelection, Selection, Wanted, parse_selection, resolve
from tsd.query.last import LastPoints, Series
from tsd.query.uri import CORRECTED, is_corrected, said_of_corrected
from tsd.uids import Uids

FIRST_BYTES = 256 << 10  # of an answer that are waited for before its header is made: mostly all of it
MOST_ROWS = 10_000_000  # series times hours that a request may have looked at
MEMBERS = {"queries", "resolveNames", "backScan", *CORRECTED}
SUB_MEMBERS = {"metric", "tags", "tsuids"}


class SubQuery(NamedTuple):
    """Series by their names, or by their TSUIDs."""

    selection: Selection | None = None
    tsuids: tuple[str, ...] = ()


class Asked(NamedTuple):
    """A request."""

    queries: list[SubQuery]
    resolve: bool = False
    back_h: int = 0  # 0: as far as the daemon looks
    corrected: bool = False


class Answers(NamedTuple):
    """What answers are made of."""

    known: KnownSeries
    points: LastPoints
    uids: Uids
    widths: Widths
    exact_back_scans: bool  # as OpenTSDB's without the meta table: a back scan is for one series, not for those like it
    written: Callable[[bytes], Awaitable[object]]  # returns once what came before of a metric (its name) is stored
    corrected: bool = False  # the configured default of requests: no back scan is for one series only


def routes(answers: Answers) -> dict[str, Endpoint]:
    """The endpoint."""

    async def last(request: Request) -> Response:
        corrected = is_corrected(request.params, default=answers.corrected)
        read = read_body if check_method(request, "GET", "POST") == "POST" else read_url
        asked = read(request, corrected=corrected)
        if not asked.queries:
            raise Refused(400, "Missing sub queries")
        if asked.back_h < 0:
            raise Refused(400, "Backscan must be zero or a positive number")
        warnings: list[str] = []
        parts = _answer(answers, asked, warnings)
        first = b""
        while len(first) < FIRST_BYTES and (part := await anext(parts, b"")):
            first += part
        # The header tells of the series looked at until now, the log of all.
        return Response(200, MadeOf(_rejoined(first, parts), parts), headers=warned(warnings))

    return {"api/query/last": last}


async def _rejoined(first: bytes, parts: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    yield first
    async for part in parts:
        yield part


def read_url(request: Request, *, corrected: bool = False) -> Asked:
    """A GET's queries; raises Refused."""
    queries = []
    for text in request.params.get("timeseries", ()):
        try:
            queries.append(SubQuery(parse_selection(text, strict=True)))
        except BadSelection as error:
            raise Refused(500 if "Missing '}'" in str(error) else 400, str(error)) from error
    if tsuids := words_of_all(request.params.get("tsuids", ())):
        queries.append(SubQuery(tsuids=tuple(tsuids)))
    try:
        back_h = int(request.param("back_scan") or 0)
    except ValueError as exc:
        raise Refused(400, "Unable to parse back_scan parameter") from exc
    return Asked(queries, request.has("resolve"), back_h, corrected)


def read_body(request: Request, *, corrected: bool = False) -> Asked:
    """A POST's queries; `corrected` is what the body may change. Raises Refused."""
    members = object_of(request)
    _check_members(members, MEMBERS)
    listed = members.get("queries") or []
    if not isinstance(listed, list):
        raise unparsable(f"queries: got {type(listed).__name__}, wanted an array")
    queries = [_sub_query(as_object(one)) for one in listed]
    corrected = is_true(said_of_corrected(members, corrected))
    return Asked(queries, is_true(members.get("resolveNames")), number_in(members, "backScan"), corrected)


def _sub_query(members: Mapping[str, Any]) -> SubQuery:
    _check_members(members, SUB_MEMBERS)
    if tsuids := texts_in(members, "tsuids"):
        return SubQuery(tsuids=tuple(tsuids))
    tags = as_object(members.get("tags") or {})
    metric = text_in(members, "metric")
    if not metric:
        raise Refused(400, "Missing metric or tsuids")
    return SubQuery(Selection(metric, [(tagk, text_in(tags, tagk)) for tagk in tags]))


def _check_members(members: Mapping[str, Any], known: set[str]) -> None:
    if unknown := sorted(members.keys() - known):
        raise unparsable(f'Unrecognized field "{unknown[0]}", not one of {", ".join(sorted(known))}')


async def _answer(answers: Answers, asked: Asked, warnings: list[str]) -> AsyncGenerator[bytes, None]:
    """The answer's JSON, in parts; what it is without is added to `warnings`."""
    names = SeriesNames(answers.uids, answers.widths)
    chosen = [await _selected(answers, query, asked) for query in asked.queries]
    await _await_written(answers, chosen)
    count = 0
    looked = 0
    seen: set[Series] = set()
    for selected in chosen:
        async with aclosing(_series(answers, selected)) as parts:
            async for part in parts:
                looked += len(part) * max(asked.back_h, 1)
                if looked > MOST_ROWS:
                    raise Refused(413, f"Too many series and hours to look at: more than {MOST_ROWS} rows")
                new = [one for one in part if one not in seen] if seen else part
                if len(asked.queries) > 1:
                    seen.update(new)
                shown = await _show(answers.points, names, new, asked, warnings)
                if shown:
                    yield (b"," if count else b"[") + msgspec.json.encode(shown)[1:-1]
                    count += len(shown)
    yield b"]" if count else b"[]"


async def _selected(answers: Answers, query: SubQuery, asked: Asked) -> list[Series] | Wanted:
    """What a sub query selects; raises BadQuery."""
    if query.selection is None:
        return [_of_tsuid(answers.widths, text) for text in query.tsuids]
    try:
        wanted = await resolve(answers.uids, query.selection, literal=True)
    except NoSuchName as error:
        raise BadQuery(str(error), details=str(error)) from error
    if asked.back_h and answers.exact_back_scans and not asked.corrected and wanted.values:
        return [(wanted.metric or b"", b"".join(sorted(wanted.fixed_pairs())))]
    return wanted


async def _await_written(answers: Answers, chosen: Sequence[list[Series] | Wanted]) -> None:
    """Return once what came before of the metrics that are asked for is stored, as far as the store takes it."""
    metrics: set[bytes] = set()
    for selected in chosen:
        metrics |= {metric for metric, _ in selected} if isinstance(selected, list) else {selected.metric or b""}
    for name in (await answers.uids.names(Kind.METRIC, metrics)).values():
        if isinstance(name, bytes):
            await answers.written(name)


async def _series(answers: Answers, selected: list[Series] | Wanted) -> AsyncGenerator[list[Series], None]:
    """The series of a sub query, in parts."""
    if isinstance(selected, list):
        yield selected
        return
    async with aclosing(answers.known.select(selected)) as parts:
        async for part in parts:
            yield part


def _of_tsuid(widths: Widths, text: str) -> Series:
    try:
        tsuid = parse_uid(text)
        split_tsuid(widths, tsuid)
    except BadLine as error:
        raise BadQuery(str(error).split(":")[0]) from error
    return tsuid[: widths.metric], tsuid[widths.metric :]


async def _show(
    points: LastPoints, names: SeriesNames, series: Sequence[Series], asked: Asked, warnings: list[str]
) -> list[dict[str, Any]]:
    """The newest points of series, without those that have none."""
    back_h = asked.back_h or None
    found = await points.of(series, back_h)
    warnings += points.unreadable(series, found, back_h)
    there = [(one, point) for one, point in zip(series, found, strict=True) if point is not None]
    if not asked.resolve:
        return [
            {"timestamp": point.time_ms, "value": _text(point), "tsuid": (metric + pairs).hex().upper()}
            for (metric, pairs), point in there
        ]
    named = {one["tsuid"]: one for one in await names.show([one for one, _ in there])}
    shown = []
    for (metric, pairs), point in there:
        tsuid = (metric + pairs).hex().upper()
        if name := named.get(tsuid):
            told = {"metric": name["metric"], "timestamp": point.time_ms, "value": _text(point), "tags": name["tags"]}
            shown.append({**told, "tsuid": tsuid})
    return shown


def _text(point: LastPoint) -> str:
    """A value as a text.

    >>> _text(LastPoint(0, 42)), _text(LastPoint(0, 4.5))
    ('42', '4.5')
    """
    return str(point.number) if isinstance(point.number, int) else show_double(point.number).strip('"')
