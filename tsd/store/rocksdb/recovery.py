"""Recovery check of RocksDB: open a database only if its write-ahead log has all writes that a sync covered.

RocksDB reads its log up to the first damaged byte and drops the rest. That is right for the unsynced end of a log after
a power loss, but not for damage in the middle. So the sequence number of the last synced write is kept in a file in the
database's folder, and an opening must reach it. The number is a maximum over all logs. An older log that another table
still needs is checked by its size in RocksDB's manifest (see tsd.store.rocksdb.options).

    store/synced        "synced 000000000123 crc 00000000"; without it there is no check
    store/damaged-wal   copies of logs that could not be read to their ends, from an opening without the check

The file is written after the sync that it records and is not synced itself, so its number is never too high.
"""

import os
import re
import zlib
from contextlib import suppress
from pathlib import Path

from rocksdict import AccessType, DBRecoveryMode, Options, Rdict

from tsd.config.files import exists, with_suffix
from tsd.errors import StoreError
from tsd.lazy import LazyLogger
from tsd.store.rocksdb.options import OPEN_FILES

log = LazyLogger(__name__)

_RECORD = re.compile(rb"synced (\d{12,}) crc ([0-9a-f]{8})\n")
_CORRUPTION = re.compile("^Corruption: ")
_LOG_MISSING = re.compile("^Corruption: .*(ahead of WALs|Missing WAL|Size mismatch: WAL)")


class WritesLost(StoreError):
    """Writes that a sync had covered are missing. Without the file `record` the database opens without them."""

    def __init__(self, message: str, record: Path) -> None:
        super().__init__(message)
        self.record = record


class SyncedRecord:
    """The sequence number of the last write that is known to be on disk."""

    def __init__(self, folder: Path) -> None:
        """Read the record in `folder`. Raise OSError."""
        self.path = folder / "synced"
        self.number = self._read()

    def _read(self) -> int | None:
        """Return the number, None if the file is missing or damaged."""
        try:
            text = self.path.read_bytes()
        except FileNotFoundError:
            return None
        match = _RECORD.fullmatch(text)
        if match is not None and _encode(int(match[1])) == text:
            return int(match[1])
        if text:  # an empty file is left by a power loss during its creation
            log.error("store.sync_record_damaged", path=str(self.path), got=repr(text[:60]))
        return None

    def save(self, number: int) -> None:
        """Record that a sync covered all writes up to `number`. A disk error leaves the record as it is."""
        if self.number is not None and number <= self.number:
            return
        with suppress(OSError):
            fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o640)
            try:
                os.pwrite(fd, _encode(number), 0)
            finally:
                os.close(fd)
            self.number = number


def _encode(number: int) -> bytes:
    text = b"synced %012d" % number
    return text + b" crc %08x\n" % zlib.crc32(text)


def open_checked(path: Path, options: Options, families: dict[str, Options], synced: SyncedRecord) -> Rdict:
    """Open the database in `path`. Raise WritesLost if writes covered by `synced` are missing, otherwise rocksdict's
    exceptions. A failed opening changes nothing."""
    options.set_wal_recovery_mode(DBRecoveryMode.absolute_consistency())
    try:
        found = Rdict(str(path), options, families)
    except Exception as exc:
        if not _CORRUPTION.search(str(exc)):
            raise
        found = _open_truncated(path, options, families, synced)
    reached = found.latest_sequence_number()
    if synced.number is not None and reached < synced.number:
        found.close()
        raise _lost(path, reached, synced)
    if not families:
        synced.save(reached)  # a new database
    return found


def _open_truncated(path: Path, options: Options, families: dict[str, Options], synced: SyncedRecord) -> Rdict:
    """Open the database as of the first damage in its log; if there is no such state, without the unreadable parts."""
    options.set_wal_recovery_mode(DBRecoveryMode.point_in_time())
    try:  # read-only: a normal opening removes the logs
        probe = Rdict(str(path), options, families, access_type=AccessType.read_only())
    except Exception as exc:
        if not _LOG_MISSING.search(str(exc)):
            raise
        return _open_with_gaps(path, options, families, synced, str(exc))
    reached = probe.latest_sequence_number()
    probe.close()
    if synced.number is not None and reached < synced.number:
        raise _lost(path, reached, synced)
    if synced.number is not None:
        log.warning("store.unsynced_writes_dropped", path=str(path))
    else:
        kept = _keep_logs(path)
        log.error(
            "store.writes_lost", path=str(path), readable_writes=reached, logs_kept_in=str(kept), next_step="tsd fsck"
        )
    return Rdict(str(path), options, families)


def _open_with_gaps(
    path: Path, options: Options, families: dict[str, Options], synced: SyncedRecord, reason: str
) -> Rdict:
    """Open the database without the unreadable parts of its logs. This may lose writes of one table and keep later ones
    of another table, which are already in its files."""
    if synced.number is not None:
        raise WritesLost(
            f"{path}: its write-ahead log is damaged: {reason.rstrip('.')}. Restore a backup; or, to continue "
            f"without the unreadable writes, remove {synced.path}",
            synced.path,
        )
    kept = _keep_logs(path)
    log.error("store.writes_lost", path=str(path), error=reason, logs_kept_in=str(kept), next_step="tsd fsck")
    Rdict(str(path), _skipping(), families).close()  # moves the readable writes to the tables, and removes the logs
    return Rdict(str(path), options, families)


def _skipping() -> Options:
    """Return options that read all readable records of logs and ignore the sizes in the manifest. Never open read-only
    with them: RocksDB 9.8 then aborts the process, because it tries to record that sizes are no longer kept."""
    result = Options(raw_mode=True)
    result.set_wal_recovery_mode(DBRecoveryMode.skip_any_corrupted_record())
    result.set_max_open_files(OPEN_FILES)
    return result


def _keep_logs(path: Path) -> Path:
    """Link the logs into a folder, because the next opening removes them; return the folder."""
    folder = path / "damaged-wal"
    folder.mkdir(exist_ok=True)
    for log_file in with_suffix(path, ".log"):
        kept = folder / log_file.name
        if not exists(kept):
            os.link(log_file, kept)
    return folder


def _lost(path: Path, reached: int, synced: SyncedRecord) -> WritesLost:
    return WritesLost(
        f"{path}: its write-ahead log is damaged: {synced.number} writes were on disk, {reached} can be read. Restore "
        f"a backup; or, to continue without the writes after the damage, remove {synced.path}",
        synced.path,
    )
