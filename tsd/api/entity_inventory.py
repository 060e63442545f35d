"""The choice of entities by their newest values: by metrics, by age, and in the order of values."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from tsd.api.entity_answers import InventoryRequest, matching
from tsd.codec.points import Bool, Int64
from tsd.store.versions import VersionColumns, concatenate, first_rows, spans, take
from tsd.tables.entity_decode import numbers_of, series_of

MOST_KEPT = 2  # times as many entities as are wanted: then they are sorted, and the rest is dropped


def starts_of_rows(places: Sequence[tuple[bytes, bytes]]) -> Int64:
    """Return the index of the first place of each row.

    >>> starts_of_rows([(b"a", b"t:m"), (b"a", b"t:n"), (b"b", b"t:m")]).tolist()
    [0, 2]
    """
    rows = [row for row, _ in places]
    starts = [at for at, (one, other) in enumerate(pairwise(rows), 1) if one != other]
    return np.array([0, *starts] if rows else [], np.int64)


class Inventory:
    """The chosen entities of pages in the order of names. Each place has one version."""

    def __init__(self, wanted: InventoryRequest) -> None:
        self._wanted = wanted
        self._orders: list[tuple[int | float, bytes]] = []  # place of each entity in an order by values
        self.pages: list[VersionColumns] = []
        self.entities = 0
        self.next_name: bytes | None = None  # of the first entity beyond the limit, in the order of names

    @property
    def points(self) -> int:
        """Number of values."""
        return sum(len(page.places) for page in self.pages)

    def add(self, columns: VersionColumns) -> None:
        """Take the wanted entities of the next page. Long: call it in a thread."""
        chosen = self._matching(columns)
        if not chosen.places:
            return
        self.pages.append(chosen)
        before = self.entities
        self.entities += len(starts_of_rows(chosen.places))
        if self._wanted.metric is None:
            if self.entities > self._wanted.limit:
                self.pages[-1], self.next_name = first_rows(chosen, self._wanted.limit - before, None)
                self.entities = self._wanted.limit
        elif self.entities > MOST_KEPT * self._wanted.limit:
            self.sort()

    def _matching(self, columns: VersionColumns) -> VersionColumns:
        """Return the wanted entities of a page with their wanted series."""
        wanted = self._wanted
        if not columns.places or not (wanted.metrics or wanted.metric or wanted.oldest_ms is not None):
            return columns
        kept = matching(columns.places, wanted.metrics)
        starts = starts_of_rows(columns.places)
        if wanted.oldest_ms is not None:
            recent = kept & (columns.times_ms >= wanted.oldest_ms)
            kept = kept & ~_of_rows(recent, starts) if wanted.stale else recent
        if wanted.metric is not None:
            kept &= _of_rows(self._add_orders(columns, kept, wanted.metric), starts)
        return columns if kept.all() else take(columns, np.flatnonzero(kept))

    def _add_orders(self, columns: VersionColumns, kept: Bool, metric: bytes) -> Bool:
        """Note the order of each entity that has a value of the metric. Return which places have one."""
        names = {column for _, column in columns.places}
        ordered = {column for column in names if series_of(column).metric == metric}
        has = kept & np.array([column in ordered for _, column in columns.places], np.bool_)
        values = take(columns, np.flatnonzero(has))
        sign = -1 if self._wanted.is_descending else 1
        best: dict[bytes, int | float] = {}
        for (row, _), number in zip(values.places, numbers_of(values.ends, values.values), strict=True):
            best[row] = min(best.get(row, sign * number), sign * number)
        self._orders += [(order, row) for row, order in best.items()]
        return has

    def sort(self) -> None:
        """Keep the first entities in the order of values. Long: call it in a thread."""
        if not self._orders:
            return
        orders, whole = self._orders, concatenate(self.pages)
        first = sorted(range(len(orders)), key=orders.__getitem__)[: self._wanted.limit]
        starts = starts_of_rows(whole.places)
        counts = np.diff(np.append(starts, len(whole.places)))
        self.pages = [take(whole, spans(starts[first], counts[first]))]
        self._orders = [orders[at] for at in first]
        self.entities = len(first)


def _of_rows(found: Bool, starts: Int64) -> Bool:
    """Return for each place whether any place of its row is in `found`."""
    return np.repeat(np.logical_or.reduceat(found, starts), np.diff(np.append(starts, len(found))))
