"""Compare stored points with the lines that were sent: lost, invented and doubled ones.

Rows are read through the store, without the query engine. The same points are then queried with /api/query: answers
must be the stored points, each time once.
"""

import http.client
import json
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import trio

from tsd.cli.torture.layout_rows import DecodedPage, StoredRow, layout_rows
from tsd.cli.torture.process import TIMEOUT_S
from tsd.cli.torture.senders import (
    AGAIN_S,
    BASE_S,
    HOST,
    Lines,
    Numbers,
    Sender,
    SentSeries,
    UnexpectedAnswer,
    format_tags,
)
from tsd.codec.names import Kind
from tsd.codec.opentsdb.check import Trouble
from tsd.codec.opentsdb.merge import MergeRules, merge
from tsd.codec.opentsdb.row import data_cells, problems
from tsd.codec.opentsdb.rowkey import salts, split_key
from tsd.codec.opentsdb.uid import COUNTER_ROW, decode_counter, decode_uid, encode_counter, id_column, name_column
from tsd.config.loader import key_layout
from tsd.config.settings import Config
from tsd.daemon.wiring import make_uids
from tsd.errors import CorruptRow, NoSuchName
from tsd.store import Row, Store, scan
from tsd.store.cells import prefix_end
from tsd.tables.opentsdb.uids import Uids

NEWEST = MergeRules(fix_duplicates=True)
REPEATS = (Trouble.REPEATED, Trouble.CONFLICT)  # a replay may write points again, in cells of another length


async def stored_rows(
    store: Store, config: Config, metrics: Sequence[str] | None, *, thorough: bool = True
) -> AsyncIterator[DecodedPage]:
    """Yield the rows of these metrics, or all rows, in pages. `thorough`: check every cell of OpenTSDB's tables against
    the format."""
    if not config.has_opentsdb_tables:
        async for found in layout_rows(store, config, metrics):
            yield found
        return
    uids = make_uids(config, store)
    for start, stop in await _ranges(uids, config, metrics):
        async for page in scan(store, config.data_table, start, stop):
            yield await _read_page(uids, config, page, thorough=thorough)


async def _ranges(uids: Uids, config: Config, metrics: Sequence[str] | None) -> list[tuple[bytes, bytes | None]]:
    """Return the key ranges of metrics."""
    if metrics is None:
        return [(b"", None)]
    found = await uids.find(Kind.METRIC, [metric.encode() for metric in metrics])
    keys = [salt + uid for salt in salts(key_layout(config)) for uid in found.values() if isinstance(uid, bytes)]
    return [(key, prefix_end(key)) for key in sorted(keys)]


