"""Whose password is looked at next: one at a time, and first those of addresses that have signed in before.

A look takes a fifth of a second of a core. Whoever sends passwords that are wrong, from however many addresses, keeps
those waiting who have never signed in from theirs, and nobody else.
"""

from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from tsd.access.guesses import TooManyTries
from tsd.access.networks import household

REMEMBERED = 4096  # addresses that have signed in
MOST_WAITING = 16  # of those that are known, and of the others


class Turns:
    """The queue of passwords."""

    def __init__(self, prefix: int) -> None:
        """`prefix`: bits of an address of IPv6 that are one client's."""
        self._prefix = prefix
        self._good: OrderedDict[str, None] = OrderedDict()
        self._known: deque[trio.Event] = deque()
        self._others: deque[trio.Event] = deque()
        self._busy = False

    def note_good(self, address: str) -> None:
        """Somebody has shown a right password from there."""
        key = household(address, self._prefix)
        self._good[key] = None
        self._good.move_to_end(key)
        if len(self._good) > REMEMBERED:
            self._good.popitem(last=False)

    def knows(self, address: str) -> bool:
        """Whether somebody has."""
        return household(address, self._prefix) in self._good

    @asynccontextmanager
    async def turn(self, address: str) -> AsyncIterator[None]:
        """The only look under way. Raises TooManyTries where too many wait."""
        queue = self._known if self.knows(address) else self._others
        if self._busy:
            await self._wait(queue)
        self._busy = True
        try:
            yield
        finally:
            self._busy = False
            self._next()

    async def _wait(self, queue: deque[trio.Event]) -> None:
        """Return when it is the caller's turn, and nobody else's."""
        if len(queue) >= MOST_WAITING:
            raise TooManyTries("too many passwords are being looked at: try again")
        called = trio.Event()
        queue.append(called)
        try:
            await called.wait()
        except trio.Cancelled:
            if called.is_set():  # in the same moment
                self._busy = False
                self._next()
            else:
                queue.remove(called)
            raise

    def _next(self) -> None:
        """Call who is next. Until it runs nobody else may begin."""
        for queue in (self._known, self._others):
            if queue:
                self._busy = True
                queue.popleft().set()
                return
