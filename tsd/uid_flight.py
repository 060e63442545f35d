"""Names on their way to their UIDs: the batch they go in, who is asked for each, and what is remembered of them."""

from collections.abc import Iterable
from itertools import islice
from typing import Protocol

import trio

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


class Cache(dict[bytes, bytes]):
    """A bounded mapping: when it is full, the half that came first leaves."""

    def __init__(self, bound: int) -> None:
        super().__init__()
        self._bound = bound
        self.overflows = 0

    def __setitem__(self, key: bytes, value: bytes) -> None:
        if len(self) >= self._bound and key not in self:
            newer = list(islice(self.items(), len(self) // 2, None))
            self.overflows += 1
            self.clear()
            self.update(newer)
        super().__setitem__(key, value)
