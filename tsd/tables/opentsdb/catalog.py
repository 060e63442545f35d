"""Names and series of OpenTSDB's tables: implements the protocols of `tsd.tables.catalog`."""

from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing

from tsd.codec.names import Kind, Widths, parse_uid
from tsd.codec.opentsdb.rowkey import split_pairs, split_tsuid
from tsd.codec.opentsdb.uid import id_column
from tsd.codec.text import encode_name, show_signed
from tsd.errors import BadLine, NoSuchName, TsdError
from tsd.store import Store
from tsd.store.cells import prefix_end
from tsd.tables.catalog import LastPoints, NameTaken, SeriesName, SeriesSelector, Stat
from tsd.tables.opentsdb.last_points import LastPointReader
from tsd.tables.opentsdb.lookup import ResolvedSelector, SeriesFinder, resolve
from tsd.tables.opentsdb.uid_table import rename
from tsd.tables.opentsdb.uids import Uids
from tsd.tables.writing import Admission

FIRST, LAST = b"!", b"~"  # OpenTSDB suggests names in this range if no prefix is given
FIRST_NAME = b"\1"  # the row of the counters of UIDs is before it
MOST_NAMES = 1 << 30
PAGE_ROWS = 1000


class SelectedTsuids:
    """The TSUIDs that a selector matches."""

    def __init__(self, finder: SeriesFinder, points: LastPointReader, selector: ResolvedSelector) -> None:
        self._finder = finder
        self._points = points
        self._selector = selector

    async def pages(self, limit: int | None = None) -> AsyncGenerator[list[bytes], None]:
        """Yield pages of at most `limit` matching TSUIDs, in ascending order. Raise StoreError."""
        await self._points.complete()  # series whose points are in memory only are listed from the same cache
        async with aclosing(self._finder.select(self._selector, limit)) as pages:
            async for page in pages:
                yield [metric + pairs for metric, pairs in page]

    def exact(self) -> bytes | None:
        """Return the TSUID with exactly these tags; None unless each tag has one name and one value."""
        return self._selector.exact()


class OpentsdbCatalog:
    """The series of OpenTSDB's tables."""

    def __init__(
        self, store: Store, uid_table: str, uids: Uids, widths: Widths, finder: SeriesFinder, points: LastPointReader
    ) -> None:
        self._store = store
        self._uid_table = uid_table
        self._uids = uids
        self._widths = widths
        self._finder = finder
        self._points = points

    @property
    def warnings(self) -> int:
        """How many warnings `last_points` gave since the start."""
        return self._points.warnings

    async def suggest(self, kind: Kind, prefix: str, limit: int) -> list[str]:
        """Return the first names of a kind that begin with `prefix`, in order of their bytes. Raise StoreError."""
        try:
            text = encode_name(prefix)
        except BadLine:
            return []  # no stored name has such a character
        return await self._names_between(kind, text or FIRST, prefix_end(text) if text else LAST, limit)

    async def metrics(self) -> list[str]:
        """Return all metrics in order of their bytes, also those beyond the suggested range. Raise StoreError."""
        return await self._names_between(Kind.METRIC, FIRST_NAME, None, MOST_NAMES)

    async def _names_between(self, kind: Kind, start: bytes, stop: bytes | None, limit: int) -> list[str]:
        """Return the first names of a kind from `start` to before `stop` (None: without end)."""
        at: bytes | None = start
        names: list[str] = []
        columns = [id_column(kind)]
        while at is not None and len(names) < limit:
            count = min(limit - len(names), PAGE_ROWS)
            page = await self._store.page(self._uid_table, at, stop, limit=count, columns=columns)
            names += [row.key.decode("latin-1") for row in page.rows]
            at = page.next_start
        return names

    async def select(self, selector: SeriesSelector) -> SelectedTsuids:
        """Return the series that a selector matches. Raise NoSuchName, StoreError."""
        return SelectedTsuids(self._finder, self._points, await resolve(self._uids, selector))

    async def describe(self, series: Sequence[bytes]) -> list[SeriesName]:
        """Return the names of series, in the given order. Series with a nameless UID are omitted. Raise StoreError."""
        width = self._widths.metric
        split = [split_pairs(self._widths, one[width:]) for one in series]
        metrics = await self._names(Kind.METRIC, {one[:width] for one in series})
        tagks = await self._names(Kind.TAGK, {tagk for pairs in split for tagk, _ in pairs})
        tagvs = await self._names(Kind.TAGV, {tagv for pairs in split for _, tagv in pairs})
        found = []
        for one, pairs in zip(series, split, strict=True):
            try:
                tags = {tagks[tagk]: tagvs[tagv] for tagk, tagv in pairs}
                found.append(SeriesName(one, metrics[one[:width]], tags))
            except KeyError:
                continue
        return found

    async def _names(self, kind: Kind, uids: Iterable[bytes]) -> dict[bytes, str]:
        names = await self._uids.names(kind, uids)
        return {uid: name.decode("latin-1") for uid, name in names.items() if isinstance(name, bytes)}

    async def metrics_of(self, series: Iterable[bytes]) -> set[bytes]:
        """Return the names of the series' metrics; metrics without a name are omitted. Raise StoreError."""
        names = await self._uids.names(Kind.METRIC, {one[: self._widths.metric] for one in series})
        return {name for name in names.values() if isinstance(name, bytes)}

    async def last_points(self, series: Sequence[bytes], back_h: int | None) -> LastPoints:
        """Return the newest point of each series, at most `back_h` hours before the current hour (None: the configured
        range). Raise StoreError."""
        width = self._widths.metric
        split = [(one[:width], one[width:]) for one in series]
        points = await self._points.of(split, back_h)
        return LastPoints(points, self._points.unreadable(split, points, back_h))

    def parse_series(self, text: str) -> bytes:
        """Return the TSUID in hex. Raise BadLine."""
        tsuid = parse_uid(text)
        split_tsuid(self._widths, tsuid)
        return tsuid


