"""Reads of a range of rows that go on after damaged blocks, for commands that check or rewrite a whole table."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TypeAlias

from tsd.errors import DamagedBlock
from tsd.store import Page
from tsd.store.cells import prefix_end

ReadPage: TypeAlias = Callable[[bytes, bytes | None], Awaitable[Page]]  # from a row to before another one
OnDamage: TypeAlias = Callable[[DamagedBlock], Awaitable[bool]]


async def readable_pages(
    read: ReadPage, start: bytes, stop: bytes | None, on_damage: OnDamage
) -> AsyncGenerator[Page, None]:
    """Yield the pages that `read` returns for the rows from `start` to before `stop`.

    At a damaged block, all rows before its prefix are read first. Then `on_damage` is called with the error. If it
    returns True, the block is gone, and its rows are read again. Otherwise the rest of the rows with its prefix is left
    out. Raise StoreError, and DamagedBlock for a block whose prefix is unknown.
    """
    at: bytes | None = start
    end = stop
    while at is not None and (stop is None or at < stop):
        try:
            page = await read(at, end)
        except DamagedBlock as exc:
            damage: DamagedBlock | None = exc
        else:
            damage = None
        if damage is None:
            if page.next_start is None and end != stop:
                page, end = page._replace(next_start=end), stop
            at = page.next_start
            yield page
        elif not damage.prefix:
            raise damage
        elif damage.prefix > at:
            end = damage.prefix
        else:
            end = stop
            if not await on_damage(damage):
                at = prefix_end(damage.prefix)
