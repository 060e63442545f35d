"""Bugs injected through the daemon's replaceable parts. The simulation has to find each of them."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import trio

from tests.simulation.daemon import Parts
from tests.simulation.disk import SimulatedDisk
from tests.simulation.store import FaultyStore
from tsd.codec.points import Columns
from tsd.errors import StoreError
from tsd.ingest.accepted import Backpressure
from tsd.ingest.journal.journal import Journal, Segment
from tsd.ingest.open_window import OpenWindow
from tsd.ingest.writer import Writer
from tsd.store import Cell, Put, Store


class UnsyncedAcknowledgements(Journal):
    """Acknowledges lines when they are in memory."""

    def append(self, lines: bytes, count: int) -> int:
        position = super().append(lines, count)
        self.synced = position
        return position


class NoSync(SimulatedDisk):
    """Leaves every write in the page cache."""

    def sync(self, fd: int) -> None:
        pass


class NewestSegmentFirst(Journal):
    """Replays segments in the reverse order."""

    def recover(self) -> list[Segment]:
        return super().recover()[::-1]


class RemovalsNotSynced(Journal):
    """Does not wait until removed segments stay removed."""

    async def sync_removals(self) -> bool:
        await trio.lowlevel.checkpoint()
        return True


class EarlyRemovalJournal(Journal):
    """Allows a segment to be removed before its window is written."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._kept: list[Segment] = []
        self._removed: set[Segment] = set()

    def recover(self) -> list[Segment]:
        self._kept = super().recover()
        return list(self._kept)

    def rotate(self) -> Segment | None:
        if segment := super().rotate():
            self._kept.append(segment)
        return segment

    async def remove_oldest(self) -> None:
        """Remove the segment of the window that is written next."""
        if self._kept and self._kept[0] not in self._removed:
            self._removed.add(self._kept[0])
            await super().remove(self._kept[0])

    async def remove(self, segment: Segment) -> None:
        self._kept.remove(segment)
        if segment not in self._removed:
            await super().remove(segment)


class RemovesBeforePut:
    """The writer's store: removes the journal's segment before the put."""

    def __init__(self, store: Store, journal: Journal) -> None:
        self._store = store
        self._journal = journal

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def put(self, table: str, cells: Sequence[Put], *, time_ms: int | None = None) -> None:
        assert isinstance(self._journal, EarlyRemovalJournal)
        await self._journal.remove_oldest()
        await self._store.put(table, cells, time_ms=time_ms)


class FailedPutsDropped(FaultyStore):
    """Reports success for failed puts."""

    async def put(self, table: str, cells: Sequence[Put], *, time_ms: int | None = None) -> None:
        try:
            await super().put(table, cells, time_ms=time_ms)
        except StoreError:
            await trio.lowlevel.checkpoint()


class LostAnswerTakenForSuccess(FaultyStore):
    """Reports a create as successful if its answer is lost."""

    async def create(self, table: str, cells: Sequence[Put]) -> list[bool]:
        try:
            return await super().create(table, cells)
        except StoreError:
            return [True] * len(cells)


class OpensOnce(Backpressure):
    """Opens only once."""

    def __init__(self) -> None:
        super().__init__()
        self._has_opened = False

    def release(self, why: str) -> None:
        opens = self.reasons == {why}
        if not (opens and self._has_opened):
            self._has_opened |= opens
            super().release(why)


class ReversedPoints(OpenWindow):
    """Returns the points of a window in the reverse order."""

    def take(self) -> Columns:
        points = super().take()
        return points.at(np.arange(len(points.series))[::-1])


class DeletesBeforePuts:
    """The compactor's store: applies puts after the next delete, and until then only pretends that they are stored.

    It has no atomic rewrites and no stamped cells, so that the compactor puts and deletes by calls of the store.
    """

    atomic_rewrites = None
    stamped_cells = None

    def __init__(self, store: Store) -> None:
        self._store = store
        self._pending: list[tuple[str, Sequence[Put], int | None]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def put(self, table: str, cells: Sequence[Put], *, time_ms: int | None = None) -> None:
        await trio.lowlevel.checkpoint()
        self._pending.append((table, cells, time_ms))

    async def get(
        self, table: str, rows: Collection[bytes], *, columns: Collection[bytes] | None = None
    ) -> dict[bytes, list[Cell]]:
        stored = await self._store.get(table, rows, columns=columns)
        merged: dict[bytes, dict[bytes, Cell]] = defaultdict(dict)
        for row, cells in stored.items():
            merged[row] = {cell.column: cell for cell in cells}
        for _, puts, time_ms in self._pending:
            for put in puts:
                if put.row in rows and (columns is None or put.column in columns):
                    merged[put.row][put.column] = Cell(put.column, put.value, time_ms or 0)
        return {row: sorted(cells.values()) for row, cells in merged.items()}

    async def delete(self, table: str, columns: Mapping[bytes, Collection[bytes]], *, up_to_ms: int | None) -> None:
        await self._store.delete(table, columns, up_to_ms=up_to_ms)
        while self._pending:
            name, cells, time_ms = self._pending.pop(0)
            await self._store.put(name, cells, time_ms=time_ms)


class ReadsTooEarly(Writer):
    """Reports a metric as readable when its points are still being written."""

    async def write_metric(self, metric: bytes) -> bool:
        self.seal()
        await trio.lowlevel.checkpoint()
        return True


INJECTED_BUGS = {
    "readable before it is written": Parts(writer=ReadsTooEarly),
    "acknowledged before it is on disk": Parts(journal=UnsyncedAcknowledgements),
    "never synced": Parts(disk=NoSync),
    "replayed newest first": Parts(journal=NewestSegmentFirst),
    "segment removed before the put": Parts(journal=EarlyRemovalJournal, writer_store=RemovesBeforePut),
    "removed segments come back": Parts(journal=RemovalsNotSynced),
    "failed put dropped": Parts(store=FailedPutsDropped),
    "UID used after a lost answer": Parts(store=LostAnswerTakenForSuccess),
    "backpressure never ends": Parts(backpressure=OpensOnce),
    "oldest value wins": Parts(open_window=ReversedPoints),
    "compaction deletes first": Parts(compactor_store=DeletesBeforePuts),
}
