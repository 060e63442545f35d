"""Bodies that come in parts."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


@asynccontextmanager
async def ended(parts: AsyncIterator[bytes]) -> AsyncIterator[AsyncIterator[bytes]]:
    """The parts, which are told when nobody wants more of them: what they hold is given back then, not some time."""
    try:
        yield parts
    finally:
        if (close := getattr(parts, "aclose", None)) is not None:
            await close()
