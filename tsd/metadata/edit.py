"""One cell read, changed and written back, while others may do the same."""

from collections.abc import Callable

from tsd.errors import StoreBusy
from tsd.store import Cell, Store

TRIES = 10


async def edit(
    store: Store, table: str, row: bytes, column: bytes, change: Callable[[bytes | None], bytes | None]
) -> bytes | None:
    """What the cell holds once `change` was applied to what it held (None: it was absent); durable on return.

    `change` gives None where there is nothing to write, and is called again where somebody was faster. Raises
    StoreError.
    """
    for _ in range(TRIES):
        cell = await read(store, table, row, column)
        before = cell.value if cell else None
        after = change(before)
        if after is None or after == before:
            return before
        if await store.check_and_put(table, row, column, after, expected=before):
            await store.sync()
            return after
    raise StoreBusy(f"row {row.hex()} of {table}: {column.decode('latin-1')} is changed by others all the time")


async def read(store: Store, table: str, row: bytes, column: bytes) -> Cell | None:
    """One cell. Raises StoreError."""
    rows = await store.get(table, [row], columns=[column])
    return rows[row][0] if row in rows else None
