"""A store behind a line that breaks: calls are refused, hang, are late, are applied and nobody learns of it.

It keeps what Store promises, and promises no more.
"""

import math
import random
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple, NoReturn, TypeVar

import trio

from tests.simulation.chance import Engine
from tests.simulation.disk import Crash
from tsd.errors import StoreBusy, StoreDown
from tsd.store import Cell, Page, Put, Table
from tsd.store.memory import MemoryStore

T = TypeVar("T")
Ask = Callable[[MemoryStore], Awaitable[object]]

TIMEOUT_S = 2.0  # of a call that gets no answer
STEP_S = 0.5  # between looks whether the process is still there


class _Change(NamedTuple):
    """A call that changed something."""

    ask: Ask
    time_ms: int


class Weather:
    """How likely a call is to go wrong just now."""

    def __init__(self) -> None:
        self.refuses = 0.0
        self.hangs = 0.0
        self.loses = 0.0
        self.halves = 0.0
        self.slow_s = 0.0

    def clear(self) -> None:
        """All is well."""
        self.__init__()  # type: ignore[misc]


class Backend:
    """What outlives a daemon: the cells, and for a store that ends with it what was done since its last sync."""

    def __init__(self, engine: Engine, chance: random.Random, clock_ms: Callable[[], int]) -> None:
        self.engine = engine
        self.weather = Weather()
        self.chance = chance
        self.calls = 0
        self.faults = 0  # calls whose caller was told of no success
        self._clock_ms = clock_ms
        self._replayed_ms: int | None = None
        self.cells = MemoryStore(self._now_ms)
        self._changes: list[_Change] = []
        self._durable = 0  # so many of the changes

    def _now_ms(self) -> int:
        return self._clock_ms() if self._replayed_ms is None else self._replayed_ms

    async def apply(self, ask: Callable[[MemoryStore], Awaitable[T]], *, changes: bool, durable: bool) -> T:
        """Do what a call asks, and keep account of it."""
        self.calls += 1
        with trio.CancelScope(shield=True):  # the store does not see who waits
            if changes and self.engine is Engine.EMBEDDED:
                self._changes.append(_Change(ask, self._now_ms()))
            answer = await ask(self.cells)
            if durable:
                self._durable = len(self._changes)
        return answer

    async def lose_power(self) -> None:
        """An embedded store has its synced changes, and some of those that came after."""
        if self.engine is not Engine.EMBEDDED:
            return
        kept = self._changes[: self.chance.randint(self._durable, len(self._changes))]
        self.cells = MemoryStore(self._now_ms)
        for change in kept:
            self._replayed_ms = change.time_ms
            await change.ask(self.cells)
        self._replayed_ms = None
        self._changes, self._durable = kept, len(kept)


class Ended(Exception):
    """The command that made the call was killed."""


class Line:
    """A process's own way to the store. Cut, it carries nothing more."""

    def __init__(self, backend: Backend, *, sound: bool = False, calls: float = math.inf) -> None:
        """With `calls` the process is killed in the middle of the last of so many: Ended is raised."""
        self._backend = backend
        self._calls = calls
        self._sound = sound
        self.dead = False

    async def _call(
        self, ask: Callable[[MemoryStore], Awaitable[T]], *, changes: bool = False, durable: bool = False
    ) -> T:
        backend, chance, weather = self._backend, self._backend.chance, self._backend.weather
        if self._sound:
            return await backend.apply(ask, changes=changes, durable=durable)
        await self._wait(chance.random() * weather.slow_s)
        self._calls -= 1
        if self._calls <= 0:
            if chance.random() < 0.5:
                await backend.apply(ask, changes=changes, durable=durable)
            raise Ended
        if self.dead:  # it may have been on its way
            if backend.engine is Engine.HBASE and chance.random() < 0.5:
                await backend.apply(ask, changes=changes, durable=durable)
            raise Crash
        if chance.random() < weather.refuses:
            self._fail(StoreBusy("busy, as is drawn") if chance.random() < 0.2 else StoreDown("refused, as is drawn"))
        if chance.random() < weather.hangs:
            if chance.random() < 0.5:
                await backend.apply(ask, changes=changes, durable=False)
            await self._wait(TIMEOUT_S)
            self._fail(StoreDown("no answer, as is drawn"))
        answer = await backend.apply(ask, changes=changes, durable=durable)
        await self._wait(chance.random() * weather.slow_s)
        if self.dead:
            raise Crash
        if chance.random() < weather.loses:
            self._fail(StoreDown("answer lost, as is drawn"))
        return answer

    async def _wait(self, delay_s: float) -> None:
        """Time that a call takes. It is done in a thread, which cannot be cancelled."""
        with trio.CancelScope(shield=True):
            while delay_s > 0 and not self.dead:
                await trio.sleep(min(delay_s, STEP_S))
                delay_s -= STEP_S

    def _fail(self, error: Exception) -> NoReturn:
        self._backend.faults += 1
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
            some = [cell for row in rows if self._backend.chance.random() < 0.5 for cell in row]
            await self._call(lambda s: s.put(table, some, time_ms=time_ms), changes=True)
            self._fail(StoreDown("half of it, as is drawn"))
        await self._call(lambda s: s.put(table, cells, time_ms=time_ms), changes=True)

    def _half(self) -> bool:
        weather, chance = self._backend.weather, self._backend.chance
        return not self._sound and bool(weather.halves) and chance.random() < weather.halves

    async def delete(self, table: str, columns: Mapping[bytes, Collection[bytes]], *, up_to_ms: int | None) -> None:
        if self._half():
            some = {row: names for row, names in columns.items() if self._backend.chance.random() < 0.5}
            await self._call(lambda s: s.delete(table, some, up_to_ms=up_to_ms), changes=True)
            self._fail(StoreDown("half of it, as is drawn"))
        await self._call(lambda s: s.delete(table, columns, up_to_ms=up_to_ms), changes=True)

    async def page(
        self, table: str, start: bytes, stop: bytes | None, *, limit: int, columns: Collection[bytes] | None = None
    ) -> Page:
        return await self._call(lambda s: s.page(table, start, stop, limit=limit, columns=columns))

    async def create(self, table: str, cells: Sequence[Put]) -> list[bool]:
        if self._half():
            some = [cell for cell in cells if self._backend.chance.random() < 0.5]
            await self._call(lambda s: s.create(table, some), changes=True, durable=True)
            self._fail(StoreDown("half of it, as is drawn"))
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
        return self._backend.cells.statistics()
