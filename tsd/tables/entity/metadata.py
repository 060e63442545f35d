"""Lines of metadata in windows: they are written with the rollups and histograms of the layout, if it has any."""

from collections.abc import Iterator
from itertools import islice

from tsd.codec.entity.records import metadata_column, metadata_time, metadata_value
from tsd.codec.metaline import STAMP, MetaLine, parse_meta
from tsd.codec.putline import illegal, no_summaries
from tsd.errors import BadLine
from tsd.store import VersionedCells
from tsd.store.versions import VersionPut
from tsd.tables.entities import METADATA_METRIC
from tsd.tables.entity.newest import CheckName, any_name
from tsd.tables.entity.tables import ENTITIES
from tsd.tables.writing import SeriesKey, Summary, SummaryBatch, SummaryWriter

VALUE_BYTES = 500  # of memory for one value, without its text
SLICE_VALUES = 1000  # per call of the store


class MetadataBatch(SummaryBatch):
    """Metadata of one window, and a batch of the layout. Of several values of one key the last one counts."""

    def __init__(self, inner: SummaryBatch | None) -> None:
        self.inner = inner
        self._lines = 0
        self._size = 0
        self._puts: dict[tuple[bytes, bytes], VersionPut] = {}

    @property
    def lines(self) -> int:
        """See SummaryBatch."""
        return self._lines + (self.inner.lines if self.inner else 0)

    @property
    def metrics(self) -> set[bytes]:
        """See SummaryBatch: `METADATA_METRIC` stands for metadata."""
        own = {METADATA_METRIC} if self._puts else set[bytes]()
        return own | self.inner.metrics if self.inner else own

    @property
    def size(self) -> int:
        """See SummaryBatch."""
        return self._size + (self.inner.size if self.inner else 0)

    def add(self, summary: Summary, key: SeriesKey) -> None:
        """See SummaryBatch."""
        if not isinstance(summary, MetaLine):
            assert self.inner is not None
            self.inner.add(summary, key)
            return
        self._lines += 1
        time_ms = metadata_time(summary.time_ms)
        for name, text in summary.values:
            put = VersionPut(summary.entity, metadata_column(name), metadata_value(text), time_ms)
            place = put.row, put.column
            replaced = self._puts.pop(place, None)
            self._size += len(put.value) + (-len(replaced.value) if replaced else VALUE_BYTES)
            self._puts[place] = put

    def slices(self) -> Iterator[list[VersionPut]]:
        """Yield the cells of metadata, some at a time."""
        left = iter(self._puts.values())
        while part := list(islice(left, SLICE_VALUES)):
            yield part


class MetadataWriter(SummaryWriter):
    """Writes lines of metadata, and passes rollups and histograms to the layout."""

    def __init__(
        self, inner: SummaryWriter | None, cells: VersionedCells, check_name: CheckName = any_name, extra: bytes = b""
    ) -> None:
        """Without `inner`, lines other than metadata are refused. `check_name` raises BadLine for an entity's name.
        `extra`: see NameRules."""
        self._extra = extra
        self._check_name = check_name
        self._inner = inner
        self._cells = cells

    def parse(self, line: bytes) -> Summary:
        """See SummaryWriter."""
        if line.startswith(STAMP):
            try:
                checked = _checked(parse_meta(line, self._extra))
                self._check_name(checked.entity)
                return checked
            except BadLine as error:
                raise illegal(str(error)) from None
        if self._inner is None:
            raise no_summaries(line)
        return self._inner.parse(line)

    def new_batch(self) -> MetadataBatch:
        """See SummaryWriter."""
        return MetadataBatch(self._inner.new_batch() if self._inner else None)

    async def write(self, batch: SummaryBatch) -> None:
        """See SummaryWriter."""
        assert isinstance(batch, MetadataBatch)
        if self._inner is not None and batch.inner is not None and batch.inner.lines:
            await self._inner.write(batch.inner)
        for part in batch.slices():
            await self._cells.put(ENTITIES.name, part)


def _checked(line: MetaLine) -> MetaLine:
    """Return a line whose keys and values can be stored. Raise BadLine."""
    for key, text in line.values:
        metadata_column(key)
        metadata_value(text)
    return line
