"""Received bytes → blocks of whole lines."""

from typing import NamedTuple

MAX_LINE_BYTES = 16384  # a longer line is refused and skipped (OpenTSDB: 1024)
START_BYTES = 300  # of a line that is too long, to recognise it


class TooLong(NamedTuple):
    """A line of more than `limit` bytes was skipped here, except its `start`."""

    limit: int
    start: bytes


class LineBuffer:
    """Buffers an unterminated line, at most `max_line` bytes of it.

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
        """Return the whole lines that `data` completes, in blocks: LF-terminated and without CR. A line that was too
        long is replaced by a TooLong."""
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
        """Return whether `feed` would return `data` unchanged as one block and buffer nothing. The buffer is not
        changed.

        >>> lines = LineBuffer(1024)
        >>> lines.is_whole(b"put m 17 1 a=b\\n"), lines.is_whole(b"help\\r\\n"), lines.is_whole(b"put m 17")
        (True, False, False)
        """
        if self.tail or self._skipping or not data.endswith(b"\n") or b"\r" in data:
            return False
        return len(data) <= self._max + 1 or self._without_long_lines(data) == [data]

    def _bound_tail(self, found: list[bytes | TooLong]) -> list[bytes | TooLong]:
        if len(self.tail) > self._max + 1:  # its last byte may be a CR
            found.append(self._too_long(self.tail))
            self.tail = b""
            self._skipping = True
        return found

    def _too_long(self, start: bytes) -> TooLong:
        return TooLong(self._max, start[: min(START_BYTES, self._max)])

    def _without_long_lines(self, block: bytes) -> list[bytes | TooLong]:
        """Split a block at the lines that are too long. Searches about one LF for the bytes of the longest line."""
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
