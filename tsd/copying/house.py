"""All tables of a store into another: the names, then the rows, then the names that came meanwhile."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import trio

from tsd.copying.checkpoint import Checkpoint, Mark
from tsd.copying.names import copy_names
from tsd.copying.rows import Copied, Place, copy_table
from tsd.store import Page, Store

SAVE_S = 1.0  # between two notes of how far it is: each costs a sync of the target


class Pair(NamedTuple):
    """A table's name in the source, and in the target."""

    source: str
    target: str


class House(NamedTuple):
    """What is to be moved."""

    source: Store
    target: Store
    names: Pair  # the UID table
    rows: Pair  # the data table
    others: Sequence[Pair] = ()  # those that the source has not are passed over

    def places(self, pair: Pair) -> tuple[Place, Place]:
        """A table on both sides."""
        return Place(self.source, pair.source), Place(self.target, pair.target)


async def copy_house(house: House, note: Checkpoint, done: Callable[[str, int], None]) -> Copied:
    """Copy everything that the source has when this begins, the rows from where `note` says that an earlier run was
    first; `done` is told how many rows of which table more are. The target has its tables. Raises TsdError, and then
    another run goes on from there."""
    present = await house.source.tables()
    total = await copy_names(*house.places(house.names))
    for pair in [house.rows, *(other for other in house.others if other.source in present)]:
        total = total.plus(await _table(*house.places(pair), note, done))
    again = await copy_names(*house.places(house.names))  # the rows that were copied may carry new ones
    await house.target.sync()
    note.remove()
    return total.plus(again._replace(rows=0, cells=again.put))


async def _table(source: Place, target: Place, note: Checkpoint, done: Callable[[str, int], None]) -> Copied:
    """Copy a table from where an earlier run was, then what that run copied: it may have changed since."""
    total = Copied()
    saved_s = -math.inf

    async def on_page(copied: Copied, page: Page, *, noted: bool) -> None:
        nonlocal total, saved_s
        total = total.plus(copied)
        done(source.table, copied.rows)
        is_due = page.next_start is None or trio.current_time() - saved_s >= SAVE_S
        if noted and page.rows and is_due:
            await target.store.sync()
            note.save(source.table, Mark(page.rows[-1].key, page.next_start))
            saved_s = trio.current_time()

    start = await _start(target, note.mark(source.table))
    await copy_table(source, target, start, None, partial(on_page, noted=True))
    if start:
        await copy_table(source, target, b"", start, partial(on_page, noted=False))
    return total


async def _start(target: Place, mark: Mark | None) -> bytes:
    """Where to go on; the first row where the target is not what it was, or where all was copied."""
    if mark is None or mark.next_start is None or not await target.store.get(target.table, [mark.last]):
        return b""
    return mark.next_start
