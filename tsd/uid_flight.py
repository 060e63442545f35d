"""Names on their way to their UIDs: the batch they go in, who is asked for each, and what is remembered of them."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol

import trio

from tsd.bytemap import ByteMap
from tsd.codec.uid import Kind, Uid
from tsd.errors import TsdError

Found = Uid | TsdError


class Permit(Protocol):
    """Who wants names, and may be refused new ones."""

    def why_not(self, kind: Kind, name: bytes) -> TsdError | None:
        """Asked before a new name gets its UID: why it gets none."""


class Flight:
    """One batch of names on its way. Whoever needs a name that is in it waits for it."""

    def __init__(self) -> None:
        self.names: dict[bytes, tuple[Permit | None, ...]] = {}  # with the permits of all who want it
        self.found: dict[bytes, Found] = {}
        self.error: TsdError | None = None
        self.landed = trio.Event()

    def board(self, names: Iterable[bytes], permit: Permit | None) -> None:
        """Take names along. One that several want gets its UID if any of them may."""
        for name in names:
            self.names[name] = (*self.names.get(name, ()), permit)


class KindStatistics(NamedTuple):
    """A kind's numbers at a moment."""

    hits: int
    misses: int
    cached: int
    collisions: int
    refused: int
    used: int  # the counter as last seen
    available: int


class Remembered(NamedTuple):
    """Cells of the UID table as they were when they were read."""

    column: bytes
    values: dict[bytes, bytes]  # by row


class Cache:
    """A bounded mapping: when it is full, the half that came first leaves."""

    def __init__(self, bound: int) -> None:
        self.map = ByteMap()
        self._bound = bound
        self.overflows = 0
        self.get = self.map.get
        self.clear = self.map.clear

    def __len__(self) -> int:
        return len(self.map)

    def put(self, key: bytes, value: bytes) -> None:
        """Have a key lead to a value."""
        if len(self.map) >= self._bound and self.map.get(key) is None:
            self.overflows += 1
            self.map.drop_half()
        self.map.put(key, value)

    def parts(self, size: int) -> Iterator[dict[bytes, bytes]]:
        """All that is kept, `size` of it at a time; when some was dropped meanwhile, no more."""
        at, rebuilt = 0, self.map.rebuilt
        while self.map.rebuilt == rebuilt:
            part, at = self.map.items(at, size)
            if not part:
                return
            yield dict(part)
