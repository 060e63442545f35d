"""Pages of a sub query whose rows are added to their groups, one in a thread while the next is read.

They are kept as stored until all rows are added: if others do not fit, the points of all are needed instead.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from tsd.query.background import Background
from tsd.query.group_sums import VALUE_BYTES, GroupSums
from tsd.query.workers import SMALL_PAGE, WorkerPool
from tsd.tables.reading import NumberingPage, TablePage

ROW_BYTES = 300  # of a row that is kept as stored, besides its value


class SumsInThread(NamedTuple):
    """What aggregates the groups of a sub query, and what runs it."""

    sums: GroupSums
    background: Background
    held_bytes: int  # of pages that are kept until all rows are added


class SummedPages:
    """The pages so far of one sub query. One that does not fit ends this: `release` then."""

    def __init__(self, how: SumsInThread, workers: WorkerPool, count: Callable[[TablePage], None]) -> None:
        """`count` is called with each page that is added, also in a thread."""
        self.sums, self._background, self._most_held = how
        self._workers = workers
        self._count = count
        self._pages: list[NumberingPage] = []
        self._pages_size = 0  # bytes that they hold
        self._are_all = True  # whether all pages are kept

    @property
    def held(self) -> int:
        """Bytes of the groups' values and of the pages."""
        return self.sums.size * VALUE_BYTES + self._pages_size

    def may_add(self, page: NumberingPage) -> bool:
        """Return whether to add a page: not a small first one, as a range of few rows has."""
        return page.cells > SMALL_PAGE or bool(self._pages)

    def add(self, page: NumberingPage) -> bool:
        """Begin to add the rows of a page whose series are numbered, once all before are added. Return False if they
        are known not to fit."""
        self._pages.append(page)
        add = partial(self._add, page)
        if page.cells > SMALL_PAGE:
            self._background.begin(add)
        elif not self._workers.run_here(add):
            self._pages.pop()
            return False
        return True

    def _add(self, page: NumberingPage) -> bool:
        found = page.decode_tables()
        if found is None or not all(map(self.sums.add, found.hours)):
            return False
        self._pages_size += found.held + found.rows_read * ROW_BYTES
        self._count(found)
        return True

    async def are_added(self) -> bool:
        """Wait until all pages so far are added. Return False if they do not fit. Raise StoreError."""
        return await self._background.result()

    def drop_many(self) -> None:
        """Drop the pages if they hold too much: all rows have to be read again if others do not fit."""
        if self._pages_size > self._most_held:
            self._pages, self._pages_size, self._are_all = [], 0, False

    async def release(self) -> list[NumberingPage] | None:
        """Return all pages, to be decoded again; None if some were dropped. Raise StoreError."""
        await self._background.result()
        pages, self._pages = self._pages, []
        return pages if self._are_all else None

    async def finish(self, *, is_short: bool) -> bool:
        """Join what was added. Return False if it does not fit."""
        finish = self.sums.finish
        return self._workers.run_here(finish) if is_short else await self._workers.run(finish)
