"""Bytes as they come from a socket → whole lines, in blocks. An unterminated line is never taken for a whole one."""

from typing import NamedTuple

START_BYTES = 300  # of a line that is too long, to know it by


class TooLong(NamedTuple):
    """A line of more than `limit` bytes stood here, and was skipped but for its `start`."""

    limit: int
    start: bytes


class LineBuffer:
    """Holds a line until its end has come, and at most `max_line` bytes of it.

    >>> lines = LineBuffer(1024)
    >>> lines.feed(b"help\\r"), lines.feed(b"\\nversion\\nput m 17")
    ([], [b'help\\nversion\\n'])
    >>> lines.tail
    b'put m 17'
    """

    def __init__(self, max_line: int) -> None:
        self._max = max_line
        self._skipping = False
        self.tail = b""

    def feed(self, data: bytes) -> list[bytes | TooLong]:
        """The whole lines that `data` completes, LF-terminated and without CR before it, blocks of them; among them,
        where they stood, the lines that were too long."""
        if self._skipping:
            end = data.find(b"\n")
            if end < 0:
                return []
            self._skipping = False
            data = data[end + 1 :]
        cut = data.rfind(b"\n") + 1
        if not cut:
            self.tail += data
            return self._bound_tail([])
        block = b"".join((self.tail, memoryview(data)[:cut])) if self.tail else data[:cut]  # copied once, if at all
        self.tail = data[cut:]
        return self._bound_tail(self._without_long_lines(block.replace(b"\r\n", b"\n") if b"\r" in block else block))

    @property
    def is_between(self) -> bool:
        """Whether the next byte begins a line."""
        return not self.tail and not self._skipping

    def is_whole(self, data: bytes) -> bool:
        """Whether `feed` would return `data` as it is, in one block, and hold nothing. Nothing is fed.

        >>> lines = LineBuffer(1024)
        >>> lines.is_whole(b"put m 17 1 a=b\\n"), lines.is_whole(b"help\\r\\n"), lines.is_whole(b"put m 17")
        (True, False, False)
        """
        if self.tail or self._skipping or not data.endswith(b"\n") or b"\r" in data:
            return False
        return len(data) <= self._max + 1 or self._without_long_lines(data) == [data]

    def _bound_tail(self, found: list[bytes | TooLong]) -> list[bytes | TooLong]:
        if len(self.tail) > self._max + 1:  # a CR may still be its last byte
            found.append(self._too_long(self.tail))
            self.tail = b""
            self._skipping = True
        return found

    def _too_long(self, start: bytes) -> TooLong:
        return TooLong(self._max, start[: min(START_BYTES, self._max)])

    def _without_long_lines(self, block: bytes) -> list[bytes | TooLong]:
        """The block, cut where a line is too long. Looks at every `max_line`-th byte or so only."""
        found: list[bytes | TooLong] = []
        start = at = 0
        while at < len(block):
            end = block.rfind(b"\n", at, at + self._max + 1)
            if end < 0:
                if at > start:
                    found.append(block[start:at])
                found.append(self._too_long(block[at : at + START_BYTES]))
                start = at = block.index(b"\n", at) + 1
            else:
                at = end + 1
        if start < len(block):
            found.append(block[start:])
        return found
