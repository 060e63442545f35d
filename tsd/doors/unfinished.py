"""Memory for what clients have begun and not ended: lines, and heads of requests. All of them together have a bound;
past it who has held some of it for longest is hung up on.

Few bytes count for nothing: agents leave lines half written, and such lines are not what fills memory.
"""

from typing import Protocol

FEW_BYTES = 4 << 10  # of one connection


class Holder(Protocol):
    """A connection."""

    def cut_off(self) -> None:
        """Hang up on it."""


class Unfinished:
    """Those who hold much, longest first."""

    def __init__(self, limit: int) -> None:
        """`limit`: bytes."""
        self._limit = limit
        self._sizes: dict[Holder, int] = {}
        self.used = 0
        self.cut = 0  # connections

    def hold(self, holder: Holder, size: int) -> None:
        """A connection has so many bytes of something unfinished from now on; 0: nothing."""
        if size <= FEW_BYTES:
            self.used -= self._sizes.pop(holder, 0)
            return
        self.used += size - self._sizes.get(holder, 0)
        self._sizes[holder] = size
        while self.used > self._limit:
            longest = next(iter(self._sizes))
            self.used -= self._sizes.pop(longest)
            self.cut += 1
            longest.cut_off()