async def _read_page(uids: Uids, config: Config, page: Sequence[Row], *, thorough: bool) -> DecodedPage:
    form = key_layout(config)
    found = DecodedPage([], [])
    split = [(row, split_key(form, row.key)) for row in page]
    metrics = await uids.names(Kind.METRIC, {key.series.metric for _, key in split})
    tagks = await uids.names(Kind.TAGK, {tagk for _, key in split for tagk, _ in key.series.pairs})
    tagvs = await uids.names(Kind.TAGV, {tagv for _, key in split for _, tagv in key.series.pairs})
    for row, key in split:
        cells = data_cells(row.cells)
        if thorough:
            wrong = [one for one in problems(row.key, cells, form) if one.trouble not in REPEATS]
            found.corrupt.extend(f"row {row.key.hex()}: {one.trouble.value}: {one.detail}" for one in wrong)
        try:
            names = [metrics[key.series.metric]]
            for tagk, tagv in key.series.pairs:
                names += tagks[tagk], tagvs[tagv]
            points = merge(row.key, cells, NEWEST).points
            series = _named(names)
        except (CorruptRow, NoSuchName) as error:
            found.corrupt.append(f"row {row.key.hex()}: {error}")
            continue
        times = [key.base * 1000 + p.offset_ms if p.in_ms else key.base + p.offset_ms // 1000 for p in points]
        values = [p.number for p in points]
        found.rows.append(StoredRow(series, np.array(times, np.int64), np.array(values, np.float64)))
    return found


def _named(names: Sequence[object]) -> SentSeries:
    """Return a series from its metric and alternating tag names and values. Raise NoSuchName for an unknown UID."""
    metric, *tags = (_text(name) for name in names)
    return SentSeries(metric, tuple(sorted(zip(tags[::2], tags[1::2], strict=True))))


def _text(name: object) -> str:
    if isinstance(name, bytes):
        return name.decode("latin-1")
    raise name if isinstance(name, NoSuchName) else TypeError(name)


async def uid_errors(store: Store, config: Config) -> list[str]:
    """Return errors of OpenTSDB's UID table: names and UIDs must map one to one, and no counter is too low.

    A crash between the two writes of an assignment leaves an unused UID, and a crash before them an unused number. Both
    are allowed.
    """
    if not config.has_opentsdb_tables:
        return []
    columns: dict[bytes, dict[bytes, bytes]] = {}
    async for page in scan(store, config.uid_table):
        for row in page:
            for cell in row.cells:
                columns.setdefault(cell.column, {})[row.key] = cell.value
    wrong = []
    for kind in Kind:
        there, back = columns.get(id_column(kind), {}), columns.get(name_column(kind), {})
        counter = decode_counter(there.pop(COUNTER_ROW, encode_counter(0)))
        wrong += [f"{kind.value} {name!r} has UID {uid.hex()}, which is of {back.get(uid)!r}"
                  for name, uid in there.items() if back.get(uid) != name]  # fmt: skip
        if len(set(there.values())) != len(there):
            wrong.append(f"{kind.value}: names share UIDs")
        if not config.random_metrics or kind is not Kind.METRIC:
            wrong += [
                f"{kind.value}: the counter {counter} is behind {uid.hex()}"
                for uid in back
                if decode_uid(uid) > counter
            ]
    return wrong


EXAMPLES = 20


@dataclass(frozen=True)
class Discrepancy:
    """A number of points with the same error, and examples."""

    count: int = 0
    examples: tuple[str, ...] = ()

    def plus(self, more: "Discrepancy") -> "Discrepancy":
        """Return the sum of both."""
        return Discrepancy(self.count + more.count, (self.examples + more.examples)[:EXAMPLES])


NO_FINDING = Discrepancy()


def finding(texts: Iterable[str]) -> Discrepancy:
    """Return a Finding of these points."""
    every = list(texts)
    return Discrepancy(len(every), tuple(every[:EXAMPLES]))


class Verification(NamedTuple):
    """The outcome for the lines of clients."""

    stored: int = 0  # points
    replaced: int = 0  # lines whose value a later line replaced
    lost: Discrepancy = NO_FINDING
    invented: Discrepancy = NO_FINDING
    doubled: Discrepancy = NO_FINDING


class Comparison:
    """A comparison of rows with the lines of clients."""

    def __init__(self, senders: Sequence[Sender]) -> None:
        self._senders = {(one.lines.place, f"c{one.lines.connection}"): one for one in senders}
        self._found = {key: np.zeros(one.sent, np.int64) for key, one in self._senders.items()}
        self._invented = NO_FINDING

    def take(self, row: StoredRow) -> None:
        """Add the points of a row."""
        key = row.series.metric.rsplit(".", 2)[0], dict(row.series.tags).get("connection", "")
        if key not in self._senders:
            self._add_invented(row, np.arange(len(row.times)))
            return
        sender = self._senders[key]
        numbers = sender.lines.numbers(row.series, row.times, row.values)
        known = (numbers >= 0) & (numbers < sender.sent)
        np.add.at(self._found[key], numbers[known], 1)
        if not known.all():
            self._add_invented(row, np.flatnonzero(~known))

    def _add_invented(self, row: StoredRow, places: Numbers) -> None:
        texts = (
            f"{row.series.metric} {row.times[at]} {row.values[at]} {format_tags(row.series.tags)}"
            for at in places[:EXAMPLES]
        )
        self._invented = self._invented.plus(Discrepancy(len(places), tuple(texts)))

    def verification(self, owed: Sequence[Sender] | None = None) -> Verification:
        """Return the outcome once all rows are added: of all clients, or of those with all points stored by now."""
        total = Verification(invented=self._invented)
        for key, sender in self._senders.items():
            if owed is not None and sender not in owed:
                continue
            one = _compare(sender.lines, self._found[key], sender)
            total = Verification(
                total.stored + one.stored,
                total.replaced + one.replaced,
                total.lost.plus(one.lost),
                total.invented,
                total.doubled.plus(one.doubled),
            )
        return total


def _compare(lines: Lines, found: Numbers, sender: Sender) -> Verification:
    acknowledged = sender.acknowledged()
    replaced_by = lines.replaced_by(np.arange(sender.sent))
    replaced_by = np.where(replaced_by < sender.sent, replaced_by, np.arange(sender.sent))
    hidden = replaced_by != np.arange(sender.sent)
    there = found > 0
    lost = acknowledged & ~there & ~there[replaced_by]
    twice = (found > 1) | (hidden & there & there[replaced_by])
    return Verification(
        int(there.sum()),
        int((acknowledged & ~there & there[replaced_by]).sum()),
        _finding_of(lines, lost),
        NO_FINDING,
        _finding_of(lines, twice),
    )


def _finding_of(lines: Lines, which: Sequence[bool] | np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Discrepancy:
    numbers = np.flatnonzero(which)
    return Discrepancy(len(numbers), tuple(_shown(lines, numbers[:EXAMPLES])))


def _shown(lines: Lines, numbers: Iterable[int]) -> Iterator[str]:
    return (lines.put_line(int(n)) for n in numbers)


END_S = 1 << 32  # after all sent times; larger numbers are in ms
MAX_METRICS = 200  # of one request
STORE_UNAVAILABLE = 424  # HBase did not answer within the short timeout of this test

Points = Counter[tuple[SentSeries, int, float]]  # time in ms; counts


class QueryCheck:
    """A comparison of stored points with answers to queries."""

    def __init__(self) -> None:
        self._stored: Points = Counter()

    def take(self, row: StoredRow) -> None:
        """Add the points of a row."""
        times = (time * 1000 if time < END_S else time for time in row.times.tolist())
        self._stored.update((row.series, time, value) for time, value in zip(times, row.values.tolist(), strict=True))

    async def compare(self, port: int, metrics: Sequence[str]) -> tuple[Discrepancy, Discrepancy, Discrepancy]:
        """Return points that are only stored, only answered, or answered twice. Raise UnexpectedAnswer."""
        answered: Points = Counter()
        for at in range(0, len(metrics), MAX_METRICS):
            answered.update(await _answer(port, metrics[at : at + MAX_METRICS]))
        places = Counter((series, time) for series, time, _ in answered.elements())
        return (
            finding(_described(self._stored.keys() - answered.keys())),
            finding(_described(answered.keys() - self._stored.keys())),
            finding(
                f"{series.metric} {time} {format_tags(series.tags)}" for (series, time), n in places.items() if n > 1
            ),
        )


def _described(points: Iterable[tuple[SentSeries, int, float]]) -> Iterator[str]:
    return (f"/api/query: {series.metric} {time} {value} {format_tags(series.tags)}" for series, time, value in points)


async def _answer(port: int, metrics: Sequence[str]) -> Points:
    queries = [{"aggregator": "none", "metric": metric} for metric in metrics]
    request = {"start": BASE_S - 3600, "end": END_S - 1, "msResolution": True, "queries": queries}
    post = partial(_post, port, json.dumps(request))
    status: int | None = None
    answer: Any = None
    with trio.move_on_after(TIMEOUT_S):
        while True:
            status, answer = await trio.to_thread.run_sync(post, abandon_on_cancel=True)
            if status != STORE_UNAVAILABLE:
                break
            await trio.sleep(AGAIN_S)
    if status is None:
        raise UnexpectedAnswer(f"/api/query was not answered within {TIMEOUT_S:g} s")
    if status != 200:
        raise UnexpectedAnswer(f"/api/query was answered with {status}: {str(answer)[:300]}")
    found: Points = Counter()
    for one in answer:
        series = SentSeries(one["metric"], tuple(sorted(one["tags"].items())))
        found.update((series, time, float(value)) for time, value in one["dps"])
    return found


def _post(port: int, body: str) -> tuple[int, Any]:
    """Return status and answer. Raise UnexpectedAnswer."""
    connection = http.client.HTTPConnection(HOST, port, timeout=TIMEOUT_S)
    try:
        connection.request("POST", "/api/query?arrays", body)
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    except OSError as exc:
        raise UnexpectedAnswer(f"/api/query was not answered: {exc}") from exc
    finally:
        connection.close()
