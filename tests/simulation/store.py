"""A store with injected faults: calls are refused, time out, are slow, or are applied although their answer is lost.

It guarantees what the Store protocol guarantees, and no more.
"""

import math
import random
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import groupby
from typing import NamedTuple, NoReturn, TypeVar

import trio

from tests.plain_store import PlainStore
from tests.simulation.disk import Crash
from tests.simulation.plan import Engine
from tsd.errors import StoreBusy, StoreDown
from tsd.store import (
    Cell,
    JoinCells,
    Page,
    Put,
    Rewrite,
    StampedDelete,
    StampedPut,
    StampedSpan,
    Table,
)
from tsd.store.memory import MemoryStore

T = TypeVar("T")
StoreCall = Callable[[MemoryStore], Awaitable[object]]

TIMEOUT_S = 2.0  # of a call without an answer
STEP_S = 0.5  # interval of checks whether the process is alive


class _Change(NamedTuple):
    """A call that changed the store."""

    call: StoreCall
    time_ms: int


class FaultRates:
    """Probabilities of the faults of a call."""

    def __init__(self) -> None:
        self.refused = 0.0
        self.timed_out = 0.0
        self.answer_lost = 0.0
        self.partial = 0.0
        self.max_delay_s = 0.0

    def clear(self) -> None:
        """End all faults."""
        self.__init__()  # type: ignore[misc]


class StoreServer:
    """The stored cells, which outlive a daemon. An embedded store keeps the changes since its last sync separately."""

    def __init__(self, engine: Engine, rng: random.Random, clock_ms: Callable[[], int]) -> None:
        self.engine = engine
        self.rates = FaultRates()
        self.rng = rng
        self.calls = 0
        self.faults = 0  # calls that failed for the caller
        self._clock_ms = clock_ms
        self._replayed_ms: int | None = None
        self.cells = MemoryStore(self._now_ms)
        self._changes: list[_Change] = []
        self._durable = 0  # number of synced changes

    def _now_ms(self) -> int:
        return self._clock_ms() if self._replayed_ms is None else self._replayed_ms

    async def apply(self, call: Callable[[MemoryStore], Awaitable[T]], *, changes: bool, durable: bool) -> T:
        """Apply a call and record its changes."""
        self.calls += 1
        with trio.CancelScope(shield=True):  # the server does not notice that the caller is cancelled
            if changes and self.engine is Engine.EMBEDDED:
                self._changes.append(_Change(call, self._now_ms()))
            answer = await call(self.cells)
            if durable:
                self._durable = len(self._changes)
        return answer

    async def lose_power(self) -> None:
        """Keep the synced changes of an embedded store and a random number of the later ones."""
        if self.engine is not Engine.EMBEDDED:
            return
        kept = self._changes[: self.rng.randint(self._durable, len(self._changes))]
        self.cells = MemoryStore(self._now_ms)
        for change in kept:
            self._replayed_ms = change.time_ms
            await change.call(self.cells)
        self._replayed_ms = None
        self._changes, self._durable = kept, len(kept)


class CommandKilled(Exception):
    """The calling command was killed."""


