"""Lines of rollups and histograms → cells, in OpenTSDB's tables (FORMATS.md §9).

`RollupChecker` and `HistogramChecker` check those in JSON bodies like OpenTSDB does (FORMATS.md §8 and §9).
"""

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import NamedTuple

from tsd.codec.opentsdb import histogram, rollup
from tsd.codec.opentsdb.histogram import (
    encode_histogram,
    histogram_summary,
    make_histogram,
    parse_bounds,
    read_payload,
)
from tsd.codec.opentsdb.rollup import Rollups, SummaryKind, rollup_summary
from tsd.codec.opentsdb.rowkey import BASE_BYTES
from tsd.codec.points import Bucket
from tsd.codec.putline import NameRules, Tags, illegal
from tsd.errors import BadLine
from tsd.store import Put
from tsd.tables.opentsdb.encode import row_key
from tsd.tables.writing import RollupKind, SeriesKey, Summary

CELL_BYTES = 500  # of memory, roughly
SLICE_CELLS = 2000  # per call of the store
_Place = tuple[str, bytes, bytes, int]  # table, row, aggregator or kind, offset


class SummaryRules(NamedTuple):
    """Rules for lines of rollups and histograms."""

    names: NameRules
    table: str  # the table of points and histograms
    rollups: Rollups | None = None  # None: off
    histogram_id: int | None = None  # of the simple histograms' codec; None: off


def parse_summary(line: bytes, rules: SummaryRules) -> rollup.SummaryCell:
    """Parse a line of a rollup or a histogram. Raise BadLine."""
    if line.partition(b" ")[0] == b"rollup":
        return rollup.read_rollup(line, rules.rollups, rules.names)
    return histogram.read_histogram(line, rules.histogram_id, rules.names, rules.table)


class SummaryCells:
    """The cells of one window. Of several cells for one interval the last one is kept, whatever its number format."""

    def __init__(self) -> None:
        self.lines = 0
        self.metrics: set[bytes] = set()
        self._puts: dict[_Place, Put] = {}

    def __len__(self) -> int:
        return len(self._puts)

    @property
    def size(self) -> int:
        """Bytes of memory, roughly."""
        return len(self._puts) * CELL_BYTES

    def add(self, summary: Summary, key: SeriesKey) -> None:
        """Add the cell of a line whose series has a key."""
        assert isinstance(summary, rollup.SummaryCell)
        row = row_key(key, summary.base.to_bytes(BASE_BYTES, "big"))
        number = int.from_bytes(summary.column[-2:], "big")
        place = summary.table, row, summary.column[:-2], number >> summary.flag_bits
        self._puts.pop(place, None)
        self._puts[place] = Put(row, summary.column, summary.value)
        self.lines += 1
        self.metrics.add(summary.metric)

    def slices(self) -> Iterator[tuple[str, list[Put]]]:
        """Yield the cells of each table, SLICE_CELLS at a time."""
        tables: dict[str, list[Put]] = {}
        for (table, *_), put in self._puts.items():
            tables.setdefault(table, []).append(put)
        for table, puts in tables.items():
            left = iter(puts)
            while part := list(islice(left, SLICE_CELLS)):
                yield table, part


class RollupChecker:
    """Checks rollups against the configuration."""

    def __init__(self, rollups: Rollups, rules: NameRules) -> None:
        self._rollups = rollups
        self._rules = rules

    @property
    def tag_key(self) -> str:
        """The tag that says how a group was aggregated."""
        return self._rollups.tag_key.decode("latin-1")

    def check(self, kind: RollupKind, metric: bytes, tags: Tags, time: int, number: bytes) -> None:
        """Raise BadLine unless a rollup can be stored."""
        try:
            rollup_summary(SummaryKind(*kind), metric, tags, time, number, self._rollups, self._rules)
        except BadLine as error:
            if str(error).startswith("No such rollup"):
                raise illegal("Unexpected exception") from error  # OpenTSDB's words over HTTP
            raise


class HistogramChecker:
    """Checks and encodes simple histograms."""

    def __init__(self, codec_id: int, rules: NameRules) -> None:
        self._codec_id = codec_id
        self._rules = rules

    @property
    def codec_id(self) -> int:
        """The id of the simple histograms' codec."""
        return self._codec_id

    def encode(self, buckets: Mapping[str, int], underflow: int, overflow: int) -> bytes:
        """Return the payload of a histogram, its buckets by `lower,upper`. Raise BadLine."""
        parsed = []
        for bounds, count in buckets.items():
            try:
                parsed.append(Bucket(*parse_bounds(bounds.encode("latin-1", "replace")), count))
            except BadLine as exc:
                raise illegal(f"Unable to parse bucket bounds: {bounds}") from exc
        return encode_histogram(make_histogram(parsed, underflow, overflow))

    def decode_text(self, codec_id: int, text: bytes) -> bytes:
        """Return the payload in base64. Raise BadLine."""
        return read_payload(codec_id, text, self._codec_id)

    def check(self, metric: bytes, tags: Tags, time: int, payload: bytes) -> None:
        """Raise BadLine unless a histogram can be stored."""
        histogram_summary(metric, tags, time, self._codec_id, payload, self._rules, "")
