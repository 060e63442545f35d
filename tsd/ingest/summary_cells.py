"""Cells of rollups and histograms that are accepted and not yet written: few beside points, so each is an object."""

from collections.abc import Iterator
from itertools import islice

from tsd.codec.rowkey import BASE_BYTES
from tsd.codec.summary import Summary
from tsd.ingest.series import KeyParts
from tsd.store import Put

CELL_BYTES = 500  # of memory, or so
SLICE_CELLS = 2000  # written in one go
_Place = tuple[str, bytes, bytes, int]  # table, row, aggregator or kind, offset


class SummaryCells:
    """Of one window. Of several for one interval the last counts, whatever its number's form."""

    def __init__(self) -> None:
        self.lines = 0
        self.metrics: set[bytes] = set()
        self._puts: dict[_Place, Put] = {}

    def __len__(self) -> int:
        return len(self._puts)

    @property
    def size(self) -> int:
        """Bytes held."""
        return len(self._puts) * CELL_BYTES

    def add(self, summary: Summary, parts: KeyParts) -> None:
        """Enter the cell of a line whose series has its UIDs."""
        row = parts.before + summary.base.to_bytes(BASE_BYTES, "big") + parts.after
        put = Put(row, summary.column, summary.value)
        number = int.from_bytes(summary.column[-2:], "big")
        place = summary.table, row, summary.column[:-2], number >> summary.flag_bits
        self._puts.pop(place, None)
        self._puts[place] = put
        self.lines += 1
        self.metrics.add(summary.metric)

    def slices(self) -> Iterator[tuple[str, list[Put]]]:
        """The cells of each table, some at a time."""
        tables: dict[str, list[Put]] = {}
        for (table, *_), put in self._puts.items():
            tables.setdefault(table, []).append(put)
        for table, puts in tables.items():
            left = iter(puts)
            while part := list(islice(left, SLICE_CELLS)):
                yield table, part
