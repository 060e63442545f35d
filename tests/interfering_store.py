"""A store in which another process changes data just before a certain call."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from tests.flaky_store import FlakyStore
from tsd.store.memory import MemoryStore

T = TypeVar("T")


class InterferingStore(FlakyStore):
    """A FlakyStore. `before` maps a call's name to an action, which runs once before the next such call."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store)
        self.before: dict[str, Callable[[], Awaitable[None]]] = {}

    async def _call(self, name: str, call: Callable[[], Awaitable[T]]) -> T:
        if interfere := self.before.pop(name, None):
            await interfere()
        return await super()._call(name, call)
