"""Write times of an embedded database: they never go backwards, whatever the wall clock does, restarts included.

A cell holds its newest value. Where stamps only grow, the later of two writes is the newer one, and none has to read
what is there. Only a put with a time of its own breaks that: it may be older than what it meets, and it may leave a
cell that is ahead of the clock. So the highest such time is kept too: a stamp that is not below it needs no look.

What a restart must know is written with the cells, in the same batch: a mark that no stamp passes, set a second ahead
so that it is written once a second at most, and the highest time of its own. After a crash stamps start at the mark.
"""

from collections.abc import Callable

LEAD_MS = 1000  # how far the mark is ahead: what a crash may push stamps into the future


class Stamps:
    """The clock of one open database."""

    def __init__(self, clock_ms: Callable[[], int], saved: bytes | None) -> None:
        """`saved` is the last record that was written, None for a new database."""
        self._clock_ms = clock_ms
        self._saved_mark_ms, self._saved_ahead_ms = _decode(saved)
        self._last_ms = self._saved_mark_ms
        self._ahead_ms = self._saved_ahead_ms

    def now(self) -> int:
        """A stamp for what is written now."""
        self._last_ms = max(self._last_ms, self._clock_ms())
        return self._last_ms

    def again(self, stamp: int) -> int:
        """A stamp for more of what got `stamp`: it may be the same while nobody got a later one."""
        return self.now() if stamp == self._last_ms else self.next()

    def next(self) -> int:
        """A stamp above all before it, whether or not the clock has moved on."""
        self._last_ms = max(self._last_ms + 1, self._clock_ms())
        return self._last_ms

    def note(self, time_ms: int) -> None:
        """Remember a time that a put brought along."""
        self._ahead_ms = max(self._ahead_ms, time_ms)

    def is_newest(self, time_ms: int) -> bool:
        """Whether no cell can be newer than that."""
        return time_ms >= self._ahead_ms and time_ms >= self._last_ms

    def unsaved(self) -> bytes | None:
        """The record that must go along with cells of the latest stamp or time, None where the saved one will do."""
        if self._last_ms <= self._saved_mark_ms and self._ahead_ms <= self._saved_ahead_ms:
            return None
        mark = self._saved_mark_ms if self._last_ms <= self._saved_mark_ms else self._last_ms + LEAD_MS
        return _encode(mark, self._ahead_ms)

    def saved(self, record: bytes) -> None:
        """Take note that a record was written."""
        self._saved_mark_ms, self._saved_ahead_ms = _decode(record)

    def last_record(self) -> bytes:
        """What an orderly end writes, so that the next start need not skip ahead."""
        return _encode(self._last_ms, self._ahead_ms)


def _encode(mark_ms: int, ahead_ms: int) -> bytes:
    return mark_ms.to_bytes(8, "big") + ahead_ms.to_bytes(8, "big")


def _decode(record: bytes | None) -> tuple[int, int]:
    return (int.from_bytes(record[:8], "big"), int.from_bytes(record[8:], "big")) if record else (0, 0)
