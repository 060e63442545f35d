"""Which rows an operator's scan wants, and the rows themselves: OpenTSDB's `scan START [END] FUNC METRIC [k=v …] …`."""

import re
from collections.abc import AsyncIterator, Mapping, Sequence, Set
from typing import NamedTuple

from tsd.codec.putline import split_tags
from tsd.codec.rowkey import Layout, after, base_bytes, salts, split_key
from tsd.codec.times import HOUR_S
from tsd.codec.uid import Kind
from tsd.codec.words import encode_name
from tsd.errors import BadLine, CorruptRow, NoSuchName, TsdError
from tsd.query.dates import BadDate, parse_date
from tsd.store import Row, Store, scan
from tsd.uids import Uids

_END = re.compile(r".*[:/-].*|\d+(ms)?|now")


class Selection(NamedTuple):
    """Rows of one metric."""

    metric: bytes
    tags: tuple[tuple[bytes, bytes], ...]  # a series' tags hold at least these


class ScanRequest(NamedTuple):
    """What a command line asks for: whole hours that begin between two times, both in ms."""

    start_ms: int
    end_ms: int
    selections: list[Selection]


class BadRequest(TsdError):
    """A scan that cannot be read."""


def parse_request(words: Sequence[str], now_ms: int) -> ScanRequest:
    """The request of a command line; raises BadRequest.

    >>> parse_request(["1356998400", "1356998500", "sum", "sys.cpu", "host=a"], 0).selections
    [Selection(metric=b'sys.cpu', tags=((b'host', b'a'),))]
    """
    if len(words) < 3:
        raise BadRequest("not enough arguments: wanted START [END] FUNC METRIC [TAGK=TAGV …]")
    try:
        start = parse_date(words[0], now_ms)
        at = 1
        end = now_ms
        if len(words) > 3 and _END.fullmatch(words[1].lower()):
            end = parse_date(words[1], now_ms)
            at = 2
    except BadDate as exc:
        raise BadRequest(str(exc)) from exc
    if end < start:
        raise BadRequest(f"the end {words[at - 1]!r} is before the start {words[0]!r}")
    selections = list(_selections(list(words[at:])))
    if not selections:
        raise BadRequest("no metric: wanted START [END] FUNC METRIC [TAGK=TAGV …]")
    return ScanRequest(start, end, selections)


def _selections(words: list[str]) -> list[Selection]:
    """FUNC [rate [counter,max,reset]] [downsample MS FUNC] METRIC [k=v …], once or more. All but the metric and the
    tags only matter to queries."""
    found = []
    while words:
        words.pop(0)
        if words[:1] == ["rate"]:
            words.pop(0)
            if words and words[0].startswith("counter"):
                words.pop(0)
        if words[:1] == ["downsample"]:
            del words[:3]
        if not words:
            raise BadRequest("a function without a metric: wanted FUNC METRIC [TAGK=TAGV …]")
        metric = words.pop(0)
        tags = []
        while words and "=" in words[0]:
            tags.append(words.pop(0))
        found.append(parse_selection(metric, tags))
    return found


def parse_selection(metric: str, tags: Sequence[str]) -> Selection:
    """The rows of `metric` whose series have at least `tags`, each TAGK=TAGV; raises BadRequest."""
    try:
        return Selection(encode_name(metric), split_tags(b" ".join(map(encode_name, tags))))
    except BadLine as exc:
        raise BadRequest(str(exc)) from exc


async def selected_rows(
    store: Store, table: str, uids: Uids, layout: Layout, request: ScanRequest, selection: Selection
) -> AsyncIterator[list[Row]]:
    """The rows of a selection, in order of their keys, salts one after the other; with them those of its metric and
    time whose keys make no sense. Raises NoSuchName, StoreError."""
    metric = _known(await uids.find(Kind.METRIC, [selection.metric]), selection.metric)
    tagks = await uids.find(Kind.TAGK, [tagk for tagk, _ in selection.tags])
    tagvs = await uids.find(Kind.TAGV, [tagv for _, tagv in selection.tags])
    wanted = {(_known(tagks, tagk), _known(tagvs, tagv)) for tagk, tagv in selection.tags}
    first = request.start_ms // 1000 // HOUR_S * HOUR_S
    last = request.end_ms // 1000
    for salt in salts(layout):
        prefix = salt + metric
        start = prefix + base_bytes(first)
        stop = after(prefix + base_bytes(last))
        async for page in scan(store, table, start, stop):
            rows = [row for row in page if _has_tags(layout, row.key, wanted)] if wanted else page
            if rows:
                yield rows


def _has_tags(layout: Layout, key: bytes, wanted: Set[tuple[bytes, bytes]]) -> bool:
    """Whether a row is of a series with these tags. One whose key makes no sense may be: its reader is to see it."""
    try:
        return wanted <= set(split_key(layout, key).series.pairs)
    except CorruptRow:
        return True


def _known(found: Mapping[bytes, object], name: bytes) -> bytes:
    uid = found[name]
    if isinstance(uid, bytes):
        return uid
    raise uid if isinstance(uid, TsdError) else NoSuchName(name.decode("latin-1"))
