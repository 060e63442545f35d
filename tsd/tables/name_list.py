"""Lists of names in an index that keeps them as row keys: a letter for the kind, then the name."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from itertools import islice
from typing import NamedTuple, TypeVar

from tsd.codec.names import Kind
from tsd.store import Row, Store, scan
from tsd.store.cells import prefix_end

LETTERS = {Kind.METRIC: b"m", Kind.TAGK: b"k", Kind.TAGV: b"v"}
PAGE_ROWS = 1000
T = TypeVar("T")


class NameList(NamedTuple):
    """Names in a table. Calls raise StoreError."""

    store: Store
    table: str
    charset: str

    def row(self, kind: Kind, name: str) -> bytes:
        """Return the row key of a name."""
        return LETTERS[kind] + name.encode(self.charset, "replace")

    async def has(self, kind: Kind, name: str) -> bool:
        """Return whether a name is listed."""
        return bool(await self.store.get(self.table, [self.row(kind, name)]))

    async def each(self, kind: Kind, prefix: str, limit: int) -> AsyncGenerator[str, None]:
        """Yield listed names with a prefix in order of their bytes, read some at a time, at most `limit`."""
        count = 0
        async with aclosing(self.rows(self.row(kind, prefix), limit)) as rows:
            async for row in rows:
                if count == limit:
                    return
                count += 1
                yield row.key[1:].decode(self.charset, "replace")

    async def names(self, kind: Kind, prefix: str, limit: int) -> list[str]:
        """Return listed names with a prefix in order of their bytes, at most `limit`."""
        async with aclosing(self.each(kind, prefix, limit)) as found:
            return [name async for name in found]

    async def rows(self, prefix: bytes, limit: int = PAGE_ROWS) -> AsyncGenerator[Row, None]:
        """Yield the rows whose keys start with a prefix, up to `limit` with one read."""
        pages = scan(self.store, self.table, prefix, prefix_end(prefix), limit=min(limit, PAGE_ROWS))
        async with aclosing(pages):
            async for page in pages:
                for row in page:
                    yield row


def forget_oldest(known: dict[T, None], most: int) -> None:
    """Remove the oldest entries of a cache beyond `most`."""
    for key in list(islice(known, max(len(known) - most, 0))):
        del known[key]  # after one pass: a dict skips deleted entries one by one
