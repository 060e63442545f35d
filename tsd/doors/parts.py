"""Bodies that come in parts."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager


@asynccontextmanager
async def ended(parts: AsyncIterator[bytes]) -> AsyncIterator[AsyncIterator[bytes]]:
    """The parts, which are told when nobody wants more of them: what they hold is given back then, not some time."""
    try:
        yield parts
    finally:
        if (close := getattr(parts, "aclose", None)) is not None:
            await close()


class MadeOf(AsyncIterator[bytes]):
    """Parts that are made of others: who ends them ends both, also where nothing of them was asked for yet, which a
    generator that has not begun would not hear of."""

    def __init__(self, parts: AsyncGenerator[bytes, None], source: AsyncIterator[bytes]) -> None:
        self._parts = parts
        self._source = source

    async def __anext__(self) -> bytes:
        return await anext(self._parts)

    async def aclose(self) -> None:
        """Nobody wants more."""
        async with ended(self._source):
            await self._parts.aclose()
