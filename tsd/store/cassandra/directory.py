"""Lists of a table's partitions, in order.

An entry is written before the first cell of its partition, and never removed. So every cell is in a listed partition,
and a listed partition may be empty. Writers cache the entries that they have written.
"""

from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from itertools import islice

from tsd.store.cassandra.keys import ROOT, Shape
from tsd.store.cassandra.schema import directory_statements
from tsd.store.cassandra.session import Connector
from tsd.store.retry import run_bounded

MOST_KNOWN = 200_000  # partitions that a writer remembers
LIST_PARTITIONS = 256  # per request
CONCURRENT = 16


class Directory:
    """The directories of a keyspace."""

    def __init__(self, keyspace: str, connector: Connector) -> None:
        self._connector = connector
        self._cql = directory_statements(keyspace)
        self._known: dict[tuple[str, bytes], None] = {}  # table and partition, the oldest first

    async def enter(self, shape: Shape, partitions: Iterable[bytes]) -> None:
        """Enter partitions that are about to be written."""
        new = [partition for partition in partitions if (shape.name, partition) not in self._known]
        if not new:
            return
        entries = dict.fromkeys(entry for partition in new for entry in shape.entries(partition))

        async def write(entry: tuple[bytes, bytes]) -> None:
            await self._connector.ask(self._cql.enter, (shape.name, *entry))

        await run_bounded(entries, write, limit=CONCURRENT)
        self._known.update(((shape.name, partition), None) for partition in new)
        for entry in list(islice(self._known, max(len(self._known) - MOST_KNOWN, 0))):
            del self._known[entry]  # after one pass: a dict skips deleted entries one by one

    def forget(self) -> None:
        """Forget which partitions are entered."""
        self._known.clear()

    async def partitions(self, shape: Shape, start: bytes, stop: bytes | None) -> AsyncGenerator[bytes, None]:
        """Yield the partitions that may have rows from `start` to before `stop`, in order."""
        first = shape.partition(start)
        if not shape.widths.directory:
            async with aclosing(self._listed(shape, ROOT, first, stop)) as listed:
                async for partition in listed:
                    yield partition
            return
        async with aclosing(self._directories(shape, start, stop)) as directories:
            async for directory in directories:
                async with aclosing(self._listed(shape, directory, first, stop)) as listed:
                    async for partition in listed:
                        yield partition

    async def _directories(self, shape: Shape, start: bytes, stop: bytes | None) -> AsyncGenerator[bytes, None]:
        """Yield the directories of a range. That of a range within one directory is not looked up."""
        first = shape.directory(start)
        if stop is not None and shape.directory(stop) == first and len(first) == shape.widths.directory:
            yield first
            return
        async with aclosing(self._listed(shape, ROOT, first, stop)) as listed:
            async for directory in listed:
                yield directory

    async def _listed(
        self, shape: Shape, directory: bytes, first: bytes, stop: bytes | None
    ) -> AsyncGenerator[bytes, None]:
        """Yield what one directory lists from `first` to before `stop`."""
        at = first
        while True:
            if stop is None:
                rows = await self._connector.ask(self._cql.list, (shape.name, directory, at, LIST_PARTITIONS))
            else:
                rows = await self._connector.ask(
                    self._cql.list_before, (shape.name, directory, at, stop, LIST_PARTITIONS)
                )
            for (entry,) in rows:
                assert isinstance(entry, bytes)
                yield entry
                at = entry + b"\0"
            if len(rows) < LIST_PARTITIONS:
                return
