"""Pictures that were drawn, for those who ask for the same one again soon; bounded in bytes."""

from collections import OrderedDict
from typing import Any, NamedTuple


class Drawn(NamedTuple):
    """A picture and what is told of it."""

    picture: bytes
    told: dict[str, Any]  # as /q?json answers
    made_ms: int
    max_age_s: int


class Cache:
    """The pictures asked for last."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._drawn: OrderedDict[str, Drawn] = OrderedDict()
        self.bytes = 0

    def find(self, key: str, now_ms: int) -> Drawn | None:
        """A picture that is not too old."""
        found = self._drawn.get(key)
        if found is None:
            return None
        if not found.made_ms <= now_ms <= found.made_ms + found.max_age_s * 1000:
            self._forget(key)
            return None
        self._drawn.move_to_end(key)
        return found

    def keep(self, key: str, drawn: Drawn) -> None:
        """Remember a picture, and forget those that were not asked for longest."""
        self._forget(key)
        if drawn.max_age_s <= 0 or len(drawn.picture) > self._limit:
            return
        self._drawn[key] = drawn
        self.bytes += len(drawn.picture)
        while self.bytes > self._limit:
            self._forget(next(iter(self._drawn)))

    def _forget(self, key: str) -> None:
        if (old := self._drawn.pop(key, None)) is not None:
            self.bytes -= len(old.picture)
