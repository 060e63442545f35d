"""Bugs, planted by hand: what the simulation must find, or it is worth nothing."""

from collections.abc import Sequence
from typing import Any

import trio

from tests.simulation.daemon import Makers
from tsd.codec.columns import Columns
from tsd.compaction.step import Plan, RowCompactor, _deletes, _puts
from tsd.errors import StoreError
from tsd.ingest.intake import Gate
from tsd.ingest.journal import Journal, Segment
from tsd.ingest.rows import OpenRows
from tsd.ingest.window import Contents, Window, Written
from tsd.ingest.writer import Writer
from tsd.store import Put
from tsd.uids import Uids


class EarlyJournal(Journal):
    """Says that lines are safe when it has them in memory."""

    def append(self, lines: bytes, count: int) -> int:
        position = super().append(lines, count)
        self.synced = position
        return position


class UnsyncedJournal(Journal):
    """Writes, and leaves the rest to the page cache."""

    def _sync(self, fd: int) -> None:
        pass


class NewestFirst(Journal):
    """Has what a crash left taken in the wrong way round."""

    def recover(self) -> list[Segment]:
        return super().recover()[::-1]


class LenientJournal(Journal):
    """Removes a segment once, however often it is asked to."""

    async def remove(self, segment: Segment) -> None:
        if segment.path in self._segments:
            await super().remove(segment)


class HastyWriter(Writer):
    """Has the segment removed before the window is put."""

    async def _read_window(self, window: Window) -> Contents:
        contents = await super()._read_window(window)
        await self._journal.remove(window.segment)
        return contents


class FickleWriter(Writer):
    """Gives a window up when the store fails."""

    async def _write(self, window: Window) -> Written:
        put = self._store.put

        async def once(table: str, cells: Sequence[Put], *, time_ms: int | None = None) -> None:
            try:
                await put(table, cells, time_ms=time_ms)
            except StoreError:
                await trio.lowlevel.checkpoint()

        self._store.put = once  # type: ignore[method-assign]
        try:
            return await super()._write(window)
        finally:
            self._store.put = put  # type: ignore[method-assign]


class BlindUids(Uids):
    """Takes a create whose answer was lost for one that was done."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for table in self._kinds.values():
            table._create = self._blindly  # type: ignore[method-assign]

    async def _blindly(self, puts: Sequence[Put]) -> list[bool]:
        try:
            return await self._store.create(self._table, puts) if puts else []
        except StoreError:
            return [True] * len(puts)


class StuckGate(Gate):
    """Opens once only."""

    def __init__(self) -> None:
        super().__init__()
        self._has_opened = False

    def release(self, why: str) -> None:
        if not (self._held == {why} and self._has_opened):
            self._has_opened |= self._held == {why}
            super().release(why)


class Backwards(OpenRows):
    """Hands the points of a window out in the wrong order."""

    def take(self) -> Columns:
        taken = super().take()
        return taken.at(slice(None, None, -1))


class DeletesFirst(RowCompactor):
    """Deletes what a merged cell replaces before that is there."""

    async def _carry_out(self, plans: Sequence[Plan]) -> list[Plan]:
        for up_to_ms, columns in _deletes(plans).items():
            await self._store.delete(self._table, columns, up_to_ms=up_to_ms)
        for time_ms, puts in _puts(plans).items():
            await self._store.put(self._table, puts, time_ms=time_ms)
        return list(plans)


class Blind(Writer):
    """Tells a reader that all is written when it is on its way."""

    async def show(self, metric: bytes) -> bool:
        self.seal()
        await trio.lowlevel.checkpoint()
        return True


PLANTED = {
    "reads before it is written": Makers(writer=Blind),
    "told before it is on disk": Makers(journal=EarlyJournal),
    "never synced": Makers(journal=UnsyncedJournal),
    "replayed newest first": Makers(journal=NewestFirst),
    "segment removed before the put": Makers(journal=LenientJournal, writer=HastyWriter),
    "window given up": Makers(writer=FickleWriter),
    "uid taken for ours": Makers(uids=BlindUids),
    "gate stays shut": Makers(gate=StuckGate),
    "oldest value wins": Makers(rows=Backwards),
    "compaction deletes first": Makers(compactor=DeletesFirst),
}
