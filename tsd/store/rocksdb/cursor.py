"""A cursor on a snapshot of a column family whose keys are those of runs or of blocks."""

from collections.abc import Callable
from contextlib import AbstractContextManager

from rocksdict import Rdict, ReadOptions

Translated = Callable[[], AbstractContextManager[None]]  # raises StoreError for an error of RocksDB in the block


class Cursor:
    """A place in a snapshot. Any method may raise StoreError."""

    def __init__(self, rows: Rdict, translated: Translated) -> None:
        self._translated = translated
        self._options = ReadOptions()  # must outlive the iterator
        self._options.set_background_purge_on_iterator_cleanup(True)
        self._at = rows.iter(self._options)

    def key_from(self, key: bytes) -> bytes | None:
        """Return the first key of the family that is not below a key."""
        self._at.seek(key)
        return self._key()

    def _key_to(self, key: bytes) -> bytes | None:
        """Return the last key of the family that is not above a key."""
        self._at.seek_for_prev(key)
        return self._key()

    def _key(self) -> bytes | None:
        """Return the key at the place, None past the end."""
        if not self._at.valid():
            with self._translated():
                self._at.status()
            return None
        key: bytes = self._at.key()
        return key

    def _value(self, key: bytes) -> bytes:
        """Return the value of a key that exists."""
        if not self._at.valid() or self._at.key() != key:
            self._at.seek(key)
            assert self._key() == key, key.hex()
        value: bytes = self._at.value()
        return value
