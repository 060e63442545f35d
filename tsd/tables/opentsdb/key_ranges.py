"""Ranges of OpenTSDB's row keys: a metric with its salt, and of these an hour."""

from collections.abc import Collection, Sequence
from typing import Final

from tsd.codec.names import Kind
from tsd.codec.opentsdb.rowkey import KeyLayout
from tsd.errors import NoSuchName
from tsd.tables.key_ranges import RangeName
from tsd.tables.opentsdb.uids import Uids

OTHER_BYTES: Final = 8  # of the prefix in a table whose keys do not start with a metric


class OpentsdbKeyRanges:
    """Ranges of a layout's tables."""

    def __init__(self, layout: KeyLayout, uids: Uids, rows: Collection[str], series: Collection[str]) -> None:
        """`rows` are tables with OpenTSDB's rows of points, `series` those whose row keys start with a metric."""
        self._layout = layout
        self._ends = layout.metric_end, layout.pairs_start
        self._uids = uids
        self._rows = frozenset(rows)
        self._series = frozenset(series)

    def split(self, table: str, key: bytes) -> Sequence[bytes]:
        """See KeyRanges."""
        if table in self._rows:
            metric_end, pairs_start = self._ends
            return key[:metric_end], key[:pairs_start]
        return (key[: self._layout.widths.metric if table in self._series else OTHER_BYTES],)

    async def names(self, places: Sequence[tuple[str, bytes]]) -> list[RangeName]:
        """See KeyRanges."""
        metrics = {metric for place in places if (metric := self._metric(*place))}
        found = await self._uids.names(Kind.METRIC, metrics)
        names: list[RangeName] = []
        for table, prefix in places:
            name: dict[str, str | int] = {}
            metric = self._metric(table, prefix)
            known = found.get(metric) if metric else None
            if known is not None and not isinstance(known, NoSuchName):
                name["metric"] = known.decode("latin-1")
            if table in self._rows and prefix:
                name |= self._place(prefix)
            names.append(name)
        return names

    def _metric(self, table: str, prefix: bytes) -> bytes:
        """Return the metric's UID in a prefix, empty if it has none."""
        start = self._layout.salt_width if table in self._rows else 0
        uid = prefix[start : start + self._layout.widths.metric]
        has_metric = table in self._rows or table in self._series
        return uid if has_metric and len(uid) == self._layout.widths.metric else b""

    def _place(self, prefix: bytes) -> dict[str, str | int]:
        """Return salt and base time in a prefix of a row of points."""
        layout = self._layout
        place: dict[str, str | int] = {}
        if layout.salt_width:
            place["salt"] = int.from_bytes(prefix[: layout.salt_width], "big")
        if len(prefix) == layout.pairs_start:
            place["time"] = int.from_bytes(prefix[layout.metric_end :], "big")
        return place
