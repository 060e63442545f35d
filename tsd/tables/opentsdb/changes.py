"""What surrounds changes of rows of points that do not come through the daemon's intake: rollups are built again."""

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext

Changing = Callable[[Sequence[bytes]], AbstractAsyncContextManager[None]]  # keys of the rows that change in the block


def unobserved(_rows: Sequence[bytes]) -> AbstractAsyncContextManager[None]:
    """Return a block around which nothing happens."""
    return nullcontext()
