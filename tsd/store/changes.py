"""How whoever remembers rows learns that they are not the same any more: an engine that is the only way to its rows
tells of each write, and one that others write to signs what it holds."""

import secrets
import struct
from collections.abc import Callable, Iterable
from hashlib import blake2b
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from tsd.store.keyvalue import HAS_LOOP

if HAS_LOOP:
    from tsd.store import _split

SECRETS = secrets.randbits(64), secrets.randbits(64)
_HASH = struct.Struct("<QQ")
_KEY = _HASH.pack(*SECRETS)
_NUMBERS = struct.Struct("<4q")
_MASK = (1 << 64) - 1
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
    """Signs groups of rows, whose cells come in any order and in any number of parts.

    A signature is the sum of a hash of each cell: 128 bits, with a secret of this process. Two groups of one signature
    have cells of the same rows, columns, write times and lengths of values. The values may differ only if somebody
    wrote one of the same length at the same time as another was written: whoever goes by signatures takes care that
    this cannot be.
    """

    def __init__(self, width: int, *, by_loop: bool = HAS_LOOP) -> None:
        """`width`: so many bytes that the rows' keys start with make a group. `by_loop`: in the compiled loop, whose
        signatures are other ones."""
        self._width = width
        self.by_loop = by_loop
        self._sums: dict[bytes, tuple[int, int]] = {}

    def add(self, keys: list[bytes], columns: list[bytes], lengths: NDArray[np.int64], times_ms: list[int]) -> None:
        """Take in some cells: of each its row, its column, how long its value is and when it was written."""
        if self.by_loop:
            _split.sign_cells(keys, columns, lengths, times_ms, self._width, *SECRETS, self._sums)
            return
        for key, column, length, time_ms in zip(keys, columns, lengths.tolist(), times_ms, strict=True):
            numbers = _NUMBERS.pack(len(key), len(column), length, time_ms)
            low, high = _HASH.unpack(blake2b(numbers + key + column, digest_size=16, key=_KEY).digest())
            before = self._sums.get(key[: self._width], (0, 0))
            self._sums[key[: self._width]] = (before[0] + low) & _MASK, (before[1] + high) & _MASK

    def add_rows(
        self, room: memoryview, at: int, have: int, wanted: int, before: bytes
    ) -> tuple[int, int, bool, bytes]:
        """Take in up to `wanted` rows of a gateway's answer that starts at a place (see tsd.store.rowanswers), their
        values the lengths of values; how many were whole, where they end, whether what follows can be a row whose key
        is above that of the one before, first of all `before`, and the last key. Only by the loop."""
        found: tuple[int, int, bool, bytes] = _split.sign_rows(
            room, at, have, wanted, self._width, *SECRETS, before, self._sums
        )
        return found

    def finish(self) -> dict[bytes, bytes]:
        """The signatures."""
        return {prefix: _HASH.pack(*sums) for prefix, sums in self._sums.items()}
