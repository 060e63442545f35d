"""An engine over a store in memory that holds some put lines, as the daemon writes them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tsd.codec.annotation import Annotation, annotation_qualifier, annotation_row, encode_annotation
from tsd.codec.cell import COLUMN, FAMILY
from tsd.codec.columns import series_ends, sort_columns
from tsd.codec.putline import NameRules
from tsd.codec.rowkey import Layout
from tsd.codec.uid import ID_FAMILY, NAME_FAMILY
from tsd.ingest.cells import encode
from tsd.ingest.indexing import Indexer
from tsd.ingest.intake import absorb_whole
from tsd.ingest.names import Creates, SeriesNames
from tsd.ingest.rows import OpenRows
from tsd.ingest.series import SeriesTable
from tsd.query.answers import Answer, Group
from tsd.query.engine import Engine, Settings
from tsd.query.model import Query
from tsd.query.ranges import output_range
from tsd.query.running import Running
from tsd.query.uri import read_uri
from tsd.series_index import SeriesIndex
from tsd.store import Family, Put, Table
from tsd.store.memory import MemoryStore
from tsd.uids import Uids

NOW_MS = 1_700_000_000_000
START_S = 1_356_998_400
DATA, UID, INDEX = "tsdb", "tsdb-uid", "tsdb-series"
FEW = [
    f"sys.cpu {START_S + at * 10} {host * 100 + at} host=web{host:02d} dc={'lga' if host % 2 else 'sjc'}"
    for host in range(20)
    for at in range(5)
]


class House:
    """Tables, and an engine that reads them."""

    def __init__(self, *, layout: Layout, settings: Settings | None = None, indexed: bool = False) -> None:
        self.layout = layout
        self.store = MemoryStore(lambda: NOW_MS)
        self.uids = Uids(self.store, UID, layout.widths)
        self.index = SeriesIndex(self.store, INDEX, layout)
        self.flushed: list[bytes] = []
        self.now_ms = NOW_MS + 10_000
        self.engine = self.new_engine(settings or Settings(), self.index if indexed else None)

    def new_engine(self, settings: Settings, index: SeriesIndex | None = None) -> Engine:
        """Another one on the same tables."""
        return Engine(
            self.store,
            DATA,
            self.uids,
            self.layout,
            index=index,
            settings=settings,
            flush=self._flush,
            now_ms=lambda: self.now_ms,
        )

    @classmethod
    async def build(
        cls,
        lines: Sequence[str],
        *,
        layout: Layout | None = None,
        settings: Settings | None = None,
        indexed: bool = False,
    ) -> "House":
        """A house with these points in it; `indexed`: the engine has the index of their series."""
        house = cls(layout=layout or Layout(), settings=settings, indexed=indexed)
        families = [Family(ID_FAMILY), Family(NAME_FAMILY)]
        await house.store.create_tables(
            [Table(DATA, (Family(FAMILY),)), Table(INDEX, (Family(FAMILY),)), Table(UID, tuple(families))]
        )
        await house.put(lines)
        await house.index.rebuild(DATA)
        return house

    async def put(self, lines: Sequence[str]) -> None:
        """Store some points as one window."""
        rules = NameRules(b"", 8)
        rows = OpenRows(SeriesTable(), rules)
        names = SeriesNames(self.uids, self.layout, rules, Creates(metrics=True, tagks=True, tagvs=True))
        absorbed = await absorb_whole(rows, names, "".join(f"put {line}\n" for line in lines).encode())
        assert not absorbed.rejects, absorbed.rejects
        columns = sort_columns(rows.take(), join=True)
        await Indexer(self.index, self.layout.salt_width).note(columns.series[series_ends(columns)], rows.table)
        await self.store.put(DATA, encode(columns, rows.table, True))

    async def annotate(self, note: Annotation) -> None:
        """Store a note."""
        key = annotation_row(self.layout, note.start_time, bytes.fromhex(note.tsuid))
        column = COLUMN + annotation_qualifier(note.start_time)
        await self.store.put(DATA, [Put(key, column, encode_annotation(note))])

    async def _flush(self, metric: bytes) -> None:
        self.flushed.append(metric)

    async def run(self, *m: str, running: Running | None = None, **options: Any) -> Answer:
        """The answer to a URI's `m`, over two hours."""
        return await self.engine.run(asked(*m, **options), running=running)

    async def groups(self, *m: str, **options: Any) -> list[Group]:
        """The groups of the first sub query."""
        return (await self.run(*m, **options)).subs[0].groups


def asked(*m: str, **options: Any) -> Query:
    """A query from START_S, for the points of two hours unless `options` say otherwise."""
    corrected = bool(options.get("corrected"))
    read = read_uri({"start": [str(START_S)], "end": [str(START_S + 7199)], "m": list(m)}, NOW_MS, corrected=corrected)
    return replace(read, **options)


def values(group: Group, query: Query | None = None) -> dict[int, int | float]:
    """A group's points by seconds after START_S; with a query those that it shows."""
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


def told(answer: Answer) -> list[object]:
    """All of an answer but what it took: times, and rows that a server may or may not have left out already."""
    subs: list[object] = []
    for sub in answer.subs:
        counts = {
            name: count for name, count in sub.stats.items() if not name.endswith("Time") and name != "rowsPreFilter"
        }
        groups = [(dict(g.tags), g.aggregate_tags, values(g), g.annotations) for g in sub.groups]
        subs.append((groups, counts, sub.warnings, sub.duplicates))
    return subs