class UidNames:
    """The names of a UID table."""

    def __init__(self, store: Store, table: str, uids: Uids, widths: Widths) -> None:
        self._store = store
        self._table = table
        self._uids = uids
        self._widths = widths

    def width(self, kind: Kind) -> int:
        """Return the bytes of a UID of a kind."""
        return self._widths.of(kind)

    async def find(self, kind: Kind, names: Iterable[bytes]) -> Mapping[bytes, bytes | TsdError]:
        """Return the UID of each name, or NoSuchName. Raise StoreError."""
        return await self._uids.find(kind, names)

    async def find_or_assign(
        self, kind: Kind, names: Iterable[bytes], admission: Admission
    ) -> Mapping[bytes, bytes | TsdError]:
        """See Names."""
        return await self._uids.find_or_assign(kind, names, admission)

    async def rename(self, kind: Kind, old: bytes, new: bytes) -> None:
        """Give the UID of `old` the name `new`. Raise NoSuchName, NameTaken in OpenTSDB's words, StoreError, and
        TsdError if another process changes the same names."""
        rows = await self._store.get(self._table, [old, new], columns=[id_column(kind)])
        if old not in rows:
            raise NoSuchName(f"No such name for '{kind.value}': '{old.decode('latin-1')}'")
        uid = rows[old][0].value
        if new in rows and rows[new][0].value != uid:
            names = f'"{old.decode("latin-1")}", "{new.decode("latin-1")}"'
            raise NameTaken(
                f"When trying rename({names}) on UniqueId({self._table}, {kind.value}, {len(uid)}): "
                f"new name already assigned ID={show_signed(rows[new][0].value)}"
            )
        await rename(self._store, self._table, kind, old, new)


def uid_stats(uids: Uids) -> list[Stat]:
    """Return the statistics of a UID table and its caches, as OpenTSDB names them."""
    found = []
    for kind, counts in uids.statistics().items():
        tag = f"kind={kind.value}"
        found += [
            Stat("uid.cache-hit", counts.hits, tag),
            Stat("uid.cache-miss", counts.misses, tag),
            Stat("uid.cache-size", counts.cached, tag),
            Stat("uid.random-collisions", counts.collisions, tag),
            Stat("uid.rejected-assignments", counts.refused, tag),
            Stat("uid.ids-used", counts.used, tag),
            Stat("uid.ids-available", counts.available, tag),
        ]
    return found
