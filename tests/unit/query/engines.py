"""A query engine over a memory store with points, written as the daemon writes them."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from tests import layouts
from tests.layouts.readable import TABLES, ReadableReader, ReadableSeries, ReadableWriter
from tests.selections import CountingReader
from tsd.codec.metadata import Annotation
from tsd.codec.opentsdb.annotation import annotation_qualifier, annotation_row, encode_annotation
from tsd.codec.opentsdb.cell import COLUMN, FAMILY
from tsd.codec.opentsdb.rowkey import KeyLayout
from tsd.codec.opentsdb.uid import ID_FAMILY, NAME_FAMILY
from tsd.codec.points import NO_COLUMNS, Columns, Int32, series_ends, sort_columns
from tsd.codec.putline import NameRules
from tsd.errors import BadQuery
from tsd.ingest.intake import absorb_whole
from tsd.ingest.open_window import OpenWindow
from tsd.ingest.series import SeriesTable
from tsd.query.engine import EngineSettings, QueryEngine
from tsd.query.model import Query
from tsd.query.parse.uri import read_uri
from tsd.query.plan import output_range
from tsd.query.registry import RunningQuery
from tsd.query.result import Answer, Group
from tsd.store import Family, Put, Store, Table
from tsd.store.memory import MemoryStore
from tsd.tables.open_points import ChooseSeries, MayPass, OpenPoints
from tsd.tables.opentsdb.encode import encode_of
from tsd.tables.opentsdb.reader import OpenTsdbReader, ReadRules, ReadTable
from tsd.tables.opentsdb.resolver import AutoCreate, UidResolver
from tsd.tables.opentsdb.series_index import SeriesIndex
from tsd.tables.opentsdb.series_recorder import IndexWriter
from tsd.tables.opentsdb.uids import Uids
from tsd.tables.quirks import quirks_for
from tsd.tables.reading import PointReader, ScanRange
from tsd.tables.writing import KnownSeries, SeriesKeys, SeriesResolver

NOW_MS = 1_700_000_000_000
START_S = 1_356_998_400
DATA, UID, INDEX = "tsdb", "tsdb-uid", "tsdb-series"
FEW = [
    f"sys.cpu {START_S + at * 10} {host * 100 + at} host=web{host:02d} dc={'lga' if host % 2 else 'sjc'}"
    for host in range(20)
    for at in range(5)
]
RULES = ReadRules()


class NoOpenPoints:
    """A source that has no open points."""

    async def open_points(
        self,
        metric: bytes,
        choose: ChooseSeries | None = None,
        span: ScanRange | None = None,
        may_pass: MayPass | None = None,
    ) -> OpenPoints:
        """See OpenPointSource."""
        return OpenPoints.of(NO_COLUMNS, SeriesKeys.of(()))

    async def wait_for_keys(self, metric: bytes, may_pass: MayPass | None = None) -> bool:
        """See OpenPointSource."""
        return False

    def known_series(self, metric: bytes) -> KnownSeries | None:
        """See OpenPointSource."""
        return None

    def points_now(
        self,
        metric: bytes,
        span: ScanRange,
        known: KnownSeries | None,
        numbers: Int32 | None,
    ) -> Columns:
        """See OpenPointSource."""
        return NO_COLUMNS

    async def points_soon(self, metric: bytes, span: ScanRange, known: KnownSeries, numbers: Int32) -> Columns:
        """See OpenPointSource."""
        return NO_COLUMNS

    async def flush(self, *, patient: bool = True) -> bool:
        """See OpenPointSource."""
        return True


class QueryEnvironment:
    """Tables in memory and an engine over them."""

    def __init__(
        self,
        *,
        layout: KeyLayout,
        settings: EngineSettings | None = None,
        indexed: bool = False,
        rules: ReadRules = RULES,
        store: Store | None = None,
    ) -> None:
        self.rules = rules
        self.layout = layout
        self.store: Store = store or MemoryStore(lambda: NOW_MS)
        self.uids = Uids(self.store, UID, layout.widths)
        self.index = SeriesIndex(self.store, INDEX, layout)
        self.readable = ReadableSeries(self.store) if layouts.is_readable() else None
        self.flushed: list[bytes] = []
        self.now_ms = NOW_MS + 10_000
        self.engine = self.new_engine(settings or EngineSettings(), self.index if indexed else None)

    def new_engine(self, settings: EngineSettings, index: SeriesIndex | None = None) -> QueryEngine:
        """Return another engine over the same tables."""
        reader: PointReader = OpenTsdbReader(
            ReadTable(self.store, DATA, self.layout, self.rules), self.uids, index=index
        )
        if self.readable is not None:
            reader = ReadableReader(self.store, self.readable)
        return QueryEngine(reader, settings=settings, flush=self._flush, now_ms=lambda: self.now_ms)

    def repeating_engine(self) -> QueryEngine:
        """Return an engine that answers repeated queries of few series of OpenTSDB's tables with one read. `repeating`
        is its reader."""
        stored = OpenTsdbReader(ReadTable(self.store, DATA, self.layout, self.rules), self.uids, index=self.index)
        self.repeating = CountingReader(stored)
        settings, clock = EngineSettings(), lambda: self.now_ms
        return QueryEngine(
            self.repeating, settings=settings, flush=self._flush, now_ms=clock, open_points=NoOpenPoints()
        )

    @classmethod
    async def build(
        cls,
        lines: Sequence[str],
        *,
        layout: KeyLayout | None = None,
        settings: EngineSettings | None = None,
        indexed: bool = False,
        rules: ReadRules = RULES,
        store: Store | None = None,
    ) -> "QueryEnvironment":
        """Return an environment with these points, in memory or in another store; `indexed`: the engine uses the series
        index."""
        env = cls(layout=layout or KeyLayout(), settings=settings, indexed=indexed, rules=rules, store=store)
        families = [Family(ID_FAMILY), Family(NAME_FAMILY)]
        await env.store.create_tables(
            [*TABLES, Table(DATA, (Family(FAMILY),)), Table(INDEX, (Family(FAMILY),)), Table(UID, tuple(families))]
        )
        await env.put(lines)
        await env.index.rebuild(DATA)
        return env

    async def put(self, lines: Sequence[str]) -> None:
        """Store points as one batch."""
        rules = NameRules(b"", 8)
        open_window = OpenWindow(SeriesTable(), rules)
        creates = AutoCreate(metrics=True, tagks=True, tagvs=True)
        names: SeriesResolver = self.readable or UidResolver(self.uids, self.layout, creates)
        absorbed = await absorb_whole(open_window, names, "".join(f"put {line}\n" for line in lines).encode())
        assert not absorbed.rejects, absorbed.rejects
        if self.readable is not None:
            await ReadableWriter(self.store).write(open_window.take(), open_window.table)
            return
        columns = sort_columns(open_window.take(), join=True)
        await IndexWriter(self.index, self.layout.salt_width).record(
            columns.series[series_ends(columns)], open_window.table
        )
        await self.store.put(DATA, encode_of(columns, open_window.table, join=True))

    async def annotate(self, note: Annotation) -> None:
        """Store an annotation."""
        key = annotation_row(self.layout, note.start_time, bytes.fromhex(note.tsuid))
        column = COLUMN + annotation_qualifier(note.start_time)
        await self.store.put(DATA, [Put(key, column, encode_annotation(note))])

    async def _flush(self, metric: bytes) -> bool:
        self.flushed.append(metric)
        return True

    async def run(self, *m: str, running: RunningQuery | None = None, **options: Any) -> Answer:
        """Return the answer to a URI's `m`, over two hours."""
        return await self.engine.run(make_query(*m, **options), running=running)

    async def groups(self, *m: str, **options: Any) -> list[Group]:
        """Return the groups of the first sub query."""
        return (await self.run(*m, **options)).subs[0].groups


