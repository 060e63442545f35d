"""Keeps a database usable: after an I/O error RocksDB refuses all writes until it is reopened."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import trio

from tsd.errors import DaemonRuns, StoreBusy, StoreError
from tsd.store.rocksdb.database import Database

REOPEN_S = 1.0  # between attempts to reopen a database after an error


class _WritesLost(StoreError):
    """The reopened database lacks writes that were accepted but not yet synced."""


class ReopenedDatabase:
    """A database that is reopened after an error, at most once a second, so a full disk needs no restart.

    If it then lacks accepted writes, it stays closed. Callers may already rely on those writes, so the process should
    exit as after a crash.
    """

    def __init__(self, reopen: Callable[[], Database], on_loss: Callable[[str], None], count: Counter[str]) -> None:
        """`on_loss` is called if writes were lost. `count` gets the errors, and how often it was reopened."""
        self.current = reopen()
        self._reopen = reopen
        self._on_loss = on_loss
        self._count = count
        self.changing = trio.Lock()  # held while it is reopened or closed
        self._next_at = 0.0  # when it may be tried again
        self._broken: str | None = None

    @property
    def is_broken(self) -> bool:
        """Whether it refuses writes until it is reopened."""
        return self._broken is not None

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Note an error of the block's writes: RocksDB refuses all others after it."""
        try:
            yield
        except StoreBusy:
            raise
        except StoreError as exc:
            self._count["errors"] += 1
            self._broken = str(exc)
            raise

    async def reopen(self, on_reopened: Callable[[], None]) -> None:
        """Reopen it with all accepted writes if it is broken, and call `on_reopened` before others use it. Raise
        StoreError if that fails."""
        async with self.changing:
            if self._broken is None:  # another call has reopened it
                return
            if trio.current_time() < self._next_at:
                raise StoreError(self._broken)
            self._next_at = trio.current_time() + REOPEN_S
            try:
                self.current = await trio.to_thread.run_sync(self._reopened)
            except _WritesLost as exc:
                self._on_loss(str(exc))
                raise
            self._broken = None
            self._count["reopened"] += 1
            on_reopened()

    def _reopened(self) -> Database:
        before = self.current
        before.probe()  # raises while the disk refuses writes, so that the database stays open for reads
        with suppress(StoreError):  # closing may fail with the same error
            before.close()
        try:
            database = self._reopen()
        except DaemonRuns as exc:  # locked by this process: a scan still uses it
            raise StoreError(str(self._broken)) from exc
        if database.sequence < before.sequence:
            database.close()
            raise _WritesLost(f"{database.path} was reopened without its last writes, which must be sent again")
        return database
