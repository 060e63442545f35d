"""Collects the points of a query's series that are texts, for layouts that store texts."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tsd.codec.points import Int64
from tsd.query.collect import decode_page
from tsd.query.limits import QueryBudget, check_fetched
from tsd.tables.reading import EncodedPage, SeriesSet, TextPage

TEXT_BYTES = 150  # of a text in memory, besides its letters


class SeriesTexts(NamedTuple):
    """The texts of a series, in order of time."""

    tags: Mapping[str, str]
    times: Int64  # ms
    texts: Sequence[str]


class TextCollector:
    """Collects texts. Pages arrive in order: rows of one series in order of time."""

    def __init__(self, series: SeriesSet, budget: QueryBudget) -> None:
        self._series = series
        self._budget = budget
        self._found: dict[int, dict[int, str]] = {}
        self._size = self._points = 0
        self.warnings: list[str] = []

    async def take(self, page: EncodedPage[TextPage]) -> None:
        """Process the next page. Raise BadQuery where a limit is exceeded, StoreError."""
        await decode_page(page, self._series, self._budget, self._add)
        check_fetched(self._budget.bounds, size=self._size, points=self._points)
        self._budget.set_memory(self._size + self._points * TEXT_BYTES)

    def _add(self, page: TextPage) -> None:
        for series, time_ms, text in page.texts:
            self._found.setdefault(series, {})[time_ms] = text
        self._size += page.size
        self._points += len(page.texts)
        self.warnings += page.warnings

    def series(self) -> Iterator[tuple[int, Int64, list[str]]]:
        """Yield the number, the times and the texts of each series."""
        for number, texts in sorted(self._found.items()):
            times = sorted(texts)
            yield number, np.array(times, np.int64), [texts[time_ms] for time_ms in times]