def make_query(*m: str, **options: Any) -> Query:
    """Return a query of two hours from START_S, unless `options` say otherwise."""
    quirks = quirks_for(bool(options.pop("corrected", False)))
    read = read_uri({"start": [str(START_S)], "end": [str(START_S + 7199)], "m": list(m)}, NOW_MS, quirks=quirks)
    return replace(read, **options)


async def least_memory(new_engine: Callable[[EngineSettings], QueryEngine], query: Query) -> int:
    """Return the smallest memory limit in bytes, to 5 %, with which a query is answered. Assert that every smaller
    limit that was tried refuses it, and that the query releases its memory."""
    refused, enough = 0, 1 << 22
    while enough - refused > enough // 20:
        limit = (refused + enough) // 2
        engine = new_engine(EngineSettings(memory_bytes=limit))
        try:
            await engine.run(query)
        except BadQuery as error:
            if error.status != 413 or "tsd.query.memory_limit" not in str(error):
                raise
            refused = limit
        else:
            enough = limit
        assert engine.memory.held == 0
    return enough


def values(group: Group, query: Query | None = None) -> dict[int, int | float]:
    """Return a group's points by seconds after START_S; with a query, those that it shows."""
    times, floats = group.points.times.tolist(), group.points.floats.tolist()
    numbers = [d if f else b for d, b, f in zip(
        group.points.bits.view("float64").tolist(), group.points.bits.tolist(), floats, strict=True
    )]  # fmt: skip
    shown = output_range(query.start_ms, query.end_ms, None) if query else None
    return {
        time // 1000 - START_S: number
        for time, number in zip(times, numbers, strict=True)
        if not shown or time in shown
    }


def comparable(answer: Answer) -> list[object]:
    """Return an answer without timings and without the count of rows read, which depends on the server."""
    subs: list[object] = []
    for sub in answer.subs:
        counts = {
            name: count for name, count in sub.stats.items() if not name.endswith("Time") and name != "rowsPreFilter"
        }
        groups = [(dict(g.tags), g.aggregate_tags, values(g), g.annotations) for g in sub.groups]
        subs.append((groups, counts, sub.warnings, sub.duplicates))
    return subs
