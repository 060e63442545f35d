"""A store where others act at the worst moment: just before certain calls."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from tests.wavering import WaveringStore
from tsd.store.memory import MemoryStore

T = TypeVar("T")


class Meddled(WaveringStore):
    """A WaveringStore. What `before` has under a call's name happens once, before the next such call."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store)
        self.before: dict[str, Callable[[], Awaitable[None]]] = {}

    async def _call(self, name: str, ask: Callable[[], Awaitable[T]]) -> T:
        if meddle := self.before.pop(name, None):
            await meddle()
        return await super()._call(name, ask)
