"""How whoever remembers rows learns that they are not the same any more: an engine that is the only way to its rows
tells of each write, and one that others write to signs what it holds."""

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

Told = Callable[[Iterable[bytes] | None], None]


@runtime_checkable
class TellsWrites(Protocol):
    """An engine that nobody can write to but by way of this object."""

    def on_write(self, table: str, told: Told) -> None:
        """From now on call `told` with the rows of each write to a table, deletes included, in the same step in which
        it is done and before anybody can read what it wrote; with None where any row may have changed."""
        ...


@runtime_checkable
class Signs(Protocol):
    """An engine that others write to as well."""

    async def signatures(
        self, table: str, start: bytes, stop: bytes | None, *, width: int, rows: int
    ) -> dict[bytes, bytes]:
        """For each group of rows from `start` to before `stop` that share their first `width` bytes, a signature of its
        cells as `Signing` makes it; `rows` is how many there are, about. Raises StoreError."""
        ...


class Signing:
    """Signs groups of rows, of which cells come in order, in any number of parts.

    Two groups of one signature have cells of the same rows, columns, write times and lengths of values. The values may
    differ only if somebody wrote one of the same length at the same time as another was written: whoever goes by
    signatures takes care that this cannot be.
    """

    def __init__(self, width: int) -> None:
        """`width`: so many bytes that the rows' keys start with make a group."""
        self._width = width
        self._groups: dict[bytes, _Group] = {}

    def add(
        self, keys: Sequence[bytes], columns: Sequence[bytes], lengths: NDArray[np.int64], times_ms: Sequence[int]
    ) -> None:
        """Take in some cells: of each its row, its column, how long its value is and when it was written."""
        at = 0
        while at < len(keys):
            prefix = keys[at][: self._width]
            end = self._end(keys, at, prefix)
            group = self._groups.get(prefix) or self._groups.setdefault(prefix, _Group())
            part = slice(at, end)
            group.add(keys[part], columns[part], lengths[part], times_ms[part])
            at = end

    def _end(self, keys: Sequence[bytes], at: int, prefix: bytes) -> int:
        """Where another group begins."""
        if keys[-1][: self._width] == prefix:
            return len(keys)
        return bisect_left(keys, True, lo=at, key=lambda key: key[: self._width] != prefix)

    def finish(self) -> dict[bytes, bytes]:
        """The signatures."""
        return {prefix: group.finish() for prefix, group in self._groups.items()}


class _Group:
    """What is signed of one group: texts and numbers each on their own, so that it matters not in which parts they
    came; the lengths among the numbers say where a text ends."""

    def __init__(self) -> None:
        self._hashes = [hashlib.sha256() for _ in range(3)]

    def add(
        self, keys: Sequence[bytes], columns: Sequence[bytes], lengths: NDArray[np.int64], times_ms: Sequence[int]
    ) -> None:
        numbers = np.empty((len(keys), 4), "<i8")
        numbers[:, 0] = np.fromiter(map(len, keys), np.int64, len(keys))
        numbers[:, 1] = np.fromiter(map(len, columns), np.int64, len(keys))
        numbers[:, 2] = lengths
        numbers[:, 3] = times_ms
        for digest, part in zip(self._hashes, (b"".join(keys), b"".join(columns), numbers.tobytes()), strict=True):
            digest.update(part)

    def finish(self) -> bytes:
        return b"".join([digest.digest() for digest in self._hashes])