class FaultyStore(PlainStore):
    """A process's access to the store. Once dead, it passes no more calls."""

    def __init__(self, server: StoreServer, *, sound: bool = False, calls: float = math.inf) -> None:
        """With `calls`, the process is killed during the last of so many calls: CommandKilled is raised."""
        self._server = server
        self._calls = calls
        self._sound = sound
        self.dead = False
        self.capabilities = replace(server.cells.capabilities, ascending_timestamps=server.engine is Engine.EMBEDDED)
        self.latencies = server.cells.latencies
        self.stamped_cells = _Stamped(self) if server.engine is Engine.HBASE else None
        self.atomic_rewrites = self if server.engine is Engine.EMBEDDED else None

    async def _call(
        self, call: Callable[[MemoryStore], Awaitable[T]], *, changes: bool = False, durable: bool = False
    ) -> T:
        server, rng, rates = self._server, self._server.rng, self._server.rates
        if self._sound:
            return await server.apply(call, changes=changes, durable=durable)
        await self._wait(rng.random() * rates.max_delay_s)
        self._calls -= 1
        if self._calls <= 0:
            if rng.random() < 0.5:
                await server.apply(call, changes=changes, durable=durable)
            raise CommandKilled
        if self.dead:  # the call may have been sent already
            if server.engine is Engine.HBASE and rng.random() < 0.5:
                await server.apply(call, changes=changes, durable=durable)
            raise Crash
        if rng.random() < rates.refused:
            self._fail(StoreBusy("busy") if rng.random() < 0.2 else StoreDown("refused"))
        if rng.random() < rates.timed_out:
            if rng.random() < 0.5:
                await server.apply(call, changes=changes, durable=False)
            await self._wait(TIMEOUT_S)
            self._fail(StoreDown("no answer"))
        answer = await server.apply(call, changes=changes, durable=durable)
        await self._wait(rng.random() * rates.max_delay_s)
        if self.dead:
            raise Crash
        if rng.random() < rates.answer_lost:
            self._fail(StoreDown("answer lost"))
        return answer

    async def _wait(self, delay_s: float) -> None:
        """Wait for the duration of a call, which runs in a thread and so cannot be cancelled."""
        with trio.CancelScope(shield=True):
            while delay_s > 0 and not self.dead:
                await trio.sleep(min(delay_s, STEP_S))
                delay_s -= STEP_S

    def _fail(self, error: Exception) -> NoReturn:
        self._server.faults += 1
        raise error

    async def create_tables(self, tables: Sequence[Table], *, compression: str = "NONE") -> list[str]:
        return await self._call(lambda s: s.create_tables(tables, compression=compression), changes=True, durable=True)

    async def tables(self) -> list[str]:
        return await self._call(lambda s: s.tables())

    async def get(
        self, table: str, rows: Collection[bytes], *, columns: Collection[bytes] | None = None
    ) -> dict[bytes, list[Cell]]:
        return await self._call(lambda s: s.get(table, rows, columns=columns))

    async def put(self, table: str, cells: Sequence[Put], *, time_ms: int | None = None) -> None:
        if self._half():
            rows = [list(group) for _, group in groupby(cells, key=lambda cell: cell.row)]
            some = [cell for row in rows if self._server.rng.random() < 0.5 for cell in row]
            await self._call(lambda s: s.put(table, some, time_ms=time_ms), changes=True)
            self._fail(StoreDown("partially applied"))
        await self._call(lambda s: s.put(table, cells, time_ms=time_ms), changes=True)

    @contextmanager
    def watching(self, table: str, rows: Collection[bytes]) -> Iterator[Collection[bytes]]:
        yield rows

    async def rewrite(
        self,
        table: str,
        changes: Sequence[Rewrite],
        *,
        written: Collection[bytes] | None = None,
    ) -> list[bool]:
        if self._half():
            some = [change for change in changes if self._server.rng.random() < 0.5]
            await self._call(lambda s: s.rewrite(table, some), changes=True)
            self._fail(StoreDown("partially applied"))
        return await self._call(lambda s: s.rewrite(table, changes), changes=True)

    async def join(self, table: str, rows: Sequence[bytes], join: JoinCells) -> list[bytes]:
        if self._half():
            some = [row for row in rows if self._server.rng.random() < 0.5]
            await self._call(lambda s: s.join(table, some, join), changes=True)
            self._fail(StoreDown("partially applied"))
        return await self._call(lambda s: s.join(table, rows, join), changes=True)

    def _half(self) -> bool:
        rates, rng = self._server.rates, self._server.rng
        return not self._sound and bool(rates.partial) and rng.random() < rates.partial

    async def delete(self, table: str, columns: Mapping[bytes, Collection[bytes]], *, up_to_ms: int | None) -> None:
        if self._half():
            some = {row: names for row, names in columns.items() if self._server.rng.random() < 0.5}
            await self._call(lambda s: s.delete(table, some, up_to_ms=up_to_ms), changes=True)
            self._fail(StoreDown("partially applied"))
        await self._call(lambda s: s.delete(table, columns, up_to_ms=up_to_ms), changes=True)

    async def delete_span(self, table: str, span: StampedSpan) -> None:
        async def call(cells: MemoryStore) -> None:
            found = (await cells.get(table, [span.row])).get(span.row, ())
            await cells.delete(table, {span.row: [cell.column for cell in found]}, up_to_ms=span.up_to_ms)

        await self._call(call, changes=True)

    async def page(
        self, table: str, start: bytes, stop: bytes | None, *, limit: int, columns: Collection[bytes] | None = None
    ) -> Page:
        return await self._call(lambda s: s.page(table, start, stop, limit=limit, columns=columns))

    async def create(self, table: str, cells: Sequence[Put]) -> list[bool]:
        if self._half():
            some = [cell for cell in cells if self._server.rng.random() < 0.5]
            await self._call(lambda s: s.create(table, some), changes=True, durable=True)
            self._fail(StoreDown("partially applied"))
        return await self._call(lambda s: s.create(table, cells), changes=True, durable=True)

    async def check_and_put(
        self, table: str, row: bytes, column: bytes, value: bytes, *, expected: bytes | None
    ) -> bool:
        return await self._call(
            lambda s: s.check_and_put(table, row, column, value, expected=expected), changes=True, durable=True
        )

    async def increment(self, table: str, row: bytes, column: bytes, by: int) -> int:
        return await self._call(lambda s: s.increment(table, row, column, by), changes=True, durable=True)

    async def sync(self) -> None:
        await self._call(lambda s: s.sync(), durable=True)

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()

    def statistics(self) -> Mapping[str, int]:
        return self._server.cells.statistics()


class _Stamped:
    """Cells with timestamps of their own, as HBase has them: a call for each timestamp; a span is the whole row."""

    def __init__(self, store: FaultyStore) -> None:
        self._store = store

    async def put(self, table: str, cells: Sequence[StampedPut]) -> None:
        for time_ms in {cell.time_ms for cell in cells}:
            some = [Put(*cell[:3]) for cell in cells if cell.time_ms == time_ms]
            await self._store.put(table, some, time_ms=time_ms)

    async def get(
        self, table: str, places: Collection[tuple[bytes, bytes]], *, row_cells: int = 0
    ) -> dict[bytes, list[Cell]]:
        found = await self._store.get(table, {row for row, _ in places}, columns={column for _, column in places})
        return {row: [cell for cell in cells if (row, cell.column) in places] for row, cells in found.items()}

    async def delete(self, table: str, cells: Sequence[StampedDelete]) -> None:
        for row, column, up_to_ms in cells:
            await self._store.delete(table, {row: [column]}, up_to_ms=up_to_ms)

    async def delete_spans(self, table: str, spans: Sequence[StampedSpan]) -> None:
        for span in spans:
            await self._store.delete_span(table, span)

    async def delete_rows(self, table: str, start: bytes, stop: bytes, *, up_to_ms: int) -> None:
        raise NotImplementedError  # only retention uses it
